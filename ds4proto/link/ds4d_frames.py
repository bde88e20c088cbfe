"""Frames built and fixed parts read on the hot path, derived from the declarations."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ds4proto.link.ds4d_limits import MESSAGE_BYTES, U32
from ds4proto.link.ds4d_texts import cut
from ds4proto.schema.declare import FieldSpec, FrameSpec, Ints, Layout, fields_of
from ds4proto.schema.ds4d_common import HEADER, MAGIC
from ds4proto.schema.ds4d_hello import ERROR, HELLO
from ds4proto.schema.ds4d_records import ROUTE, ROUTE_RETURN, TELEMETRY
from ds4proto.schema.ds4d_result import RESULT
from ds4proto.schema.ds4d_snapshot import (
    SNAPSHOT_BEGIN,
    SNAPSHOT_CHUNK,
    SNAPSHOT_DONE,
    SNAPSHOT_LOAD_BEGIN,
    SNAPSHOT_SAVE_REQ,
)
from ds4proto.schema.ds4d_work import WORK
from ds4proto.schema.fast import struct_of
from ds4proto.schema.problem import Buf

DIALECT: Final = "upstream"
SMALL: Final = 16384
"""Buffers up to this many bytes are joined, so that one frame is one send."""


class FixedPart:
    """The fixed part of a layout as one ``struct``.

    Attributes
    ----------
    names : tuple of str
        Fields in wire order.
    size : int
        Bytes.
    """

    __slots__ = ("_form", "names", "size")

    def __init__(self, layout: Layout, dialect: str = DIALECT) -> None:
        self._form = struct_of(layout, dialect)
        self.names = tuple(field.path for field in fields_of(layout, dialect))
        self.size = self._form.size

    def read(self, data: Buf, at: int = 0) -> dict[str, int]:
        """Return the values at an offset."""
        return dict(zip(self.names, self._form.unpack_from(data, at), strict=True))

    def build(self, values: Mapping[str, int]) -> bytes:
        """Return the bytes of ``values``."""
        return self._form.pack(*[values[name] for name in self.names])


_HEADER: Final = struct_of(HEADER, DIALECT)
HEADER_SIZE: Final = _HEADER.size
unpack_header: Final = _HEADER.unpack_from

FIXED: Final = {
    spec: FixedPart(spec.body)
    for spec in (
        HELLO,
        WORK,
        RESULT,
        SNAPSHOT_SAVE_REQ,
        SNAPSHOT_BEGIN,
        SNAPSHOT_CHUNK,
        SNAPSHOT_DONE,
        SNAPSHOT_LOAD_BEGIN,
    )
}
WORK_PART: Final = FIXED[WORK]
RESULT_PART: Final = FIXED[RESULT]
ROUTE_PART: Final = FixedPart(ROUTE)
RETURN_PART: Final = FixedPart(ROUTE_RETURN)
TELEMETRY_PART: Final = FixedPart(TELEMETRY)


def _token() -> FieldSpec:
    tail = next(tail for tail in WORK.body.tails if tail.path == "tokens")
    if not isinstance(tail, Ints):
        raise TypeError("WORK.tokens is no run of integers")
    return FieldSpec("token", tail.item, tail.doc)


_ORDER, _CODE = _token().order, _token().code
TOKEN_BYTES: Final = struct.calcsize(_ORDER + _CODE)


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Return token ids as the wire carries them."""
    return struct.pack(f"{_ORDER}{len(tokens)}{_CODE}", *tokens)


def read_tokens(data: Buf, at: int, count: int) -> tuple[int, ...]:
    """Return ``count`` token ids at an offset."""
    return struct.unpack_from(f"{_ORDER}{count}{_CODE}", data, at)


def _code(spec: FrameSpec) -> int:
    if spec.code is None:
        raise TypeError(f"{spec.name} has no type number")
    return spec.code


CODE: Final = {spec: _code(spec) for spec in (*FIXED, ERROR)}


def framed(spec: FrameSpec, parts: Iterable[Buf]) -> list[Buf]:
    """Return a frame of body parts; large parts are passed on, not copied."""
    body = [part for part in parts if len(part)]
    size = sum(map(len, body))
    if size > U32:
        raise ValueError(f"{spec.name} of {size} bytes: a body holds at most {U32}")
    head = _HEADER.pack(MAGIC, CODE[spec], size)
    joined: list[Buf] = []
    small = [head]
    for part in body:
        if len(part) <= SMALL:
            small.append(bytes(part))
            continue
        if small:
            joined.append(b"".join(small))
            small = []
        joined.append(part)
    if small:
        joined.append(b"".join(small))
    return joined


def error_frame(words: str) -> list[Buf]:
    """Return an ERROR frame, its text cut at 255 bytes as senders cut it."""
    return framed(ERROR, (cut(words, MESSAGE_BYTES),))


def work_frame(
    fixed: Mapping[str, int], tokens: Buf, hidden: Buf, blob: Buf
) -> list[Buf]:
    """Return a WORK; ``tokens`` and ``blob`` are wire bytes, sizes are filled in."""
    words = {
        **fixed,
        "token_bytes": len(tokens),
        "input_hc_bytes": len(hidden),
        "route_bytes": len(blob),
    }
    return framed(WORK, (WORK_PART.build(words), tokens, hidden, blob))


def result_frame(
    request: int,
    *,
    result_hash: int = 0,
    status: int = 0,
    kind: int = 0,
    bits: int = 0,
    telemetry: Buf = b"",
    payload: Buf = b"",
) -> list[Buf]:
    """Return a RESULT; ``telemetry`` is whole records as wire bytes."""
    words = {
        "request": request,
        "result_hash": result_hash,
        "status": status,
        "result_kind": kind,
        "telemetry_count": len(telemetry) // TELEMETRY_PART.size,
        "telemetry_bytes": len(telemetry),
        "payload_bytes": len(payload),
        "payload_bits": bits,
    }
    return framed(RESULT, (RESULT_PART.build(words), telemetry, payload))


def refusal_frame(request: int, words: str) -> list[Buf]:
    """Return an error RESULT: status 1, nothing but the text (DS4D-RESULT-23)."""
    return result_frame(request, status=1, payload=cut(words, MESSAGE_BYTES))


def read_telemetry(data: Buf, at: int, count: int) -> tuple[Mapping[str, Any], ...]:
    """Return ``count`` telemetry records at an offset."""
    step = TELEMETRY_PART.size
    return tuple(TELEMETRY_PART.read(data, at + step * i) for i in range(count))


def microseconds(seconds: float) -> int:
    """Return whole microseconds, rounded and held at the u32 maximum."""
    return max(0, min(U32, int(seconds * 1e6 + 0.5)))
