"""The cases for tensor-parallel ranks: sound ranks pass, each planted fault is seen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ds4proto_conformance.kill import KILLS
from ds4proto_conformance.mutants import all_mutants, find
from ds4proto_conformance.peers import tp_rank
from ds4proto_conformance.peers.faults import Fault
from ds4proto_conformance.peers.tp_loop import tp_loop_opener
from ds4proto_conformance.registry import Case, all_cases
from ds4proto_conformance.runner import Runner
from ds4proto_conformance.settings import Settings
from ds4proto_conformance.verdicts import Outcome, Verdict

ROLES = ("tp-worker", "tp-leader")
SOUND = (Verdict.PASS, Verdict.NOT_APPLICABLE)
GENEROUS, HURRIED = 20.0, 0.6
"""Seconds for an answer: of a sound rank, which never uses them up, and of a fault."""
UNHURRIED = 2.0
"""Seconds of silence where what was judged in a hurry is judged again: on a machine
that stalls, what a rank says comes behind a short silence and is taken for nothing."""


def judge(
    fault: Fault, cases: list[Case], patience: float, quiet: float = 0.04
) -> Iterator[Outcome]:
    settings = Settings(
        f"loop:{fault.name}",
        fault.role,
        patience=patience,
        quiet=quiet,
        connect=GENEROUS,
        retry=False,
        keep_frames=False,
    )
    runner = Runner(settings, tp_loop_opener(fault))
    try:
        for case in cases:
            yield runner.run(case)
    finally:
        runner.close()


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("dialect", ["v7", "v9w", "v10", "v14"])
def test_sound_ranks_pass(
    role: str, dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = find(role, f"none-{dialect}")
    cases = [c for c in all_cases(role) if c.smoke or c.category == "state"]
    found = {o.case: o for o in judge(fault, cases, GENEROUS)}
    if doubtful := [c for c in cases if found[c.id].verdict not in SOUND]:
        monkeypatch.setattr(tp_rank, "GATE_IDLE", GENEROUS)
        found |= {o.case: o for o in judge(fault, doubtful, GENEROUS, UNHURRIED)}
    bad = [(o.case, o.verdict, o.deviations, o.notes) for o in found.values()
           if o.verdict not in SOUND]  # fmt: skip
    assert bad == []
    passed = sum(o.verdict is Verdict.PASS for o in found.values())
    assert passed > len(found) // 2


PAIRS = [
    ("tp-worker/hello/model", "tpw-layers-uncompared"),
    ("tp-worker/hello/order", "tpw-model-before-role"),
    ("tp-worker/control/leader-gone", "tpw-eof-ignored"),
    ("tp-worker/control/create-twice", "tpw-second-create-wins"),
    ("tp-worker/gates/row-seq", "tpw-row-seq-low-half"),
    ("tp-worker/gates/bulk-seq", "tpw-bulk-seq-unchecked"),
    ("tp-worker/gates/payload-used", "tpw-peer-rows-ignored"),
    ("tp-worker/flows/verify-prefix", "tpw-prefix-keeps-all"),
    ("tp-worker/checkpoints/cancel-at-start", "tpw-cancel-ignored"),
    ("tp-leader/control/logits-used", "tpl-halves-swapped"),
    ("tp-leader/gates/row-layer", "tpl-destroys-after-failure"),
    ("tp-leader/checkpoints/cancel", "tpl-no-invalidate"),
]


@pytest.mark.parametrize(("case", "mutant"), PAIRS)
def test_case_sees_its_fault(case: str, mutant: str) -> None:
    fault = all_mutants()[mutant]
    found = [c for c in all_cases(fault.role) if c.id == case]
    assert len(found) == 1
    verdict = next(judge(fault, found, HURRIED)).verdict
    if verdict not in KILLS:
        verdict = next(judge(fault, found, HURRIED, UNHURRIED)).verdict
    assert verdict in KILLS


def test_every_case_names_faults_that_exist() -> None:
    mutants = all_mutants()
    for role in ROLES:
        cases = all_cases(role)
        named = {name for case in cases for name in case.mutants}
        known = {name for name, fault in mutants.items() if fault.role == role}
        assert named == known


@pytest.mark.parametrize(
    ("topic", "least"), [("hello", 8), ("control", 14), ("gates", 12)]
)
def test_enough_cases_that_differ_in_clauses_and_faults(topic: str, least: int) -> None:
    cases = [c for role in ROLES for c in all_cases(role) if f"/{topic}/" in c.id]
    kept = [
        c
        for c in cases
        if not any(
            o is not c
            and o.role == c.role
            and set(c.clauses) <= set(o.clauses)
            and set(c.mutants) <= set(o.mutants)
            for o in cases
        )
    ]
    assert len(kept) >= least
