"""What proofs on recordings of pairs have in common."""

from __future__ import annotations

from itertools import groupby
from typing import Any, Final

from ds4proto.trace import FrameRow
from tests.spec.recordings import facts

SHORT: Final = ("ds4t/v7_decode8", "ds4t/v9_decode8", "ds4t/v10_decode8")
GATES: Final = ("GATE_ROW", "GATE_BATCH", "GATE_BULK")
UPPER: Final = 32 // 2
"""First vocabulary row of the worker's half in recordings of 32 rows."""


def leader(row: FrameRow) -> bool:
    return row.src_role == "leader"


def worker(row: FrameRow) -> bool:
    return not leader(row)


def kinds(found: list[FrameRow]) -> list[str]:
    """Return the types of frames in order, runs of gates as one."""
    names = ["GATES" if row.type in GATES else row.type for row in found]
    return [name for name, _ in groupby(names)]


def exits(name: str) -> dict[str, Any]:
    return {role: one.get("exit") for role, one in facts(name)["roles"].items()}
