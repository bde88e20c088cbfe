"""Many numbers in little room: count, sum, extremes, and quantiles to within 5 %."""

from __future__ import annotations

from math import frexp, log2
from typing import Final

__all__ = ["Line", "Spread", "ms", "share"]

_PER_OCTAVE: Final = 16


class Spread:
    """Numbers of one kind, kept as a histogram of their logarithms.

    A capture of any length fits: the room grows with the range of the numbers alone.
    """

    __slots__ = ("_buckets", "_rest", "count", "high", "low", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.low = 0.0
        self.high = 0.0
        self._rest = 0
        self._buckets: dict[int, int] = {}

    def add(self, value: float) -> None:
        """Take a number; one below zero counts as zero."""
        value = max(value, 0.0)
        if not self.count or value < self.low:
            self.low = value
        self.high = max(self.high, value)
        self.count += 1
        self.total += value
        if value == 0.0:
            self._rest += 1
            return
        fraction, exponent = frexp(value)
        bucket = int((exponent + log2(fraction)) * _PER_OCTAVE // 1)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1

    @property
    def mean(self) -> float:
        """Mean of the numbers, 0 without any."""
        return self.total / self.count if self.count else 0.0

    def quantile(self, part: float) -> float:
        """Return the number that a part of them does not exceed, 0 without any."""
        wanted = part * self.count
        seen = self._rest
        if not self.count or seen >= wanted:
            return self.low
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= wanted:
                middle: float = 2.0 ** ((bucket + 0.5) / _PER_OCTAVE)
                return min(max(middle, self.low), self.high)
        return self.high

    @property
    def median(self) -> float:
        """Half of the numbers do not exceed it."""
        return self.quantile(0.5)


class Line:
    """How one number grows with another: least squares, without keeping any."""

    __slots__ = ("_n", "_x", "_xx", "_xy", "_y", "_yy")

    def __init__(self) -> None:
        self._n = 0
        self._x = self._y = self._xx = self._xy = self._yy = 0.0

    def add(self, x: float, y: float) -> None:
        """Take a pair."""
        self._n += 1
        self._x += x
        self._y += y
        self._xx += x * x
        self._xy += x * y
        self._yy += y * y

    @property
    def slope(self) -> float:
        """Growth of y with x, 0 where x does not vary."""
        spread = self._n * self._xx - self._x**2
        return (self._n * self._xy - self._x * self._y) / spread if spread > 0 else 0.0

    @property
    def fit(self) -> float:
        """Share of the variance of y that x explains, 0 to 1."""
        both = self._n * self._xy - self._x * self._y
        x, y = self._n * self._xx - self._x**2, self._n * self._yy - self._y**2
        return both * both / (x * y) if x > 0 and y > 0 else 0.0

    @property
    def explained(self) -> float:
        """Share of the mean of y that grows with x; above 1 where the rest is below 0."""
        return self.slope * self._x / self._y if self._y > 0 else 0.0


def ms(seconds: float) -> str:
    """Return a time as people write it: ``85 us``, ``1.2 ms``, ``3.4 s``."""
    if seconds >= 10:
        return f"{seconds:.0f} s"
    if seconds >= 1:
        return f"{seconds:.1f} s"
    if seconds >= 0.01:
        return f"{seconds * 1e3:.0f} ms"
    if seconds >= 0.001:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e6:.0f} us"


def share(part: float, whole: float) -> str:
    """Return a share in percent, ``0 %`` of nothing."""
    return f"{100 * part / whole:.0f} %" if whole else "0 %"
