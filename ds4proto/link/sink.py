"""Where bulk bytes go while a frame is still arriving.

A factory is asked once for each bulk tail, with the fields read so far; it answers
with a sink, or None to have the bytes collected and handed out as a memoryview.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ds4proto.schema.declare import FrameSpec


class Sink(Protocol):
    """Takes one bulk tail piece by piece, in constant memory."""

    def write(self, view: memoryview) -> None:
        """Take the next bytes; the view is valid during the call only."""

    def gap(self, nbytes: int) -> None:
        """Note that the next ``nbytes`` were lost or not captured."""

    def close(self) -> Any:
        """Return what stands for the tail in ``fields``.

        Called once, also where the frame was cut short; the value is then dropped.
        """


SinkFactory = Callable[[FrameSpec, Mapping[str, Any], str, int | None], Sink | None]
"""``sink(spec, fields_so_far, path, nbytes)``.

``path`` is the tail's wire name (``hidden``, ``images[0].rows``); ``nbytes`` is its
length, or None for a bulk gate whose length only the next header will tell.
"""
