"""The raw stream that follows a frame without being counted in it."""

from __future__ import annotations

from dataclasses import replace

from ds4proto.link.events import FrameReceived
from ds4proto.link.sink import SinkFactory

RAW_PATH = "raw"
"""Path under which a sink gets the stream, and under which ``fields`` holds it."""


class RawStream:
    """Passes a raw stream through; it belongs to the frame in front of it."""

    __slots__ = ("_missing", "_sink", "frame", "left", "nbytes")

    def __init__(
        self, frame: FrameReceived, nbytes: int, sink: SinkFactory | None
    ) -> None:
        self.frame = frame
        self.nbytes = nbytes
        self.left = nbytes
        self._missing = 0
        self._sink = (
            None if sink is None else sink(frame.spec, frame.fields, RAW_PATH, nbytes)
        )

    def take(self, view: memoryview) -> int:
        """Take bytes; return how many were wanted. They are not kept."""
        view = view[: self.left]
        if self._sink is not None:
            self._sink.write(view)
        self.left -= len(view)
        return len(view)

    def gap(self, nbytes: int) -> bool:
        """Take a gap if it lies inside the stream; tell whether it does."""
        if nbytes > self.left:
            return False
        if self._sink is not None:
            self._sink.gap(nbytes)
        self._missing += nbytes
        self.left -= nbytes
        return True

    def finish(self, now: float) -> FrameReceived:
        """Return the frame, its raw stream counted in."""
        value = None if self._sink is None else self._sink.close()
        return replace(
            self.frame,
            time=now,
            fields={**self.frame.fields, RAW_PATH: value},
            length=self.frame.length + self.nbytes,
            missing=self._missing,
        )

    def abandon(self) -> None:
        """Close the sink; the frame will not be finished."""
        if self._sink is not None:
            self._sink.close()
