"""Hypothesis strategies derived from the declarations.

``valid_values`` and ``valid_frames`` keep every limit, constant and rule;
``nearly_valid`` breaks exactly one and says which; ``hostile`` knows no rules. The
only module of the package that imports hypothesis.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

from hypothesis import strategies as st

from ds4proto.emit.bound import Bound
from ds4proto.emit.boundaries import (
    boundary_values,
    integer_range,
)
from ds4proto.emit.coherence import MENDS, cycled
from ds4proto.emit.faults import (
    Fault,
    NearlyValid,
    breakable,
    faults_by_kind,
    framed,
    kind_of,
    patched,
)
from ds4proto.schema.declare import (
    FieldSpec,
    FrameSpec,
    Ints,
    Layout,
    Length,
    One,
    Payload,
    Records,
    Rule,
    Tail,
    Text,
    fields_of,
    in_dialect,
    offsets_of,
    tails_of,
    walk_tails,
)
from ds4proto.schema.fast import names_read
from ds4proto.schema.registry import read, to_bytes

SIZES = (0, 1, 2, 3, 4, 5, 7, 16)
"""Sizes of tails that are tried: small, so that a frame stays cheap to shrink."""
EDGES = (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFC, 0xFFFFFFFF)
"""Words that a hostile sender puts where a length or a count is due."""


def valid_values(spec: FrameSpec, dialect: str) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy of values that keep every rule of ``spec`` in ``dialect``.

    Lengths and counts that a builder computes are left out, as are constants.
    """
    name = dialect.rstrip("?")
    return _layouts(spec.body, name, spec.full_name)


def valid_frames(spec: FrameSpec, dialect: str) -> st.SearchStrategy[bytes]:
    """Return a strategy of whole frames that keep every rule."""
    return valid_values(spec, dialect).map(
        lambda values: to_bytes(spec, values, dialect=dialect)
    )


@st.composite
def drawn(draw: st.DrawFn, make: Bound) -> Any:
    """Draw with a function whose other arguments are bound already."""
    return make(draw)


def _layouts(
    layout: Layout, dialect: str, name: str
) -> st.SearchStrategy[dict[str, Any]]:
    return drawn(Bound(_layout, layout=layout, dialect=dialect, name=name))


def _layout(draw: st.DrawFn, layout: Layout, dialect: str, name: str) -> dict[str, Any]:
    sized = _sizing_names(layout, dialect)
    values: dict[str, Any] = {}
    for field in fields_of(layout, dialect):
        if field.auto is None and field.const is None:
            values[field.path] = draw(_field(field, dialect, field.path in sized))
    for tail in walk_tails(tails_of(layout, dialect)):
        values[tail.path] = draw(_tail(tail, layout, dialect, values))
    mend = MENDS.get(name) or MENDS.get(layout.name)
    if mend is not None:
        mend(values, dialect)
    return values


@cache
def _sizing_names(layout: Layout, dialect: str) -> frozenset[str]:
    """Return the fields that size a tail and that nothing computes."""
    given = {f.path for f in fields_of(layout, dialect) if f.auto is None}
    read: set[str] = set()
    for tail in walk_tails(tails_of(layout, dialect)):
        if callable(tail.length):
            read.update(names_read(tail.length))
        if isinstance(tail, Records):
            read.update(names_read(tail.count))
    return frozenset(read & given)


@cache
def _field(field: FieldSpec, dialect: str, sizes: bool) -> st.SearchStrategy[Any]:
    if field.kind == "bytes":
        return st.binary(min_size=field.size, max_size=field.size)
    if field.kind == "float":
        return st.floats(width=32, allow_nan=False)
    low, high = integer_range(field)
    limit = field.limit
    if limit is not None and limit.one_of is not None:
        return st.sampled_from(limit.one_of)
    if limit is not None:
        low = low if limit.low is None else limit.low
        high = high if limit.high is None else limit.high
    if sizes:
        return st.integers(low, min(high, low + 4))
    if field.flags:
        bits = [n.value for n in field.flags if in_dialect(n.dialects, dialect)]
        return st.sets(st.sampled_from(bits)).map(sum) if bits else st.just(0)
    values: tuple[Any, ...] = boundary_values(field, dialect)
    edges = [v for v in values if low <= v <= high]
    names = [n.value for n in field.enum if in_dialect(n.dialects, dialect)]
    first = [value for value in (0, 1) if low <= value <= high] or [low]
    drawn = [st.sampled_from(first), st.sampled_from(edges), st.integers(low, high)]
    return st.one_of(*([st.sampled_from(names)] if names else []), *drawn)


