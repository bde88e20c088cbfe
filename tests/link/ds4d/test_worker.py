"""A worker's connections: queue, ends, sessions, times."""

from __future__ import annotations

import pytest

from ds4proto.codec.token_hash import token_hash
from ds4proto.link.ds4d_endpoint import LocalProtocolError
from ds4proto.link.ds4d_limits import LinkLimits
from ds4proto.link.ds4d_worker_events import (
    DropSessions,
    EvaluateWork,
    SaveShard,
    WorkEvaluated,
)
from ds4proto.link.events import Violation
from ds4proto.schema.ds4d_work import RESET_SESSION
from tests.link.ds4d import toy
from tests.link.ds4d.build import frames, make, raw, texts, work
from tests.link.ds4d.host import Host

LAST = toy.facts(5, 7, head=True)
FIRST = toy.facts(0, 3, head=False)


# queue and ends


def three(first: int = 1) -> bytes:
    tokens = (1, 2, 3)
    parts = [work((tokens[i],), before=tokens[:i], request=first + i) for i in range(3)]
    return b"".join(parts)


def test_the_queue_holds_two_and_then_nothing_is_read() -> None:
    host = Host(LAST, hold=True)
    link = host.open()
    host.give(link, three() + work((4,), before=(1, 2, 3), request=4))
    assert len(host.held) == 1
    assert len(link.get_buffer()) == 0
    for _ in range(4):
        host.release()
    assert [v["request"] for _, v in frames(host.wrote[link])] == [1, 2, 3, 4]
    assert len(link.get_buffer()) > 0


def test_a_pause_of_our_own_is_no_stall_of_the_peer() -> None:
    host = Host(LAST, hold=True, limits=LinkLimits(stall_s=1.0))
    link = host.open()
    cut = work((4,), before=(1, 2, 3), request=4)
    host.give(link, three() + cut[:50])
    assert link.deadline() is None
    host.now = 100.0
    for _ in range(2):
        host.release()
    assert link.deadline() == 101.0


def test_after_a_half_close_everything_read_is_answered() -> None:
    host = Host(LAST, hold=True)
    link = host.open()
    host.give(link, three())
    host.give(link, None)
    assert link not in host.closed
    for _ in range(3):
        host.release()
    assert texts(host.wrote[link]) == ["RESULT"] * 3
    assert host.closed[link] == "end of stream"


@pytest.mark.parametrize(
    ("bad", "wanted"),
    [
        (b"XXXX" + bytes(8), ["RESULT"]),
        (make("ERROR", text="boom"), ["RESULT"]),
        (raw(99, b"abc"), ["RESULT", "unsupported distributed worker frame"]),
        (
            make(
                "SNAPSHOT_LOAD_BEGIN",
                model_id=0,
                session=9,
                request=1,
                token_hash=1,
                layer_start=5,
                layer_end=7,
                payload_size=4,
                tokens=(1,),
            ),
            ["snapshot load token hash mismatch", "RESULT"],
        ),
    ],
    ids=["bad magic", "ERROR", "unknown type", "failed load"],
)
def test_what_is_queued_behind_a_broken_frame_is_dropped(
    bad: bytes, wanted: list[str]
) -> None:
    host = Host(LAST, hold=True)
    link = host.open()
    host.give(link, three()[: len(work()) * 2] + bad)
    assert link not in host.closed
    host.release()
    assert not host.held
    assert texts(host.wrote[link]) == wanted
    assert link in host.closed


@pytest.mark.parametrize("cut", [4, 11, 60, 200])
def test_an_end_inside_a_frame_answers_nothing_for_it(cut: int) -> None:
    host = Host(LAST)
    link = host.open()
    host.give(link, work(request=1) + work(request=2)[:cut])
    host.give(link, None)
    assert texts(host.wrote[link]) == ["RESULT"]
    assert host.closed[link] == "end of stream inside a frame"


def test_many_small_frames_in_one_read_do_not_recurse() -> None:
    host = Host(LAST)
    link = host.open()
    host.give(link, raw(3) * 5000)
    assert texts(host.wrote[link]) == ["truncated distributed WORK frame"] * 5000


