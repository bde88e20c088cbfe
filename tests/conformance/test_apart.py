"""A coordinator that sends WORK over a connection of its own is judged like others."""

import pytest
from ds4proto_conformance.bench.apart import ApartWire
from ds4proto_conformance.bench.coordinator import CoordinatorBench
from ds4proto_conformance.mutants import find
from ds4proto_conformance.peers.loop import loop_opener
from ds4proto_conformance.registry import all_cases
from ds4proto_conformance.runner import Runner
from ds4proto_conformance.settings import Settings
from ds4proto_conformance.verdicts import Verdict

CASES = {case.id: case for case in all_cases("coordinator")}


UNHURRIED = 2.0
"""Seconds of silence where what was judged in a hurry is judged again."""


def runner_of(name: str, quiet: float = 0.05) -> Runner:
    settings = Settings(
        "loop:x", "coordinator", ctx=256, patience=20.0, quiet=quiet, retry=False
    )
    return Runner(settings, loop_opener(find("coordinator", name)))


@pytest.mark.parametrize(
    ("peer", "verdicts"),
    [
        ("none", {"coordinator/dialect/work-apart": Verdict.NOT_APPLICABLE}),
        (
            "none-apart",
            {
                "coordinator/dialect/work-apart": Verdict.PASS,
                "coordinator/work/decode": Verdict.PASS,
                "coordinator/result/closed": Verdict.PASS,
                "coordinator/result/request-id": Verdict.PASS,
                "coordinator/recovery/remote-error": Verdict.PASS,
                "coordinator/hello/replaced": Verdict.PASS,
                "coordinator/hello/comes-back": Verdict.PASS,
                "coordinator/hello/split": Verdict.PASS,
                "coordinator/snapshot/save": Verdict.PASS,
                "coordinator/route/two-hops": Verdict.NOT_APPLICABLE,
            },
        ),
        ("apart-and-on-control", {"coordinator/dialect/work-apart": Verdict.FAIL}),
    ],
)
def test_verdicts(peer: str, verdicts: dict[str, Verdict]) -> None:
    found: dict[str, Verdict] = {}
    for quiet in (0.05, UNHURRIED):
        due = [name for name in verdicts if found.get(name) is not verdicts[name]]
        runner = runner_of(peer, quiet)
        try:
            found |= {name: runner.run(CASES[name]).verdict for name in due}
        finally:
            runner.close()
        if due:
            own = peer != "none"
            assert (runner.identity["work_on"] != "control") is own
    assert found == verdicts


def test_faults_are_still_caught() -> None:
    """What a fault does on a connection of its own is blamed on its clause."""
    from dataclasses import replace

    fault = replace(find("coordinator", "decode-position-off"), position="apart")
    settings = Settings("loop:x", "coordinator", ctx=256, patience=20.0, retry=False)
    runner = Runner(settings, loop_opener(fault))
    try:
        found = runner.run(CASES["coordinator/work/decode"])
    finally:
        runner.close()
    assert found.verdict is Verdict.FAIL
    assert found.deviations[0]["clause"] == "DS4D-COORD-13"


def test_both_connections_end_with_the_worker() -> None:
    runner = runner_of("none-apart")
    try:
        peer = runner.bench()
        assert isinstance(peer, CoordinatorBench)
        peer.begin(1)
        hop = peer.register()
        hop.work()
        wire = hop.wire
        assert isinstance(wire, ApartWire)
        assert wire.apart
        assert wire.channel is not wire.control.channel
        wire.close()
        assert wire.channel.closed
        assert wire.control.channel.closed
    finally:
        runner.close()
