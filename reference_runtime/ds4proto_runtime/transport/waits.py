"""Waiting without threads: work is a generator that yields when it has to wait.

What it yields is its deadline. The real clock spins briefly and then naps; a virtual
clock runs two endpoints in one process, step by step and the same each time.
"""

from __future__ import annotations

from collections.abc import Generator
from time import monotonic, sleep
from typing import Final, Protocol, TypeVar

T = TypeVar("T")
Steps = Generator[float, None, T]
SPIN_SECONDS: Final = 100e-6
"""How long a wait polls without a pause."""
NAP_SECONDS: Final = (20e-6, 500e-6)
"""Shortest and longest pause between two polls; each is twice the one before."""


class Clock(Protocol):
    """What the transport asks the time from.

    Attributes
    ----------
    moved : int
        Counted up whenever bytes or completions moved.
    """

    moved: int

    def now(self) -> float:
        """Return seconds."""

    def run(self, steps: Steps[T]) -> T:
        """Run steps to their end."""


class RealClock:
    """The clock of a live rank.

    Parameters
    ----------
    spin : float
        Seconds of polling before the first pause; 0 on a machine with one core.
    """

    def __init__(self, spin: float = SPIN_SECONDS) -> None:
        self.moved = 0
        self._spin = spin

    def now(self) -> float:
        """Return seconds of the monotonic clock."""
        return monotonic()

    def run(self, steps: Steps[T]) -> T:
        """Run steps to their end, pausing where they wait."""
        shortest, longest = NAP_SECONDS
        moved, nap = -1, shortest
        spin_end = 0.0
        try:
            while True:
                due = next(steps)
                now = monotonic()
                if moved != self.moved:
                    moved, nap, spin_end = self.moved, shortest, now + self._spin
                elif now >= spin_end:
                    # completion queues are polled: there is no event to wait for
                    sleep(min(nap, max(0.0, due - now)))
                    nap = min(2 * nap, longest)
        except StopIteration as stop:
            result: T = stop.value
            return result
