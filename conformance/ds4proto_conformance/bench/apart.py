"""A coordinator that sends WORK over a connection of its own, as one fork does.

Upstream sends WORK over the connection on which a worker has registered. The fork of
DS4D-DIALECT-37 dials the data port that the worker's HELLO announces, and the
connection of the registration stays silent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ds4proto.peer import SYSTEM_CLOCK
from ds4proto_conformance.wire import Ended, Frame, Wire

__all__ = ["ApartWire", "Dials"]

Dials = Callable[[float], Wire | None]
"""Seconds -> the next connection that the coordinator opens to our data port."""
_GLANCE: Final = 0.02


class ApartWire(Wire):
    """Both connections of one registered worker, as one.

    It is the connection of the registration until the coordinator has opened that for
    WORK, and that from then on. Closing ends both: the worker goes away.

    Parameters
    ----------
    control : Wire
        Where the HELLO is sent.
    dials : callable
        Returns what comes to our data port.

    Attributes
    ----------
    control : Wire
    apart : bool
        Whether the connection for WORK is there.
    """

    def __init__(self, control: Wire, dials: Dials) -> None:
        super().__init__(
            control.channel,
            control.line,
            dialect=control.dialect,
            patience=control.patience,
        )
        self.control, self.apart = control, False
        self._dials = dials

    def _begin(self, work: Wire) -> None:
        self.channel, self.line, self.ended = work.channel, work.line, None
        self._buffer.clear()
        self.apart = True

    def next(self, *, patience: float | None = None) -> Frame | Ended:
        """Return the next frame for the worker, or what came instead of one.

        An end of the connection for WORK alone is none of the worker: the coordinator
        opens another. Where it does not in time, that end is returned.
        """
        wait = self.patience if patience is None else patience
        end = SYSTEM_CLOCK.now() + wait
        last: Ended | None = None
        while True:
            left = max(0.0, end - SYSTEM_CLOCK.now())
            glance = min(_GLANCE, left)
            if self.apart:
                found = super().next(patience=glance)
                if isinstance(found, Frame):
                    return found
                last = found
                self.apart = found.how == "silence"
            else:
                work = self._dials(glance)
                if work is not None:
                    self._begin(work)
                    continue
            on_control = self.control.quiet(0.0)
            if on_control is not None:
                return on_control
            if not left:
                return last or Ended("silence", "and no connection to our data port")

    def half_close(self) -> None:
        """End our directions; the peer may still answer."""
        super().half_close()
        if self.apart:
            self.control.half_close()

    def close(self, *, reset: bool = False) -> None:
        """End both connections."""
        super().close(reset=reset)
        if self.apart:
            self.control.close(reset=reset)
