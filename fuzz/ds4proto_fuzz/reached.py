"""States and transitions that cases reached, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

__all__ = ["Reached"]


class Reached:
    """Counts (state, what was done, where it led)."""

    def __init__(self, counts: Iterable[tuple[str, str, str, int]] = ()) -> None:
        self.counts: Counter[tuple[str, str, str]] = Counter()
        for state, kind, led, count in counts:
            self.counts[state, kind, led] += count

    def note(self, state: str, kind: str, led: str) -> None:
        """Count one case."""
        self.counts[state, kind, led] += 1

    def merge(self, other: Reached) -> None:
        """Add the counts of another part of the campaign."""
        self.counts.update(other.counts)

    def as_json(self) -> list[list[Any]]:
        """Return rows of state, kind, where it led, count."""
        return [[*key, count] for key, count in sorted(self.counts.items())]

    def edges(self) -> Counter[tuple[str, str]]:
        """Return how often a state led somewhere."""
        found: Counter[tuple[str, str]] = Counter()
        for (state, _, led), count in self.counts.items():
            found[state, led] += count
        return found

    def table(self) -> list[tuple[str, str, int, int]]:
        """Return rows of state, where it led, cases, kinds of cases."""
        kinds: dict[tuple[str, str], set[str]] = {}
        for state, kind, led in self.counts:
            kinds.setdefault((state, led), set()).add(kind)
        return [
            (state, led, count, len(kinds[state, led]))
            for (state, led), count in sorted(self.edges().items())
        ]
