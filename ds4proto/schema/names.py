"""The names that users give to fields: ``ds4d.work.layer_start``.

One list for filters, dissectors and documentation. A name is the frame's protocol
and name in small letters and the wire name; inside records the record's name comes
between them (``ds4d.work.route.port``). Fields of the frame header are the same in
all frames (``ds4d.header.bytes``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from ds4proto.schema.declare import (
    EVERY,
    FieldSpec,
    FrameSpec,
    Ints,
    Layout,
    One,
    Payload,
    Records,
    Text,
    in_dialect,
    walk_tails,
)
from ds4proto.schema.dialects import dialects_of
from ds4proto.schema.registry import frames, header_of

_KINDS = {Text: "text", Payload: "bytes", Records: "list", One: "record"}


@dataclass(frozen=True, slots=True)
class FieldName:
    """One field as users name it.

    Parameters
    ----------
    name : str
        ``ds4d.work.route.port``.
    frame : str
        ``DS4D.WORK``, or ``DS4D.HEADER``.
    path : str
        Wire name; records before it, dotted, without an index.
    type : str
        The spec's word (``u32be``); ``text``, ``bytes``, ``list``, ``record``, or an
        item type with ``[]``.
    unit, doc : str
        As declared.
    dialects : tuple of str
        Dialects that have the field, in order of age.
    repeated : bool
        True inside records of which a frame may hold several.
    """

    name: str
    frame: str
    path: str
    type: str
    unit: str
    doc: str
    dialects: tuple[str, ...]
    repeated: bool = False


@cache
def field_names() -> tuple[FieldName, ...]:
    """Return every field of every frame, frame by frame, in wire order.

    A field that dialects declare differently appears once, with the type and the
    meaning of the oldest; its ``dialects`` are those of all its declarations.
    """
    found: dict[str, FieldName] = {}
    for protocol in ("DS4D", "DS4T"):
        entries = tuple(d.name for d in dialects_of(protocol) if not d.foreign)
        head = f"{protocol}.HEADER"
        for entry in _names(header_of(protocol), head, "", entries, False):
            found[entry.name] = entry
    for spec in frames():
        for entry in _names(spec.body, spec.full_name, "", _homes(spec), False):
            before = found.get(entry.name)
            found[entry.name] = entry if before is None else _joined(before, entry)
    return tuple(found.values())


@cache
def field_name(name: str) -> FieldName:
    """Return the field called ``name``.

    Raises
    ------
    KeyError
        If there is none.
    """
    return {entry.name: entry for entry in field_names()}[name]


def _homes(spec: FrameSpec) -> tuple[str, ...]:
    return tuple(
        d.name
        for d in dialects_of(spec.protocol)
        if not d.foreign and _has(spec.dialects, d.name)
    )


def _has(dialects: frozenset[str], dialect: str) -> bool:
    return dialects is EVERY or in_dialect(dialects, dialect)


def _joined(first: FieldName, second: FieldName) -> FieldName:
    family = dialects_of(first.frame.split(".", maxsplit=1)[0])
    either = {*first.dialects, *second.dialects}
    dialects = tuple(d.name for d in family if d.name in either)
    return FieldName(
        first.name,
        first.frame,
        first.path,
        first.type,
        first.unit,
        first.doc,
        dialects,
        first.repeated,
    )


def _names(
    layout: Layout, frame: str, prefix: str, homes: tuple[str, ...], repeated: bool
) -> Iterator[FieldName]:
    stem = f"{frame.lower()}.{prefix}"
    for spec in layout.fields:
        dialects = tuple(d for d in homes if _has(spec.dialects, d))
        yield FieldName(
            stem + spec.path,
            frame,
            prefix + spec.path,
            spec.type_name,
            spec.unit,
            spec.doc,
            dialects,
            repeated,
        )
    for tail in walk_tails(layout.tails):
        dialects = tuple(d for d in homes if _has(tail.dialects, d))
        kind = _KINDS.get(type(tail), "")
        if isinstance(tail, Ints):
            kind = FieldSpec(tail.path, tail.item, tail.doc).type_name + "[]"
        yield FieldName(
            stem + tail.path,
            frame,
            prefix + tail.path,
            kind,
            "",
            tail.doc,
            dialects,
            repeated,
        )
        if isinstance(tail, Records | One):
            many = repeated or isinstance(tail, Records)
            inner = f"{prefix}{tail.path}."
            yield from _names(tail.record, frame, inner, dialects, many)
