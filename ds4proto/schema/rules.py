"""Which rules do some values break? Limits, constants and rules between fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ds4proto.schema.declare import (
    Ints,
    Layout,
    One,
    Records,
    Rule,
    Tail,
    fields_of,
    in_dialect,
    offsets_of,
    tails_of,
    walk_tails,
)
from ds4proto.schema.problem import Problem


def broken(
    layout: Layout,
    values: Mapping[str, Any],
    dialect: str,
    prefix: str,
    starts: Mapping[str, int],
) -> Iterator[Problem]:
    """Yield the rules of ``layout`` that ``values`` break, records included.

    ``starts`` gives the frame offset of each layout by the prefix of its paths, and
    of each tail by its path; without an entry a problem has no offset.
    """
    yield from broken_limits(layout, values, dialect, prefix, starts)
    for tail in walk_tails(tails_of(layout, dialect)):
        yield from _inside(tail, values, dialect, prefix, starts)
    for rule in layout.rules:
        yield from broken_rule(rule, layout, values, dialect, prefix, starts)


def _place(
    layout: Layout, path: str, dialect: str, prefix: str, starts: Mapping[str, int]
) -> int | None:
    at = offsets_of(layout, dialect).get(path)
    if at is None:
        return starts.get(prefix + path)
    return None if prefix not in starts else starts[prefix] + at


def broken_limits(
    layout: Layout,
    values: Mapping[str, Any],
    dialect: str,
    prefix: str,
    starts: Mapping[str, int],
) -> Iterator[Problem]:
    """Yield the fixed fields of ``layout`` that are outside their limits."""
    for spec in fields_of(layout, dialect):
        value = values[spec.path]
        if spec.const is not None and value != spec.const:
            expected, found = f"{spec.const:#x}", f"{value:#x}"
        elif spec.limit is not None and not spec.limit.holds(value):
            expected, found = str(spec.limit), str(value)
        else:
            continue
        where = _place(layout, spec.path, dialect, prefix, starts)
        yield Problem(spec.clause, prefix + spec.path, where, None, expected, found)


def broken_rule(
    rule: Rule,
    layout: Layout,
    values: Mapping[str, Any],
    dialect: str,
    prefix: str,
    starts: Mapping[str, int],
) -> Iterator[Problem]:
    """Yield the problem of one rule, if ``values`` break it."""
    if not in_dialect(rule.dialects, dialect) or rule.test(values):
        return
    expected = rule.expected
    yield Problem(
        rule.clause,
        prefix + rule.path,
        _place(layout, rule.path, dialect, prefix, starts),
        None,
        expected if isinstance(expected, str) else expected(values),
        shown(values.get(rule.path)),
        rule.next_step,
    )


def _inside(
    tail: Tail,
    values: Mapping[str, Any],
    dialect: str,
    prefix: str,
    starts: Mapping[str, int],
) -> Iterator[Problem]:
    value = values.get(tail.path)
    if isinstance(tail, Records) and value:
        for index, record in enumerate(value):
            where = f"{prefix}{tail.path}[{index}]."
            yield from broken(tail.record, record, dialect, where, starts)
    elif isinstance(tail, One) and value:
        where = f"{prefix}{tail.path}."
        yield from broken(tail.record, value, dialect, where, starts)
    elif isinstance(tail, Ints) and tail.limit is not None and value:
        for index, item in enumerate(value):
            if not tail.limit.holds(item):
                where = f"{prefix}{tail.path}[{index}]"
                yield Problem(
                    tail.clause, where, None, None, str(tail.limit), str(item)
                )
                return


def shown(value: Any) -> str:
    """Return a short text for a value of any kind; never megabytes of it."""
    if isinstance(value, memoryview | bytes):
        return f"{len(value)} bytes"
    if isinstance(value, str):
        text = value.encode("utf-8", "backslashreplace").decode()
        text = ascii(text) if not text.isprintable() else repr(text)
        return text if len(text) <= 80 else text[:77] + "..."
    if isinstance(value, list | tuple):
        return f"{len(value)} items"
    return str(value)
