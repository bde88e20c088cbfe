"""Checkpoints, verdicts and pictures on the control connection."""

from __future__ import annotations

import struct
from typing import Any
from unittest.mock import patch

import pytest

from ds4proto.link import ds4t_control, ds4t_worker_intake
from ds4proto.link import ds4t_events as say
from ds4proto.link.ds4t_checkpoint import Meetings
from ds4proto.link.ds4t_leader import LeaderControl
from ds4proto.link.ds4t_states import Leader, Worker
from ds4proto.link.ds4t_texts import LocalProtocolError
from ds4proto.link.ds4t_worker import WorkerControl
from tests.link.ds4t.captured import frames_of
from tests.link.ds4t.pair import (
    END,
    HALF,
    PROMPT,
    START,
    meet,
    opened,
    synced,
)
from tests.spec.proofs.tp_control import header
from tests.spec.tp_showing import altered, shows, together

MAGIC = 0x44533454


def withheld(own: Any, meetings: Any, event: Any) -> list[Any]:
    own(meetings, event)
    return []


@shows(
    (
        "DS4T-CKPT-06",
        "a rank that reads first",
        altered(Meetings, "send", withheld),
    ),
    (
        "DS4T-CKPT-06",
        "two frames are read",
        lambda: patch.object(
            Meetings, "reads", property(lambda meetings: not meetings.ended)
        ),
    ),
)
def a_checkpoint_is_sent_first_and_one_frame_is_read() -> None:
    pair = opened("v14")
    pair.say(say.RunSync(1, PROMPT))
    first = b"".join(map(bytes, pair.leader.send(START, 0.0)))
    assert first[4:8] == bytes([22, 0, 0, 0])  # nothing of the worker has come
    frames = b"".join(
        struct.pack("<IIIQIiiI", MAGIC, 22, 24, seq, point, now, 3, 0)
        for seq, point, now in ((1, 0, 0), (2, 1, 3))
    )
    pair.leader.receive_data(frames[:36], 0.0)
    (met,) = pair.leader.events()
    assert met == START
    pair = opened("v14")
    pair.say(say.RunSync(1, PROMPT))
    pair.leader.receive_data(frames, 0.0)
    assert list(pair.leader.events()) == [say.PeerCheckpoint(START)]
    pair.leader.send(START, 0.0)
    met, ahead = pair.leader.events()
    assert (met, ahead) == (START, say.PeerCheckpoint(say.Checkpoint(1, 3, 3)))


def codes_apart(own: Any, meetings: Any, now: float) -> Any:
    mine, theirs = meetings._mine, meetings._theirs
    if mine is not None and theirs is not None and mine.point == say.END:
        meetings._theirs = {**theirs, "current": mine.current}
    return own(meetings, now)


@shows(
    (
        "DS4T-CKPT-14",
        "codes at the end are not compared",
        altered(Meetings, "judge", codes_apart),
    )
)
def unequal_codes_at_the_end_fail_the_pair() -> None:
    pair = opened("v14")
    pair.say(say.RunSync(1, PROMPT))
    meet(pair, START)
    pair.say(END)
    pair.answer(say.Checkpoint(say.END, 1, 3))
    for machine in (pair.leader, pair.worker):
        assert machine.failure is not None
        assert machine.failure.text == "tp: prefill synchronization failed"
        assert machine.failure.problem.clause == "DS4T-CKPT-14"


@shows(
    (
        "DS4T-CKPT-15",
        "a checkpoint at any time",
        together(
            altered(LeaderControl, "_require", lambda _own, _machine, _event: None),
            altered(Meetings, "_check", lambda _own, _meetings, _event: None),
        ),
    )
)
def checkpoints_go_with_a_sync_alone() -> None:
    pair = synced("v14")
    for command in (say.RunEval(1, 1), say.RunVerify(1, (1, 2))):
        pair.leader.send(command, 0.0)
        with pytest.raises(LocalProtocolError):
            pair.leader.send(say.Checkpoint(0, 0, len(PROMPT)), 0.0)
        pair = synced("v14")
    for dialect in ("v7", "v10"):
        pair = opened(dialect)
        pair.worker.receive_data(header(22, 24) + bytes(24), 0.0)
        (failure,) = pair.worker.events()
        assert failure.text == "tp: invalid command frame type 22 (24 bytes)"
        pair = opened(dialect)
        pair.leader.send(say.RunSync(1, PROMPT), 0.0)
        with pytest.raises(LocalProtocolError):
            pair.leader.send(START, 0.0)


@shows(
    (
        "DS4T-FLOW-16",
        "logits after every verdict",
        lambda: patch.object(WorkerControl, "_replayed", True),
    ),
    (
        "DS4T-FLOW-19",
        "the verdict is read at once",
        lambda: patch.object(
            ds4t_worker_intake,
            "_READS",
            frozenset({*ds4t_worker_intake._READS, Worker.BLOCK}),
        ),
    ),
)
def a_verdict_is_read_after_the_blocks_gates() -> None:
    for mode, count, halves in ((0, 2, 1), (0, 0, 0), (1, 0, 0), (2, 1, 0)):
        pair = synced("v14")
        before = len(pair.to_leader)
        assert pair.say(say.RunVerify(1, (1, 2, 3))) == [say.RunVerify(1, (1, 2, 3))]
        verdict = say.CommitBlock(mode, count)
        assert pair.say(verdict) == []  # the gates are not done yet
        pair.answer(say.BlockRun())
        assert pair.aside == [verdict]
        pair.answer(say.BlockCommitted(1, HALF if halves else None))
        types = [code for code, _ in frames_of(pair.to_leader[before:])]
        assert types == [10] * halves
        assert pair.leader.state is Leader.IDLE


def reserved_first(own: Any, spec: Any, body: Any, **more: Any) -> Any:
    if spec.name == "SYNC_MULTIMODAL":
        count = int.from_bytes(bytes(body[12:16]), "little")
        raise MemoryError(f"{count} records are reserved")
    return own(spec, body, **more)


@shows(
    (
        "DS4T-MM-13",
        "records are reserved by their number",
        altered(ds4t_control, "read_body", reserved_first),
    ),
    (
        "DS4T-ROBUST-14",
        "records are reserved by their number",
        altered(ds4t_control, "read_body", reserved_first),
    ),
)
def image_records_are_bounded_by_the_payload() -> None:
    import tracemalloc

    body = struct.pack("<QIIi", 1, 1, 0xFFFFFFFF, 7)
    pair = opened("v14")
    tracemalloc.start()
    try:
        pair.worker.receive_data(header(18, len(body)) + body, 0.0)
        (failure,) = pair.worker.events()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert failure.text == "tp: invalid command frame type 18 (20 bytes)"
    assert peak < 1 << 20
