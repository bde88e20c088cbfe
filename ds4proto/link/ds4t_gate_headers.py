"""Gate headers of every dialect, read for people; live links pack their own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, NamedTuple

from ds4proto.schema.declare import FrameSpec, offsets_of, size_of
from ds4proto.schema.ds4t_common import DS4B_MAGIC, DS4T_MAGIC
from ds4proto.schema.ds4t_gates import BULK_TAG, V15_KINDS, WAVE_TAG
from ds4proto.schema.fast import struct_of
from ds4proto.schema.problem import Buf
from ds4proto.schema.registry import frame

GateShape = Literal["row", "batch", "bulk"]

_NAMES: Mapping[GateShape, str] = {
    "row": "DS4T.GATE_ROW",
    "batch": "DS4B.GATE_BATCH",
    "bulk": "DS4B.GATE_BULK",
}
_SHAPES: Mapping[str, GateShape] = {name: shape for shape, name in _NAMES.items()}
_THIRD = ("gate", "rows", "tag", "zero")


class GateHeader(NamedTuple):
    """One gate header.

    Attributes
    ----------
    shape : {"row", "batch", "bulk"}
    layer : int
    third : int
        Gate kind, rows or tag, by shape.
    seq : int
    nbytes : int or None
        Payload length where the dialect carries one (v14-odinlink, v15).
    epoch : int or None
        v15 alone.
    size : int
        Bytes of the header itself: 16, 24 or 40.
    """

    shape: GateShape
    layer: int
    third: int
    seq: int
    nbytes: int | None
    epoch: int | None
    size: int


@cache
def gate_spec(shape: GateShape, dialect: str) -> FrameSpec:
    """Return the declaration of a gate of that shape."""
    return frame(_NAMES[shape], dialect=dialect)


def header_bytes(dialect: str) -> int:
    """Return the size of a gate header: 16, or 24 and 40 in two dialects."""
    return size_of(gate_spec("row", dialect).body, dialect)


def read_gate_header(data: Buf, dialect: str) -> GateHeader | None:
    """Return what a gate header says, None where it is none, or is cut short.

    Parameters
    ----------
    data : buffer
        At least the header; what follows is not looked at.
    dialect : str
        Any DS4T dialect that has gates, v15 and v14-odinlink included.
    """
    view = memoryview(data).cast("B")
    size = header_bytes(dialect)
    if len(view) < size:
        return None
    shape = _shape(view, dialect)
    if shape is None:
        return None
    values = _words(view, shape, dialect)
    third = next(values[name] for name in _THIRD if name in values)
    return GateHeader(
        shape,
        values["layer"],
        third,
        values["seq"],
        values.get("bytes"),
        values.get("epoch"),
        size,
    )


def _words(view: memoryview, shape: GateShape, dialect: str) -> dict[str, Any]:
    body = gate_spec(shape, dialect).body
    words = struct_of(body, dialect).unpack_from(view)
    return dict(zip(offsets_of(body, dialect), words, strict=True))


def _shape(view: memoryview, dialect: str) -> GateShape | None:
    row = _words(view, "row", dialect)
    if dialect.rstrip("?") == "v15":
        name = V15_KINDS.get(row["kind"]) if row["magic"] == DS4T_MAGIC else None
        return _SHAPES[name] if name else None
    if row["magic"] == DS4T_MAGIC:
        return "row"
    if row["magic"] != DS4B_MAGIC:
        return None
    tag = _words(view, "bulk", dialect)["tag"]
    return "bulk" if tag in (BULK_TAG, WAVE_TAG) else "batch"
