"""Type numbers to what a framer must know about them, one table a dialect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ds4proto.link.limits import Limits
from ds4proto.link.regions import has_bulk, sole_payload
from ds4proto.schema.declare import REST, FrameSpec, tails_of
from ds4proto.schema.dialects import dialect as find_dialect
from ds4proto.schema.fast import Read, layout_reader, rule_checker, struct_of
from ds4proto.schema.registry import frames


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known of one type number.

    Attributes
    ----------
    spec : FrameSpec
    dialect : str
        Dialect whose declaration ``spec`` is; an ancestor of the stream's where the
        number was retired since.
    least : int
        Smallest body: the fixed part.
    most : int
        Largest body, from the limits.
    bulk : bool
        Whether it has a bulk tail anywhere.
    payload : str or None
        Path of its one bulk tail.
    """

    spec: FrameSpec
    dialect: str
    least: int
    most: int
    bulk: bool
    payload: str | None


def entry_of(spec: FrameSpec, dialect: str, limits: Limits) -> Entry:
    """Return the entry of one declared frame."""
    return Entry(
        spec,
        dialect,
        spec.fixed_size(dialect),
        limits.body(spec.full_name),
        has_bulk(spec, dialect),
        sole_payload(spec, dialect),
    )


def table_of(protocol: str, dialect: str, limits: Limits) -> dict[int, Entry]:
    """Return the entries of a dialect by type number.

    A number that only an older dialect of the same line has is read as that
    dialect declares it: numbers were retired, never given away again.
    """
    name = dialect.rstrip("?")
    found: dict[int, Entry] = {}
    line: str | None = name
    while line is not None:
        for spec in frames(protocol, dialect=line):
            if spec.code is not None and spec.code not in found:
                found[spec.code] = entry_of(spec, line, limits)
        line = find_dialect(line).base
    return found


@dataclass(frozen=True, slots=True)
class Direct:
    """An entry taken apart for the fast path.

    Attributes
    ----------
    entry, spec, name, most, payload
        As in ``Entry``; ``name`` is the full name.
    read : callable
        Reads a body at an offset up to an end; returns values and where it got.
    sound : callable
        Tells whether the values keep every rule of the frame.
    streams : bool
        Whether its bulk goes to a sink.
    """

    entry: Entry
    spec: FrameSpec
    name: str
    most: int
    payload: str | None
    read: Read
    sound: Callable[[dict[str, Any]], bool]
    streams: bool


def direct_of(table: dict[int, Entry], dialect: str, sinks: bool) -> dict[int, Direct]:
    """Return the entries that the fast path may take: those of the dialect itself."""
    found = {}
    for code, entry in table.items():
        spec = entry.spec
        if entry.dialect != dialect or spec.raw_follows is not None or spec.trailing:
            continue
        found[code] = Direct(
            entry,
            spec,
            spec.full_name,
            entry.most,
            entry.payload,
            layout_reader(spec.body, dialect),
            rule_checker(spec.body, dialect),
            sinks and entry.bulk,
        )
    return found


def adds_up(entry: Entry, body: memoryview, size: int) -> bool | None:
    """Tell whether the length fields of a body agree with its announced size.

    Returns
    -------
    bool or None
        None where the frame has no length field to judge by; False where `body`
        does not even hold the fixed part.
    """
    spec, dialect = entry.spec, entry.dialect
    if len(body) < entry.least:
        return False
    tails = tails_of(spec.body, dialect)
    names = [f.path for f in spec.fixed(dialect)]
    if not tails:
        return size == entry.least
    if not names:
        return None
    values = dict(
        zip(names, struct_of(spec.body, dialect).unpack_from(body), strict=True)
    )
    total = entry.least
    for tail in tails:
        if callable(tail.length):
            total += int(tail.length(values))
        elif tail.length == REST:
            count = _REST_COUNTS.get((spec.full_name, tail.path))
            if count is None:
                return None if total <= size else False
            name, width = count
            if name not in values:
                return None if total <= size else False
            total += width * values[name]
    return total <= size if spec.trailing else total == size


_REST_COUNTS = {
    ("DS4D.HELLO", "model_name"): ("model_name_len", 1),
    ("DS4D.SNAPSHOT_CHUNK", "data"): ("chunk_bytes", 1),
    ("DS4T.SYNC", "tokens"): ("count", 4),
    ("DS4T.VERIFY", "tokens"): ("count", 4),
    ("DS4T.EVAL_BATCH", "items"): ("count", 16),
    ("DS4T.MIXED_BATCH", "items"): ("item_count", 16),
}
"""Counts that rule a tail which takes the rest of the body, with the item's bytes."""
