"""Tables of the specification, written from the declarations as Markdown.

Offsets in these tables count from the first byte of the body, behind the header;
a header's own table starts at its first byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

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
    in_dialect,
    tails_of,
)
from ds4proto.schema.dialects import all_dialects, dialects_of
from ds4proto.schema.dialects import dialect as find_dialect
from ds4proto.schema.registry import frames
from ds4proto.schema.slab import slab_layout, slab_size


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table; bars inside cells are escaped."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        cells = (str(cell).replace("|", "\\|") for cell in row)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def expression(length: object) -> str:
    """Return a length expression in words: ``token_bytes``, ``4 x n_layers``."""
    if isinstance(length, str):
        return "the rest"
    text = repr(length)
    if text.startswith("<function"):
        return "see the text"
    return text.replace("this['", "").replace("']", "").replace("*", "x").strip("()")


def field_limit(spec: FieldSpec, dialect: str = "*") -> str:
    """Return what values a field may take, in words."""
    parts = []
    if spec.const is not None:
        parts.append(f"{spec.const:#x}")
    named = {entry.value for entry in spec.enum}
    if spec.limit is not None and (not named or named != set(spec.limit.one_of or ())):
        parts.append(str(spec.limit))
    for entry in (*spec.enum, *spec.flags):
        if dialect != "*" and not in_dialect(entry.dialects, dialect):
            continue
        where = (
            "" if "*" in entry.dialects else f" ({', '.join(sorted(entry.dialects))})"
        )
        number = f"{entry.value:#x}" if spec.flags else str(entry.value)
        parts.append(f"{number} {entry.name}{where}")
    return "; ".join(parts)


def layout_table(layout: Layout, dialect: str) -> str:
    """Return the table of one layout in one dialect: fixed part, then tails."""
    rows: list[tuple[object, ...]] = []
    at = 0
    for spec in fields_of(layout, dialect):
        name = f"`{spec.path}`"
        if spec.words:
            name += f" ({spec.words})"
        meaning = spec.doc if not spec.unit else f"{spec.doc} [{spec.unit}]"
        limit = field_limit(spec, dialect)
        rows.append((at, spec.size, spec.type_name, name, meaning, limit, spec.clause))
        at += spec.size
    place: object = at
    for tail in tails_of(layout, dialect):
        for part in tail.parts if isinstance(tail, Blob) else (tail,):
            rows.append((place, *tail_row(part, tail)))
            place = "then"
    head = ("offset", "bytes", "type", "field", "meaning", "values", "clause")
    return table(head, rows)


def tail_row(tail: Tail, area: Tail) -> tuple[object, ...]:
    """Return the cells of a tail behind its offset; ``area`` counts its bytes."""
    size = expression(tail.length if tail is area else area.length)
    if tail is not area:
        size = f"in {size}"
    kind, note = tail_kind(tail)
    return (size, kind, f"`{tail.path}`", tail.doc, note, tail.clause)


def tail_kind(tail: Tail) -> tuple[str, str]:
    """Return the type of a tail and a note on its shape."""
    if isinstance(tail, Text):
        return "text", "no terminator"
    if isinstance(tail, Ints):
        return f"u{8 * tail.item.sizeof()}[]", ""
    if isinstance(tail, Payload):
        return "payload", tail.shape
    if isinstance(tail, Records):
        return f"{tail.record.name}[]", f"{expression(tail.count)} records"
    if isinstance(tail, One):
        return tail.record.name, "one record"
    return "", ""


def frame_list(protocol: str, dialect: str) -> str:
    """Return the table of the messages that a dialect has."""
    rows = []
    for spec in frames(protocol, dialect=dialect):
        code = "-" if spec.code is None else spec.code
        way = f"{', '.join(spec.sender)} -> {', '.join(spec.receiver)}"
        tails = ", ".join(
            part.path
            for tail in spec.tails(dialect)
            for part in (tail.parts if isinstance(tail, Blob) else (tail,))
        )
        fixed = spec.fixed_size(dialect)
        rows.append((code, f"`{spec.name}`", way, fixed, tails or "none", spec.doc))
    head = ("type", "name", "sender -> receiver", "fixed part", "tails", "meaning")
    return table(head, rows)


def dialect_table(protocol: str) -> str:
    """Return the register of a protocol's dialects."""
    rows = [
        (
            f"`{d.name}`",
            d.title,
            d.date,
            "-" if d.version is None else d.version,
            d.hello_size or "-",
            d.evidence,
            d.live,
        )
        for d in dialects_of(protocol)
    ]
    head = ("name", "build", "date", "version", "hello", "evidence", "here")
    return table(head, rows)


def recognition_table(protocol: str) -> str:
    """Return how each dialect of a protocol is recognised and settled."""
    rows = [
        (f"`{d.name}`", "; ".join(sign.text for sign in d.signs), d.settles)
        for d in dialects_of(protocol)
    ]
    return table(("name", "signs", "what settles it"), rows)


