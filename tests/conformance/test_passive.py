"""Recorded runs of real peers, judged without talking to anyone."""

from pathlib import Path

import pytest
from ds4proto_conformance.passive import judge_capture

from ds4proto.errors import ExitCode
from ds4proto.testing import capture_path, captures_dir

PROBES = {"h_hello_reject_quant", "i_coordinator_hello", "i_worker_work"}
"""Recordings in which one side was made to send what it must not."""
RUNS = sorted(
    path for path in (captures_dir() / "ds4d").glob("*.pcap") if path.stem not in PROBES
) + sorted((captures_dir() / "toy").glob("*/*.pcap"))


@pytest.mark.parametrize(
    "path", RUNS, ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_real_peers_are_not_failed(path: Path) -> None:
    report, status = judge_capture(str(path))
    bad = {
        k: v["deviations"] for k, v in report.cases.items() if v["verdict"] != "pass"
    }
    assert bad == {}
    assert status is ExitCode.PASSED
    assert report.cases


def test_a_side_that_was_made_to_err_is_failed_and_the_other_is_not() -> None:
    path = str(capture_path("ds4d/i_worker_work.pcap"))
    report, status = judge_capture(path, "coordinator")
    assert status is ExitCode.FAILED
    assert report.cases["capture/DS4D-ROUTE-04"]["verdict"] == "fail"
    _, status = judge_capture(path, "worker")
    assert status is ExitCode.PASSED
