"""The adaptive wait: spin briefly where it was measured to pay, else block.

On an idle machine with a core for each rank, a short spin saves the two wake-ups that
a gate otherwise costs. Where the peer computes on the same cores, spinning takes its
time away. No table of machines decides this: both ways are tried in turn and the
faster one is kept until the next trial. Both ranks count the same gates, so they try
the same way at the same time.
"""

from __future__ import annotations

import os
from typing import Final, Literal

SPIN_SECONDS: Final = 200e-6
"""Longest spin of one wait."""
TRIAL: Final = 64
"""Gates of one trial."""
ROUNDS: Final = 3
"""Trials of each way; their best counts, so that one hiccup decides nothing."""
PERIOD: Final = 8192
"""Gates from one series of trials to the next."""
GAIN: Final = 0.9
"""A spin pays where its gates take at most this share of the time."""
SpinChoice = Literal["auto", "on", "off"]


def usable_cores() -> int:
    """Return the cores that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


class AdaptiveWait:
    """Decides, gate by gate, how long a wait may spin.

    Parameters
    ----------
    choice : {"auto", "on", "off"}
    cores : int, optional
        Default: what this process may use. Fewer than two never spin under ``auto``.

    Attributes
    ----------
    spin : float
        Seconds that a wait may spin now; 0 blocks at once.
    """

    __slots__ = ("_best", "_count", "_left", "_plan", "_spins", "_start", "spin")

    def __init__(self, choice: SpinChoice = "auto", cores: int | None = None) -> None:
        few = (usable_cores() if cores is None else cores) < 2
        self._plan: list[bool] = []
        self._best = {True: float("inf"), False: float("inf")}
        self._count = self._left = 0
        self._start = 0.0
        self._spins = False
        fixed = choice != "auto" or few
        self.spin = SPIN_SECONDS if choice == "on" else 0.0
        if fixed:
            self._left = -1
        else:
            self._begin_trials()

    @property
    def spinning(self) -> bool:
        """Whether waits spin at present."""
        return self.spin > 0

    def _begin_trials(self) -> None:
        self._plan = [False, True] * ROUNDS
        self._best = {True: float("inf"), False: float("inf")}
        self._next_trial()

    def _next_trial(self) -> None:
        self._spins = self._plan.pop(0)
        self.spin = SPIN_SECONDS if self._spins else 0.0
        self._left = TRIAL
        self._start = 0.0

    def gate_done(self, now: float, begun: float) -> None:
        """Note one gate, opened at ``begun`` and whole at ``now``.

        Only the time inside gates counts: what an engine computes between them is
        the same either way.
        """
        if self._left < 0:
            return
        self._start += now - begun
        self._left -= 1
        if self._left:
            return
        if self._count:  # the long stretch between two series is over
            self._count = 0
            self._begin_trials()
            return
        self._best[self._spins] = min(self._best[self._spins], self._start)
        if self._plan:
            self._next_trial()
            return
        pays = self._best[True] < GAIN * self._best[False]
        self.spin = SPIN_SECONDS if pays else 0.0
        self._left = self._count = PERIOD
