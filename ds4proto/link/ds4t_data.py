"""Both directions of the data connection of a TP pair: the gates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from ds4proto.link.events import Direction, Event
from ds4proto.link.framing import GapReason
from ds4proto.link.gate_stream import GateStream
from ds4proto.link.limits import DEFAULT_LIMITS, Limits
from ds4proto.link.pair import TpPair
from ds4proto.link.sink import SinkFactory
from ds4proto.schema.problem import Buf

_DIRECTIONS: tuple[Direction, Direction] = ("a>b", "b>a")


class DataObserver:
    """Watches the data connection of a TP pair.

    Parameters
    ----------
    pair : TpPair
        Shared with the control connection; without one the width of a vector is
        found from the distance of two headers.
    sink, limits
        As for ``Framer``.
    dialect : str or None
        Read under this dialect whatever the hello said.
    complete : bool
        False where the capture began in mid-stream.
    """

    protocol = "DS4B"

    def __init__(
        self,
        pair: TpPair,
        *,
        sink: SinkFactory | None = None,
        limits: Limits = DEFAULT_LIMITS,
        dialect: str | None = None,
        complete: bool = True,
    ) -> None:
        self._pair = pair
        self._dialect = dialect
        pair.attach_data()
        self._streams = {
            direction: GateStream(
                pair,
                direction,
                sink=sink,
                limits=limits,
                dialect=dialect,
                complete=complete,
            )
            for direction in _DIRECTIONS
        }

    @property
    def dialect(self) -> str:
        """Dialect that the gates are read under."""
        return self._dialect or self._pair.dialect or "v14?"

    @property
    def candidates(self) -> list[tuple[str, str]]:
        """Dialects still possible, each with what would settle it."""
        return [(self.dialect, "the hello of the control connection")]

    def role_of(self, end: Literal["a", "b"]) -> str | None:
        """Return the role of an end: the worker dials both connections."""
        if self._pair.hello is None:
            return None
        return "tp-worker" if end == self._pair.worker_end else "tp-leader"

    def feed(
        self, direction: Direction, data: Buf | None, now: float
    ) -> Iterator[Event]:
        """Take bytes of one direction; None is its end."""
        return iter(self._streams[direction].feed(data, now))

    def gap(
        self,
        direction: Direction,
        nbytes: int,
        now: float,
        reason: GapReason = "lost",
    ) -> Iterator[Event]:
        """Take ``nbytes`` that crossed the wire but are not at hand."""
        return iter(self._streams[direction].gap(nbytes, now, reason))
