"""The clock of real runs. Tests use `ds4proto.testing.FakeClock`."""

from __future__ import annotations

import time
from typing import Final

from ds4proto.peer.api import Clock, Poller

NEVER: Final = float("inf")
_LONGEST_WAIT: Final = 3600.0  # poll() takes a C int of milliseconds


class SystemClock:
    """Monotonic time of this machine."""

    def now(self) -> float:
        """Return monotonic seconds."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(max(0.0, seconds))

    def wait(self, poller: Poller, seconds: float) -> list[tuple[int, int]]:
        """Poll for at most `seconds`; an early empty answer is allowed."""
        # Rounded up, so that a wait of under a millisecond does not spin.
        bounded = min(max(seconds, 0.0), _LONGEST_WAIT)
        return poller.poll(int(bounded * 1000 + 0.999))


SYSTEM_CLOCK: Final[Clock] = SystemClock()
