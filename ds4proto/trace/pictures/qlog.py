"""Frames as events of a qlog-style file, for viewers that read qlog.

The shape is that of the contained file of the main logging schema for qlog (IETF
QUIC working group, draft-ietf-quic-qlog-main-schema): a file has traces, a trace has a
vantage point and events, an event has ``time``, ``name`` and ``data``. Times are
milliseconds since 1970, what every version of the draft reads without a time format.
The event names are this project's own: ``ds4d:frame``, ``ds4t:frame``, ``ds4b:frame``,
``ds4:undecoded``. Both the older keys (``qlog_version``, ``qlog_format``) and the
newer ones (``file_schema``, ``serialization_format``) are written.
"""

from __future__ import annotations

from typing import Any, BinaryIO, Final

import msgspec

from ds4proto.trace.rows import UNDECODED, FrameRow

__all__ = ["EVENTS", "QlogWriter"]

VERSION: Final = "0.4"
EVENTS: Final = "urn:ds4proto:events:ds4"
"""URI of the event schema: this project's own, registered nowhere."""
_BLOCK: Final = 1 << 16


class QlogWriter:
    """Writes rows as they come, in constant memory; `finish` closes the file.

    Parameters
    ----------
    stream : binary stream
    title : str
        Name of the capture.
    """

    def __init__(self, stream: BinaryIO, title: str) -> None:
        self._stream = stream
        self._encoder = msgspec.json.Encoder()
        self._block = bytearray()
        self.events = 0
        head = {
            "qlog_version": VERSION,
            "qlog_format": "JSON",
            "file_schema": "urn:ietf:params:qlog:file:contained",
            "serialization_format": "application/qlog+json",
            "title": title,
        }
        trace = {
            "title": title,
            "vantage_point": {
                "name": "packet capture", "type": "network", "flow": "client",
            },
            "event_schemas": [EVENTS],
        }  # fmt: skip
        self._block += self._encoder.encode(head)[:-1] + b',"traces":['
        self._block += self._encoder.encode(trace)[:-1] + b',"events":['

    def write(self, row: FrameRow) -> None:
        """Take a row."""
        self._block += b",\n" if self.events else b"\n"
        self._encoder.encode_into(event_of(row), self._block, -1)
        self.events += 1
        if len(self._block) >= _BLOCK:
            self._stream.write(bytes(self._block))
            self._block.clear()

    def finish(self) -> None:
        """Write what is still held, and the end of the file."""
        self._block += b"\n]}]}\n"
        self._stream.write(bytes(self._block))
        self._block.clear()


def event_of(row: FrameRow) -> dict[str, Any]:
    """Return one row as an event: time, name, data, and its connection as group."""
    space = "ds4" if row.type == UNDECODED else row.protocol.lower()
    name = "undecoded" if row.type == UNDECODED else "frame"
    return {
        "time": round(row.epoch * 1e3, 3),
        "name": f"{space}:{name}",
        "group_id": str(row.stream),
        "data": {
            "type": row.type,
            "direction": row.direction,
            "run": row.run,
            "dialect": row.dialect,
            "source": row.src,
            "destination": row.dst,
            "source_role": row.src_role,
            "destination_role": row.dst_role,
            "first_byte": round((row.epoch - row.time + row.first_time) * 1e3, 3),
            "stream_offset": row.stream_offset,
            "length": row.length,
            "first_packet": row.first_packet,
            "last_packet": row.last_packet,
            "fields": row.fields,
            "payload": row.payload,
            "problems": row.problems,
        },
    }
