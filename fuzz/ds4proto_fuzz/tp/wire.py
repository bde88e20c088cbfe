"""One raw connection to a rank: control frames, or plain bytes."""

from __future__ import annotations

from typing import Final

from ds4proto.schema.ds4t_common import DS4T_MAGIC
from ds4proto.schema.ds4t_common import HEADER as LAYOUT
from ds4proto.schema.fast import struct_of
from ds4proto.schema.registry import frame_of_code, read
from ds4proto_fuzz.ds4d.wire import MAX_FRAME, Seen, Wire

__all__ = ["HEADER", "TpWire", "control_frame"]

HEADER: Final = struct_of(LAYOUT, "v14")


def control_frame(whole: bytes, dialect: str) -> Seen:
    """Return what a whole control frame says."""
    _, code, size = HEADER.unpack_from(whole)
    body = memoryview(whole)[HEADER.size :]
    spec = frame_of_code("DS4T", code, dialect=dialect)
    if spec is None:
        return Seen(f"type {code}", size, {}, body)
    reading = read(spec, whole, dialect=dialect)
    return Seen(spec.name, size, dict(reading.values) if reading.whole else {}, body)


class TpWire(Wire):
    """One connection; ``dialect`` is set once the hello has told it."""

    dialect = "v14"

    def take(self, size: int, deadline: float) -> bytes:
        """Return some bytes; fewer where no more come, ``ended`` then says why."""
        while len(self._buffer) < size and not self.ended:
            if not self._more(deadline):
                break
        found = bytes(self._buffer[:size])
        del self._buffer[: len(found)]
        return found

    def _whole(self) -> Seen | None:
        buffer = self._buffer
        if len(buffer) < HEADER.size:
            return None
        magic, _, size = HEADER.unpack_from(buffer)
        if magic != DS4T_MAGIC or size > MAX_FRAME:
            self.ended = "garbage"
            return None
        if len(buffer) < HEADER.size + size:
            return None
        whole = bytes(buffer[: HEADER.size + size])
        del buffer[: HEADER.size + size]
        return control_frame(whole, self.dialect)
