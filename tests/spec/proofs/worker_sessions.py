"""What becomes of a worker's sessions when loads fail, time passes or control ends."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from ds4proto.codec.token_hash import token_hash
from ds4proto.link import ds4d_sessions, ds4d_worker_queue
from ds4proto.link import ds4d_worker_snapshots as worker_snapshots
from ds4proto.link.ds4d_limits import LinkLimits
from ds4proto.link.ds4d_sessions import SessionTable, WorkerSession
from ds4proto.link.ds4d_worker import WorkerLink
from ds4proto.link.ds4d_worker_queue import Queue
from tests.link.ds4d.build import make, texts, work
from tests.link.ds4d.host import Host
from tests.spec.proofs.worker import LAST, save
from tests.spec.proving import proof


def begin_load(session: int, size: int, **lies: int) -> bytes:
    """Return the head of a load of one token."""
    words: dict[str, Any] = {
        "model_id": 0,
        "session": session,
        "request": 1 << 63,
        "token_hash": token_hash((1,)),
        "layer_start": 5,
        "layer_end": 7,
        "payload_size": size,
        "tokens": (1,),
    }
    return make("SNAPSHOT_LOAD_BEGIN", **{**words, **lies})


def makes_a_session(self: Any, load: Any, fault: Any, now: float) -> None:
    self.worker.sessions.create(load.words["session"])
    real_refuse_load(self, load, fault, now)


real_refuse_load = worker_snapshots.Snapshots._refuse_load


@proof(
    "DS4D-SESS-12",
    "the session made before the load is judged",
    patch.object(worker_snapshots.Snapshots, "_refuse_load", makes_a_session),
)
def a_load_refused_before_its_end_makes_no_session() -> None:
    wrong_chunk = make("SNAPSHOT_CHUNK", request=5, data=b"abc")
    for size, lies, then in ((0, {"token_hash": 5}, b""), (3, {}, wrong_chunk)):
        host = Host(LAST)
        host.give(host.open(), begin_load(4, size, **lies) + then)
        asked = host.open()
        host.give(asked, save(session=4))
        assert texts(host.wrote[asked]) == [
            "worker has no distributed session to snapshot"
        ]


@proof(
    "DS4D-SESS-10",
    "loads not counted",
    patch.object(SessionTable, "room", lambda *_: None),
)
def a_load_for_one_session_too_many_is_refused() -> None:
    host = Host(LAST, limits=LinkLimits(max_sessions=1))
    link = host.open()
    host.give(link, work((1,)))
    shard = host.slices[9].shard()
    chunk = make("SNAPSHOT_CHUNK", request=1 << 63, data=shard)
    for session in (9, 4):
        host.give(link, begin_load(session, len(shard)) + chunk)
    assert texts(host.wrote[link]) == [
        "RESULT", "SNAPSHOT_DONE", "failed to create distributed worker session",
    ]  # fmt: skip
    assert list(host.slices) == [9]
    assert link not in host.closed


@proof(
    "DS4D-SNAP-71",
    "no time for a silent sender",
    patch.object(WorkerLink, "_idle_due", lambda _self: None),
)
def a_load_that_falls_silent_is_dropped() -> None:
    host = Host(LAST, limits=LinkLimits(stall_s=5.0))
    link = host.open()
    host.give(link, begin_load(4, 100))
    assert link.deadline() == 5.0
    link.timeout(5.0)
    host.settle(link)
    assert link in host.closed
    assert not host.wrote[link]


def puts_it_back(self: Any, event: Any, now: float) -> None:
    open_ = self._evaluation
    real_evaluated(self, event, now)
    table = self.worker.sessions._sessions
    table[open_.work.fields["session"]] = open_.session


real_evaluated = Queue.evaluated


@proof(
    "DS4D-WORKER-27",
    "the answer withheld",
    patch.object(Queue, "evaluated", lambda self, _event, now: self.broken("", now)),
)
@proof(
    "DS4D-WORKER-27",
    "the session put back by the evaluation",
    patch.object(Queue, "evaluated", puts_it_back),
)
def an_evaluation_outlives_the_sessions_that_are_dropped() -> None:
    host = Host(LAST, hold=True)
    control, data = host.open("control"), host.open()
    host.give(data, work((1,)))
    host.give(control, None)
    assert control in host.closed
    host.release()
    host.give(data, work((2,), before=(1,), request=2))
    assert texts(host.wrote[data]) == ["RESULT", "worker KV prefix hash mismatch"]


def cap_first(session: Any, hash_: int, pos0: int, count: int, cap: Any) -> Any:
    early = real_judge(WorkerSession(hash_, pos0), hash_, pos0, count, cap)
    return early or real_judge(session, hash_, pos0, count, cap)


real_judge = ds4d_sessions.judge_session


@proof(
    "DS4D-WORK-49",
    "the chunk cap first",
    patch.object(ds4d_worker_queue, "judge_session", cap_first),
)
def the_position_is_judged_before_the_chunk_cap() -> None:
    host = Host(LAST)
    link = host.open()
    many = tuple(range(17))
    host.give(link, work(many, pos0=1))
    host.give(link, work(many, request=2))
    host.give(link, work((1,), request=3))
    host.refuse = "gpu layer-slice failed"
    host.give(link, work((2,), before=(1,), request=4))
    host.give(link, work(many, before=(1,), request=5))
    assert texts(host.wrote[link]) == [
        "layer-slice session needs reset before pos 1",
        "layer-slice chunk 17 exceeds prefill cap 16",
        "RESULT",
        "gpu layer-slice failed",
        "layer-slice session needs reset before pos 1",
    ]
