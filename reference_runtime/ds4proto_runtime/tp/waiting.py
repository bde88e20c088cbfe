"""The adaptive wait: spin briefly where it was measured to pay, else block.

On an idle machine with a core for each rank, a short spin saves the two wake-ups that
a gate otherwise costs. Where the peer computes on the same cores, spinning takes its
time away. No table of machines decides this: both ways are tried in turn, many times
and shortly, and the one whose typical gate is faster is kept until the next trial.
Both ranks count the same gates, so they try the same way at the same time.

The typical gate is the median: other programs interrupt a gate for milliseconds now
and then, a hundred times its length, and a sum or a mean would tell which way was hit.
"""

from __future__ import annotations

import os
from typing import Final, Literal

SPIN_SECONDS: Final = 200e-6
"""Longest spin of one wait."""
WORTH: Final = 2.0
"""A spin is given up after this many typical blocking gates: more it cannot save."""
TRIAL: Final = 16
"""Gates of one trial; the two ways alternate."""
ROUNDS: Final = 8
"""Trials of each way in one series."""
PERIOD: Final = 2048
"""Gates from one series of trials to the next, after a change."""
LONGEST: Final = 8
"""The same verdict again and again makes the period longer, up to so many times."""
GAIN: Final = 0.9
"""A spin pays where its typical gate takes at most this share of the time."""
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

    __slots__ = ("_fixed", "_left", "_period", "_times", "_trial", "_verdict", "spin")

    def __init__(self, choice: SpinChoice = "auto", cores: int | None = None) -> None:
        few = (usable_cores() if cores is None else cores) < 2
        self._fixed = choice != "auto" or few
        self.spin = SPIN_SECONDS if choice == "on" else 0.0
        # Seconds of each gate of a series: blocking, spinning.
        self._times = [[0.0] * (ROUNDS * TRIAL) for _ in range(2)]
        self._trial = 0  # of a series; the last number stands for the long stretch
        self._left = TRIAL
        self._period = PERIOD
        self._verdict: bool | None = None

    @property
    def spinning(self) -> bool:
        """Whether waits spin at present."""
        return self.spin > 0

    def gate_done(self, now: float, begun: float) -> None:
        """Note one gate, opened at ``begun`` and whole at ``now``.

        Only the time inside gates counts: what an engine computes between them is
        the same either way.
        """
        if self._fixed:
            return
        self._left -= 1
        trial = self._trial
        if trial < 2 * ROUNDS:
            place = trial // 2 * TRIAL + self._left
            self._times[trial & 1][place] = now - begun
        if not self._left:
            self._next()

    def _next(self) -> None:
        trial = self._trial = (self._trial + 1) % (2 * ROUNDS + 1)
        if trial < 2 * ROUNDS:
            self._left = TRIAL
            self.spin = SPIN_SECONDS if trial & 1 else 0.0
            return
        middle = ROUNDS * TRIAL // 2
        for times in self._times:
            times.sort()
        blocking, spinning = (times[middle] for times in self._times)
        pays = spinning < GAIN * blocking
        self.spin = min(SPIN_SECONDS, WORTH * blocking) if pays else 0.0
        longer = min(2 * self._period, LONGEST * PERIOD)
        self._period = longer if pays is self._verdict else PERIOD
        self._verdict = pays
        self._left = self._period
