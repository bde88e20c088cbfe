"""Numbers over time in constant memory: bins that double in width as time goes on."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["BINS", "FIRST_WIDTH_S", "Peaks", "Sums"]

BINS: Final = 1024
"""Bins of a series at most; a capture in full always fills more than half of them."""
FIRST_WIDTH_S: Final = 1e-6

F64 = npt.NDArray[np.float64]


class _Bins:
    """A row of bins from time 0 on; all of them are of one width."""

    def __init__(self, count: int = BINS) -> None:
        self.width = FIRST_WIDTH_S
        self._values: F64 = np.zeros(count)
        self._used = 0

    def _merged(self, values: F64) -> F64:
        raise NotImplementedError

    def _place(self, time: float) -> int:
        """Return the bin of a time; bins are joined in pairs until it fits."""
        at = int(max(time, 0.0) / self.width)
        while at >= len(self._values):
            pairs = self._merged(self._values.reshape(-1, 2))
            self._values = np.concatenate([pairs, np.zeros(len(pairs))])
            self.width *= 2
            self._used = (self._used + 1) // 2
            at = int(max(time, 0.0) / self.width)
        self._used = max(self._used, at + 1)
        return at

    def values(self, width: float, count: int) -> list[float]:
        """Return `count` bins of a greater `width` (this one times a power of two)."""
        found = self._values.copy()
        own = self.width
        while own < width:
            found = self._merged(found.reshape(-1, 2))
            found = np.concatenate([found, np.zeros(len(found))])
            own *= 2
        return [float(value) for value in found[:count]]

    @property
    def used(self) -> int:
        """Bins up to the last one that was touched."""
        return self._used


class Sums(_Bins):
    """What happened in each bin, added up: bytes, frames."""

    def add(self, time: float, amount: float) -> None:
        """Add an amount at one time."""
        at = self._place(time)
        self._values[at] += amount

    def spread(self, begin: float, end: float, amount: float) -> None:
        """Spread an amount evenly over a span of time."""
        last = self._place(end)
        first = min(self._place(begin), last)
        if first == last or end <= begin:
            self._values[last] += amount
            return
        edges = np.arange(first, last + 2) * self.width
        edges[0], edges[-1] = begin, end
        self._values[first : last + 1] += amount * np.diff(edges) / (end - begin)

    def _merged(self, values: F64) -> F64:
        return np.asarray(values.sum(axis=1))


class Peaks(_Bins):
    """The greatest level in each bin, of a level that steps up and down.

    Times must not fall; a bin in which nothing changes keeps the level before it.
    """

    def __init__(self, count: int = BINS) -> None:
        super().__init__(count)
        self.level = 0.0
        self._last = 0

    def step(self, time: float, change: float) -> None:
        """Change the level at one time."""
        before = self.width
        at = self._place(time)
        if self.width != before:
            self._last = int(self._last * before / self.width)
        at = max(at, self._last)
        # the level held from the last change up to now
        held = self._values[self._last : at + 1]
        np.maximum(held, self.level, out=held)
        self.level += change
        self._values[at] = max(self._values[at], self.level)
        self._last = at

    def _merged(self, values: F64) -> F64:
        return np.asarray(values.max(axis=1))
