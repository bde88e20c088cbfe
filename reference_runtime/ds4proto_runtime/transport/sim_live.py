"""The simulated fabric on the real clock: two ranks in threads, over no hardware."""

from __future__ import annotations

from time import monotonic

from ds4proto_runtime.transport.sim import Fabric


class LiveFabric(Fabric):
    """A fabric that catches up with the real clock whenever a queue pair is used.

    Not deterministic in time, yet in order: what was sent first arrives first.
    """

    def __init__(self, latency: float = 5e-6) -> None:
        super().__init__(latency)
        self.now = monotonic()
        self._used = self.now

    def pump(self) -> None:
        """Let everything happen that is due by now."""
        self.run_until(monotonic())
