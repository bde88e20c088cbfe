"""Bytes in any split in, frames out: the incremental framer of one direction."""

from __future__ import annotations

from typing import Literal

from ds4proto.link.events import Direction, Event
from ds4proto.link.limits import DEFAULT_LIMITS, Limits
from ds4proto.link.sink import SinkFactory
from ds4proto.schema.problem import Buf


class Framer:
    """One direction of a header-framed stream (DS4D, or DS4T control).

    Parameters
    ----------
    protocol : {"DS4D", "DS4T"}
    dialect : str
        Dialect to read under; ``set_dialect`` changes it between frames.
    direction : {"a>b", "b>a"}
        Copied into every event.
    sink : callable, optional
        Where bulk tails go, see ``ds4proto.link.sink``.
    limits : Limits
        Caps on announced lengths.
    auto_resync : bool
        True searches for the next header after a loss by itself; False stays lost
        until ``resync`` is called.
    stream_offset : int
        Offset of the first byte that will be fed.

    Notes
    -----
    The events depend on the bytes alone, never on how they were split. Every byte
    fed, or reported as a gap, ends up in exactly one ``FrameReceived.length`` or
    ``Skipped.length`` once the stream has ended.
    """

    def __init__(
        self,
        protocol: Literal["DS4D", "DS4T"],
        *,
        dialect: str,
        direction: Direction = "a>b",
        sink: SinkFactory | None = None,
        limits: Limits = DEFAULT_LIMITS,
        auto_resync: bool = False,
        stream_offset: int = 0,
    ) -> None:
        raise NotImplementedError

    def feed(self, data: Buf | None, now: float) -> list[Event]:
        """Take bytes; None is the end of the stream. Views are not kept after it."""
        raise NotImplementedError

    def gap(
        self, nbytes: int, now: float, reason: Literal["lost", "not captured"] = "lost"
    ) -> list[Event]:
        """Take ``nbytes`` that crossed the wire but are not at hand."""
        raise NotImplementedError

    def resync(self, now: float) -> list[Event]:
        """Search for the next true header, from the point of the loss on."""
        raise NotImplementedError

    def set_dialect(self, dialect: str) -> None:
        """Read the frames from here on under another dialect."""
        raise NotImplementedError

    @property
    def lost(self) -> bool:
        """True after a fatal violation, until a header was found again."""
        raise NotImplementedError

    @property
    def offset(self) -> int:
        """Stream offset of the next byte to come."""
        raise NotImplementedError

    @property
    def pending(self) -> int:
        """Bytes fed that no event accounts for yet."""
        raise NotImplementedError
