"""Find the protocol of a connection by its first bytes, and watch both directions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, Protocol

from ds4proto.link.events import Direction, Event
from ds4proto.link.limits import DEFAULT_LIMITS, Limits
from ds4proto.link.pair import TpPair
from ds4proto.link.sink import SinkFactory
from ds4proto.schema.problem import Buf

FIRST_BYTES = 512
"""Bytes of each direction that settle protocol and dialect in most cases."""


class StreamObserver(Protocol):
    """What ``open_observer`` returns: an ``Observer`` that also takes gaps."""

    def feed(
        self, direction: Direction, data: Buf | None, now: float
    ) -> Iterator[Event]:
        """Take bytes of one direction; None is its end."""

    def gap(
        self,
        direction: Direction,
        nbytes: int,
        now: float,
        reason: Literal["lost", "not captured"] = "lost",
    ) -> Iterator[Event]:
        """Take ``nbytes`` that crossed the wire but are not at hand."""

    @property
    def protocol(self) -> str:
        """``DS4D``, ``DS4T`` (control) or ``DS4B`` (gates)."""

    @property
    def dialect(self) -> str:
        """Dialect that the frames are read under so far."""

    @property
    def candidates(self) -> list[tuple[str, str]]:
        """Dialects still possible, each with what would settle it."""

    def role_of(self, end: Literal["a", "b"]) -> str | None:
        """Return ``coordinator``, ``worker``, ``tp-leader`` ... or None (unknown)."""


def open_observer(
    first: Mapping[Direction, Buf],
    *,
    pair: TpPair | None = None,
    sink: SinkFactory | None = None,
    limits: Limits = DEFAULT_LIMITS,
    dialect: str | None = None,
    complete: bool = True,
) -> StreamObserver | None:
    """Return an observer for a connection, or None for foreign traffic.

    Parameters
    ----------
    first : mapping
        First bytes of each direction, as many as are at hand (``FIRST_BYTES`` do).
        They are only looked at: feed them to the observer afterwards.
    pair : TpPair, optional
        Shared state of a TP pair; without one a DS4T connection stands alone.
    sink, limits
        As for ``Framer``.
    dialect : str, optional
        Dialect to read under, instead of the one recognised.
    complete : bool
        False where ``first`` does not start at the first byte of the stream (the
        capture began later): headers are searched for.
    """
    raise NotImplementedError
