"""What a worker owes for a prompt that it refuses, with and without checkpoints."""

from __future__ import annotations

import struct

import pytest
from ds4proto_fuzz.tp.worker import due_of

from ds4proto.schema.registry import frame, to_bytes
from tests.link.ds4t.pair import opened

CONTROL = 0x44533454


def checkpoint(seq: int, point: int, current: int, total: int) -> bytes:
    return struct.pack("<IIIQIiiI", CONTROL, 22, 24, seq, point, current, total, 0)


@pytest.mark.parametrize(
    ("tokens", "clause"), [((), "DS4T-SYNC-04"), ((-1,), "DS4T-ROBUST-12")]
)
@pytest.mark.parametrize("dialect", ["v10", "v14"])
def test_a_refused_prompt(dialect: str, tokens: tuple[int, ...], clause: str) -> None:
    machine, spec = opened(dialect).worker, frame("DS4T.SYNC", dialect=dialect)
    values = {"session_id": 1, "tokens": tokens}
    machine.receive_data(to_bytes(spec, values, dialect=dialect), 0.0)
    total = len(tokens)
    meetings = [checkpoint(1, 0, 0, total), checkpoint(2, 3, 1, total)]
    due = [*meetings, (1, 1)] if dialect == "v14" else [(1, 1)]
    assert due_of(machine, dialect) == (due, clause, False)
