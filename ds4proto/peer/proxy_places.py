"""Where a field of a frame lies, and how another value is put there."""

from __future__ import annotations

import random
import struct

from ds4proto.peer.proxy_faults import Rule
from ds4proto.schema.declare import FrameSpec, fields_of, offsets_of

__all__ = ["Place", "field_place", "store"]

Place = tuple[int, struct.Struct, int]
"""Offset in the frame, form and bits of a whole-number field."""


def field_place(spec: FrameSpec, name: str, dialect: str) -> Place | None:
    """Return offset, form and bits of a whole-number field of a frame, or None.

    ``header.bytes`` and the like name the words of the header.
    """
    layout, base, path = spec.body, spec.header_size, name
    if name.startswith("header.") and spec.header is not None:
        layout, base, path = spec.header, 0, name.removeprefix("header.")
        dialect = "*"
    places = offsets_of(layout, dialect)
    field = next((f for f in fields_of(layout, dialect) if f.path == path), None)
    if field is None or field.kind != "int":
        return None
    form = struct.Struct((field.order or "=") + field.code)
    return base + places[path], form, 8 * form.size


def store(
    whole: bytearray, place: Place, rule: Rule, draw: random.Random
) -> tuple[int, int]:
    """Put what a rule says into a field; return what it was and what it became."""
    at, form, bits = place
    old = int(form.unpack_from(whole, at)[0])
    new = rule.other(old & ((1 << bits) - 1), bits, draw)
    form.pack_into(whole, at, _fit(new, form))
    return old, new


def _fit(value: int, form: struct.Struct) -> int:
    signed = form.format[-1].islower()
    bits = 8 * form.size
    return value - (1 << bits) if signed and value >> (bits - 1) & 1 else value
