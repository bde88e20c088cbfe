"""The first bytes of every frame, kept beside the rows while a capture is decoded.

A row carries fields, not bytes. What is shown of a frame is its head: enough to see
the header, the fixed fields and the begin of what follows, and never more than a cap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Final

from ds4proto.trace.decoder import CaptureDecoder, Decoder
from ds4proto.trace.rows import Direction, FrameRow
from ds4proto.trace.tcp_events import Data, End, StreamEvent

__all__ = ["HEAD_BYTES", "HeadDecoder", "watch_heads"]

HEAD_BYTES: Final = 96
"""Bytes kept of each frame unless told otherwise."""
_HELD: Final = 1 << 18
_Way = tuple[int, Direction]
_Place = tuple[int, Direction, int]


class _Pending:
    """Bytes of one direction that no row has told of yet: their begin, and the rest.

    A frame of megabytes needs its head alone. When more than `_HELD` bytes wait, the
    pieces behind the head go; a frame that began in what went has no head to show.
    """

    __slots__ = ("done", "head", "keep", "pieces", "size")

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self.done = 0
        self.head = b""  # the first bytes from `done` on, once pieces had to go
        self.pieces: deque[tuple[int, bytes]] = deque()
        self.size = 0

    def add(self, offset: int, data: memoryview) -> None:
        if self.size + len(data) > _HELD and self.pieces:
            self.head = self.head or self.read(self.done, self.keep)
            self.pieces.clear()
            self.size = 0
        self.pieces.append((offset, bytes(data)))
        self.size += len(data)

    def read(self, offset: int, length: int) -> bytes:
        """Return what is held from `offset` on, up to the first hole."""
        length = min(length, self.keep)
        if self.head and offset == self.done:
            return self.head[:length]
        found = bytearray()
        for start, data in self.pieces:
            at = offset + len(found)
            if start <= at < start + len(data):
                found += data[at - start : at - start + length - len(found)]
            if len(found) >= length or start > at:
                break
        return bytes(found)

    def pass_over(self, end: int) -> None:
        """Forget what lies before `end`."""
        if end <= self.done:
            return
        self.done, self.head = end, b""
        while self.pieces:
            start, data = self.pieces[0]
            if start + len(data) > end:
                break
            self.pieces.popleft()
            self.size -= len(data)


class HeadDecoder(Decoder):
    """A `Decoder` that keeps the first bytes of each frame until they are taken.

    Parameters
    ----------
    keep : int
        Bytes of a frame at most.
    **choices
        As for `Decoder`.
    """

    def __init__(self, *, keep: int = HEAD_BYTES, **choices: Any) -> None:
        super().__init__(**choices)
        self._keep = keep
        self._pending: dict[_Way, _Pending] = {}
        self._heads: dict[_Place, bytes] = {}

    def feed(self, event: StreamEvent) -> Iterator[FrameRow]:
        """Take one event of the reassembly; yield the rows that it completes."""
        if isinstance(event, Data) and self._keep:
            if self.is_foreign(event.stream):
                self._forget(event.stream)
            else:
                pending = self._of(event.stream, event.direction)
                pending.add(event.offset, memoryview(event.data))
        for row in super().feed(event):
            if self._keep and row.length:
                pending = self._of(row.stream, row.direction)
                head = pending.read(row.stream_offset, row.length)
                self._heads[row.stream, row.direction, row.stream_offset] = head
                pending.pass_over(row.stream_offset + row.length)
            yield row
        if isinstance(event, End):
            self._forget(event.stats.stream)

    def take(self, row: FrameRow) -> bytes:
        """Return the first bytes of a row, once; empty where they are not held."""
        place = row.stream, row.direction, row.stream_offset
        return self._heads.pop(place, b"") if row.length else b""

    def _of(self, stream: int, direction: Direction) -> _Pending:
        way = stream, direction
        found = self._pending.get(way)
        if found is None:
            found = self._pending[way] = _Pending(self._keep)
        return found

    def _forget(self, stream: int) -> None:
        self._pending.pop((stream, "a>b"), None)
        self._pending.pop((stream, "b>a"), None)


def watch_heads(capture: CaptureDecoder, keep: int, **choices: Any) -> HeadDecoder:
    """Let a capture's decoder keep heads; call it before the first row is read."""
    decoder = HeadDecoder(keep=keep, **choices)
    capture.decoder = decoder
    return decoder
