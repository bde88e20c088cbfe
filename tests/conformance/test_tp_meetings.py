"""Whom a missing checkpoint is blamed on; images, cycles, and what a sync ends with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from ds4proto_conformance.kill import KILLS
from ds4proto_conformance.mutants import all_mutants, find
from ds4proto_conformance.mutants.tp_images import record, with_image
from ds4proto_conformance.peers.faults import Fault, patched
from ds4proto_conformance.peers.tp_leader import SmallTpLeader
from ds4proto_conformance.peers.tp_loop import tp_loop_opener
from ds4proto_conformance.peers.tp_worker import SmallTpWorker
from ds4proto_conformance.registry import all_cases
from ds4proto_conformance.runner import Runner
from ds4proto_conformance.settings import Settings
from ds4proto_conformance.verdicts import Outcome, Verdict

from ds4proto.link import ds4t_events as say
from ds4proto.link.ds4t_events import CHUNK, END, START

GENEROUS, UNHURRIED, HURRIED = 20.0, 6.0, 0.6


@pytest.fixture(autouse=True)
def unhurried_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a small rank time for a gate: this machine may stall."""
    monkeypatch.setattr("ds4proto_conformance.peers.tp_rank.GATE_IDLE", 30.0)


def judge(fault: Fault, case: str, patience: float = HURRIED) -> Outcome:
    """Judge a rank, without hurry where it has to be a sound one."""
    settings = Settings(
        "loop:x",
        fault.role,
        patience=patience,
        quiet=0.04 if patience < GENEROUS else 0.5,
        connect=GENEROUS,
        retry=False,
        keep_frames=False,
    )
    runner = Runner(settings, tp_loop_opener(fault))
    try:
        return runner.run(next(c for c in all_cases(fault.role) if c.id == case))
    finally:
        runner.close()


def is_blamed(fault: Fault, case: str, *clauses: str) -> bool:
    """Tell whether a fault is blamed on one of some clauses, at the second look too.

    On a machine that stalls, an answer that is on its way is taken for silence.
    """
    for patience in (HURRIED, UNHURRIED):
        found = judge(fault, case, patience)
        clause = found.deviations[0]["clause"] if found.deviations else ""
        if found.verdict in KILLS and clause in clauses:
            return True
    return False


def without(rank: Any, *points: int) -> Callable[[], Any]:
    """Return a patch of a rank that does not meet at some points."""

    def patch() -> Any:
        own = rank.meet

        def meet(self: Any, point: int, current: int, total: int) -> bool:
            return False if point in points else own(self, point, current, total)

        return patched((rank, "meet", meet))

    return patch


def seconds(rank: Any) -> Callable[[], Any]:
    """Return a patch of a rank that reads each checkpoint before it says its own."""

    def patch() -> Any:
        own = rank.meet

        def meet(self: Any, point: int, current: int, total: int) -> bool:
            while not isinstance(self.next_event(), say.PeerCheckpoint):
                pass
            return bool(own(self, point, current, total))

        return patched((rank, "meet", meet))

    return patch


def patient(limits: Any) -> Any:
    """Give a rank more time than the tester takes for granted."""
    return replace(limits, answer=60.0, verdict=60.0, stall=60.0)


@pytest.mark.parametrize(
    ("points", "clause"),
    [
        ((START, CHUNK, END), "DS4T-CKPT-09"),
        ((CHUNK,), "DS4T-CKPT-10"),
        ((CHUNK, END), "DS4T-CKPT-10"),
        ((END,), "DS4T-CKPT-11"),
    ],
)
def test_a_worker_that_leaves_a_point_out(points: tuple[int, ...], clause: str) -> None:
    patch = without(SmallTpWorker, *points)
    fault = Fault("x", "tp-worker", "state", "", patch=patch)
    assert is_blamed(fault, "tp-worker/checkpoints/points", clause)


@pytest.mark.parametrize(
    ("points", "clauses"),
    [
        ((START,), ("DS4T-CKPT-06", "DS4T-CKPT-09")),
        ((CHUNK,), ("DS4T-CKPT-10",)),
    ],
)
def test_a_leader_that_leaves_a_point_out(
    points: tuple[int, ...], clauses: tuple[str, ...]
) -> None:
    """One that is silent at the start may as well wait for ours; or it is gone."""
    patch = without(SmallTpLeader, *points)
    fault = Fault("x", "tp-leader", "state", "", patch=patch)
    assert is_blamed(fault, "tp-leader/checkpoints/first", *clauses)