def test_a_snapshot_goes_before_queued_work_but_not_before_running_work() -> None:
    host = Host(LAST, hold=True)
    link = host.open()
    save = make(
        "SNAPSHOT_SAVE_REQ",
        model_id=0,
        session=9,
        request=1 << 63,
        token_hash=token_hash((1,)),
        token_count=1,
        layer_start=5,
        layer_end=7,
    )
    two = work((1,), request=1) + work((2,), before=(1,), request=2)
    host.give(link, two + save)
    assert isinstance(host.held[0][1], EvaluateWork)
    host.release()
    assert isinstance(host.held[0][1], SaveShard)
    host.release()
    host.release()
    names = [name for name, _ in frames(host.wrote[link])]
    assert names == [
        "RESULT", "SNAPSHOT_BEGIN", "SNAPSHOT_CHUNK", "SNAPSHOT_DONE", "RESULT",
    ]  # fmt: skip


def test_one_evaluation_at_a_time_over_all_connections() -> None:
    host = Host(LAST, hold=True)
    links = [host.open() for _ in range(50)]
    for number, link in enumerate(links):
        host.give(link, work(session=number + 1))
    assert len(host.held) == 1
    for _ in links:
        host.release()
        assert len(host.held) <= 1
    assert all(texts(host.wrote[link]) == ["RESULT"] for link in links)


def test_refusals_do_not_keep_the_lock() -> None:
    host = Host(LAST)
    links = [host.open() for _ in range(3)]
    for link in links:
        host.give(link, work(before=(1,)))
        host.give(link, work(request=2))
    assert texts(host.wrote[links[2]]) == [
        "worker KV prefix hash mismatch",
        "worker KV prefix hash mismatch",
    ]
    assert texts(host.wrote[links[0]])[1] == "RESULT"


@pytest.mark.parametrize("busy", ["work", "save", "waiting save"])
def test_a_broken_connection_gets_nothing_and_keeps_nobody_waiting(busy: str) -> None:
    host = Host(LAST, hold=True)
    link, other = host.open("control"), host.open()
    save = make(
        "SNAPSHOT_SAVE_REQ",
        model_id=0,
        session=9,
        request=1 << 63,
        token_hash=token_hash(()),
        token_count=0,
        layer_start=5,
        layer_end=7,
    )
    host.worker.sessions.create(9)
    if busy == "waiting save":
        host.give(other, work(session=2))
    host.give(link, three() if busy == "work" else save)
    host.give(other, work(session=3, request=8))
    link.broken("Connection reset by peer", 0.0)
    host.settle(link)
    while host.held:
        host.release()
    assert host.wrote[link] == b""
    assert host.closed[link] == "Connection reset by peer"
    assert set(texts(host.wrote[other])) == {"RESULT"}


# sessions


def test_sessions_are_bounded() -> None:
    host = Host(LAST, limits=LinkLimits(max_sessions=2))
    link = host.open()
    for session in (1, 2, 3, 2):
        host.give(link, work(session=session, flags=7))
    assert texts(host.wrote[link]) == [
        "RESULT",
        "RESULT",
        "failed to create distributed worker session",
        "RESULT",
    ]
    clause = [e.problem.clause for _, e in host.said if isinstance(e, Violation)]
    assert clause == ["DS4D-SESS-10"]


def test_the_control_connection_takes_all_sessions_with_it() -> None:
    host = Host(LAST)
    control, data = host.open("control"), host.open()
    host.give(data, work(session=4))
    host.give(control, work(session=5))
    host.give(control, None)
    drops = [e.sessions for _, e in host.said if isinstance(e, DropSessions)]
    assert drops == [(4, 5)]
    host.give(data, work((6,), before=(5,), session=4, request=2))
    assert texts(host.wrote[data])[1] == "worker KV prefix hash mismatch"


def test_a_data_connection_takes_no_session_with_it() -> None:
    host = Host(LAST)
    first, second = host.open(), host.open()
    host.give(first, work((1,)))
    host.give(first, None)
    host.give(second, work((2,), before=(1,), request=2))
    assert texts(host.wrote[second]) == ["RESULT"]


