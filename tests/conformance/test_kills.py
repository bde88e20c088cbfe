"""Sound small peers pass everything; planted faults are caught by cases that name them.

The whole matrix is built by ``make mutants`` and judged in ``test_matrix.py``.
"""

import pytest
from ds4proto_conformance.kill import KILLS, meet
from ds4proto_conformance.mutants import all_mutants, find, sound_names
from ds4proto_conformance.peers import tp_rank
from ds4proto_conformance.registry import all_cases
from ds4proto_conformance.verdicts import Verdict

GENEROUS = 20.0
"""Seconds for an answer: a sound peer never uses them up, however busy the machine."""
UNHURRIED = 2.0
"""Seconds of silence where what was judged in a hurry is judged again: on a machine
that stalls, what a peer says comes behind a short silence and is taken for nothing."""
SETTLED = ("pass", "not applicable", "unsupported")
SOUND = [
    (role, name)
    for role in ("worker", "coordinator", "codec")
    for name in sound_names(role)
    if name != "none-apart"  # a sample of its cases: test_apart.py
] + [("tp-worker", "none-v14"), ("tp-leader", "none-v14")]
SAMPLE = (
    "split-header", "magic-ignored", "skip-WORK-07", "order-05-06", "skip-ROUTE-08",
    "reset-ignored", "hash-not-advanced", "refusal-closes", "telemetry-pos-off",
    "e4m3-to-even", "forward-reset-lost", "telemetry-in-front", "save-short",
    "chunk-overflow", "hello-twice", "skip-HELLO-06", "hello-order-08-09",
    "takes-result-hash", "replays-token-twice", "decode-position-off",
    "codec-e4m3-carry",
)  # fmt: skip


@pytest.mark.parametrize(("role", "name"), SOUND)
def test_a_sound_peer_passes(
    role: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault, cases = find(role, name), all_cases(role)
    found = meet(fault, cases, patience=GENEROUS).verdicts
    if doubtful := [case for case in cases if found[case.id] not in SETTLED]:
        monkeypatch.setattr(tp_rank, "GATE_IDLE", GENEROUS)
        again = meet(fault, doubtful, patience=GENEROUS, quiet=UNHURRIED)
        found |= again.verdicts
    bad = {k: v for k, v in found.items() if Verdict(v).bad or v == "conceptual pass"}
    assert bad == {}
    assert sum(v == "pass" for v in found.values()) > len(found) / 2


@pytest.mark.parametrize("name", SAMPLE)
def test_a_fault_is_caught_by_each_case_that_names_it(name: str) -> None:
    fault = all_mutants()[name]
    cases = [case for case in all_cases(fault.role) if name in case.mutants]
    assert cases
    found = meet(fault, cases).verdicts
    alive = [case for case in cases if found[case.id] not in KILLS]
    if alive:
        again = meet(fault, alive, patience=UNHURRIED, quiet=UNHURRIED)
        found |= again.verdicts
    assert [k for k, v in found.items() if v not in KILLS] == []
