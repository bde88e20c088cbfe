"""What is done to one valid frame: read off its declaration, chosen by chance."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Final, Literal

from ds4proto.emit.boundaries import boundary_values
from ds4proto.emit.faults import patched, sizing_names
from ds4proto.schema.declare import (
    Blob,
    FieldSpec,
    FrameSpec,
    Payload,
    fields_of,
    offsets_of,
    tails_of,
)
from ds4proto.schema.registry import read

__all__ = ["FAMILIES", "Mutated", "mutate"]

EDGES: Final = (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFC, 0xFFFFFFFF, 1 << 28, 1 << 16)
"""Words of a sender who lies about a length or a count."""
_FLOATS: Final = (0x7FC00000, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 1, 0x7F800001)
"""NaN, both infinities, the largest and the smallest float, a signalling NaN."""


@dataclass(frozen=True, slots=True)
class Mutated:
    """A frame that has been tampered with; ``how`` says where and what."""

    data: bytes
    how: str


def _order(spec: FrameSpec) -> str:
    return ">" if spec.protocol == "DS4D" else "<"


def _ends(spec: FrameSpec) -> Literal["big", "little"]:
    return "big" if spec.protocol == "DS4D" else "little"


def _word(spec: FrameSpec, value: int) -> bytes:
    return struct.pack(_order(spec) + "I", value & 0xFFFFFFFF)


@cache
def _free(spec: FrameSpec, dialect: str) -> tuple[FieldSpec, ...]:
    return fields_of(spec.body, dialect)


@cache
def _values(field: FieldSpec, dialect: str) -> tuple[bytes, ...]:
    return tuple(field.type.build(v) for v in boundary_values(field, dialect))


@cache
def _sizing(spec: FrameSpec, dialect: str) -> tuple[FieldSpec, ...]:
    names = sizing_names(spec.body, dialect)
    counts = tuple(
        f for f in _free(spec, dialect) if f.path in names or _is_count(f.path)
    )
    return tuple(f for f in counts if f.kind == "int")


def _is_count(path: str) -> bool:
    words = path.split("_")
    return bool({"count", "bytes", "len", "size", "tokens"} & set(words))


def _set(
    spec: FrameSpec, dialect: str, data: bytes, field: FieldSpec, wire: bytes
) -> bytes:
    at = spec.header_size + offsets_of(spec.body, dialect)[field.path]
    return data[:at] + wire + data[at + field.size :]


def _field(rng: Random, spec: FrameSpec, dialect: str, data: bytes) -> Mutated:
    """Put a value of its edges into one field."""
    fields = _free(spec, dialect)
    if not fields:
        return _stretch(rng, spec, dialect, data)
    field = rng.choice(fields)
    wire = rng.choice(_values(field, dialect))
    return Mutated(_set(spec, dialect, data, field, wire), f"{field.path}={wire.hex()}")


def _near(rng: Random, spec: FrameSpec, dialect: str, data: bytes) -> Mutated:
    """Move one field by a little."""
    fields = [f for f in _free(spec, dialect) if f.kind == "int"]
    if not fields:
        return _stretch(rng, spec, dialect, data)
    field = rng.choice(fields)
    at = spec.header_size + offsets_of(spec.body, dialect)[field.path]
    old = int.from_bytes(data[at : at + field.size], _ends(spec))
    step = rng.choice((-2, -1, 1, 2, 4))
    new = (old + step) % (1 << 8 * field.size)
    wire = new.to_bytes(field.size, _ends(spec))
    return Mutated(_set(spec, dialect, data, field, wire), f"{field.path}{step:+d}")


def _length(rng: Random, spec: FrameSpec, dialect: str, data: bytes) -> Mutated:
    """Lie in a length or a count of the fixed part."""
    fields = _sizing(spec, dialect)
    if not fields:
        return _header(rng, spec, dialect, data)
    field = rng.choice(fields)
    value = rng.choice(EDGES)
    wire = (value % (1 << 8 * field.size)).to_bytes(field.size, _ends(spec))
    return Mutated(_set(spec, dialect, data, field, wire), f"{field.path}={value:#x}")


def _cross(rng: Random, spec: FrameSpec, dialect: str, data: bytes) -> Mutated:
    """Let two lengths lie so that their sum is right."""
    fields = [f for f in _sizing(spec, dialect) if f.size == 4]
    if len(fields) < 2:
        return _length(rng, spec, dialect, data)
    first, second = rng.sample(fields, 2)
    step = rng.choice((1, 4, 64, 1 << 31))
    offsets = offsets_of(spec.body, dialect)
    form = _order(spec) + "I"
    out = bytearray(data)
    for field, change in ((first, step), (second, -step)):
        at = spec.header_size + offsets[field.path]
        (old,) = struct.unpack_from(form, out, at)
        struct.pack_into(form, out, at, (old + change) & 0xFFFFFFFF)
    return Mutated(bytes(out), f"{first.path}+{step:#x} {second.path}-{step:#x}")


def _header(rng: Random, spec: FrameSpec, _dialect: str, data: bytes) -> Mutated:
    """Lie in the header's length."""
    if spec.header is None or len(data) < spec.header_size:
        return Mutated(data[:-1], "cut by 1")
    true = len(data) - spec.header_size
    value = rng.choice((*EDGES, true + 1, true + 4, max(0, true - 1), max(0, true - 4)))
    at = spec.header_size - 4
    return Mutated(
        data[:at] + _word(spec, value) + data[at + 4 :], f"header bytes={value:#x}"
    )


