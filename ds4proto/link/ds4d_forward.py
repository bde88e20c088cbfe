"""The forward connection of a worker: WORK down, RESULT up, first in first out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ds4proto.schema.problem import Buf


class Forwarder:
    """One connection to the next worker, owned by one upstream connection.

    It arrives in an ``OpenForward`` event. Events: ``Transmit``, ``Close``. What it
    hears goes up through its upstream link, which then is among ``Worker.woken()``.
    """

    def opened(self, now: float) -> None:
        """Tell that the dial succeeded."""
        raise NotImplementedError

    def failed(self, reason: str, now: float) -> None:
        """Tell that the dial failed; ``reason`` is the system's own text."""
        raise NotImplementedError

    def written(self, started: float, finished: float) -> None:
        """Tell when the last ``Transmit`` was written, for telemetry."""
        raise NotImplementedError

    def broken(self, now: float) -> None:
        """Tell that a write failed (DS4D-FWD-19)."""
        raise NotImplementedError

    def get_buffer(self) -> memoryview:
        """Return where to ``recv_into`` next."""
        raise NotImplementedError

    def received(self, nbytes: int, now: float) -> None:
        """Tell that ``nbytes`` were put into the last ``get_buffer``; 0 is the end."""
        raise NotImplementedError

    def receive_data(self, data: Buf | None, now: float) -> None:
        """Take bytes in any split; None is the end of the stream."""
        raise NotImplementedError

    def events(self) -> Iterator[Any]:
        """Yield what has to be done on this connection, in order."""
        raise NotImplementedError

    def deadline(self) -> float | None:
        """Return when ``timeout`` wants to be called, if ever."""
        raise NotImplementedError

    def timeout(self, now: float) -> None:
        """Tell that the deadline has passed."""
        raise NotImplementedError
