"""Which packet, at which time, carried which byte of a stream."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import Final

from ds4proto.trace.tcp_events import Data, Gap

__all__ = ["Marks"]

_MANY: Final = 512
_KEPT: Final = 1024


class Marks:
    """Segments of one direction, for as long as a frame may still begin in them.

    `at` is asked for offsets that mostly ascend.
    """

    __slots__ = ("_current", "_end", "_pieces")

    def __init__(self) -> None:
        # offsets of segments, their packets and times, ascending; the last is current
        self._pieces: deque[tuple[list[int], list[int], list[int]]] = deque()
        self._current: tuple[list[int], list[int], list[int]] = ([0], [0], [0])
        self._end = 0

    def add(self, data: Data) -> None:
        """Note the segments of a piece."""
        self._end = data.offset + len(data.data)
        if data.marks is None:
            piece = ([data.offset], [data.packet], [data.time_ns])
        else:
            marks = data.marks
            piece = (
                marks.offset.tolist(), marks.packet.tolist(), marks.time_ns.tolist(),
            )  # fmt: skip
        self._current = piece
        self._pieces.append(piece)
        if len(self._pieces) > _MANY:
            self._thin()

    def add_gap(self, gap: Gap) -> None:
        """Note bytes that crossed the wire but are not in the capture."""
        self._end = gap.offset + gap.length
        self._current = ([gap.offset], [gap.packet], [gap.time_ns])
        self._pieces.append(self._current)

    def at(self, offset: int) -> tuple[int, int]:
        """Return (packet number, time in ns) of the segment that carries `offset`."""
        starts, packets, times = self._current
        if starts[0] <= offset:
            k = bisect_right(starts, offset) - 1
            return packets[k], times[k]
        for starts, packets, times in reversed(self._pieces):
            if starts[0] <= offset:
                k = bisect_right(starts, offset) - 1
                return packets[k], times[k]
        if self._pieces:
            _, packets, times = self._pieces[0]
            return packets[0], times[0]
        return 0, 0

    def forget(self, offset: int) -> None:
        """Let go of what lies wholly before `offset`."""
        pieces = self._pieces
        while len(pieces) > 1 and pieces[1][0][0] <= offset:
            pieces.popleft()

    def _thin(self) -> None:
        """Keep some segments of old pieces, evenly spread: a frame is longer."""
        kept = list(self._pieces)
        middle = [mark for piece in kept[1:-2] for mark in zip(*piece, strict=True)]
        if len(middle) > _KEPT:
            low, high = middle[0][0], middle[-1][0]
            starts = [mark[0] for mark in middle]
            wanted = {
                bisect_right(starts, low + (high - low) * k // _KEPT) - 1
                for k in range(_KEPT + 1)
            }
            middle = [middle[k] for k in sorted(wanted)]
        columns = list(map(list, zip(*middle, strict=True)))
        self._pieces = deque(
            [kept[0], (columns[0], columns[1], columns[2]), *kept[-2:]]
        )
