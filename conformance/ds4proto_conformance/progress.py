"""What a run that takes long says meanwhile: where it is, what it waits for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

from ds4proto.peer import SYSTEM_CLOCK

__all__ = ["EVERY", "Progress"]

EVERY: Final = 15.0
"""Seconds between two lines."""


def _stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Progress:
    """Tells a person, every so often, that a run goes on.

    Parameters
    ----------
    place : callable
        Returns the case and combination that is on.
    say : callable, optional
        Gets each line; default: standard error.

    Attributes
    ----------
    cases, combinations : int
        How many the run has; both 0 until that is known.
    """

    def __init__(
        self,
        place: Callable[[], str],
        *,
        now: Callable[[], float] = SYSTEM_CLOCK.now,
        say: Callable[[str], None] = _stderr,
    ) -> None:
        self._place, self._now, self._say = place, now, say
        self._started = self._last = now()
        self.cases = self.combinations = 0
        self._ended = self._done = 0

    def ended(self, combinations: int) -> None:
        """Count a case that has ended."""
        self._ended += 1
        self._done += combinations

    def waits(self, what: str) -> None:
        """Say where the run is, where it is time for that."""
        now = self._now()
        if now - self._last < EVERY:
            return
        self._last = now
        spent = now - self._started
        left = self.combinations - self._done
        more = f"; about {spent / self._done * left:.0f} s more" if self._done else ""
        here = self._place() or "the first meeting"
        self._say(
            f"... {spent:.0f} s, {self._ended} of {self.cases} cases done: {here}:"
            f" waiting for {what}{more}"
        )
