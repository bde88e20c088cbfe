"""A prompt that no engine takes, where a sync has checkpoints (v12 and later)."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from ds4proto.link import ds4t_events as say
from ds4proto.link.ds4t_states import Worker
from ds4proto.link.ds4t_texts import PairFailed
from tests.link.ds4t.pair import opened
from tests.link.ds4t.test_rules import ENDS, send

REFUSED = [row for row in ENDS if row[0].startswith("SYNC") and row[3] is not None]


def checkpoint(seq: int, point: int, now: int, total: int, flag: int = 0) -> bytes:
    return struct.pack("<IIIQIiiI", 0x44533454, 22, 24, seq, point, now, total, flag)


def written(events: list[Any]) -> bytes:
    return b"".join(bytes(b) for e in events if isinstance(e, say.Transmit)
                    for b in e.buffers)  # fmt: skip


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(("name", "values", "text", "ack"), REFUSED)
def test_a_prompt_is_refused_between_its_checkpoints(
    name: str, values: dict[str, Any], text: str, ack: int, ahead: bool
) -> None:
    """START before any work, END with result 1, then the ack (DS4T-CKPT-09, -11)."""
    pair, total = opened("v14"), len(values["tokens"])
    start, end = checkpoint(1, 0, 0, total), checkpoint(2, 3, 1, total)
    acked = b"".join(bytes(b) for b in pair.worker._ack(ack, 1))
    found = send(pair, name, **values)
    assert (written(found), len(found)) == (start, 1)
    if not ahead:
        pair.worker.receive_data(start, 0.0)
        assert written(list(pair.worker.events())) == end
    pair.worker.receive_data(start + end if ahead else end, 0.0)
    *before, failure = pair.worker.events()
    assert written(before) == (end + acked if ahead else acked)
    assert acked[12:] == struct.pack("<QiI", ack, 1, 0)
    assert isinstance(failure, PairFailed)
    assert failure.line("tp-worker") == text


def test_a_cancel_comes_before_the_refusal_of_a_prompt() -> None:
    pair = opened("v14")
    send(pair, "SYNC", session_id=1, tokens=())
    pair.worker.receive_data(checkpoint(1, 0, 0, 0, 1), 0.0)
    assert written(list(pair.worker.events())) == checkpoint(2, 3, 2, 0)
    pair.worker.receive_data(checkpoint(2, 3, 2, 0), 0.0)
    assert written(list(pair.worker.events()))[12:] == struct.pack("<QiI", 1, 2, 0)
    assert pair.worker.state is Worker.COMMAND
    assert send(pair, "SYNC", session_id=1, tokens=(1, 2)) == [say.RunSync(1, (1, 2))]


def test_a_leader_that_took_the_prompt_ends_the_pair_without_an_ack() -> None:
    pair = opened("v14")
    send(pair, "SYNC", session_id=1, tokens=(-1,))
    pair.worker.receive_data(checkpoint(1, 0, 0, 1) + checkpoint(2, 3, 0, 1), 0.0)
    transmit, failure = pair.worker.events()
    assert written([transmit]) == checkpoint(2, 3, 1, 1)
    assert isinstance(failure, PairFailed)
    assert failure.problem.clause == "DS4T-CKPT-14"
