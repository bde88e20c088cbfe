"""One raw connection to a rank: control frames, or plain bytes."""

from __future__ import annotations

import struct
from typing import Final

from ds4proto.schema.ds4t_common import DS4T_MAGIC
from ds4proto.schema.registry import frame_of_code, read
from ds4proto_fuzz.ds4d.wire import MAX_FRAME, Seen, Wire

__all__ = ["HEADER", "TpWire"]

HEADER: Final = struct.Struct("<III")


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
        magic, code, size = HEADER.unpack_from(buffer)
        if magic != DS4T_MAGIC or size > MAX_FRAME:
            self.ended = "garbage"
            return None
        if len(buffer) < HEADER.size + size:
            return None
        whole = bytes(buffer[: HEADER.size + size])
        del buffer[: HEADER.size + size]
        spec = frame_of_code("DS4T", code, dialect=self.dialect)
        if spec is None:
            return Seen(f"type {code}", size, {}, memoryview(whole)[HEADER.size :])
        values = dict(read(spec, whole, dialect=self.dialect).values)
        return Seen(spec.name, size, values, memoryview(whole)[HEADER.size :])
