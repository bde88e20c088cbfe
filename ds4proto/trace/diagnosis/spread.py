"""Many numbers in little room: count, sum, extremes, and quantiles to within 5 %."""

from __future__ import annotations

from math import frexp, log2
from typing import Final

__all__ = ["Sizes", "Spread", "milli", "ms", "share"]

_PER_OCTAVE: Final = 16
_SIZES: Final = 64
_ENOUGH: Final = 3
_STEADY: Final = 1.5


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


class Sizes:
    """Times by size, for a few sizes: what time a byte takes shows there."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[int, Spread] = {}

    def add(self, size: int, seconds: float) -> None:
        """Take a time; beyond `_SIZES` sizes, only those that are known."""
        if size in self._seen or len(self._seen) < _SIZES:
            self._seen.setdefault(size, Spread()).add(seconds)

    def seconds_a_byte(self) -> float:
        """Return the time a byte takes, 0 where sizes do not explain the times.

        They do where the largest size has at least twice the bytes of the smallest,
        what its bytes take more is more than half of its time, and that time hardly
        varies.
        """
        if len(self._seen) < 2:
            return 0.0
        small, large = min(self._seen), max(self._seen)
        low, high = self._seen[small].low, self._seen[large]
        slope = (high.low - low) / (large - small)
        steady = high.count >= _ENOUGH and high.median < _STEADY * high.low
        if large < 2 * small or slope * large < high.low / 2 or not steady:
            return 0.0
        return max(slope, 0.0)


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


def milli(seconds: float) -> float:
    """Return a time in milliseconds, as findings give numbers to programs."""
    return round(seconds * 1e3, 3)


def share(part: float, whole: float) -> str:
    """Return a share in percent, ``0 %`` of nothing."""
    return f"{100 * part / whole:.0f} %" if whole else "0 %"