def size_table(protocol: str) -> str:
    """Return the fixed size of each frame in each dialect, where it differs."""
    names = [d.name for d in dialects_of(protocol) if d.live != "recognises"]
    family = ("DS4D",) if protocol == "DS4D" else ("DS4T", "DS4B")
    sizes: dict[str, dict[str, int]] = {}
    for name in names:
        for spec in frames(dialect=name):
            if spec.protocol in family:
                sizes.setdefault(spec.full_name, {})[name] = spec.fixed_size(name)
    rows = [
        (f"`{full}`", *(found.get(name, "-") for name in names))
        for full, found in sizes.items()
        if len(set(found.values())) > 1 or len(found) < len(names)
    ]
    return table(("frame", *names), rows)


def slab_table(models: Sequence[tuple[str, int, int]]) -> str:
    """Return the offsets of the slab for ``(name, n_layer, n_embd)`` models."""
    names = [region.name for region in slab_layout(1, 1)]
    rows = [
        (
            name,
            4 * width,
            2 * layers,
            *(region.offset for region in slab_layout(layers, width)),
            slab_size(layers, width),
        )
        for name, layers, width in models
    ]
    return table(("model", "vec", "slots", *names, "total"), rows)


def differences(first: str, second: str) -> str:
    """Return what breaks between two dialects, as Markdown.

    Raises
    ------
    KeyError
        If a name is not registered; the message lists those that are.
    """
    one, two = find_dialect(first), find_dialect(second)
    lines = [f"### {first} against {second}", ""]
    if one.protocol != two.protocol:
        lines.append(f"{one.protocol} and {two.protocol} share no frame.")
        return "\n".join(lines)
    rows = [(f"`{name}`", change) for name, change in _frame_rows(first, second)]
    lines.append(table(("frame", "difference"), rows) if rows else "No frame differs.")
    for entry in (one, two):
        if entry.differs:
            lines += ["", f"{entry.name}, against {entry.base}:", ""]
            lines += [f"- {line}" for line in entry.differs]
        lines += ["", f"{entry.name} is {entry.evidence}; it is settled by"]
        lines[-1] += f" {entry.settles}."
    return "\n".join(lines)


def differences_document(first: str, second: str) -> dict[str, Any]:
    """Return what breaks between two dialects, as JSON can hold it.

    Raises
    ------
    KeyError
        If a name is not registered; the message lists those that are.
    """
    both = [find_dialect(first), find_dialect(second)]
    shared = both[0].protocol == both[1].protocol
    rows = _frame_rows(first, second) if shared else ()
    return {
        "dialects": [
            {
                "name": entry.name,
                "protocol": entry.protocol,
                "base": entry.base,
                "differs_from_base": list(entry.differs),
                "evidence": entry.evidence,
                "settled_by": entry.settles,
            }
            for entry in both
        ],
        "share_frames": shared,
        "differences": [
            {"frame": name, "difference": change.replace("`", "")}
            for name, change in rows
        ],
    }


def _frame_rows(first: str, second: str) -> Iterable[tuple[str, str]]:
    """Yield each frame that differs between two dialects, and how."""
    ours = {s.full_name: s for s in frames(dialect=first)}
    theirs = {s.full_name: s for s in frames(dialect=second)}
    for name in ours | theirs:
        if name not in theirs or name not in ours:
            owner = first if name in ours else second
            spec = ours.get(name) or theirs[name]
            code = "" if spec.code is None else f" (type {spec.code})"
            yield name, f"only in {owner}{code}"
            continue
        for change in _changes(ours[name], theirs[name], first, second):
            yield name, change


def _changes(
    ours: FrameSpec, theirs: FrameSpec, first: str, second: str
) -> Iterable[str]:
    if ours.code != theirs.code:
        yield f"type {ours.code} in {first}, {theirs.code} in {second}"
    sizes = ours.fixed_size(first), theirs.fixed_size(second)
    if sizes[0] != sizes[1]:
        yield f"fixed part of {sizes[0]} bytes in {first}, {sizes[1]} in {second}"
    left, right = _places(ours, first), _places(theirs, second)
    for path in left | right:
        if path not in right:
            yield f"`{path}` (offset {left[path][0]}) only in {first}"
        elif path not in left:
            yield f"`{path}` (offset {right[path][0]}) only in {second}"
        elif left[path] != right[path]:
            (a, one), (b, two) = left[path], right[path]
            if a != b:
                yield f"`{path}` at {a} in {first}, at {b} in {second}"
            if one != two:
                yield f"`{path}`: {one or 'any'} in {first}, {two or 'any'} in {second}"


def _places(spec: FrameSpec, dialect: str) -> dict[str, tuple[int, str]]:
    places = {}
    at = 0
    for entry in spec.fixed(dialect):
        places[entry.path] = (at, field_limit(entry, dialect))
        at += entry.size
    return places


def known_dialects() -> tuple[str, ...]:
    """Return the names of all registered dialects."""
    return tuple(entry.name for entry in all_dialects())
