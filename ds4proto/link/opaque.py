"""Connections that are recognised and left undecoded: their frames are only counted."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Literal

from ds4proto.link.events import Direction, Ended, Event, Skipped, Violation
from ds4proto.link.framing import GapReason
from ds4proto.schema.problem import Buf, Problem


class OpaqueObserver:
    """Accounts for every byte of a dialect that the library does not decode.

    Parameters
    ----------
    protocol, dialect : str
    candidates : list of (str, str)
    problem : Problem
        What is said once for each direction.
    header : struct.Struct or None
        Three words, magic, type and body length; with it each frame is one event.
    magic : int
        The magic that ``header`` reads.
    """

    def __init__(
        self,
        protocol: str,
        dialect: str,
        problem: Problem,
        *,
        candidates: list[tuple[str, str]] | None = None,
        header: Struct | None = None,
        magic: int = 0,
    ) -> None:
        self.protocol = protocol
        self.dialect = dialect
        self.candidates = candidates or [(dialect, "")]
        self._problem = problem
        self._header = header
        self._magic = magic
        self._offset = {"a>b": 0, "b>a": 0}
        self._start = {"a>b": 0, "b>a": 0}
        self._left = {"a>b": 0, "b>a": 0}
        self._head = {"a>b": bytearray(), "b>a": bytearray()}
        self._lost = {"a>b": False, "b>a": False}
        self._told: set[str] = set()

    def role_of(self, end: Literal["a", "b"]) -> str | None:  # noqa: ARG002
        """Return None: roles of an undecoded dialect are not known."""
        return None

    def feed(
        self, direction: Direction, data: Buf | None, now: float
    ) -> Iterator[Event]:
        """Take bytes of one direction; None is its end."""
        if data is None:
            yield from self._end(direction, now)
            return
        view = memoryview(data).cast("B")
        if len(view) and direction not in self._told:
            self._told.add(direction)
            problem = self._problem.at(self._offset[direction])
            yield Violation(now, problem, False, direction)
        while len(view):
            if self._header is None or self._lost[direction]:
                self._offset[direction] += len(view)
                return
            if self._left[direction]:
                took = min(len(view), self._left[direction])
                self._left[direction] -= took
                self._offset[direction] += took
                view = view[took:]
            else:
                head = self._head[direction]
                took = min(self._header.size - len(head), len(view))
                head += view[:took]
                self._offset[direction] += took
                view = view[took:]
                if len(head) < self._header.size:
                    return
                magic, _, size = self._header.unpack(head)
                head.clear()
                if magic != self._magic:
                    self._lost[direction] = True
                    continue
                self._left[direction] = size
            if not self._left[direction]:
                yield self._skipped(direction, now, "undecoded")

    def gap(
        self,
        direction: Direction,
        nbytes: int,
        now: float,
        reason: GapReason = "lost",
    ) -> Iterator[Event]:
        """Take ``nbytes`` that crossed the wire but are not at hand."""
        del now, reason
        self._offset[direction] += nbytes
        if nbytes <= self._left[direction]:
            self._left[direction] -= nbytes
        else:
            self._lost[direction] = True
        return iter(())

    def _end(self, direction: Direction, now: float) -> Iterator[Event]:
        cut = bool(self._left[direction] or self._head[direction])
        if self._offset[direction] > self._start[direction]:
            lost = "not a frame" if self._lost[direction] else "undecoded"
            yield self._skipped(direction, now, "truncated" if cut else lost)
        clean = not (cut or self._lost[direction])
        yield Ended(now, self._offset[direction], clean, direction)

    def _skipped(self, direction: Direction, now: float, reason: str) -> Skipped:
        start, end = self._start[direction], self._offset[direction]
        self._start[direction] = end
        return Skipped(now, start, end - start, reason, direction)