def test_a_worker_that_reads_first_is_right_another_way() -> None:
    patch = seconds(SmallTpWorker)
    fault = Fault("x", "tp-worker", "state", "", patch=patch, settings=patient)
    found = judge(fault, "tp-worker/checkpoints/first", 2 * HURRIED)
    if found.verdict is not Verdict.CONCEPTUAL:
        found = judge(fault, "tp-worker/checkpoints/first", UNHURRIED)
    assert found.verdict is Verdict.CONCEPTUAL, found.deviations
    assert "DS4T-CKPT-16" in found.notes[0]


def test_a_worker_without_a_vision_encoder_is_not_failed() -> None:
    """It fails a sound prompt with an image: its status is the evidence."""
    from ds4proto_conformance.mutants.tp_tools import judged

    def refuse(_judge: Any, name: str, values: dict[str, Any], outcome: Any) -> Any:
        from ds4proto.link.ds4t_worker_rules import Refusal

        if name != "SYNC_MULTIMODAL":
            return outcome
        return Refusal("DS4T-MM-10", "no", ack=values["session_id"], found="no")

    fault = Fault("x", "tp-worker", "state", "", patch=judged(refuse))
    for case in ("served", "placeholders"):
        found = judge(fault, f"tp-worker/images/{case}", GENEROUS)
        assert found.verdict is Verdict.UNSUPPORTED
        assert "END with code 1" in found.notes[0]
    assert judge(fault, "tp-worker/images/spans", GENEROUS).verdict is Verdict.PASS


def test_a_leader_that_sends_images_rightly_passes() -> None:
    fault = Fault("x", "tp-leader", "state", "", out=with_image(record()))
    found = judge(fault, "tp-leader/images/records", GENEROUS)
    assert found.verdict is Verdict.PASS, found.deviations


@pytest.mark.parametrize(
    ("case", "mutant", "clause"),
    [
        ("tp-worker/images/served", "tpw-images-no-logits", "DS4T-MM-11"),
        ("tp-worker/images/served", "tpw-picture-judged", "DS4T-MM-08"),
        ("tp-worker/images/spans", "tpw-spans-unjudged", "DS4T-MM-07"),
        ("tp-worker/images/placeholders", "tpw-placeholders-bound", "DS4T-MM-09"),
        ("tp-leader/images/records", "tpl-image-rows-short", "DS4T-MM-02"),
        ("tp-leader/images/records", "tpl-images-too-old", "DS4T-MM-12"),
        ("tp-worker/flows/mtp-cycle", "tpw-mtp-other-session", "DS4T-MTP-03"),
        ("tp-worker/control/restore-early", "tpw-takes-restore", "DS4T-RESTORE-04"),
        ("tp-leader/control/sync-logits", "tpl-sync-logits-unchecked", "DS4T-SYNC-13"),
        ("tp-worker/checkpoints/first", "tpw-second-behind-chunk", "DS4T-CKPT-06"),
        ("tp-leader/checkpoints/first", "tpl-second-behind-chunk", "DS4T-CKPT-06"),
        (
            "tp-worker/checkpoints/nowhere-else",
            "tpw-checkpoint-in-eval",
            "DS4T-CKPT-15",
        ),
        (
            "tp-leader/checkpoints/nowhere-else",
            "tpl-checkpoint-too-old",
            "DS4T-CKPT-15",
        ),
    ],
)
def test_a_fault_is_blamed_on_its_clause(case: str, mutant: str, clause: str) -> None:
    assert is_blamed(all_mutants()[mutant], case, clause)


@pytest.mark.parametrize("dialect", ["v7", "v14"])
def test_a_leader_without_images_is_judged_where_it_must_not(dialect: str) -> None:
    found = judge(find("tp-leader", f"none-{dialect}"), "tp-leader/images/records", 20)
    assert found.verdict == {"v7": "pass", "v14": "not applicable"}[dialect]
