"""Recorded runs of real peers, judged without talking to anyone."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from ds4proto_conformance.passive import judge_capture, judge_rows

from ds4proto.errors import ExitCode
from ds4proto.testing import capture_path, captures_dir
from ds4proto.trace import decode

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


RANKS = ("tp-leader", "tp-worker")
LIES = {
    ("v10_asym_glm", "tp-worker"): {"DS4T-GATE-03"},
    ("v7_asym_glm", "tp-worker"): {"DS4T-GATE-03"},
}
"""Real ranks that were made to say another gate schedule than they keep."""


def real_ranks() -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Yield each capture and the sides in it that were real builds."""
    for path in sorted((captures_dir() / "ds4t").glob("*.pcap")):
        if path.stem.endswith("two_workers_no_leader"):
            continue  # nobody says a word
        roles = [r for r in RANKS if f"_to_{r.removeprefix('tp-')}_" in path.stem]
        yield path, tuple(roles) or RANKS


def test_no_real_rank_is_failed() -> None:
    found, judged = {}, 0
    for path, roles in real_ranks():
        rows = list(decode(str(path), payload="none"))
        for role in roles:
            lines, types = judge_rows(rows, role)
            assert types, (path.stem, role)
            judged += 1
            bad = {name for name, line in lines.items() if line["verdict"] == "fail"}
            if bad:
                found[path.stem, role] = bad
    assert judged > 300
    assert found == LIES


@pytest.mark.parametrize(
    ("name", "clause", "behind"),
    [
        ("v9_asym_chunk", "DS4B-BULK-05", "GATE_BULK"),
        ("v9_ident_n_layer", "DS4T-HELLO-05", "SESSION_CREATE"),
    ],
)
def test_ranks_set_up_differently_have_to_end(
    name: str, clause: str, behind: str
) -> None:
    rows = list(decode(str(capture_path(f"ds4t/{name}.pcap")), payload="none"))
    lines, _ = judge_rows(rows, None)
    assert lines[clause]["verdict"] == "pass"
    assert "the ranks differ" in "".join(lines[clause]["notes"])
    at = next(row for row in rows if any(p.clause == clause for p in row.problems))
    on = msgspec.structs.replace(at, type=behind, src_role="leader", problems=())
    lines, _ = judge_rows([*rows, on], "tp-leader")
    assert lines[clause]["verdict"] == "fail"
    assert "leader goes on" in lines[clause]["deviations"][0]["found"]
    lines, _ = judge_rows([*rows, on], "tp-worker")
    assert lines[clause]["verdict"] == "pass"
