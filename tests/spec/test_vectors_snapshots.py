"""Answers to a save against the coordinator's machine, with and without each check."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from ds4proto import rule_vectors
from ds4proto.link import ds4d_snapshot_client
from ds4proto.link.ds4d_events import (
    ShardData,
    SnapshotDone,
    SnapshotFailed,
    Transmit,
)
from ds4proto.link.ds4d_snapshot_client import SaveClient, ShardKey
from ds4proto.rule_vectors import Row
from tests.spec.removing import without_check

FILE = rule_vectors.load("snapshot-answers")
KEY = ShardKey(**{k: int(str(v), 0) for k, v in FILE.base["key"].items()})


def heard(row: Row, step: int) -> dict[str, Any]:
    """Return what becomes of an answer that comes in pieces of ``step`` bytes."""
    client = SaveClient(KEY, now=0.0)
    answer = bytes.fromhex(row["answer"])
    for at in range(0, len(answer), step):
        client.receive_data(answer[at : at + step], 0.0)
    if row["end"]:
        client.receive_data(None, 0.0)
    found: dict[str, Any] = {}
    data = b""
    for event in client.events():
        if isinstance(event, Transmit):
            found["request"] = b"".join(map(bytes, event.buffers)).hex()
        elif isinstance(event, ShardData):
            data += event.data
        elif isinstance(event, SnapshotDone):
            found["saved"] = data.hex()
        elif isinstance(event, SnapshotFailed):
            found["failed"] = event.fault.text
    return found


def agrees(row: Row, step: int = 1 << 20) -> bool:
    try:
        found = heard(row, step)
    except (KeyError, ValueError, AssertionError):
        return False
    due = {name: row.values.get(name) for name in ("saved", "failed")}
    if "request" in row.values:
        due["request"] = row["request"]
    return all(found.get(name) == value for name, value in due.items())


@pytest.mark.parametrize("step", [1 << 20, 1, 13])
def test_every_row_comes_out(step: int) -> None:
    assert [row.name for row in FILE.rows if not agrees(row, step)] == []


def one_word_more(part: Any) -> AbstractContextManager[Any]:
    """Read a fixed part four bytes later than it lies."""
    real = type(part).read
    return patch.object(
        type(part),
        "read",
        lambda self, data, at=0: (
            real(self, bytes(data)[4:] + bytes(4), at)
            if self is part
            else real(self, data, at)
        ),
    )


def other_text(state: str) -> AbstractContextManager[Any]:
    table = {**ds4d_snapshot_client._CLOSED, state: "DS4D-SNAP-31"}
    return patch.object(ds4d_snapshot_client, "_CLOSED", table)


@contextmanager
def any_chunk() -> Any:
    with patch.object(ds4d_snapshot_client, "chunk_sound", lambda *_: True):
        yield


def no_empty_chunks() -> AbstractContextManager[Any]:
    real = ds4d_snapshot_client.chunk_sound
    return patch.object(
        ds4d_snapshot_client,
        "chunk_sound",
        lambda request, missing, size, head: (
            size > 12 and real(request, missing, size, head)
        ),
    )


def backwards(part: Any) -> AbstractContextManager[Any]:
    """Write the words of a fixed part in another order."""
    real = type(part).build

    def build(self: Any, values: Any) -> bytes:
        data: bytes = real(self, values)
        return data[4:] + data[:4] if self is part else data

    return patch.object(type(part), "build", build)


CLIENT = ds4d_snapshot_client
FAULTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "DS4D-SNAP-35": lambda: patch.dict(CLIENT._AWAITED, chunks=(8, CLIENT.CHUNK_PART)),
    "DS4D-SNAP-36": any_chunk,
    "DS4D-SNAP-42": lambda: other_text("begin"),
    "DS4D-SNAP-43": lambda: other_text("chunks"),
    "DS4D-SNAP-44": lambda: other_text("done"),
    "DS4D-SNAP-45": no_empty_chunks,
    "DS4D-SNAP-50": lambda: backwards(CLIENT.SAVE_PART),
    "DS4D-SNAP-51": lambda: one_word_more(CLIENT.BEGIN_PART),
    "DS4D-SNAP-53": lambda: one_word_more(CLIENT.DONE_PART),
}
CLAUSES = sorted({clause for row in FILE.rows for clause in row.clauses})


@pytest.mark.parametrize("clause", CLAUSES)
def test_a_coordinator_without_the_rule_fails(clause: str) -> None:
    rows = [row for row in FILE.rows if clause in row.clauses]
    fault = FAULTS.get(clause, lambda: without_check(CLIENT, clause))
    with fault():
        assert any(not agrees(row) for row in rows)
    assert all(agrees(row) for row in rows)
