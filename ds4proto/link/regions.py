"""Where the bulk tails of a frame lie, from as much of its body as has arrived."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from ds4proto.schema.declare import (
    Blob,
    FrameSpec,
    Layout,
    Payload,
    Records,
    Tail,
    fields_of,
    size_of,
    tails_of,
)
from ds4proto.schema.fast import struct_of


class Region(NamedTuple):
    """One bulk tail: its path, and its first and last-plus-one offset in the body."""

    path: str
    start: int
    end: int
    fields: Mapping[str, Any]


class _NeedMore(Exception):
    """The walk needs the body up to an offset."""

    def __init__(self, upto: int) -> None:
        super().__init__(upto)
        self.upto = upto


@cache
def has_bulk(spec: FrameSpec, dialect: str) -> bool:
    """Tell whether a frame has a bulk tail, inside records too."""
    return any(_bulky(tail, dialect) for tail in tails_of(spec.body, dialect))


def _bulky(tail: Tail, dialect: str) -> bool:
    if isinstance(tail, Payload):
        return True
    if isinstance(tail, Records):
        return any(_bulky(t, dialect) for t in tails_of(tail.record, dialect))
    return False


@cache
def sole_payload(spec: FrameSpec, dialect: str) -> str | None:
    """Return the path of the one bulk tail of a frame, or None."""
    found = [t.path for t in tails_of(spec.body, dialect) if isinstance(t, Payload)]
    return found[0] if len(found) == 1 else None


def find_regions(
    spec: FrameSpec, dialect: str, body: memoryview, have: int, size: int
) -> tuple[list[Region], int | None]:
    """Return the bulk tails known from ``body[:have]``, and how far to read on.

    Parameters
    ----------
    body : memoryview
        The body; bytes inside bulk tails are never looked at.
    have : int
        Bytes of it that are in place.
    size : int
        Announced length of the whole body.

    Returns
    -------
    regions : list of Region
        In wire order.
    need : int or None
        Offset up to which the body must be in place before more can be told; None
        when no further bulk tail will follow.
    """
    found: list[Region] = []
    try:
        for region in _walk(spec.body, dialect, body, 0, have, size, "", {}):
            found.append(region)
    except _NeedMore as need:
        return found, need.upto if need.upto <= size else None
    return found, None


def _walk(
    layout: Layout,
    dialect: str,
    body: memoryview,
    at: int,
    have: int,
    size: int,
    prefix: str,
    outer: Mapping[str, Any],
) -> Iterator[Region]:
    end = at + size_of(layout, dialect)
    values = dict(outer)
    if end > have:
        raise _NeedMore(end)
    names = [spec.path for spec in fields_of(layout, dialect)]
    form = struct_of(layout, dialect)
    values.update(zip(names, form.unpack_from(body, at), strict=True))
    at = end
    for tail in tails_of(layout, dialect):
        if isinstance(tail, Records) and _bulky(tail, dialect):
            for index in range(int(tail.count(values))):
                where = f"{prefix}{tail.path}[{index}]."
                before = at
                for region in _walk(
                    tail.record, dialect, body, at, have, size, where, values
                ):
                    yield region
                    at = region.end
                if at == before:
                    return  # a record that does not fit; the reader will say so
            continue
        if not callable(tail.length):
            if isinstance(tail, Payload) and at <= size:
                yield Region(prefix + tail.path, at, size, values)
            return
        stop = at + int(tail.length(values))
        if stop > size:
            return  # the reader will say so
        if isinstance(tail, Payload):
            yield Region(prefix + tail.path, at, stop, values)
        elif isinstance(tail, Blob) and tail is tails_of(layout, dialect)[-1]:
            return
        at = stop
