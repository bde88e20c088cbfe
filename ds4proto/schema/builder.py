"""From values to bytes: the builder, derived from the declarations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from construct import ConstructError

from ds4proto.schema.declare import (
    Blob,
    FieldSpec,
    FrameSpec,
    Ints,
    Layout,
    One,
    Payload,
    Records,
    Tail,
    Text,
    fields_of,
    rest_of,
    tails_of,
)
from ds4proto.schema.fast import struct_of
from ds4proto.schema.problem import Buf, Problem, SchemaError
from ds4proto.schema.rules import shown


def build_frame(
    spec: FrameSpec,
    values: Mapping[str, Any],
    dialect: str,
    header: Mapping[str, int] | None,
) -> list[Buf]:
    """Return the buffers of one frame; payloads are passed on, not copied."""
    body = _layout(spec.body, values, dialect, spec.name + ".")
    if spec.header is None:
        return body
    size = sum(len(part) for part in body)
    words: dict[str, Any] = {"type": spec.code, "bytes": size, **(header or {})}
    return _merge(_layout(spec.header, words, dialect, spec.name + ".header.") + body)


def _merge(parts: list[Buf]) -> list[Buf]:
    """Join small neighbours, so that one frame is a few buffers and one send."""
    merged: list[Buf] = []
    small = bytearray()
    for part in parts:
        if len(part) <= 4096:
            small += part
            continue
        if small:
            merged.append(bytes(small))
            small = bytearray()
        merged.append(part)
    if small or not merged:
        merged.append(bytes(small))
    return merged


def _layout(
    layout: Layout, values: Mapping[str, Any], dialect: str, prefix: str
) -> list[Buf]:
    tails = tails_of(layout, dialect)
    known = _defaults(tails)
    known.update(values)
    fixed = [
        _value(spec, known, dialect, prefix) for spec in fields_of(layout, dialect)
    ]
    parts: list[Buf] = []
    form = struct_of(layout, dialect)
    if form.size:
        parts.append(form.pack(*fixed))
    for tail in tails:
        parts.extend(_tail(tail, known, dialect, prefix))
    return [*parts, *_rest(layout, known)]


def _rest(area: Layout | Blob, values: Mapping[str, Any]) -> list[Buf]:
    """Return surplus bytes that a reader kept, so that nothing is lost."""
    found = values.get(rest_of(area))
    return [] if found is None else [found]


def _defaults(tails: tuple[Tail, ...]) -> dict[str, Any]:
    """Return empty tails, so that computed lengths work without them."""
    empty: dict[str, Any] = {}
    for tail in tails:
        if isinstance(tail, Blob):
            empty.update(_defaults(tail.parts))
        elif isinstance(tail, Text):
            empty[tail.path] = ""
        elif isinstance(tail, One):
            empty[tail.path] = {}
        elif isinstance(tail, Payload):
            empty[tail.path] = b""
        else:
            empty[tail.path] = ()
    return empty


def _value(
    spec: FieldSpec, values: Mapping[str, Any], dialect: str, prefix: str
) -> Any:
    if spec.path in values:
        value = values[spec.path]
    elif spec.auto is not None:
        value = spec.auto(values)
    elif spec.const is not None:
        value = spec.const
    elif spec.default is not None:
        value = spec.default
    else:
        raise SchemaError(
            Problem(
                spec.clause,
                prefix + spec.path,
                None,
                None,
                f"a {spec.type_name}: {spec.doc}",
                "no value",
                f"give {spec.path} to build this frame in dialect {dialect}",
            )
        )
    try:
        spec.type.build(value)
    except (ConstructError, TypeError, ValueError) as error:
        raise SchemaError(
            Problem(
                spec.clause,
                prefix + spec.path,
                None,
                None,
                f"a {spec.type_name}",
                shown(value),
                "the value does not fit the field",
            )
        ) from error
    return value


def _tail(
    tail: Tail, values: Mapping[str, Any], dialect: str, prefix: str
) -> list[Buf]:
    path = prefix + tail.path
    if isinstance(tail, Blob):
        parts: list[Buf] = []
        for part in tail.parts:
            parts.extend(_tail(part, values, dialect, prefix))
        return [*parts, *_rest(tail, values)]
    value = values[tail.path]
    try:
        if isinstance(tail, Text):
            return [value.encode("utf-8", "surrogateescape")]
        if isinstance(tail, Payload):
            view = memoryview(value).cast("B")
            return [view] if len(view) else []
        if isinstance(tail, Ints):
            return [b"".join(tail.item.build(item) for item in value)]
    except (ConstructError, TypeError, ValueError, AttributeError) as error:
        raise SchemaError(
            Problem(
                tail.clause, path, None, None, tail.doc, shown(value), str(error)[:120]
            )
        ) from error
    if isinstance(tail, One):
        if value is None:
            return []
        return _layout(tail.record, value, dialect, path + ".")
    if isinstance(tail, Records):
        found: list[Buf] = []
        for index, record in enumerate(value):
            found.extend(_layout(tail.record, record, dialect, f"{path}[{index}]."))
        return found
    raise TypeError(f"no builder for {type(tail).__name__}")
