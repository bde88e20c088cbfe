"""How long a combination of a case and a run may take, and what is waited for.

Every wait of a bench has a deadline of its own. A peer that always sends one more
frame, or that answers each of many questions late, comes in time for all of them: so
the whole has an end too, and a person is told meanwhile what is waited for.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ds4proto.errors import WrongUsage
from ds4proto.peer import SYSTEM_CLOCK

__all__ = ["Budget", "OverTime", "TimeIsUp"]


class OverTime(Exception):
    """A combination was not over in its time; the text says what was waited for."""


class TimeIsUp(WrongUsage):
    """The time of the whole run, ``--time-limit``, is over."""


class Budget:
    """The time of a run and of the combination that is on.

    Parameters
    ----------
    seconds : float
        For one combination, the plain request behind it included.
    total : float
        For the run; 0: no limit.
    tell : callable, optional
        Told at each wait what it waits for; decides itself whether to pass it on.

    Attributes
    ----------
    waits : int
        Waits of this combination so far.
    """

    def __init__(
        self,
        seconds: float,
        total: float = 0.0,
        *,
        now: Callable[[], float] = SYSTEM_CLOCK.now,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.seconds, self.total = seconds, total
        self.waits = 0
        self._now, self._tell = now, tell
        self._run_ends = now() + total if total else math.inf
        self._ends = now() + seconds

    def begin(self) -> None:
        """Begin a combination."""
        self.waits = 0
        self._ends = self._now() + self.seconds

    def wait(self, what: str) -> None:
        """Note what is about to be waited for.

        Raises
        ------
        OverTime
            The combination has had its time.
        TimeIsUp
            The run has had its time.
        """
        now = self._now()
        if self._tell is not None:
            self._tell(what)
        if now >= self._run_ends:
            raise TimeIsUp(
                f"the run was not over in {self.total:g} s (--time-limit), it waited"
                f" for {what}. Next: a longer --time-limit (0 for none), a smaller"
                " --profile, or some cases with -k"
            )
        if now >= self._ends:
            raise OverTime(
                f"{self.waits} waits in {self.seconds:g} s, still waiting for {what}:"
                " the peer goes on for ever, or is slow (Next: --time-scale)"
            )
        self.waits += 1
