"""What a single frame can get wrong, read off its declaration."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from ds4proto.schema.declare import (
    Blob,
    FieldSpec,
    FrameSpec,
    Ints,
    Layout,
    One,
    Records,
    Rule,
    fields_of,
    in_dialect,
    offsets_of,
    tails_of,
    walk_tails,
)
from ds4proto.schema.fast import names_read
from ds4proto.schema.registry import header_of

Fault = FieldSpec | Rule | tuple[Records | One, FieldSpec] | str


@dataclass(frozen=True, slots=True)
class NearlyValid:
    """A frame with one fault.

    Parameters
    ----------
    data : bytes
        The whole frame.
    kind : str
        ``limit``, ``const``, ``rule``, ``record`` (a limit inside one), ``short``,
        ``long`` or ``ragged`` (an array that ends inside an item).
    path : str
        Field path of the fault, as ``Problem.path`` gives it.
    clause : str
        Clause that the fault breaks.
    """

    data: bytes
    kind: str
    path: str
    clause: str


def breakable(spec: FrameSpec, dialect: str) -> bool:
    """Tell whether ``spec`` has a rule that a frame can break on its own.

    Bodies of free text or of unknown layout have none.
    """
    return bool(faults(spec, dialect.rstrip("?")))


@cache
def faults(spec: FrameSpec, dialect: str) -> tuple[Fault, ...]:
    """Return what can be broken in ``spec`` without breaking its lengths.

    A field stands for its limit or constant, a rule for itself, a pair for a field
    of a record; ``short``, ``long`` and ``ragged`` for the size of the body.
    """
    sizing = sizing_names(spec.body, dialect)
    fields = fields_of(spec.body, dialect)
    free = {field.path for field in fields} - sizing
    found: list[Fault] = []
    for field in fields:
        bounded = field.const is not None or field.limit is not None
        if bounded and field.path in free:
            found.append(field)
    found += [
        rule
        for rule in spec.body.rules
        if rule.path in free and in_dialect(rule.dialects, dialect)
    ]
    for tail in walk_tails(tails_of(spec.body, dialect)):
        if isinstance(tail, Records | One):
            sized = sizing_names(tail.record, dialect)
            found += [
                (tail, field)
                for field in fields_of(tail.record, dialect)
                if field.limit is not None and field.path not in sized
            ]
    if fields and spec.body.short_clause:
        found.append("short")
    tails = tails_of(spec.body, dialect)
    if not spec.trailing and (not tails or callable(tails[-1].length)):
        found.append("long")
    if tails and isinstance(tails[-1], Ints) and not callable(tails[-1].length):
        found.append("ragged")
    return tuple(found)


@cache
def faults_by_kind(spec: FrameSpec, dialect: str) -> dict[str, tuple[Fault, ...]]:
    """Return ``faults`` under the kinds that ``NearlyValid.kind`` names."""
    found: dict[str, list[Fault]] = {}
    for fault in faults(spec, dialect):
        found.setdefault(kind_of(fault), []).append(fault)
    return {kind: tuple(group) for kind, group in found.items()}


def kind_of(fault: Fault) -> str:
    """Return the word for a kind of fault."""
    if isinstance(fault, FieldSpec):
        return "limit" if fault.const is None else "const"
    if isinstance(fault, Rule):
        return "rule"
    return "record" if isinstance(fault, tuple) else fault


@cache
def sizing_names(layout: Layout, dialect: str) -> frozenset[str]:
    """Return every field from which a length or a count is computed."""
    read: set[str] = set()
    tails = tails_of(layout, dialect)
    blobs = tuple(tail for tail in tails if isinstance(tail, Blob))
    for tail in (*walk_tails(tails), *blobs):
        if callable(tail.length):
            read.update(names_read(tail.length))
        if isinstance(tail, Records):
            read.update(names_read(tail.count))
    return frozenset(read)


def patched(
    spec: FrameSpec, dialect: str, whole: bytes, field: FieldSpec, value: Any
) -> bytes:
    """Return ``whole`` with one field of its fixed part overwritten."""
    at = spec.header_size + offsets_of(spec.body, dialect)[field.path]
    return whole[:at] + field.type.build(value) + whole[at + field.size :]


def framed(spec: FrameSpec, body: bytes) -> bytes:
    """Return ``body`` behind a header that states its true length."""
    if spec.header is None:
        return body
    words = header_of(spec.protocol).fields
    magic = words[0].const or 0
    stated = (magic, spec.code, len(body))
    head = b"".join(
        word.type.build(value) for word, value in zip(words, stated, strict=True)
    )
    return head + body
