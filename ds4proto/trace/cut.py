"""Which frames of a capture stay: by time, by connection, by condition."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from ds4proto.trace.rewriting import Kept
from ds4proto.trace.rows import FrameRow

__all__ = ["Selection"]


@dataclass(slots=True)
class Selection:
    """A frame stays where all of these hold.

    Attributes
    ----------
    begin, end : float or None
        Seconds since the first packet: the frame's last byte comes at `begin` or
        later, and before `end`.
    streams : collection of int or None
        Numbers of connections, as ``ds4proto decode`` shows them.
    meets : callable or None
        A condition on the row.
    headers_only : bool
        Keep headers and fixed fields alone.
    hellos : bool
        Keep the hellos of the connections that are chosen, whatever the rest says:
        without them a reader cannot know the dialect.
    chosen : int
        Rows that stayed so far for more than being a hello.
    times : tuple of float or None
        Seconds of the first and of the last frame seen so far.
    """

    begin: float | None = None
    end: float | None = None
    streams: Collection[int] | None = None
    meets: Callable[[Any], bool] | None = None
    headers_only: bool = False
    hellos: bool = True
    chosen: int = field(default=0, init=False)
    times: tuple[float, float] | None = field(default=None, init=False)

    def __call__(self, row: FrameRow) -> Kept:
        """Tell what stays of a row."""
        if row.is_frame:
            first, last = self.times or (row.time, row.time)
            self.times = min(first, row.time), max(last, row.time)
        if self.streams is not None and row.stream not in self.streams:
            return "none"
        hello = self.hellos and row.type.startswith("HELLO")
        chosen = self._chosen(row)
        if not hello and not chosen:
            return "none"
        self.chosen += chosen
        # A hello is short and says who speaks; it stays whole.
        return "head" if self.headers_only and not hello else "whole"

    def _chosen(self, row: FrameRow) -> bool:
        if self.begin is not None and row.time < self.begin:
            return False
        if self.end is not None and row.time >= self.end:
            return False
        return self.meets is None or self.meets(row)
