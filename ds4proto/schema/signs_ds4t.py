"""What the first bytes of a DS4T connection show: hello, control frames, gates."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache

from ds4proto.schema.declare import size_of
from ds4proto.schema.dialects import dialect as find
from ds4proto.schema.dialects import dialects_of
from ds4proto.schema.ds4t import DS4B_MAGIC, DS4T_MAGIC, HEADER
from ds4proto.schema.ds4t_gates import GATE_ROW
from ds4proto.schema.fast import struct_of
from ds4proto.schema.registry import frame_of_code, frames, read_body
from ds4proto.schema.signs import Seen

_CONTROL = struct_of(HEADER, "*")
_WORDS = struct.Struct("<III")
_IDENTITY = struct.Struct("<5I")
_SPARK = struct.Struct("<4I")
LATEST_THINKABLE = 64
"""Version numbers above this are not versions."""
RANKS = range(2, 65)
_MAGICS = (DS4T_MAGIC.to_bytes(4, "little"), DS4B_MAGIC.to_bytes(4, "little"))


@cache
def hello_sizes() -> tuple[int, ...]:
    """Return the lengths that the known hellos have, shortest first."""
    return tuple(sorted({d.hello_size for d in dialects_of("DS4T") if d.hello_size}))


@cache
def _codes() -> frozenset[int]:
    return frozenset(s.code for s in frames("DS4T") if s.code is not None)


def hello_size(view: memoryview) -> int | None:
    """Return the bytes of a DS4T hello, found by where the first frame starts.

    None where the bytes end before it, or nothing plausible follows.
    """
    for size in hello_sizes():
        head = bytes(view[size : size + _CONTROL.size])
        if head[:4] != _MAGICS[0]:
            continue
        if len(head) < 8 or int.from_bytes(head[4:8], "little") in _codes():
            return size
    return None


def version_of(view: memoryview) -> int | None:
    """Return the version word of a hello, or None where it is not whole."""
    return None if len(view) < _WORDS.size else int(_WORDS.unpack_from(view)[1])


def is_hello(view: memoryview) -> bool:
    """Tell a hello from a gate header, which may start with the same magic.

    A gate header has layer and kind where the hello has its version; where these
    could be a version too, the words of the identity decide.
    """
    version = version_of(view)
    if version is None or version > LATEST_THINKABLE:
        return False
    places = (28, 36)  # n_layer in most dialects, and in v1
    whole = [at for at in places if len(view) >= at + _IDENTITY.size]
    if not whole:
        return version > 0 and _WORDS.unpack_from(view)[2] in (1, 2)
    spark = version == find("v11-spark").version and _spark_words(view)
    return spark or any(_identity(view, at) for at in whole)


def _identity(view: memoryview, at: int) -> bool:
    layers, width, words, _bits, _context = _IDENTITY.unpack_from(view, at)
    return bool(0 < layers <= 4096 and 0 < width <= 1 << 20 and 0 < words <= 1 << 24)


def _spark_words(view: memoryview) -> bool:
    if len(view) < 28:
        return False
    rank, world, collective, expert_only = _SPARK.unpack_from(view, 12)
    return world in RANKS and rank < world and max(collective, expert_only) <= 0xFF


def _mesh_words(view: memoryview) -> bool:
    # world and rank stand where the 64-byte hello has its pad
    if len(view) < 68:
        return False
    world, rank = struct.unpack_from("<II", view, 60)
    return world in RANKS and rank < world


def possible_sizes(view: memoryview) -> set[int]:
    """Return the sizes that a hello may have: one, or all that need more bytes."""
    size = hello_size(view)
    if size is not None:
        return {size}
    version = version_of(view)
    own = {d.hello_size for d in dialects_of("DS4T") if d.version == version} - {None}
    if len(view) in (own or hello_sizes()):
        return {len(view)}
    return {longer for longer in hello_sizes() if longer > len(view)}


def look_at_hello(view: memoryview, seen: Seen) -> None:
    """Note what the words of a hello show."""
    version = version_of(view) or 0
    seen.add("version", version)
    seen.add("mesh_words", int(_mesh_words(view)))
    seen.add("spark_words", int(_spark_words(view)))
    sizes = possible_sizes(view)
    if len(view) >= 64 and sizes & {64, 88}:
        pad = int.from_bytes(view[60:64], "little")
        seen.add("pad", int(pad != 0))
        if pad:
            seen.add("pad_used", 1)


def frames_behind(view: memoryview, size: int) -> Iterator[tuple[int, memoryview, int]]:
    """Yield type, body and stated length of the control frames behind a hello."""
    at = size
    while at + _CONTROL.size <= len(view):
        magic, code, length = _CONTROL.unpack_from(view, at)
        if magic != DS4T_MAGIC:
            return
        at += _CONTROL.size
        yield code, view[at : at + length], length
        at += length


def misfits(view: memoryview, size: int, dialect: str) -> int:
    """Count the control frames behind a hello that ``dialect`` cannot read.

    A frame whose layout the dialect does not know counts like one it does not have:
    it tells nothing in its favour. A cut frame at the end is not counted.
    """
    found = 0
    for code, body, length in frames_behind(view, size):
        spec = frame_of_code("DS4T", code, dialect=dialect)
        if spec is None or spec.opaque:
            found += 1
        elif len(body) == length:
            found += not read_body(spec, body, dialect=dialect).whole
    return found


def gate_header_sizes(view: memoryview) -> set[int]:
    """Return the gate header sizes that a data stream allows.

    Forks state a byte count in the header; where it leads to the next header, or
    to the end of the bytes, theirs is the likelier reading.
    """
    sizes = {16}
    for name in ("v14-odinlink", "v15"):
        specs = [s for s in frames(dialect=name) if s.name == GATE_ROW.name]
        form = struct_of(specs[0].body, name)
        if len(view) < form.size:
            continue
        count = form.unpack_from(view)[-1]
        end = form.size + count
        follows = bytes(view[end : end + 4])
        if (
            0 < count < 1 << 32
            and count % 4 == 0
            and (follows in _MAGICS or end == len(view))
        ):
            sizes.add(size_of(specs[0].body, name))
    return sizes
