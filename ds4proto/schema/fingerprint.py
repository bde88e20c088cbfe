"""Fingerprints of the declared layouts: ``python -m ds4proto.schema.fingerprint``.

``build`` writes ``ds4proto/data/layouts.json``; ``check`` fails when a declaration
and that register differ, so that nobody changes bytes by accident. A fingerprint
covers what decides the bytes and their validity: offsets, types, limits, named
values, tails, rules and their clauses. Wording is left out.

Exit codes: 0 in order, 1 a difference, 2 wrong usage.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ds4proto.schema.declare import (
    Blob,
    FieldSpec,
    FrameSpec,
    Ints,
    Layout,
    Limit,
    Name,
    One,
    Payload,
    Records,
    Tail,
    fields_of,
    in_dialect,
    offsets_of,
    tails_of,
)
from ds4proto.schema.dialects import all_dialects
from ds4proto.schema.dsv4 import CONTAINERS
from ds4proto.schema.fast import names_read
from ds4proto.schema.registry import frames

REGISTER = Path(__file__).parents[1] / "data" / "layouts.json"
_AGAIN = "python -m ds4proto.schema.fingerprint build"


def describe(spec: FrameSpec, dialect: str) -> dict[str, Any]:
    """Return what decides the bytes of ``spec`` in ``dialect``, as plain data."""
    return {
        "code": spec.code,
        "header": None if spec.header is None else _layout(spec.header, "*"),
        "body": _layout(spec.body, dialect),
        "trailing": spec.trailing,
        "raw_follows": _length(spec.raw_follows),
        "roles": [list(spec.sender), list(spec.receiver)],
    }


def fingerprint(spec: FrameSpec, dialect: str) -> str:
    """Return 16 hexadecimal digits that stand for ``describe(spec, dialect)``."""
    text = json.dumps(describe(spec, dialect), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _layout(layout: Layout, dialect: str) -> dict[str, Any]:
    offsets = offsets_of(layout, dialect)
    return {
        "fields": [_field(f, offsets, dialect) for f in fields_of(layout, dialect)],
        "tails": [_tail(tail, dialect) for tail in tails_of(layout, dialect)],
        "rules": [
            [rule.clause, rule.path]
            for rule in layout.rules
            if in_dialect(rule.dialects, dialect)
        ],
        "clauses": [layout.short_clause, layout.trailing_clause],
    }


def _field(field: FieldSpec, offsets: Any, dialect: str) -> list[Any]:
    return [
        offsets[field.path],
        field.path,
        field.type_name,
        _limit(field.limit),
        field.const,
        field.clause,
        _names(field.enum, dialect),
        _names(field.flags, dialect),
    ]


def _limit(limit: Limit | None) -> list[Any] | None:
    if limit is None:
        return None
    return [limit.low, limit.high, list(limit.one_of or ())]


def _names(names: tuple[Name, ...], dialect: str) -> list[list[Any]]:
    known = (name for name in names if in_dialect(name.dialects, dialect))
    return [[name.value, name.name] for name in known]


def _tail(tail: Tail, dialect: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "kind": type(tail).__name__,
        "path": tail.path,
        "length": _length(tail.length),
        "clause": tail.clause,
    }
    if isinstance(tail, Ints):
        found["item"] = FieldSpec(tail.path, tail.item, tail.doc).type_name
        found["limit"] = _limit(tail.limit)
    elif isinstance(tail, Payload):
        found["bits"] = _length(tail.bits)
    elif isinstance(tail, Records):
        found["count"] = _length(tail.count)
        found["record"] = _layout(tail.record, dialect)
    elif isinstance(tail, One):
        found["record"] = _layout(tail.record, dialect)
    elif isinstance(tail, Blob):
        found["parts"] = [_tail(part, dialect) for part in tail.parts]
        found["clauses"] = [tail.trailing_clause, tail.empty_clause]
    return found


def _length(length: Any) -> Any:
    """Return a length as data: the names it reads and its value at a few points."""
    if not callable(length):
        return length
    names = names_read(length)
    points = [{name: n + i for i, name in enumerate(names)} for n in (1, 2, 1000)]
    return [list(names), [int(length(point)) for point in points]]


def _homes() -> Iterator[tuple[FrameSpec, str]]:
    for entry in all_dialects():
        specs = frames(dialect=entry.name)
        holds_files = entry.protocol == "DS4D" and not entry.foreign
        files = CONTAINERS if holds_files else ()
        for spec in (*specs, *files):
            yield spec, entry.name


def register() -> dict[str, list[dict[str, Any]]]:
    """Return the register: for each frame its forms, and who has them."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for spec, dialect in _homes():
        form = found.setdefault(spec.full_name, {}).setdefault(
            fingerprint(spec, dialect),
            {
                "dialects": [],
                "code": spec.code,
                "fixed": spec.fixed_size(dialect),
                "fields": _summary(spec, dialect),
            },
        )
        form["dialects"].append(dialect)
    return {
        name: [{"fingerprint": key, **form} for key, form in forms.items()]
        for name, forms in sorted(found.items())
    }


def _summary(spec: FrameSpec, dialect: str) -> list[str]:
    offsets = offsets_of(spec.body, dialect)
    fixed = [f"{offsets[f.path]} {f.path} {f.type_name}" for f in spec.fixed(dialect)]
    return [*fixed, *(f"+ {tail.path}" for tail in spec.tails(dialect))]


def distinct() -> tuple[tuple[FrameSpec, str], ...]:
    """Return each form of each frame once, with the first dialect that has it."""
    seen: dict[tuple[str, str], tuple[FrameSpec, str]] = {}
    for spec, dialect in _homes():
        key = (spec.full_name, fingerprint(spec, dialect))
        seen.setdefault(key, (spec, dialect))
    return tuple(seen.values())


def text() -> str:
    """Return the register as the text of its file."""
    return json.dumps(register(), indent=1, ensure_ascii=True) + "\n"


def differences(stored: dict[str, Any]) -> list[str]:
    """Return a line for each frame whose declaration and register entry differ."""
    now = register()
    lines = []
    for name in sorted(stored.keys() | now.keys()):
        if name not in stored:
            lines.append(f"{name}: declared, not in the register")
        elif name not in now:
            lines.append(f"{name}: in the register, no longer declared")
        elif stored[name] != now[name]:
            before = {form["fingerprint"] for form in stored[name]}
            changed = [form for form in now[name] if form["fingerprint"] not in before]
            where = sorted({d for form in changed for d in form["dialects"]})
            lines.append(f"{name}: changed in {', '.join(where) or 'its dialects'}")
    return lines


def main(arguments: Sequence[str]) -> int:
    """Build or check the register; see the module's text."""
    if list(arguments) == ["build"]:
        REGISTER.write_text(text(), "utf-8")
        return 0
    if list(arguments) != ["check"]:
        print("usage: python -m ds4proto.schema.fingerprint build|check")
        return 2
    found = differences(json.loads(REGISTER.read_text("utf-8")))
    for line in found:
        print(f"{line}; if the bytes are meant to change, run `{_AGAIN}`")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
