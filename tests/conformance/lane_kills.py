"""Sound small peers pass everything; planted faults are caught by their cases.

A lane of its own (`make test-kills`): on a busy machine timing decides some verdicts.
"""

import json
from pathlib import Path

import pytest
from ds4proto_conformance.kill import KILLS, meet
from ds4proto_conformance.mutants import all_mutants, find
from ds4proto_conformance.registry import all_cases
from ds4proto_conformance.verdicts import Verdict

REPORT = Path(__file__).parents[2] / "conformance" / "mutants" / "report.json"
SOUND = [
    ("worker", "none-last"),
    ("worker", "none-middle"),
    ("worker", "none-first"),
    ("coordinator", "none"),
    ("codec", "none"),
]
SAMPLE = (
    "split-header", "magic-ignored", "skip-WORK-07", "order-05-06", "skip-ROUTE-08",
    "reset-ignored", "hash-not-advanced", "refusal-closes", "telemetry-pos-off",
    "e4m3-to-even", "forward-reset-lost", "telemetry-in-front", "save-short",
    "chunk-overflow", "hello-twice", "skip-HELLO-06", "hello-order-08-09",
    "takes-result-hash", "replays-token-twice", "decode-position-off",
    "codec-e4m3-carry",
)  # fmt: skip


@pytest.mark.parametrize(("role", "name"), SOUND)
def test_a_sound_peer_passes(role: str, name: str) -> None:
    row = meet(find(role, name), all_cases(role), patience=5.0)
    bad = {
        k: v
        for k, v in row.verdicts.items()
        if Verdict(v).bad or v == "conceptual pass"
    }
    assert bad == {}
    assert sum(v == "pass" for v in row.verdicts.values()) > len(row.verdicts) / 2


@pytest.mark.parametrize("name", SAMPLE)
def test_a_fault_is_caught_by_each_case_that_names_it(name: str) -> None:
    fault = all_mutants()[name]
    cases = [case for case in all_cases(fault.role) if name in case.mutants]
    assert cases
    row = meet(fault, cases)
    alive = [k for k, v in row.verdicts.items() if Verdict(v) not in KILLS]
    assert alive == []


@pytest.mark.skipif(not REPORT.exists(), reason="the matrix has not been built yet")
def test_the_matrix_holds_what_is_claimed() -> None:
    found = json.loads(REPORT.read_text())
    assert found["mutants"] >= 120
    assert found["killed"] >= 0.95 * found["mutants"]
    assert found["declared_but_alive"] == []
    assert all(bad == [] for bad in found["sound_peers"].values())
    for name, row in found["case_mutants"].items():
        assert row["kills"] or name not in {c.id for c in all_cases("worker")}
