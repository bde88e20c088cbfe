"""One row a frame: what crossed the wire, in plain values."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from ds4proto.printable import counted
from ds4proto.schema.problem import Problem
from ds4proto.trace.payload import PayloadSummary

__all__ = ["UNDECODED", "Direction", "FrameRow", "plain"]

Direction = Literal["a>b", "b>a"]

UNDECODED: Final = "UNDECODED"
"""``type`` of a row for bytes that are no frame; ``fields`` say why."""

_LONGEST_LIST: Final = 4096


class FrameRow(msgspec.Struct, frozen=True):
    """One frame, or one run of bytes that belong to none.

    Attributes
    ----------
    run : int
        Number of the run, from 1; 0 where the stream belongs to none.
    stream : int
        Number of the TCP connection, from 1, in order of appearance.
    direction : {"a>b", "b>a"}
        ``a`` dialled, ``b`` accepted.
    protocol, dialect, type : str
        ``DS4D``, ``upstream``, ``WORK``. A dialect with ``?`` behind it is the
        nearest known one. `type` is ``UNDECODED`` for bytes of no frame.
    time, first_time : float
        When the last and the first byte passed, in seconds since the first packet
        of the capture.
    epoch : float
        `time` as seconds since 1970.
    stream_offset, length : int
        Where in its direction of the stream the frame starts, and its bytes, header
        included.
    first_packet, last_packet : int
        Packet numbers in the capture, from 1; 0 for a plain byte stream.
    src, dst : str
        Addresses.
    src_role, dst_role : str
        ``coordinator``, ``worker 2:4``, ``leader``, ``tp-worker``, or an address.
    fields : dict
        Values by wire name; a payload is not among them.
    payload : PayloadSummary or None
    problems : tuple of Problem
        Rules that the frame breaks.
    """

    run: int
    stream: int
    direction: Direction
    protocol: str
    dialect: str
    type: str
    time: float
    stream_offset: int
    length: int
    first_packet: int
    last_packet: int
    fields: dict[str, Any]
    problems: tuple[Problem, ...]
    first_time: float
    epoch: float
    src: str
    dst: str
    src_role: str
    dst_role: str
    payload: PayloadSummary | None = None

    @property
    def name(self) -> str:
        """``PROTOCOL.TYPE``."""
        return f"{self.protocol}.{self.type}"

    @property
    def is_frame(self) -> bool:
        """Whether the bytes are a frame at all."""
        return self.type != UNDECODED


def plain(value: Any) -> Any:
    r"""Return a field's value as JSON can hold it: text without lone surrogates.

    Bytes that are no UTF-8 come out as ``\\xNN``; raw bytes become hex, or their
    number where they are many; long lists end in a count of what is left out.
    """
    if isinstance(value, str):
        if value.isascii():
            return value
        raw = value.encode("utf-8", "surrogateescape")
        return raw.decode("utf-8", "backslashreplace")
    if isinstance(value, bytes | bytearray | memoryview):
        return (
            bytes(value).hex() if len(value) <= 64 else f"{counted(len(value), 'byte')}"
        )
    if isinstance(value, list | tuple):
        shown = [plain(item) for item in value[:_LONGEST_LIST]]
        if len(value) > _LONGEST_LIST:
            shown.append(f"{len(value) - _LONGEST_LIST} more")
        return shown
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value
