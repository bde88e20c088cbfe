"""What a link or an observer says: events, in the order of the bytes.

Sans-IO: bytes come in through ``receive_data`` or ``feed``, events go out. Time is
an argument, in seconds of whatever clock the caller uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from ds4proto.schema.declare import FrameSpec
from ds4proto.schema.problem import Buf, Problem

Direction = Literal["a>b", "b>a"]
"""``a`` dialled the connection, ``b`` accepted it."""


@dataclass(slots=True)  # not frozen: that would double the cost of every frame
class FrameReceived:
    """One whole frame; treat it as frozen.

    Attributes
    ----------
    time : float
        When its last byte arrived.
    spec : FrameSpec
        Its declaration.
    dialect : str
        Dialect it was read under; a trailing ``?`` marks the nearest known one.
    fields : mapping
        Values by path; a payload is a memoryview, or what its sink returned.
    payload : memoryview or None
        The bulk payload, where there is exactly one and it was kept.
    stream_offset : int
        Offset of its first byte (its header) in its direction of the stream.
    length : int
        Bytes on the wire, header included.
    direction : str
    problems : tuple of Problem
        Rules that the frame breaks; a fatal one says where reading its body stopped.
    missing : int
        Payload bytes that crossed the wire but are not at hand (gaps). Where a
        payload was collected without a sink they read as zeros.
    """

    time: float
    spec: FrameSpec
    dialect: str
    fields: Mapping[str, Any]
    payload: memoryview | None
    stream_offset: int
    length: int
    direction: Direction = "a>b"
    problems: tuple[Problem, ...] = ()
    missing: int = 0


@dataclass(frozen=True, slots=True)
class Violation:
    """A clause was broken; what to do about it is the caller's policy."""

    time: float
    problem: Problem
    fatal: bool
    direction: Direction = "a>b"


BEGAN_LATE = "before the first header"
"""Reason of what lies before the first header where a capture began in mid-stream."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """Bytes that belong to no frame, with the reason in a few words.

    ``reason`` is one of ``truncated``, ``not a frame``, ``unknown type``, ``too
    long``, ``gap``, ``not captured``, ``foreign``, ``before the first header`` (the
    capture began in mid-stream), ``undecoded`` (bytes of a dialect that is recognised
    only).
    """

    time: float
    stream_offset: int
    length: int
    reason: str
    direction: Direction = "a>b"


@dataclass(frozen=True, slots=True)
class Ended:
    """One direction of the stream ended; ``clean`` at a frame boundary."""

    time: float
    stream_offset: int
    clean: bool
    direction: Direction = "a>b"


Event = FrameReceived | Violation | Skipped | Ended | Any


class Link(Protocol):
    """One end of a connection as a state machine."""

    def receive_data(self, data: Buf | None, now: float) -> None:
        """Take bytes from the peer; None is the end of the stream."""

    def events(self) -> Iterator[Event]:
        """Yield what the bytes so far mean."""

    def send(self, event: Event, now: float) -> list[Buf]:
        """Return the buffers that say ``event``; payloads are not copied."""

    def deadline(self) -> float | None:
        """Return when ``timeout`` wants to be called, if ever."""

    def timeout(self, now: float) -> None:
        """Tell the machine that its deadline has passed."""


class Observer(Protocol):
    """Both directions of one connection, watched from outside."""

    def feed(
        self, direction: Direction, data: Buf | None, now: float
    ) -> Iterator[Event]:
        """Take bytes of one direction; None is its end."""
