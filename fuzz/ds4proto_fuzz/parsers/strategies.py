"""Hypothesis strategies for what single fields cannot get wrong.

`ds4proto.emit.strategies` draws frames that are sound, nearly sound or hostile. Here
are lengths that lie, payloads that no arithmetic survives, tokens that no vocabulary
has, and whole conversations whose frames are repeated, swapped, missing, cut or drip.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, Final, Literal

from hypothesis import strategies as st

from ds4proto.emit.boundaries import boundary_values, integer_range
from ds4proto.emit.faults import patched, sizing_names
from ds4proto.emit.strategies import Bound, drawn, valid_values
from ds4proto.schema.declare import (
    FieldSpec,
    FrameSpec,
    Ints,
    Payload,
    fields_of,
    tails_of,
    walk_tails,
)
from ds4proto.schema.registry import read, to_bytes

__all__ = [
    "DISTURBANCES",
    "Disturbed",
    "Lie",
    "counting_fields",
    "disturbed",
    "drips",
    "lying",
    "out_of_vocabulary",
    "spoiled",
]

SPOILERS: Final = (
    0x7FC00000, 0xFFC00000, 0x7F800001, 0x7F800000, 0xFF800000, 0x80000000,
    0x00000001, 0x7F7FFFFF, 0xFF7FFFFF,
)  # fmt: skip
"""Bits of f32: quiet and signalling NaN, infinities, -0, the smallest, the largest."""
TOKENS: Final = (-1, -(1 << 31), (1 << 31) - 1, 129_280, 154_880, 256)
"""Token ids around and beyond the vocabularies of known models."""


@dataclass(frozen=True, slots=True)
class Lie:
    """A frame with a length or a count that does not say what follows.

    Attributes
    ----------
    data : bytes
        The whole frame.
    told : dict
        Wire name -> value on the wire, for every field that lies.
    true : dict
        Wire name -> value that would be true.
    """

    data: bytes
    told: dict[str, int]
    true: dict[str, int]


@cache
def counting_fields(spec: FrameSpec, dialect: str) -> tuple[FieldSpec, ...]:
    """Return the fields of the fixed part that say how long something is."""
    sizing = sizing_names(spec.body, dialect.rstrip("?"))
    return tuple(
        field
        for field in fields_of(spec.body, dialect.rstrip("?"))
        if field.kind == "int" and (field.path in sizing or field.auto is not None)
    )


def lying(spec: FrameSpec, dialect: str) -> st.SearchStrategy[Lie]:
    """Return a strategy of frames in which a length or a count lies, or several.

    Several lie at random, or agree with each other against the bytes: twice the
    count and twice the length, for instance.

    Raises
    ------
    ValueError
        The frame has neither a length nor a count.
    """
    name = dialect.rstrip("?")
    if not counting_fields(spec, name):
        raise ValueError(f"{spec.full_name} says no length in {dialect}")
    return drawn(Bound(_lying, spec=spec, name=name))


def _lying(draw: st.DrawFn, spec: FrameSpec, name: str) -> Lie:
    fields = counting_fields(spec, name)
    data = to_bytes(spec, draw(valid_values(spec, name)), dialect=name)
    values = read(spec, data, dialect=name).values
    chosen = draw(st.lists(st.sampled_from(fields), min_size=1, unique=True))
    factor = draw(st.sampled_from((0, 0, 2, 3, 1 << 16)))  # 0: each on its own
    told: dict[str, int] = {}
    true = {field.path: int(values[field.path]) for field in chosen}
    for field in chosen:
        low, high = integer_range(field)
        due = true[field.path]
        if factor:
            lie = min(high, due * factor)
        else:
            edges = [v for v in boundary_values(field, name) if isinstance(v, int)]
            near = [v for v in (due - 4, due - 1, due + 1, due + 4) if low <= v <= high]
            lie = draw(st.sampled_from([*near, *edges]))
        told[field.path] = lie
        data = patched(spec, name, data, field, lie)
    return Lie(data, told, true)


def spoiled(spec: FrameSpec, dialect: str) -> st.SearchStrategy[bytes]:
    """Return a strategy of sound frames whose payloads hold NaN and infinities."""
    return drawn(Bound(_spoiled, spec=spec, name=dialect.rstrip("?")))


def _spoiled(draw: st.DrawFn, spec: FrameSpec, name: str) -> bytes:
    values = draw(valid_values(spec, name))
    for tail in walk_tails(tails_of(spec.body, name)):
        if isinstance(tail, Payload) and len(values[tail.path]) >= 4:
            count = len(values[tail.path]) // 4
            words = draw(
                st.lists(st.sampled_from(SPOILERS), min_size=count, max_size=count)
            )
            rest = bytes(values[tail.path])[4 * count :]
            values[tail.path] = struct.pack(f"<{count}I", *words) + rest
    return to_bytes(spec, values, dialect=name)


def out_of_vocabulary(spec: FrameSpec, dialect: str) -> st.SearchStrategy[bytes]:
    """Return a strategy of frames with tokens that no vocabulary has."""
    return drawn(Bound(_out_of_vocabulary, spec=spec, name=dialect.rstrip("?")))


def _out_of_vocabulary(draw: st.DrawFn, spec: FrameSpec, name: str) -> bytes:
    values = draw(valid_values(spec, name))
    for part in _with_tokens(spec, name, values):
        for path in ("token", "tokens"):
            if path in part:
                part[path] = _tokens(draw, spec, name, part[path], path)
    return to_bytes(spec, values, dialect=name)


def _with_tokens(
    spec: FrameSpec, dialect: str, values: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    yield values
    for tail in walk_tails(tails_of(spec.body, dialect)):
        found = values.get(tail.path)
        if isinstance(found, list):
            yield from (record for record in found if isinstance(record, dict))


def _tokens(draw: st.DrawFn, spec: FrameSpec, dialect: str, was: Any, path: str) -> Any:
    low, high = -(1 << 31), (1 << 31) - 1
    for tail in walk_tails(tails_of(spec.body, dialect)):
        if tail.path == path and isinstance(tail, Ints):
            low, high = integer_range(FieldSpec(tail.path, tail.item, tail.doc))
    for field in fields_of(spec.body, dialect):
        if field.path == path:
            low, high = integer_range(field)
    wrong = st.sampled_from([t if low <= t <= high else t & high for t in TOKENS])
    if isinstance(was, tuple):
        return tuple(draw(st.lists(wrong, min_size=len(was), max_size=len(was))))
    return draw(wrong)


# -- whole conversations

Disturbance = Literal[
    "none", "repeated", "swapped", "missing", "cut", "drip", "half-close"
]
DISTURBANCES: Final[tuple[Disturbance, ...]] = (
    "none", "repeated", "swapped", "missing", "cut", "drip", "half-close",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Disturbed:
    """One direction of a conversation, as it arrives.

    Attributes
    ----------
    kind : str
        What was done to it, one of `DISTURBANCES`.
    at : int
        Frame to which it was done.
    pieces : tuple of bytes
        What arrives, piece by piece.
    ended : bool
        Whether the sender says no more behind it.
    """

    kind: Disturbance
    at: int
    pieces: tuple[bytes, ...]
    ended: bool


@st.composite
def disturbed(draw: st.DrawFn, frames: Sequence[bytes]) -> Disturbed:
    """Draw one direction of a conversation with one thing wrong in its order."""
    kind = draw(st.sampled_from(DISTURBANCES))
    at = draw(st.integers(0, len(frames) - 1))
    pieces = list(frames)
    ended = kind in ("cut", "half-close")
    if kind == "repeated":  # an id is used again with it
        pieces[at:at] = [frames[at]] * draw(st.integers(1, 3))
    elif kind == "swapped":
        other = draw(st.integers(0, len(frames) - 1))
        pieces[at], pieces[other] = pieces[other], pieces[at]
    elif kind == "missing":
        del pieces[at]
    elif kind == "cut":
        left = draw(st.integers(0, max(0, len(frames[at]) - 1)))
        pieces = [*frames[:at], frames[at][:left]]
    elif kind == "half-close":
        pieces = list(frames[: at + 1])
    elif kind == "drip":
        pieces[at : at + 1] = draw(drips(frames[at]))
    return Disturbed(kind, at, tuple(piece for piece in pieces if piece), ended)


def drips(data: bytes) -> st.SearchStrategy[list[bytes]]:
    """Return a strategy of the same bytes in several pieces, down to single ones."""
    if len(data) < 2:
        return st.just([data])
    cuts = st.lists(st.integers(1, len(data) - 1), max_size=6, unique=True).map(sorted)
    every = [data[k : k + 1] for k in range(len(data))]

    def pieces(places: list[int]) -> list[bytes]:
        edges = [0, *places, len(data)]
        return [data[a:b] for a, b in pairwise(edges)]

    return st.one_of(cuts.map(pieces), st.just(every))
