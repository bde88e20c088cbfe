"""Decoding that begins in mid-stream: try every protocol until one proves true."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from ds4proto.link.events import Event, FrameReceived
from ds4proto.link.observer import StreamObserver
from ds4proto.schema import header_of
from ds4proto.schema.ds4t_common import DS4B_MAGIC
from ds4proto.schema.fast import struct_of
from ds4proto.trace.rows import Direction

__all__ = ["MAGICS", "Probes"]

Open = Callable[[bytes], StreamObserver | None]


def _header(protocol: str) -> bytes:
    """Return an empty header of a protocol, as a sign of what to search for."""
    layout = header_of(protocol)
    magic = next(spec.const for spec in layout.fields if spec.path == "magic")
    return struct_of(layout, "*").pack(magic, 2, 0)


# The likeliest first: what a control header means, a gate header may mean too.
_SIGNS: Final = (
    _header("DS4D"),
    _header("DS4T"),
    DS4B_MAGIC.to_bytes(4, "little"),
)
MAGICS: Final = tuple(sign[:4] for sign in _SIGNS)
_GATES_NEEDED: Final = 2


class Probes:
    """Observers of all protocols over the same bytes.

    Parameters
    ----------
    open_one : callable
        Makes the observer for what begins with the bytes given.
    """

    def __init__(self, open_one: Open) -> None:
        self._trials: list[tuple[StreamObserver, list[Event], int]] = []
        for sign in _SIGNS:
            observer = open_one(sign)
            if observer is not None:
                needed = _GATES_NEEDED if sign[:4] == MAGICS[-1] else 1
                self._trials.append((observer, [], needed))

    def feed(
        self, direction: Direction, data: memoryview | None, now: float
    ) -> tuple[StreamObserver, list[Event]] | None:
        """Take bytes; return the observer that found true frames, and its events."""
        return self._each(lambda observer: observer.feed(direction, data, now))

    def gap(
        self, direction: Direction, nbytes: int, now: float, reason: Any
    ) -> tuple[StreamObserver, list[Event]] | None:
        """Take bytes that are not at hand."""
        return self._each(lambda one: one.gap(direction, nbytes, now, reason))

    def _each(
        self, act: Callable[[StreamObserver], Iterable[Event]]
    ) -> tuple[StreamObserver, list[Event]] | None:
        for observer, events, _ in self._trials:
            events.extend(act(observer))
        for observer, events, needed in self._trials:
            found = sum(_sound(event) for event in events)
            if found >= needed:
                return observer, events
        return None


def _sound(event: Event) -> bool:
    return isinstance(event, FrameReceived) and not any(
        problem.fatal for problem in event.problems
    )
