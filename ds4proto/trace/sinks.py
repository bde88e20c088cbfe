"""Where the bulk bytes of frames go while a capture is decoded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from ds4proto.link.sink import Sink, SinkFactory
from ds4proto.schema import dialect as find_dialect
from ds4proto.schema.declare import FrameSpec, Payload, walk_tails
from ds4proto.trace.payload import Summarizer, Width

__all__ = ["Look", "PayloadMode", "TailSink", "sink_factory", "width_of"]

Look = Callable[[FrameSpec, Mapping[str, Any], str, Width], Summarizer]
"""Gives what describes one payload: of frame, fields so far, path and width."""
PayloadMode = Literal["none", "summary", "full"] | Look

MAX_TEXT: Final = 1 << 16
_IPC: Final = 0x10  # anyei: the hidden tail is a slot descriptor
_WIDTHS: Final[dict[int, Width]] = {32: "f32", 8: "e4m3"}


class TailSink:
    """A `Sink` that describes what passes, or only counts it."""

    __slots__ = ("look",)

    def __init__(self, look: Summarizer | None) -> None:
        self.look = look

    def write(self, view: memoryview) -> None:
        """Take the next bytes."""
        if self.look is not None:
            self.look.update(view)

    def gap(self, nbytes: int) -> None:
        """Note bytes that the capture does not hold."""
        if self.look is not None:
            self.look.missing(nbytes)

    def close(self) -> Summarizer | None:
        """Return the summarizer; who builds the row knows the shape."""
        return self.look


def sink_factory(mode: PayloadMode, dialect: Callable[[], str]) -> SinkFactory:
    """Return what an observer asks for a sink.

    Parameters
    ----------
    mode : {"none", "summary", "full"} or callable
    dialect : callable
        Says the dialect of the moment; it decides what 16 bits mean.
    """

    def sink(
        spec: FrameSpec, fields: Mapping[str, Any], path: str, nbytes: int | None
    ) -> Sink | None:
        if _is_text(spec, fields) and nbytes is not None and nbytes <= MAX_TEXT:
            return None
        if mode == "none":
            return TailSink(None)
        width = width_of(spec, fields, path, dialect())
        if callable(mode):
            return TailSink(mode(spec, fields, path, width))
        return TailSink(Summarizer(path, width, keep=mode == "full"))

    return sink


def _is_text(spec: FrameSpec, fields: Mapping[str, Any]) -> bool:
    return spec.name == "RESULT" and fields.get("status", 0) != 0


def width_of(
    spec: FrameSpec, fields: Mapping[str, Any], path: str, dialect: str
) -> Width:
    """Return what the values of a bulk tail are, from its declaration and fields."""
    bits = _bits(spec, fields, path)
    if spec.name in ("SNAPSHOT_CHUNK", "IPC_INBOX", "HELLO", "RESTORE_PAYLOAD"):
        return "bytes"
    if spec.name == "WORK" and dialect == "anyei" and fields.get("flags", 0) & _IPC:
        return "bytes"
    if spec.name == "RESULT" and fields.get("status", 0) != 0:
        return "bytes"
    if bits == 16:
        return find_dialect(dialect).width16
    return _WIDTHS.get(bits, "bytes")


def _bits(spec: FrameSpec, fields: Mapping[str, Any], path: str) -> int:
    for tail in walk_tails(spec.body.tails):
        if isinstance(tail, Payload) and tail.path == path:
            if tail.shape == "bytes" or "x 64" in tail.shape:
                return 0
            bits = tail.bits if isinstance(tail.bits, int) else tail.bits(fields)
            return int(bits) or 32
    return 32 if path.endswith(".rows") else 0