def test_after_a_failed_evaluation_only_reset_helps() -> None:
    host = Host(LAST)
    link = host.open()
    host.give(link, work((1,)))
    host.refuse = "gpu layer-slice failed"
    host.give(link, work((2,), before=(1,), request=2))
    host.refuse = None
    host.give(link, work((2,), before=(1,), request=3))
    host.give(link, work((2,), before=(), request=4, flags=3 | RESET_SESSION))
    assert texts(host.wrote[link]) == [
        "RESULT",
        "gpu layer-slice failed",
        "layer-slice session needs reset before pos 1",
        "RESULT",
    ]


def test_a_refused_reset_leaves_the_session_empty() -> None:
    host = Host(LAST)
    link = host.open()
    host.give(link, work((1,)))
    host.give(link, work((2,), before=(1,), flags=7, request=2))
    host.give(link, work((2,), before=(1,), request=3))
    host.give(link, work((3,), request=4))
    assert texts(host.wrote[link]) == [
        "RESULT",
        "worker KV prefix hash mismatch",
        "worker KV prefix hash mismatch",
        "RESULT",
    ]


# layer 0


@pytest.mark.parametrize("bits", [32, 16, 8, 0])
def test_a_worker_of_layer_0_embeds_and_keeps_the_width(bits: int) -> None:
    host = Host(FIRST)
    link = host.open()
    host.give(link, work((5, 6), flags=0, slice_=(0, 3), bits=bits, hidden=b""))
    ((_, values),) = frames(host.wrote[link])
    assert values["payload_bits"] == (bits or 32)
    assert values["payload_bytes"] == 2 * toy.HIDDEN * (bits or 32) // 8
    rows = toy.Slice(0, 3).run((5, 6), None)
    assert bytes(values["payload"]) == toy.pack(rows, bits or 32)


# times


def test_a_peer_that_stops_inside_a_frame_is_dropped() -> None:
    host = Host(LAST, limits=LinkLimits(stall_s=5.0))
    link = host.open()
    assert link.deadline() is None
    host.give(link, work()[:20])
    assert link.deadline() == 5.0
    link.timeout(4.9)
    host.settle(link)
    assert link not in host.closed
    link.timeout(5.0)
    host.settle(link)
    assert host.closed[link] == "peer stopped inside a frame"


def test_a_dripping_peer_runs_out_of_time_too() -> None:
    limits = LinkLimits(stall_s=5.0, frame_s=10.0, min_rate=100.0)
    host = Host(LAST, limits=limits)
    link = host.open()
    data = raw(99, bytes(1000))
    for second in range(15):
        host.now = float(second)
        host.give(link, data[second : second + 1])
    assert link.deadline() == 19.0
    host.now = 19.0
    host.give(link, data[15:16])
    assert link.deadline() == 20.0


def test_an_idle_data_connection_is_dropped_where_that_is_asked_for() -> None:
    host = Host(LAST, limits=LinkLimits(idle_s=30.0))
    data, control = host.open(), host.open("control")
    assert (data.deadline(), control.deadline()) == (30.0, None)
    data.timeout(30.0)
    host.settle(data)
    assert host.closed[data] == "peer sent no frame within 30 s"


# our own side


def test_answers_that_nobody_asked_for_are_local_errors() -> None:
    host = Host(LAST, hold=True)
    link = host.open()
    with pytest.raises(LocalProtocolError):
        link.send(WorkEvaluated(b""), 0.0)
    host.give(link, work())
    with pytest.raises(LocalProtocolError, match="expected 1024 bytes, found 3"):
        link.send(WorkEvaluated(b"abc"), 0.0)
    host.release()
    assert texts(host.wrote[link]) == ["RESULT"]


def test_the_hello_is_what_upstream_sends() -> None:
    link = Host(toy.facts(2, 7, head=True)).open("control")
    assert b"".join(link.hello(5555)) == bytes.fromhex(
        "44533444000000010000002e"
        "00000000000000020000000200000007000000010000000100000100"
        "00000008000015b300000006546f79205634"
    )