def _type(rng: Random, spec: FrameSpec, _dialect: str, data: bytes) -> Mutated:
    """Give the body another type number."""
    if spec.header is None:
        return Mutated(data[::-1], "reversed")
    code = rng.choice((*range(24), 0x7FFFFFFF, 0xFFFFFFFF, 255, 256))
    return Mutated(data[:4] + _word(spec, code) + data[8:], f"type={code}")


def _magic(rng: Random, _spec: FrameSpec, _dialect: str, data: bytes) -> Mutated:
    """Break the magic."""
    other = rng.choice(
        (data[3::-1], b"DS4T", b"DS4B", bytes(4), b"GET ", b"\xff" * 4, b"DS4E")
    )
    return Mutated(other + data[4:], f"magic={other.hex()}")


def _cut(rng: Random, spec: FrameSpec, dialect: str, data: bytes) -> Mutated:
    """Leave out the end; the header still announces it."""
    edges = [0, 1, spec.header_size - 1, spec.header_size, len(data) - 1]
    edges += [spec.header_size + at for at in offsets_of(spec.body, dialect).values()]
    size = rng.choice([e for e in edges if 0 <= e < len(data)] or [0])
    return Mutated(data[:size], f"cut to {size}")


def _short(rng: Random, spec: FrameSpec, dialect: str, data: bytes) -> Mutated:
    """Leave out the end, and let the header say so."""
    cut = _cut(rng, spec, dialect, data)
    body = cut.data[spec.header_size :]
    return Mutated(_reframed(spec, data, body), f"body of {len(body)}")


def _stretch(rng: Random, spec: FrameSpec, _dialect: str, data: bytes) -> Mutated:
    """Add bytes behind the end, which the header counts or not."""
    more = rng.randbytes(rng.choice((1, 2, 3, 4, 8, 40, 4096)))
    if spec.header is not None and rng.random() < 0.7:
        body = data[spec.header_size :] + more
        return Mutated(_reframed(spec, data, body), f"{len(more)} more, counted")
    return Mutated(data + more, f"{len(more)} more, not counted")


def _reframed(spec: FrameSpec, data: bytes, body: bytes) -> bytes:
    if spec.header is None:
        return body
    return data[: spec.header_size - 4] + _word(spec, len(body)) + body


def _tails(spec: FrameSpec, dialect: str, data: bytes) -> list[tuple[str, int, int]]:
    """Return the tails of a sound frame: kind, first byte, end."""
    values = read(spec, data, dialect=dialect).values
    at = spec.header_size + spec.fixed_size(dialect)
    found = []
    for tail in tails_of(spec.body, dialect):
        size = int(tail.length(values)) if callable(tail.length) else len(data) - at
        kind = "payload" if isinstance(tail, Payload) else "ints"
        kind = "blob" if isinstance(tail, Blob) else kind
        if size > 0:
            found.append((kind, at, min(len(data), at + size)))
        at += size
    return found


