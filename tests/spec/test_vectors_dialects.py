"""First bytes against the recogniser and the observers, and with a sign overlooked."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import pytest

from ds4proto import rule_vectors
from ds4proto.link.observer import open_observer
from ds4proto.rule_vectors import Row
from ds4proto.schema import dialect_candidates, recognise, signs

FILE = rule_vectors.load("dialects-ds4d")


def agrees(row: Row) -> bool:
    streams = {key: bytes.fromhex(data) for key, data in row["streams"].items()}
    try:
        found = [name for name, _ in dialect_candidates(streams)]
    except (KeyError, ValueError, IndexError):
        return False
    first = row.values.get("likeliest")
    return (
        (first is None or found[:1] == [first])
        and not set(found) & set(row.values.get("never", ()))
        and set(row.values.get("among", ())) <= set(found)
    )


def test_every_row_comes_out() -> None:
    assert [row.name for row in FILE.rows if not agrees(row)] == []


ONE_CONNECTION = [
    row
    for row in FILE.rows
    if "likeliest" in row.values
    and set(row["streams"]) <= {"a>b", "b>a"}
    and "DS4D-DIALECT-13" not in row.clauses
]


@pytest.mark.parametrize("row", ONE_CONNECTION, ids=str)
def test_an_observer_speaks_the_likeliest(row: Row) -> None:
    streams: dict[Any, bytes] = {k: bytes.fromhex(v) for k, v in row["streams"].items()}
    observer = open_observer(streams)
    assert observer is not None
    for direction, data in streams.items():
        list(observer.feed(direction, data, 0.0))
    assert observer.dialect == row["likeliest"]


def overlooked(name: str) -> Callable[[], AbstractContextManager[Any]]:
    """Pass over what one function of the recogniser notes."""
    return lambda: patch.object(signs, name, lambda *_words: None)


def anything() -> AbstractContextManager[Any]:
    return patch.object(recognise, "_allowed", lambda _entry, _seen: True)


def never(holder: Any, name: str) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: patch.object(holder, name, lambda *_words: False)


def big_endian_only() -> AbstractContextManager[Any]:
    real = recognise.protocol_of

    def protocol_of(first: Any) -> str | None:
        found = real(first)
        return "DS4D" if found == "DS4D-LE" else found

    return patch.object(recognise, "protocol_of", protocol_of)


FAULTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "DS4D-DIALECT-03": anything,
    "DS4D-DIALECT-04": anything,
    "DS4D-DIALECT-10": anything,
    "DS4D-DIALECT-11": overlooked("_hello"),
    "DS4D-DIALECT-12": never(signs, "_is_inbox"),
    "DS4D-DIALECT-13": never(recognise, "is_greeting"),
    "DS4D-DIALECT-14": overlooked("_snapshot"),
    "DS4D-DIALECT-15": never(recognise, "_work_on_dialled"),
    "DS4D-DIALECT-16": overlooked("_snapshot"),
    "DS4D-DIALECT-17": big_endian_only,
    "DS4D-DIALECT-18": overlooked("_fixed"),
    "DS4D-DIALECT-19": lambda: patch.object(recognise, "_own_signs", lambda *_: 0),
    "DS4D-DIALECT-37": never(recognise, "_work_on_dialled"),
}
CLAUSES = sorted({clause for row in FILE.rows for clause in row.clauses})


@pytest.mark.parametrize("clause", CLAUSES)
def test_a_sign_overlooked_is_caught(clause: str) -> None:
    rows = [row for row in FILE.rows if clause in row.clauses]
    with FAULTS[clause]():
        assert any(not agrees(row) for row in rows)
    assert all(agrees(row) for row in rows)
