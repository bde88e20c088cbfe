"""Every case and every run ends in its time, and says meanwhile what it waits for."""

import itertools
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ds4proto_conformance.bench.budget import Budget, OverTime, TimeIsUp
from ds4proto_conformance.front import run
from ds4proto_conformance.mutants import find
from ds4proto_conformance.peers.loop import loop_opener
from ds4proto_conformance.progress import EVERY, Progress
from ds4proto_conformance.registry import all_cases
from ds4proto_conformance.runner import Runner
from ds4proto_conformance.settings import ANSWERS, PATIENCE, Settings
from ds4proto_conformance.verdicts import Verdict

from ds4proto.errors import ExitCode
from ds4proto.peer import PeerLost

SHIM = Path(__file__).parents[2] / "conformance" / "shims" / "codec_shim.py"


class Clock:
    """Goes on by itself, a step at each look."""

    def __init__(self, step: float = 0.0) -> None:
        self.time = 0.0
        self.step = step

    def now(self) -> float:
        self.time += self.step
        return self.time


def test_a_combination_ends_in_its_time() -> None:
    clock = Clock()
    budget = Budget(10.0, now=clock.now)
    budget.wait("a RESULT")
    clock.time = 9.9
    budget.wait("a RESULT")
    clock.time = 10.0
    with pytest.raises(OverTime, match=r"2 waits in 10 s.*waiting for a RESULT.*Next"):
        budget.wait("a RESULT")
    budget.begin()
    budget.wait("a RESULT")


def test_a_run_ends_in_its_time() -> None:
    clock = Clock()
    budget = Budget(10.0, 15.0, now=clock.now)
    clock.time = 9.0
    budget.begin()
    clock.time = 15.0
    with pytest.raises(TimeIsUp, match=r"not over in 15 s.*a HELLO.*Next: ") as caught:
        budget.wait("a HELLO")
    assert caught.value.exit_code is ExitCode.NOTHING_RAN


def test_a_combination_has_the_time_of_many_late_answers() -> None:
    short = Settings("x", "worker", patience=0.1)
    assert short.case_seconds == ANSWERS * PATIENCE
    assert replace(short, patience=20.0).case_seconds == ANSWERS * 20.0
    assert replace(short, time_scale=3.0).case_seconds == 3 * ANSWERS * PATIENCE
    assert replace(short, case_limit=7.0, time_scale=2.0).case_seconds == 14.0


def test_a_long_run_says_where_it_is() -> None:
    clock, said = Clock(), list[str]()
    progress = Progress(lambda: "worker/work/x, combination 2 of 3", now=clock.now,
                        say=said.append)  # fmt: skip
    progress.cases, progress.combinations = 4, 10
    progress.waits("a frame on 'data'")
    assert said == []
    progress.ended(4)
    clock.time = 2 * EVERY
    progress.waits("a frame on 'data'")
    progress.waits("a frame on 'data'")
    assert said == [
        "... 30 s, 1 of 4 cases done: worker/work/x, combination 2 of 3: waiting for a"
        " frame on 'data'; about 45 s more"
    ]


@pytest.mark.parametrize("role", ["worker", "coordinator", "tp-worker", "tp-leader"])
def test_a_peer_that_goes_on_for_ever_fails(role: Any) -> None:
    """Each of its frames comes in time; the clock of the budget alone runs away."""
    clock = Clock()

    def endless(peer: Any) -> None:
        clock.step = 1.0
        if role == "tp-leader":
            for step in itertools.cycle([peer.until("SESSION_CREATE")]):
                peer.control.quiet(0.0)
                assert step
        while True:
            if role == "worker":
                peer.work().served()
            elif role == "coordinator":
                peer.register().wire.quiet(0.0)
            else:
                peer.command("REWIND", session_id=1, position=0)
                peer.control.quiet(0.0)

    case = replace(all_cases(role)[0], body=endless, params={}, positions=())
    settings = Settings("loop:x", role, ctx=256, patience=30.0, quiet=0.01, retry=False)
    budget = Budget(300.0, now=clock.now)
    runner = Runner(settings, loop_opener(find(role, "none")), budget)
    try:
        found = runner.run(case)
    finally:
        runner.close()
    assert found.verdict is Verdict.FAIL
    assert found.deviations[0]["clause"] == case.clauses[0]
    assert found.deviations[0]["expected"] == "the case to be over in 300 s"
    assert "still waiting for " in found.deviations[0]["found"]


def test_the_run_stops_at_its_limit() -> None:
    settings = Settings("tcp:127.0.0.1:1", "coordinator", time_limit=1e-9)
    report, status = run(settings, "smoke")
    assert status is ExitCode.NOTHING_RAN
    assert "--time-limit" in report.footer["stopped"]


def test_an_interrupted_run_is_no_success() -> None:
    """What was judged stays in the report, and the exit status is not 0."""
    seen = []

    def interrupt(line: Any) -> None:
        seen.append(line["id"])
        raise KeyboardInterrupt

    settings = Settings(f"codec:{sys.executable} {SHIM}", "codec")
    report, status = run(settings, watch=interrupt)
    assert list(report.cases) == seen
    assert report.cases[seen[0]]["verdict"] == "pass"
    assert status is ExitCode.NOTHING_RAN
    assert report.footer["stopped"].startswith("interrupted")


def test_a_peer_that_cannot_be_met_ends_the_run(tmp_path: Path) -> None:
    """It fails what was asked, and the rest is spared."""
    peer = tmp_path / "peer.py"
    peer.write_text(
        "import socket, sys\n"
        "s = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "s.sendall(b'T4SD' + bytes(60))\n"
        "s.recv(1)\n"
    )
    settings = Settings(
        f"exec:{sys.executable} {peer} {{host}} {{port}}", "worker", retry=False
    )
    report, status = run(settings, only=[c.id for c in all_cases("worker")[:4]])
    assert status is ExitCode.FAILED
    assert len(report.cases) == 2
    found = next(iter(report.cases.values()))["deviations"][0]
    assert found["clause"] == "DS4D-FRAME-01"
    assert "--role tp-worker" in found["found"]
    assert "could not be met" in report.footer["stopped"]


def test_a_peer_that_is_gone_ends_the_run() -> None:
    """The case that found out fails, the next one is not even tried."""
    fault = find("coordinator", "none")
    met: list[Any] = []

    def kill(peer: Any) -> None:
        met.append(peer)
        peer.connections._thread = threading.Thread()  # one that does not run
        peer.register()

    cases = all_cases("coordinator")
    case = replace(
        cases[0], body=lambda peer, _p: kill(peer), params={"x": (1, 2)}, id="x"
    )
    settings = Settings("tcp:x", "coordinator", ctx=256, patience=20.0)
    runner = Runner(settings, loop_opener(fault))
    try:
        found = runner.run(case)
        assert found.verdict is Verdict.FAIL
        assert found.notes[-1].startswith("the peer did not come back")
        assert len(met) == 1
        with pytest.raises(PeerLost):
            runner.run(cases[0])
    finally:
        runner.close()