def _floats(rng: Random, spec: FrameSpec, dialect: str, data: bytes) -> Mutated:
    """Put NaN, infinity and their like into a payload."""
    payloads = [t for t in _tails(spec, dialect, data) if t[0] == "payload"]
    if not payloads:
        return _tail_word(rng, spec, dialect, data)
    _, start, end = rng.choice(payloads)
    wire = struct.pack("<I", rng.choice(_FLOATS))
    if rng.random() < 0.3:
        filled = (wire * ((end - start) // 4 + 1))[: end - start]
        return Mutated(data[:start] + filled + data[end:], f"all {wire.hex()}")
    at = start + rng.randrange(max(1, (end - start) // 4)) * 4
    return Mutated(data[:at] + wire + data[at + 4 :], f"{wire.hex()} at {at}")


def _tail_word(rng: Random, spec: FrameSpec, dialect: str, data: bytes) -> Mutated:
    """Overwrite a word of a tail: token ids, counts of records, hosts."""
    tails = [t for t in _tails(spec, dialect, data) if t[0] != "payload"]
    if not tails:
        return _field(rng, spec, dialect, data)
    _, start, end = rng.choice(tails)
    at = start + rng.randrange(max(1, (end - start + 3) // 4)) * 4
    wire = _word(spec, rng.choice((*EDGES, 255, 256, 257, 129279, 129280)))
    return Mutated(data[:at] + wire + data[at + 4 :], f"word {wire.hex()} at {at}")


def _flip(rng: Random, _spec: FrameSpec, _dialect: str, data: bytes) -> Mutated:
    """Change bits anywhere."""
    out = bytearray(data)
    places = [rng.randrange(len(out)) for _ in range(rng.choice((1, 1, 2, 5)))]
    for at in places:
        out[at] ^= 1 << rng.randrange(8)
    return Mutated(bytes(out), f"bits at {sorted(set(places))}")


def _splice(rng: Random, _spec: FrameSpec, _dialect: str, data: bytes) -> Mutated:
    """Replace a stretch by other bytes."""
    at = rng.randrange(len(data))
    until = min(len(data), at + rng.choice((0, 1, 4, 12, 60)))
    more = rng.randbytes(rng.choice((0, 1, 4, 12)))
    return Mutated(
        data[:at] + more + data[until:], f"{until - at} bytes at {at} for {len(more)}"
    )


_Do = Callable[[Random, FrameSpec, str, bytes], Mutated]
FAMILIES: Final[dict[str, tuple[int, _Do]]] = {
    "boundary": (5, _field),
    "nearly valid": (4, _near),
    "lying length": (3, _length),
    "cross-field lie": (2, _cross),
    "lying header": (1, _header),
    "unknown type": (1, _type),
    "magic": (1, _magic),
    "cut": (1, _cut),
    "short": (1, _short),
    "stretched": (1, _stretch),
    "floats": (1, _floats),
    "tail word": (3, _tail_word),
    "bits": (2, _flip),
    "splice": (1, _splice),
}
"""Families of mutations of one frame: weight, function."""
_NAMES: Final = tuple(FAMILIES)
_WEIGHTS: Final = tuple(weight for weight, _ in FAMILIES.values())


def mutate(
    rng: Random, spec: FrameSpec, dialect: str, data: bytes, family: str = ""
) -> tuple[str, Mutated]:
    """Return a family and what it made of a sound frame.

    Parameters
    ----------
    data : bytes
        A frame that `ds4proto.schema` reads without a problem.
    family : str
        One of ``FAMILIES``; empty leaves it to chance.
    """
    name = family or rng.choices(_NAMES, _WEIGHTS)[0]
    return name, FAMILIES[name][1](rng, spec, dialect, data)


def with_field(
    spec: FrameSpec, dialect: str, data: bytes, path: str, value: int
) -> bytes:
    """Return a frame with one field overwritten."""
    field = next(f for f in fields_of(spec.body, dialect) if f.path == path)
    return patched(spec, dialect, data, field, value)
