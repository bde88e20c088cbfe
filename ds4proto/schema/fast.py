"""The fast readers, derived from the declarations: ``struct`` and numpy.

``struct`` reads one frame into a mapping; anything odd is handed to the reference
reader, which words the problem. numpy reads many equal fixed parts as columns.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from construct import FormatField

from ds4proto.schema.declare import (
    Blob,
    FrameSpec,
    Ints,
    Layout,
    Length,
    Limit,
    One,
    Payload,
    Records,
    Tail,
    Text,
    fields_of,
    in_dialect,
    size_of,
    tails_of,
)

if TYPE_CHECKING:
    import numpy as np

Read = Callable[[memoryview, int, int], tuple[dict[str, Any], int]]
"""Reads a layout between two offsets; returns its values and where it ended."""

Step = Callable[[memoryview, int, int, dict[str, Any]], int]
"""Reads one tail at an offset, up to an end; returns the new offset."""


class Odd(Exception):
    """The frame does not fit its declaration; the reference reader says why."""


@cache
def struct_of(layout: Layout, dialect: str) -> struct.Struct:
    """Return the ``struct`` form of the fixed part of ``layout``.

    Raises
    ------
    ValueError
        If the layout mixes byte orders (none does).
    """
    fields = fields_of(layout, dialect)
    orders = {spec.order for spec in fields} - {""}
    if len(orders) > 1:
        raise ValueError(f"{layout.name} mixes byte orders in its fixed part")
    order = orders.pop() if orders else "<"
    return struct.Struct(order + "".join(spec.code for spec in fields))


@cache
def dtype_of(layout: Layout, dialect: str) -> np.dtype[Any]:
    """Return the numpy dtype of the fixed part of ``layout``, packed."""
    import numpy as np

    columns: list[tuple[str, Any]] = []
    for spec in fields_of(layout, dialect):
        if isinstance(spec.type, FormatField):
            kind = "f" if spec.code in "fde" else "u" if spec.code.isupper() else "i"
            columns.append((spec.path, f"{spec.order or '|'}{kind}{spec.size}"))
        else:
            columns.append((spec.path, f"V{spec.size}"))
    return np.dtype(columns)


class _Spy(dict[str, int]):
    """Values that note which of them are read; each reads as ``number``."""

    def __init__(self, number: int = 1) -> None:
        self.number = number
        self.read: list[str] = []

    def __getitem__(self, name: str) -> int:
        if name not in self.read:
            self.read.append(name)
        return self.number


def names_read(length: Length) -> tuple[str, ...]:
    """Return the names of the values that a length is computed from."""
    spy = _Spy()
    length(spy)
    return tuple(spy.read)


def plain(length: Length) -> Callable[[dict[str, Any]], int]:
    """Return ``length`` without the cost of an interpreted expression.

    ``this.name`` and ``this.name * factor`` become a look-up and a product; any
    other expression is returned as it is.
    """
    names = names_read(length)
    factor = int(length(_Spy()))
    probes = (0, 2, 3, 1 << 32)
    if len(names) != 1 or any(length(_Spy(n)) != factor * n for n in probes):
        return length
    (name,) = names
    if factor == 1:
        return lambda values: int(values[name])
    return lambda values: int(values[name]) * factor


@cache
def layout_reader(layout: Layout, dialect: str) -> Read:
    """Return a function that reads a whole layout: its values, and where it ends."""
    form = struct_of(layout, dialect)
    names = tuple(spec.path for spec in fields_of(layout, dialect))
    steps = tuple(_step(tail, dialect) for tail in tails_of(layout, dialect))
    unpack, size = form.unpack_from, form.size

    def read(body: memoryview, at: int, end: int) -> tuple[dict[str, Any], int]:
        if at + size > end:
            raise Odd
        values = dict(zip(names, unpack(body, at), strict=True))
        at += size
        for step in steps:
            at = step(body, at, end, values)
        return values, at

    return read


@cache
def rule_checker(layout: Layout, dialect: str) -> Callable[[dict[str, Any]], bool]:
    """Return a function that tells whether values keep every rule of a layout."""
    limits = []
    for spec in fields_of(layout, dialect):
        if spec.const is not None:
            limits.append((spec.path, _equals(spec.const)))
        elif spec.limit is not None:
            limits.append((spec.path, _within(spec.limit)))
    inner: list[tuple[str, bool, Callable[[dict[str, Any]], bool]]] = []
    for tail in tails_of(layout, dialect):
        for part in tail.parts if isinstance(tail, Blob) else (tail,):
            if isinstance(part, Records | One):
                many = isinstance(part, Records)
                inner.append((part.path, many, rule_checker(part.record, dialect)))
            elif isinstance(part, Ints) and part.limit is not None:
                limits.append((part.path, _every(_within(part.limit))))
    tests = tuple(r.test for r in layout.rules if in_dialect(r.dialects, dialect))

    def sound(values: dict[str, Any]) -> bool:
        for path, holds in limits:
            if not holds(values[path]):
                return False
        for path, many, check in inner:
            found = values[path]
            if not (all(map(check, found)) if many else check(found)):
                return False
        for test in tests:  # noqa: SIM110 - a generator costs as much as the tests
            if not test(values):
                return False
        return True

    return sound


def _within(limit: Limit) -> Callable[[Any], bool]:
    low, high, allowed = limit.low, limit.high, limit.one_of
    if allowed is not None:
        return allowed.__contains__
    if low is not None and high is not None:
        return lambda value: bool(low <= value <= high)
    if low is not None:
        return lambda value: bool(value >= low)
    return limit.holds


def _equals(const: int) -> Callable[[Any], bool]:
    return lambda value: bool(value == const)


def _every(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda items: all(map(holds, items))


def read_fast(
    spec: FrameSpec, body: memoryview, dialect: str
) -> tuple[dict[str, Any], bool]:
    """Read ``body``; the flag tells whether every rule of the frame holds.

    Raises
    ------
    Odd
        If the body does not fit the declaration.
    """
    read, sound = _forms(spec.body, dialect)
    values, end = read(body, 0, len(body))
    if end != len(body):
        raise Odd
    return values, sound(values)


@cache
def _forms(
    layout: Layout, dialect: str
) -> tuple[Read, Callable[[dict[str, Any]], bool]]:
    return layout_reader(layout, dialect), rule_checker(layout, dialect)


@cache
def header_form(layout: Layout) -> tuple[struct.Struct, int]:
    """Return the ``struct`` form of a frame header, and its magic."""
    magic = next(f.const for f in layout.fields if f.path == "magic")
    return struct_of(layout, "*"), magic or 0


def _step(tail: Tail, dialect: str) -> Step:
    make = _MAKERS[type(tail)]
    return make(tail, dialect)


def _stop(tail: Tail) -> Callable[[int, int, dict[str, Any]], int]:
    length = tail.length
    if not callable(length):
        return lambda _at, end, _values: end
    size_of_tail = plain(length)

    def stop(at: int, end: int, values: dict[str, Any]) -> int:
        found = at + int(size_of_tail(values))
        if found > end:
            raise Odd
        return found

    return stop


def _payload(tail: Payload, _dialect: str) -> Step:
    stop, path = _stop(tail), tail.path

    def read(body: memoryview, at: int, end: int, values: dict[str, Any]) -> int:
        end = stop(at, end, values)
        values[path] = body[at:end]
        return end

    return read


def _text(tail: Text, _dialect: str) -> Step:
    stop, path = _stop(tail), tail.path

    def read(body: memoryview, at: int, end: int, values: dict[str, Any]) -> int:
        end = stop(at, end, values)
        values[path] = str(body[at:end], "utf-8", "surrogateescape")
        return end

    return read


def _ints(tail: Ints, _dialect: str) -> Step:
    stop, path = _stop(tail), tail.path
    item = tail.item
    if not isinstance(item, FormatField):
        raise TypeError(f"{path}: items of an array are FormatFields")
    order, code, width = str(item.fmtstr)[0], str(item.fmtstr)[1:], int(item.sizeof())
    unpack_from = struct.unpack_from

    def read(body: memoryview, at: int, end: int, values: dict[str, Any]) -> int:
        end = stop(at, end, values)
        count, over = divmod(end - at, width)
        if over:
            raise Odd
        values[path] = unpack_from(f"{order}{count}{code}", body, at)
        return end

    return read


def _records(tail: Records, dialect: str) -> Step:
    stop, path, count_of = _stop(tail), tail.path, plain(tail.count)
    read_one = layout_reader(tail.record, dialect)
    smallest = max(1, size_of(tail.record, dialect))
    counted = callable(tail.length)

    def read(body: memoryview, at: int, end: int, values: dict[str, Any]) -> int:
        end = stop(at, end, values)
        count = int(count_of(values))
        if count * smallest > end - at:
            raise Odd
        records = []
        for _ in range(count):
            record, at = read_one(body, at, end)
            records.append(record)
        if counted and at != end:
            raise Odd
        values[path] = records
        return at

    return read


def _one(tail: One, dialect: str) -> Step:
    stop, path = _stop(tail), tail.path
    read_one = layout_reader(tail.record, dialect)

    def read(body: memoryview, at: int, end: int, values: dict[str, Any]) -> int:
        values[path], at = read_one(body, at, stop(at, end, values))
        return at

    return read


def _blob(tail: Blob, dialect: str) -> Step:
    stop = _stop(tail)
    steps = tuple(_step(part, dialect) for part in tail.parts)

    def read(body: memoryview, at: int, end: int, values: dict[str, Any]) -> int:
        end = stop(at, end, values)
        if at == end:
            raise Odd
        for step in steps:
            at = step(body, at, end, values)
        if at != end:
            raise Odd
        return at

    return read


_MAKERS: dict[type[Tail], Callable[[Any, str], Step]] = {
    Payload: _payload,
    Text: _text,
    Ints: _ints,
    Records: _records,
    One: _one,
    Blob: _blob,
}
