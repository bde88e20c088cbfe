"""What every DS4D machine has in common: bytes in, events out, one deadline."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from ds4proto import clauses
from ds4proto.link.ds4d_events import Close, Fault, Transmit
from ds4proto.link.ds4d_intake import Intake
from ds4proto.link.ds4d_limits import LinkLimits
from ds4proto.link.ds4d_texts import text
from ds4proto.link.events import Violation
from ds4proto.schema.problem import Buf, Problem

_EMPTY = memoryview(b"")


class LocalProtocolError(Exception):
    """Our own side asked a machine for something that its state does not allow."""


def earliest(*times: float | None) -> float | None:
    """Return the first of some deadlines, None standing for never."""
    return min((t for t in times if t is not None), default=None)


class Endpoint:
    """One end of one connection; a subclass says what frames mean."""

    def __init__(self, limits: LinkLimits) -> None:
        self._limits = limits
        self._intake = Intake(self._plan, limits)
        self._out: deque[Any] = deque()
        self._closed = False
        self._paused = self._in_read = self._mute = False
        self._now = 0.0

    # for a subclass

    def _plan(self, _type: int, _size: int, kept: memoryview) -> int:
        return len(kept)

    def _reading(self) -> bool:
        """Whether frames may be taken now."""
        return not self._closed

    def _item(self, item: Any, now: float) -> None:
        """Take one frame, bad magic or end."""
        raise NotImplementedError

    def _stalled(self, now: float) -> None:
        """Take it that the peer stopped inside a frame."""
        raise NotImplementedError

    def _emit(self, event: Any) -> None:
        if not (self._mute and isinstance(event, Transmit)):
            self._out.append(event)

    def _violate(
        self, fault: Fault, path: str, now: float, *, at: int = 0, fatal: bool = False
    ) -> None:
        problem = Problem(
            fault.clause,
            path,
            None,
            at,
            clauses.get(fault.clause).text,
            fault.text,
            fatal=fatal,
        )
        self._emit(Violation(now, problem, fatal))

    def _close(self, reason: str) -> None:
        if not self._closed:
            self._closed = True
            self._emit(Close(reason))

    def _read(self, now: float) -> None:
        if self._paused and self._reading():
            self._paused = False
            self._intake.touch(now)
        if self._in_read:
            return
        self._in_read = True
        try:
            while self._reading():
                item = self._intake.next()
                if item is None:
                    return
                self._item(item, now)
            self._paused = True
        finally:
            self._in_read = False

    # for the caller

    @property
    def closed(self) -> bool:
        """True once ``Close`` has been said."""
        return self._closed

    def get_buffer(self) -> memoryview:
        """Return where to ``recv_into`` next; empty while nothing may be read."""
        return self._intake.get_buffer() if self._reading() else _EMPTY

    def arriving(self) -> tuple[memoryview, memoryview] | None:
        """Return what has come of a body, and where all of it comes to lie.

        For looking at a large body while it arrives; None between frames, and while
        it is not settled that the whole body is kept.
        """
        place = self._intake.place
        return None if place is None else (self._intake.kept, place)

    def received(self, nbytes: int, now: float) -> None:
        """Tell that ``nbytes`` were put into the last ``get_buffer``; 0 is the end."""
        self._now = now
        self._intake.received(nbytes, now)
        self._read(now)

    def receive_data(self, data: Buf | None, now: float) -> None:
        """Take bytes in any split; None is the end of the stream."""
        self._now = now
        self._intake.feed(data, now)
        self._read(now)

    def events(self) -> Iterator[Any]:
        """Yield what the bytes and commands so far lead to, in order."""
        while self._out:
            yield self._out.popleft()

    def deadline(self) -> float | None:
        """Return when ``timeout`` wants to be called, if ever."""
        return self._intake.deadline() if self._reading() else None

    def timeout(self, now: float) -> None:
        """Tell that the deadline has passed."""
        until = self._intake.deadline()
        if self._reading() and until is not None and now >= until:
            fault = Fault("DS4D-FRAME-13", text("peer-stalled"))
            self._violate(fault, "frame", now, fatal=True)
            self._stalled(now)
