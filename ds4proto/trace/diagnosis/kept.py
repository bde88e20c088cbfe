"""What a capture names more of than any honest run, and is not told apart any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from ds4proto.trace import bounds
from ds4proto.trace.diagnosis.finding import Finding
from ds4proto.trace.rows import FrameRow

__all__ = ["OF_A_KIND", "NotTracked", "first_of_each_kind"]

OF_A_KIND: Final = 64
"""Findings of one code that are listed."""


class NotTracked:
    """Says which tables of a diagnosis were full.

    Parameters
    ----------
    file : str
    lost : callable
        Returns, by kind, how many entries were forgotten or found no room.
    """

    def __init__(self, file: str, lost: Callable[[], Mapping[str, int]]) -> None:
        self._file = file
        self._lost = lost

    def add(self, row: FrameRow) -> None:
        """Take the next row."""

    def findings(self) -> Iterator[Finding]:
        """Answer once, for all kinds."""
        lost = {kind: count for kind, count in self._lost().items() if count}
        if lost:
            listed = ", ".join(f"{count} {kind}" for kind, count in lost.items())
            yield Finding(
                "unknown.not-tracked", "note", "certain",
                f"not tracked: {listed}. At most {bounds.MOST} different ones of a "
                "kind are told apart, far more than a run has: what is said of the "
                "rest is incomplete",
                {kind: count for kind, count in lost.items()},
                next_step="see with ds4proto decode who sends them: a fault, a scan, "
                "or bytes that only look like frames",
                file=self._file,
            )  # fmt: skip


def first_of_each_kind(findings: Iterable[Finding], file: str) -> Iterator[Finding]:
    """Yield findings, and of very many of one code the first few and their number."""
    seen: Counter[str] = Counter()
    for finding in findings:
        seen[finding.code] += 1
        if seen[finding.code] <= OF_A_KIND:
            yield finding
    for code, count in seen.items():
        if count > OF_A_KIND:
            yield Finding(
                "unknown.more", "note", "certain",
                f"{count - OF_A_KIND} more findings of the kind {code} are left out",
                {"left_out": count - OF_A_KIND, "code": code}, file=file,
            )  # fmt: skip
