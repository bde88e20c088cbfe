"""A few faults of the catalogue, diagnosed; ``make diagnose-faults`` runs all."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.trace.diagnosis.catalogue import FAULTS
from tests.trace.diagnosis.lane_faults import (
    BEGIN,
    END,
    MOST_OF_A_KIND,
    judge,
    names_it,
)

PAGE = Path(__file__).parents[3] / "docs" / "diagnosis.md"
QUICK = (
    "cut-inside-result", "cut-inside-header", "corrupt-hash", "hello-model", "nan",
    "above-65504", "delayed-ack", "lost-segments", "slow-wire", "both-link",
    "both-rank", "gid", "log-line",
)  # fmt: skip
BY_NAME = {fault.name: fault for fault in FAULTS}


@pytest.mark.parametrize("name", QUICK)
def test_an_injected_fault_gets_its_cause(name: str, tmp_path: Path) -> None:
    judged = judge(BY_NAME[name], tmp_path)
    assert judged.verdict == "right", judged.first
    assert judged.finding is not None
    assert judged.finding.evidence
    assert judged.finding.next_step


def test_another_fault_is_not_taken_for_it(tmp_path: Path) -> None:
    judged = judge(BY_NAME["corrupt-hash"], tmp_path)
    assert judged.finding is not None
    others = [f.name for f in FAULTS if f.kind != judged.fault.kind]
    taken = [name for name in others if names_it(BY_NAME[name], judged.finding)]
    assert not taken


def test_the_catalogue_is_broad() -> None:
    kinds = Counter(fault.kind for fault in FAULTS)
    assert len(FAULTS) >= 30
    assert max(kinds.values()) <= MOST_OF_A_KIND
    assert len(BY_NAME) == len(FAULTS)
    by_proxy = sum(fault.how == "proxy" for fault in FAULTS)
    assert by_proxy >= 24


def test_the_page_has_a_row_for_each_fault() -> None:
    text = PAGE.read_text()
    table = text[text.index(BEGIN) : text.index(END)]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == len(FAULTS)
    for fault, row in zip(FAULTS, rows, strict=True):
        assert fault.what.replace("|", "\\|") in row
