"""The reference reader: each construct is interpreted, and each problem is placed.

Slow and exact. The fast form in ``fast.py`` falls back to it for every frame that
it finds anything wrong with, so that this is where errors are worded.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from ds4proto.schema.declare import (
    REST,
    Blob,
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
    size_of,
    tails_of,
)
from ds4proto.schema.problem import Problem
from ds4proto.schema.rules import broken, broken_limits, broken_rule


class _Stop(Exception):
    """The rest of the frame cannot be read."""


class Reader:
    """One pass over one body.

    Parameters
    ----------
    spec : FrameSpec
        What the body should hold.
    dialect : str
        Name of the dialect.
    base : int
        Bytes of the frame in front of the body (its header).
    """

    def __init__(self, spec: FrameSpec, dialect: str, base: int) -> None:
        self._spec = spec
        self._dialect = dialect
        self._base = base
        self._starts: dict[str, int] = {}
        self.problems: list[Problem] = []

    def read(self, body: memoryview) -> dict[str, Any]:
        """Read ``body``; what cannot be read is absent, with a problem to say so."""
        values: dict[str, Any] = {}
        try:
            end = self._layout(
                self._spec.body, body, 0, len(body), values, self._spec.name + "."
            )
            if end < len(body) and self._spec.trailing:
                values[rest_of(self._spec.body)] = body[end:]
            elif end < len(body):
                clause = self._spec.body.trailing_clause or self._spec.body.short_clause
                self._fail(
                    clause,
                    f"{self._spec.name}",
                    end,
                    f"a body of {end} bytes",
                    f"{len(body)} bytes, {len(body) - end} of them left over",
                    "the lengths in the fixed part do not add up to the body",
                )
        except _Stop:
            self.problems.extend(self._of_fixed_part(values))
            return values
        self.problems.extend(
            broken(
                self._spec.body,
                values,
                self._dialect,
                self._spec.name + ".",
                self._placed(),
            )
        )
        return values

    def _placed(self) -> dict[str, int]:
        """Return where layouts and tails start, counted from the frame's start."""
        return {path: at + self._base for path, at in self._starts.items()}

    def _of_fixed_part(self, values: Mapping[str, Any]) -> Iterator[Problem]:
        """Yield what the fixed part breaks on its own when the tails are unreadable."""
        body, name = self._spec.body, self._dialect
        if any(spec.path not in values for spec in fields_of(body, name)):
            return
        prefix = self._spec.name + "."
        starts = self._placed()
        yield from broken_limits(body, values, name, prefix, starts)
        for rule in body.rules:
            with suppress(KeyError, TypeError):  # the rule needs a part that is missing
                yield from broken_rule(rule, body, values, name, prefix, starts)

    def _fail(
        self,
        clause: str,
        path: str,
        at: int | None,
        expected: str,
        found: str,
        next_step: str = "",
        *,
        fatal: bool = True,
    ) -> None:
        where = None if at is None else at + self._base
        self.problems.append(
            Problem(clause, path, where, None, expected, found, next_step, fatal)
        )

    def _layout(
        self,
        layout: Layout,
        body: memoryview,
        at: int,
        end: int,
        values: dict[str, Any],
        prefix: str,
    ) -> int:
        size = size_of(layout, self._dialect)
        self._starts[prefix] = at
        for spec in fields_of(layout, self._dialect):
            if at + spec.size > end:
                start = at
                whole = prefix.rstrip(".")
                self._fail(
                    layout.short_clause,
                    prefix + spec.path,
                    start,
                    f"{whole} to have a fixed part of {size} bytes",
                    f"the end after {end - start} of the field's {spec.size} bytes",
                    "the sender cut the frame short, or speaks another dialect",
                )
                raise _Stop
            stream = io.BytesIO(body[at : at + spec.size])
            values[spec.path] = spec.type.parse_stream(stream)
            at += spec.size
        for tail in tails_of(layout, self._dialect):
            at = self._tail(tail, body, at, end, values, prefix, layout)
        return at

    def _tail(
        self,
        tail: Tail,
        body: memoryview,
        at: int,
        end: int,
        values: dict[str, Any],
        prefix: str,
        layout: Layout,
    ) -> int:
        path = prefix + tail.path
        self._starts[path] = at
        if callable(tail.length):
            size = int(tail.length(values))
            stop = at + size
        else:
            size, stop = end - at, end
        if stop > end:
            clause = tail.clause or layout.short_clause
            self._fail(
                clause,
                path,
                at,
                f"{size} bytes of {tail.path}",
                f"only {end - at} bytes left in {prefix.rstrip('.')}",
                "a length field is larger than the frame",
            )
            raise _Stop
        if isinstance(tail, Payload):
            values[tail.path] = body[at:stop]
        elif isinstance(tail, Text):
            values[tail.path] = bytes(body[at:stop]).decode("utf-8", "surrogateescape")
        elif isinstance(tail, Ints):
            self._ints(tail, body, at, stop, values, path)
        elif isinstance(tail, Records):
            return self._records(tail, body, at, stop, values, path)
        elif isinstance(tail, One):
            record: dict[str, Any] = {}
            values[tail.path] = record
            return self._layout(tail.record, body, at, stop, record, path + ".")
        elif isinstance(tail, Blob):
            self._blob(tail, body, at, stop, values, prefix, layout)
        return stop

    def _ints(
        self,
        tail: Ints,
        body: memoryview,
        at: int,
        stop: int,
        values: dict[str, Any],
        path: str,
    ) -> None:
        width = tail.item.sizeof()
        if (stop - at) % width:
            self._fail(
                tail.clause,
                path,
                at,
                f"a multiple of {width} bytes",
                f"{stop - at} bytes",
                "the length of an array is not a whole number of items",
            )
            raise _Stop
        stream = io.BytesIO(body[at:stop])
        count = (stop - at) // width
        values[tail.path] = tuple(tail.item.parse_stream(stream) for _ in range(count))

    def _records(
        self,
        tail: Records,
        body: memoryview,
        at: int,
        stop: int,
        values: dict[str, Any],
        path: str,
    ) -> int:
        count = int(tail.count(values))
        smallest = max(1, size_of(tail.record, self._dialect))
        records: list[dict[str, Any]] = []
        values[tail.path] = records
        # the count is checked against the bytes before anything is allocated
        if count * smallest > stop - at and tail.length is not REST:
            self._fail(
                tail.clause,
                path,
                at,
                f"{count} records of at least {smallest} bytes",
                f"{stop - at} bytes",
                "count and size of the records disagree",
            )
            raise _Stop
        for index in range(count):
            record: dict[str, Any] = {}
            records.append(record)
            where = f"{path}[{index}]."
            at = self._layout(tail.record, body, at, stop, record, where)
        if callable(tail.length) and at != stop:
            self._fail(
                tail.clause,
                path,
                at,
                f"{count} records",
                f"{stop - at} bytes behind them",
                "count and size of the records disagree",
            )
            raise _Stop
        return at

    def _blob(
        self,
        blob: Blob,
        body: memoryview,
        at: int,
        stop: int,
        values: dict[str, Any],
        prefix: str,
        layout: Layout,
    ) -> None:
        if at == stop:
            for part in blob.parts:
                values[part.path] = [] if isinstance(part, Records) else None
            if not _stated(blob, values):
                return
            self._fail(
                blob.empty_clause or blob.clause,
                prefix + blob.path,
                at,
                f"a {blob.path} of at least one record",
                "0 bytes",
                "the blob may not be empty",
                fatal=False,
            )
            return
        for part in blob.parts:
            at = self._tail(part, body, at, stop, values, prefix, layout)
        if at < stop:
            values[rest_of(blob)] = body[at:stop]
            self._fail(
                blob.trailing_clause or blob.clause,
                prefix + blob.path,
                at,
                "the end of the blob",
                f"{stop - at} bytes left over",
                "a count is smaller than the blob, or the blob is padded",
                fatal=False,
            )


def _stated(blob: Blob, values: Mapping[str, Any]) -> bool:
    """Tell whether an earlier count says that ``blob`` holds records."""
    records = [part for part in blob.parts if isinstance(part, Records)]
    return not records or any(int(part.count(values)) for part in records)