def _tail(
    tail: Tail, layout: Layout, dialect: str, values: Mapping[str, Any]
) -> st.SearchStrategy[Any]:
    if isinstance(tail, One):
        return _layouts(tail.record, dialect, tail.record.name)
    exact = _exact(tail, layout, dialect, values)
    sizes = (exact,) if exact is not None else _sizes(tail, layout, dialect)
    size = st.sampled_from(sizes)
    if isinstance(tail, Text):
        return size.flatmap(_text)
    if isinstance(tail, Payload):
        return size.flatmap(lambda n: st.binary(min_size=n, max_size=n))
    if isinstance(tail, Ints):
        item = st.integers(*_item_range(tail))
        return size.flatmap(lambda n: st.tuples(*[item] * n))
    if isinstance(tail, Records):
        record = _layouts(tail.record, dialect, tail.record.name)
        return size.flatmap(lambda n: st.lists(record, min_size=n, max_size=n))
    raise TypeError(f"no strategy for {type(tail).__name__}")


def _text(size: int) -> st.SearchStrategy[str]:
    """Return texts of ``size`` bytes, among them bytes that are not UTF-8."""
    plain = st.text(st.characters(min_codepoint=33, max_codepoint=126))
    return st.one_of(
        plain.map(lambda text: cycled(text.encode() or b"x", size).decode()),
        st.binary(min_size=size, max_size=size).map(
            lambda raw: raw.replace(b"\0", b"0").decode("utf-8", "surrogateescape")
        ),
    )


def _item_range(tail: Ints) -> tuple[int, int]:
    low, high = integer_range(FieldSpec(tail.path, tail.item, tail.doc))
    if tail.limit is not None:
        low = low if tail.limit.low is None else tail.limit.low
        high = high if tail.limit.high is None else tail.limit.high
    return low, high


def _exact(
    tail: Tail, layout: Layout, dialect: str, values: Mapping[str, Any]
) -> int | None:
    """Return the size of a tail that fields which are not computed prescribe."""
    rule: Length | None = tail.count if isinstance(tail, Records) else None
    if rule is None and callable(tail.length):
        rule = tail.length
    if rule is None or not set(names_read(rule)) <= _sizing_names(layout, dialect):
        return None
    width = int(tail.item.sizeof()) if isinstance(tail, Ints) else 1
    return int(rule(values)) // width


@cache
def _sizes(tail: Tail, layout: Layout, dialect: str) -> tuple[int, ...]:
    """Return the sizes of ``tail`` that keep the limits of the computed fields."""
    computed = [
        field
        for field in fields_of(layout, dialect)
        if field.auto is not None and field.limit is not None
    ]
    limits = [f.limit.high for f in computed if f.limit is not None and f.limit.high]
    return tuple(
        size
        for size in (*SIZES, *(high for high in limits if high <= 2048))
        if all(_size_holds(field, tail, size) for field in computed)
    )


def _size_holds(field: FieldSpec, tail: Tail, size: int) -> bool:
    filled: Any = "x" * size if isinstance(tail, Text) else bytes(size)
    if isinstance(tail, Ints | Records):
        filled = (0,) * size
    assert field.auto is not None
    assert field.limit is not None
    try:
        return field.limit.holds(field.auto({tail.path: filled}))
    except (KeyError, TypeError):
        return True  # computed from another tail


def nearly_valid(
    spec: FrameSpec, dialect: str, *, fault: Fault | None = None
) -> st.SearchStrategy[NearlyValid]:
    """Return a strategy of frames that break one limit, constant, rule or length.

    Breaking one rule may break another that depends on it; the stated clause is
    always among the problems of a reader.

    Parameters
    ----------
    fault : Fault, optional
        One of ``faults(spec, dialect)``, to break nothing else. Where the drawn values
        give no way to break it, the frame is cut short instead.

    Raises
    ------
    ValueError
        If the frame has no such rule (``breakable`` tells beforehand).
    """
    name = dialect.rstrip("?")
    if not breakable(spec, name):
        raise ValueError(f"{spec.full_name} has no rule to break in {dialect}")
    return drawn(Bound(_nearly_valid, spec=spec, dialect=name, wanted=fault))


def _nearly_valid(
    draw: st.DrawFn, spec: FrameSpec, dialect: str, wanted: Fault | None
) -> NearlyValid:
    values = draw(valid_values(spec, dialect))
    whole = to_bytes(spec, values, dialect=dialect)
    fault = wanted
    if fault is None:
        kinds = faults_by_kind(spec, dialect)
        possible = kinds[draw(st.sampled_from(tuple(kinds)))]
        fault = possible[draw(st.integers(0, len(possible) - 1))]
    if isinstance(fault, FieldSpec):
        return _broken_field(draw, spec, dialect, whole, fault)
    if isinstance(fault, Rule):
        return _broken_rule(draw, spec, dialect, whole, fault)
    if isinstance(fault, tuple):
        return _broken_record(draw, spec, dialect, values, *fault)
    return _cut_or_stretched(draw, spec, dialect, whole, fault)


def _broken_field(
    draw: st.DrawFn, spec: FrameSpec, dialect: str, whole: bytes, field: FieldSpec
) -> NearlyValid:
    wrong = _wrong(field, dialect)
    data = patched(spec, dialect, whole, field, draw(st.sampled_from(wrong)))
    path = f"{spec.name}.{field.path}"
    return NearlyValid(data, kind_of(field), path, field.clause)


