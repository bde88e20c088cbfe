"""Differences between two ranks: neither is wrong alone, both have to end the pair.

A hello or a bulk gate that differs from the other rank's says that the two were set up
differently. What a clause asks of each is to notice. A side that goes on fails.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ds4proto.schema.problem import Problem
from ds4proto.trace.rows import FrameRow

__all__ = ["Differences"]

_SETTLED: Final[Mapping[str, str]] = {
    "DS4T-HELLO-03": "HELLO",
    "DS4T-HELLO-04": "HELLO",
    "DS4T-HELLO-05": "HELLO",
    "DS4B-BULK-05": "GATE",
}
"""Clause -> beginning of the frame types that meet; what follows shows who noticed.

Behind hellos that differ nothing but an end may come. Behind a bulk gate that differs
the next gate header is read at the wrong place; a rank that sends another whole gate
has read on past that.
"""


@dataclass(slots=True)
class Differences:
    """Collects the differences of a capture, and who went on behind them.

    Attributes
    ----------
    notes : dict
        Clause -> what differs, for the report.
    """

    notes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    _open: dict[int, list[tuple[Problem, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    _number: int = 0

    def take(self, row: FrameRow) -> list[tuple[FrameRow, Problem]]:
        """Look at a frame, in the order of the capture; return whom it convicts."""
        self._number += 1
        found = [
            (row, replace(problem, expected="the pair to end", found=self._why(row)))
            for problem, since in self._open[row.stream]
            if row.is_frame and since < self._number and _goes_on(problem.clause, row)
        ]
        for problem in row.problems:
            if problem.clause in _SETTLED:
                self._open[row.stream].append((problem, self._number))
                self.notes[problem.clause].append(
                    f"the ranks differ: {problem.path} {problem.expected} and"
                    f" {problem.found}"
                )
        return found

    @staticmethod
    def settled(problem: Problem) -> bool:
        """Tell whether a problem is a difference between two ranks."""
        return problem.clause in _SETTLED

    @staticmethod
    def _why(row: FrameRow) -> str:
        return f"{row.src_role} goes on with {row.name}"

    def of(self, clauses: Sequence[str]) -> list[str]:
        """Return the notes on some clauses."""
        return [note for name in clauses for note in self.notes.get(name, ())]


def _goes_on(clause: str, row: FrameRow) -> bool:
    kind = _SETTLED[clause]
    if kind == "HELLO":
        return row.type != "HELLO"
    return row.type.startswith(kind)
