"""``ds4proto compare``: no verdict on a peer that was not seen whole."""

from __future__ import annotations

from typing import Any

import ds4proto_conformance.front as front_module
import pytest
from ds4proto_conformance.report.stream import Report

from ds4proto.cli import run
from ds4proto.errors import ExitCode


@pytest.mark.parametrize(
    ("status", "stopped", "says"),
    [
        (ExitCode.PEER_LOST, "the peer closed the connection", "closed"),
        (ExitCode.NOTHING_RAN, "", "no case applies"),
        (ExitCode.NOTHING_RAN, "interrupted: the rest was not run", "interrupted"),
        (ExitCode.FAILED, "interrupted: the rest was not run", "interrupted"),
    ],
)
def test_half_a_run_is_not_compared(
    status: ExitCode,
    stopped: str,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def half(*_: Any) -> tuple[Report, ExitCode]:
        report = Report({"role": "worker"})
        report.footer = {"exit": int(status), "identity": {}, "stopped": stopped}
        return report, status

    monkeypatch.setattr(front_module, "run", half)
    lost = status is ExitCode.PEER_LOST
    assert run(["compare", "reference:worker", "reference:worker"]) == (
        ExitCode.PEER_LOST if lost else ExitCode.NOTHING_RAN
    )
    out, err = capsys.readouterr()
    assert says in err
    assert out == ""


def test_a_scale_of_time_is_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["smoke", "--peer", "reference:worker", "--time-scale", "nan"]) == 2
    assert "--time-scale" in capsys.readouterr().err