def _broken_rule(
    draw: st.DrawFn, spec: FrameSpec, dialect: str, whole: bytes, rule: Rule
) -> NearlyValid:
    field = next(f for f in fields_of(spec.body, dialect) if f.path == rule.path)
    values = read(spec, whole, dialect=dialect).values
    tried: set[Any] = set(boundary_values(field, dialect))
    if field.kind == "int":
        tried.add(draw(st.integers(*integer_range(field))))
    wrong = [v for v in tried if not rule.test({**values, field.path: v})]
    if not wrong:
        return _cut_or_stretched(draw, spec, dialect, whole, "short")
    value = draw(st.sampled_from(sorted(wrong)))
    data = patched(spec, dialect, whole, field, value)
    return NearlyValid(data, "rule", f"{spec.name}.{rule.path}", rule.clause)


def _broken_record(
    draw: st.DrawFn,
    spec: FrameSpec,
    dialect: str,
    values: dict[str, Any],
    tail: Records | One,
    field: FieldSpec,
) -> NearlyValid:
    if not values[tail.path]:
        whole = to_bytes(spec, values, dialect=dialect)
        return _cut_or_stretched(draw, spec, dialect, whole, "short")
    value = draw(st.sampled_from(_wrong(field, dialect)))
    if isinstance(tail, One):
        where = tail.path
        broken: Any = {**values[where], field.path: value}
    else:
        broken = list(values[tail.path])
        index = draw(st.integers(0, len(broken) - 1))
        broken[index] = {**broken[index], field.path: value}
        where = f"{tail.path}[{index}]"
    data = to_bytes(spec, {**values, tail.path: broken}, dialect=dialect)
    return NearlyValid(
        data, "record", f"{spec.name}.{where}.{field.path}", field.clause
    )


def _wrong(field: FieldSpec, dialect: str) -> list[Any]:
    limit = field.limit
    return [
        value
        for value in boundary_values(field, dialect)
        if (value != field.const if limit is None else not limit.holds(value))
    ]


def _cut_or_stretched(
    draw: st.DrawFn, spec: FrameSpec, dialect: str, whole: bytes, kind: str
) -> NearlyValid:
    body = whole[spec.header_size :]
    if kind == "long":
        body += draw(st.binary(min_size=1, max_size=8))
        clause = spec.body.trailing_clause or spec.body.short_clause
        return NearlyValid(framed(spec, body), "long", spec.name, clause)
    if kind == "ragged":
        last = tails_of(spec.body, dialect)[-1]
        body += draw(st.binary(min_size=1, max_size=3))
        path = f"{spec.name}.{last.path}"
        return NearlyValid(framed(spec, body), "ragged", path, last.clause)
    fields = fields_of(spec.body, dialect)
    field = fields[draw(st.integers(0, len(fields) - 1))]
    at = offsets_of(spec.body, dialect)[field.path]
    body = body[: at + draw(st.integers(0, field.size - 1))]
    path = f"{spec.name}.{field.path}"
    return NearlyValid(framed(spec, body), "short", path, spec.body.short_clause)


def hostile(spec: FrameSpec, dialect: str) -> st.SearchStrategy[bytes]:
    """Return a strategy of frames from a sender that keeps no rule.

    Random bodies, valid frames that are cut, stretched or spliced, words replaced
    by extreme lengths and counts, and headers that lie.
    """
    whole = valid_frames(spec, dialect)
    body = st.binary(max_size=300).map(lambda raw: framed(spec, raw))
    return st.one_of(
        body,
        _lying_words(whole, "big" if spec.protocol == "DS4D" else "little"),
        _spliced(whole),
        whole.flatmap(lambda data: st.integers(0, len(data)).map(lambda n: data[:n])),
        st.tuples(whole, st.binary(max_size=40)).map(lambda two: two[0] + two[1]),
    )


@st.composite
def _lying_words(
    draw: st.DrawFn, whole: st.SearchStrategy[bytes], order: Literal["big", "little"]
) -> bytes:
    data = bytearray(draw(whole))
    for _ in range(draw(st.integers(1, 3))):
        if len(data) < 4:
            break
        at = draw(st.integers(0, len(data) // 4 - 1)) * 4
        word = draw(st.sampled_from(EDGES) | st.integers(0, 0xFFFFFFFF))
        data[at : at + 4] = word.to_bytes(4, order)
    return bytes(data)


@st.composite
def _spliced(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    data = draw(whole)
    at = draw(st.integers(0, len(data)))
    until = draw(st.integers(at, len(data)))
    return data[:at] + draw(st.binary(max_size=16)) + data[until:]


__all__ = [
    "Bound",
    "NearlyValid",
    "boundary_values",
    "breakable",
    "drawn",
    "hostile",
    "nearly_valid",
    "valid_frames",
    "valid_values",
]
