"""The names that ``--where`` and ``--fields`` know: ``time``, ``ds4d.work.flags``.

A field's name is its frame's name in small letters and its wire name; values inside
records follow behind a further dot. The list is derived from the declarations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from ds4proto.schema import frames
from ds4proto.schema.declare import (
    FieldSpec,
    Layout,
    One,
    Payload,
    Records,
    Tail,
    in_dialect,
    names_of,
    walk_tails,
)
from ds4proto.trace.payload import PayloadSummary

__all__ = [
    "MISSING",
    "Column",
    "columns_of_frame",
    "find_column",
    "known_names",
    "way_to_names",
]


class _Missing:
    """The value of a field that a row does not have."""

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()
Get = Callable[[Any], Any]

_PAYLOAD_PARTS: Final[dict[str, Callable[[PayloadSummary], Any]]] = {
    "bytes": lambda p: p.length,
    "width": lambda p: p.width,
    "values": lambda p: p.values,
    "shape": lambda p: p.shape,
    "min": lambda p: MISSING if p.low is None else p.low,
    "max": lambda p: MISSING if p.high is None else p.high,
    "nan": lambda p: p.nan,
    "inf": lambda p: p.inf,
    "zeros": lambda p: p.zeros,
    "ge240": lambda p: p.ge240,
    "over_f16": lambda p: p.over_f16,
    "hash": lambda p: p.hash,
    "notes": lambda p: p.notes,
}
_ROW_PARTS: Final[dict[str, Get]] = {
    "run": lambda r: r.run,
    "stream": lambda r: r.stream,
    "direction": lambda r: r.direction,
    "protocol": lambda r: r.protocol,
    "dialect": lambda r: r.dialect,
    "type": lambda r: r.type,
    "name": lambda r: r.name,
    "time": lambda r: r.time,
    "first_time": lambda r: r.first_time,
    "epoch": lambda r: r.epoch,
    "stream_offset": lambda r: r.stream_offset,
    "length": lambda r: r.length,
    "first_packet": lambda r: r.first_packet,
    "last_packet": lambda r: r.last_packet,
    "src": lambda r: r.src,
    "dst": lambda r: r.dst,
    "src_role": lambda r: r.src_role,
    "dst_role": lambda r: r.dst_role,
    "problems": lambda r: [problem.clause for problem in r.problems],
    "payload": lambda r: MISSING if r.payload is None else r.payload.length,
}


@dataclass(frozen=True, slots=True)
class Column:
    """One name: how a row's value is found, and which words its numbers have."""

    name: str
    get: Get
    specs: tuple[FieldSpec, ...] = field(default=())

    def name_of(self, row: Any, value: Any) -> str:
        """Return the word for a number; empty where it has none."""
        if not isinstance(value, int):
            return ""
        for spec in self.specs:
            word = names_of(spec, value, row.dialect.rstrip("?"))
            if word:
                return word
        return ""

    @property
    def words(self) -> tuple[str, ...] | None:
        """Every word that some dialect has for its numbers; None for no number."""
        if not self.specs or any(spec.kind != "int" for spec in self.specs):
            return None
        found = (n.name for spec in self.specs for n in (*spec.enum, *spec.flags))
        return tuple(dict.fromkeys(found))

    def bits_of(self, row: Any, words: str) -> Any:
        """Return the bits that flag names (joined by ``|``) stand for."""
        dialect = row.dialect.rstrip("?")
        total = 0
        for word in words.split("|"):
            bits = [
                entry.value
                for spec in self.specs
                for entry in spec.flags
                if entry.name == word.strip() and in_dialect(entry.dialects, dialect)
            ]
            if not bits:
                return MISSING
            total |= bits[0]
        return total


def find_column(name: str) -> Column | None:
    """Return the column called `name` (small letters), or None."""
    return _columns().get(name)


def known_names() -> tuple[str, ...]:
    """Return every name, those of the row first, then by frame in wire order."""
    return tuple(_columns())


def columns_of_frame(name: str) -> dict[str, Column]:
    """Return the columns below one frame, such as ``DS4D.WORK``, by full name."""
    head = name.lower() + "."
    return {n: c for n, c in _columns().items() if n.startswith(head)}


@cache
def _columns() -> dict[str, Column]:
    found = {name: Column(name, get) for name, get in _ROW_PARTS.items()}
    for part, get in _PAYLOAD_PARTS.items():
        found[f"payload.{part}"] = Column(f"payload.{part}", _payload(get))
    specs: dict[str, tuple[FieldSpec, ...]] = {}
    gets: dict[str, Get] = {}
    for frame in frames():
        head = frame.full_name.lower()
        gets[head] = _is(frame.protocol, frame.name)
        test = gets[head]
        for path, spec in _paths(frame.body):
            name = f"{head}.{path}"
            gets.setdefault(name, _field(test, tuple(path.split("."))))
            if spec is not None:
                specs[name] = (*specs.get(name, ()), spec)
        for tail in walk_tails(frame.body.tails):
            if isinstance(tail, Payload):
                gets[f"{head}.{tail.path}"] = _own(test, lambda p: p.length)
                for part, get in _PAYLOAD_PARTS.items():
                    gets[f"{head}.{tail.path}.{part}"] = _own(test, get)
    for name, get in gets.items():
        found[name] = Column(name, get, specs.get(name, ()))
    return found


def _paths(layout: Layout) -> list[tuple[str, FieldSpec | None]]:
    found: list[tuple[str, FieldSpec | None]] = [(f.path, f) for f in layout.fields]
    for tail in walk_tails(layout.tails):
        found.extend(_tail_paths(tail))
    return found


def _tail_paths(tail: Tail) -> list[tuple[str, FieldSpec | None]]:
    if isinstance(tail, Payload):
        return []
    found: list[tuple[str, FieldSpec | None]] = [(tail.path, None)]
    if isinstance(tail, Records | One):
        found += [(f"{tail.path}.{p}", spec) for p, spec in _paths(tail.record)]
    return found


def _is(protocol: str, name: str) -> Get:
    def test(row: Any) -> Any:
        return True if row.type == name and row.protocol == protocol else MISSING

    return test


def _field(test: Get, path: tuple[str, ...]) -> Get:
    if len(path) == 1:
        only = path[0]
        return lambda row: row.fields.get(only, MISSING) if test(row) else MISSING
    return lambda row: _below(row.fields, path) if test(row) else MISSING


def _below(value: Any, path: tuple[str, ...]) -> Any:
    for step, key in enumerate(path):
        if isinstance(value, list):
            found = [_below(item, path[step:]) for item in value]
            return [item for item in found if item is not MISSING] or MISSING
        if not isinstance(value, dict) or key not in value:
            return MISSING
        value = value[key]
    return value


def _payload(get: Callable[[PayloadSummary], Any]) -> Get:
    return lambda row: MISSING if row.payload is None else get(row.payload)


def _own(test: Get, get: Callable[[PayloadSummary], Any]) -> Get:
    def value(row: Any) -> Any:
        return get(row.payload) if test(row) and row.payload is not None else MISSING

    return value


def way_to_names(text: str) -> str:
    """Say what stands below the part of a name that is right, or how names look."""
    head = text.lower().rpartition(".")[0]
    below = [name for name in known_names() if head and name.startswith(head + ".")]
    if below:
        return f"{head} has: {', '.join(n.removeprefix(head + '.') for n in below)}"
    return "names look like type, time, ds4d.work.layer_start, ds4t.gate_row.seq"
