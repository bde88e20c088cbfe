"""What a worker's machine does that no single answer on a connection shows."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from ds4proto_runtime.pipeline import settings
from ds4proto_runtime.pipeline.settings import worker_limits

from ds4proto.codec.token_hash import token_hash
from ds4proto.link import ds4d_snapshot_server
from ds4proto.link import ds4d_work_checks as checks
from ds4proto.link import ds4d_worker_snapshots as worker_snapshots
from ds4proto.link.ds4d_frames import WORK_PART
from ds4proto.link.ds4d_limits import DEFAULT, U32, LinkLimits
from ds4proto.link.ds4d_snapshot_client import LoadClient, ShardKey
from ds4proto.link.ds4d_worker import WorkerLink
from ds4proto.link.ds4d_worker_events import (
    EvaluateWork,
    RestoreShard,
    SaveShard,
    ShardFailed,
)
from ds4proto.link.ds4d_worker_queue import Queue
from ds4proto.link.ds4d_worker_shared import Shared
from tests.link.ds4d import toy
from tests.link.ds4d.build import frames, make, raw, texts, work
from tests.link.ds4d.host import Host
from tests.spec.proving import proof
from tests.spec.removing import without_check

LAST = toy.facts(5, 7, head=True)


def without(table: str, clause: str) -> AbstractContextManager[Any]:
    """Take one line out of a table of WORK checks."""
    kept = tuple(c for c in getattr(checks, table) if c.clause != clause)
    assert len(kept) < len(getattr(checks, table))
    return patch.object(checks, table, kept)


def save(*tokens: int, session: int = 9) -> bytes:
    return make(
        "SNAPSHOT_SAVE_REQ",
        model_id=0,
        session=session,
        request=1 << 63,
        token_hash=token_hash(tokens),
        token_count=len(tokens),
        layer_start=5,
        layer_end=7,
    )


def two() -> bytes:
    return work((1,), request=1) + work((2,), before=(1,), request=2)


# WORK


@proof(
    "DS4D-WORK-13",
    "the check left out",
    lambda: without("HEAD_CHECKS", "DS4D-WORK-13"),
)
def logits_before_the_last_layer_are_refused() -> None:
    host = Host(toy.facts(2, 4, head=True))
    link = host.open()
    host.give(link, work(flags=3, slice_=(2, 4)))
    assert texts(host.wrote[link]) == ["WORK logits require final transformer layer"]
    host.give(link, work(flags=1, slice_=(2, 4), request=2))
    assert texts(host.wrote[link])[1:] == ["RESULT"]
    assert link not in host.closed


@proof(
    "DS4D-WORK-16",
    "the size taken at the width of the wire",
    patch.object(
        checks,
        "SIZE_CHECKS",
        (
            checks.Check(
                "DS4D-WORK-16",
                lambda w: (
                    w.facts.model.hidden_bytes(w.fields["n_tokens"], w.bits) > U32
                ),
            ),
        ),
    ),
)
def the_hidden_state_must_fit_at_32_bit_whatever_the_width() -> None:
    most = U32 // (4 * toy.HIDDEN)
    for count, clause in ((most, None), (most + 1, "DS4D-WORK-16")):
        words = dict.fromkeys(WORK_PART.names, 0)
        words |= {"n_tokens": count, "input_hc_bits": 8, "flags": 1}
        words["input_hc_bytes"] = count * toy.HIDDEN
        job = checks.Work(LAST, 0, words)
        fault = checks.first_fault(checks.SIZE_CHECKS, job)
        assert (fault and fault.clause) == clause


def keeps_its_id(self: Any, slot: Any, frame: Any) -> None:
    real = list(frame)
    real[0] = bytes(real[0])[:12] + struct.pack(">Q", 1) + bytes(real[0])[20:]
    slot.answer = real
    self._flush()


@proof(
    "DS4D-WORK-62",
    "the connection kept open",
    patch.object(WorkerLink, "_exhausted", lambda *_: None),
)
@proof(
    "DS4D-WORK-62",
    "the request id of the WORK in the answer",
    patch.object(Queue, "_answer", keeps_its_id),
)
def a_body_without_room_is_answered_with_id_0_and_a_close() -> None:
    host = Host(LAST, limits=LinkLimits(max_body=1000))
    link = host.open()
    host.give(link, work((1, 2, 3, 4, 5)))
    ((_, values),) = frames(host.wrote[link])
    assert bytes(values["payload"]) == b"out of memory reading distributed WORK frame"
    assert (values["request"], values["status"]) == (0, 1)
    assert link in host.closed


# the queue and the lock


@proof(
    "DS4D-WORKER-05",
    "queued WORK served behind a bad frame",
    patch.object(Queue, "drop_queued", lambda _self: None),
)
def what_is_queued_behind_a_bad_frame_is_dropped() -> None:
    for bad in (b"XXXX" + bytes(8), make("ERROR", text="boom"), raw(99, b"abc")):
        host = Host(LAST, hold=True)
        link = host.open()
        host.give(link, two() + bad)
        host.release()
        while host.held:
            host.release()
        served = [name for name, _ in frames(host.wrote[link]) if name == "RESULT"]
        assert served == ["RESULT"]
        assert link in host.closed


def torn(self: Any) -> Iterator[Any]:
    """Write a shard in halves, the rest of the connection in between."""
    from ds4proto.link.ds4d_events import Transmit

    for event in list(real_events(self)):
        if isinstance(event, Transmit) and len(event.buffers) > 0:
            data = b"".join(map(bytes, event.buffers))
            held.append(Transmit([data[8:]]))
            yield Transmit([data[:8]])
        else:
            yield event
    while held:
        yield held.pop(0)


real_events = worker_snapshots.Snapshots.events
held: list[Any] = []


@proof(
    "DS4D-WORKER-06",
    "frames of two threads in each other",
    patch.object(worker_snapshots.Snapshots, "events", torn),
)
def a_snapshot_between_answers_does_not_tear_them() -> None:
    host = Host(LAST, hold=True)
    link = host.open()
    host.give(link, two() + save(1))
    while host.held:
        host.release()
    at, names = 0, []
    data = bytes(host.wrote[link])
    while at < len(data):
        assert data[at : at + 4] == b"DS4D"
        names.append(int.from_bytes(data[at + 4 : at + 8], "big"))
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    assert names == [4, 6, 7, 8, 4]


@proof(
    "DS4D-SNAP-67",
    "no lock between the engine's jobs",
    patch.object(Shared, "acquire", lambda _self, _link: True),
)
def the_lock_is_held_while_a_shard_is_written_or_read_and_not_while_it_travels() -> (
    None
):
    host = Host(LAST, hold=True)
    first, second = host.open(), host.open()
    host.give(first, work((1,)))
    host.release()
    host.give(first, save(1))
    host.give(second, work((1,), session=2))
    assert [type(event) for _, event in host.held] == [SaveShard]
    host.release()
    assert [type(event) for _, event in host.held] == [EvaluateWork]
    host.release()
    shard = host.slices[9].shard()
    key = ShardKey(0, 7, 1 << 63, token_hash((1,)), 1, 5, 7)
    load = LoadClient(key, (1,), len(shard), now=0.0)
    (head,) = load.events()
    data = b"".join(map(bytes, [*head.buffers, *load.chunks(shard, 0.0)]))
    host.give(first, data[:-100])
    host.give(second, work((3,), session=3, request=2))
    assert [type(event) for _, event in host.held] == [EvaluateWork]
    host.give(first, data[-100:])
    assert [type(event) for _, event in host.held] == [EvaluateWork]
    host.release()
    assert [type(event) for _, event in host.held] == [RestoreShard]


@proof(
    "DS4D-OPT-54",
    "the variable passed over",
    patch.object(settings, "worker_limits", lambda limits, _env: limits),
)
def without_prefetch_a_save_does_not_overtake() -> None:
    env = {"DS4_DIST_DISABLE_WORKER_PREFETCH": ""}
    limits = settings.worker_limits(DEFAULT, env)
    host = Host(LAST, hold=True, limits=limits)
    link = host.open()
    host.give(link, two() + save(1, 2))
    while host.held:
        host.release()
    assert texts(host.wrote[link]) == [
        "RESULT", "RESULT", "SNAPSHOT_BEGIN", "SNAPSHOT_CHUNK", "SNAPSHOT_DONE",
    ]  # fmt: skip
    assert worker_limits(DEFAULT, {}).queue_depth == 2


# sessions and snapshots


def unmarked(self: Any, event: Any, now: float) -> None:
    real_refused(self, type(event)(event.text, touched=False), now)


real_refused = Queue.refused_by_engine


@proof(
    "DS4D-SESS-08",
    "a session that goes on after a failed evaluation",
    patch.object(Queue, "refused_by_engine", unmarked),
)
def after_a_failed_evaluation_only_reset_or_a_load_helps() -> None:
    host = Host(LAST)
    link = host.open()
    host.give(link, work((1,)))
    shard = host.slices[9].shard()
    for again in ("reset", "load"):
        host.refuse = "gpu layer-slice failed"
        host.give(link, work((2,), before=(1,), request=2))
        host.refuse = None
        host.give(link, work((2,), before=(1,), request=3))
        if again == "reset":
            host.give(link, work((1,), flags=7, request=4))
        else:
            key = ShardKey(0, 9, 1 << 63, token_hash((1,)), 1, 5, 7)
            load = LoadClient(key, (1,), len(shard), now=0.0)
            (head,) = load.events()
            data = [*head.buffers, *load.chunks(shard, 0.0)]
            host.give(link, b"".join(map(bytes, data)))
    host.give(link, work((2,), before=(1,), request=5))
    assert texts(host.wrote[link]) == [
        "RESULT",
        "gpu layer-slice failed",
        "layer-slice session needs reset before pos 1",
        "RESULT",
        "gpu layer-slice failed",
        "layer-slice session needs reset before pos 1",
        "SNAPSHOT_DONE",
        "RESULT",
    ]


@contextmanager
def begins_anyway() -> Iterator[None]:
    """Announce a shard that could not be written."""

    def refuse(self: Any, _fault: Any, now: float) -> None:
        words = self._job
        self._settle([worker_snapshots.begin_frame(words, 10)], now)

    with patch.object(worker_snapshots.Snapshots, "_refuse_save", refuse):
        yield


@proof("DS4D-SNAP-06", "a shard announced all the same", begins_anyway)
def a_shard_that_cannot_be_written_is_refused_before_any_chunk() -> None:
    host = Host(LAST, hold=True)
    link = host.open()
    host.give(link, work((1,)))
    host.release()
    host.give(link, save(1))
    asked, _ = host.held.popleft()
    asked.send(ShardFailed("failed to flush worker KV shard"), 0.0)
    host.settle(asked)
    (_, (name, values)) = frames(host.wrote[link])
    assert (name, values["status"]) == ("SNAPSHOT_BEGIN", 1)
    assert values["message"] == "failed to flush worker KV shard"
    assert (values["payload_size"], link in host.closed) == (0, False)


@proof(
    "DS4D-SNAP-17",
    "room promised that is not there",
    lambda: without_check(ds4d_snapshot_server, "restore-memory"),
)
def a_load_without_room_is_refused() -> None:
    host = Host(LAST, limits=LinkLimits(max_shard=100))
    link = host.open()
    key = ShardKey(0, 9, 1 << 63, token_hash((1,)), 1, 5, 7)
    (head,) = LoadClient(key, (1,), 101, now=0.0).events()
    host.give(link, b"".join(head.buffers))
    found = [(name, v["status"], v["message"]) for name, v in frames(host.wrote[link])]
    assert found == [("SNAPSHOT_DONE", 1, "out of memory restoring worker KV shard")]
