"""Caps before allocation, deadlines, and any bytes at all."""

from __future__ import annotations

import struct
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4proto.link import ds4t_events as say
from ds4proto.link.ds4t_limits import CONTROL_LIMITS
from ds4proto.link.ds4t_reader import MAX_BACKLOG, ControlReader
from ds4proto.link.ds4t_states import Leader, Worker
from ds4proto.link.ds4t_texts import PairFailed
from ds4proto.link.events import Violation
from ds4proto.link.limits import Limits
from tests.link.ds4t.pair import HALF, PROMPT, Pair, opened, synced

MAGIC = 0x44533454


def header(code: int, size: int) -> bytes:
    return struct.pack("<III", MAGIC, code, size)


@pytest.mark.parametrize("code", [1, 2, 5, 11, 14, 15, 16, 18, 99])
def test_a_worker_reserves_nothing_for_a_length_that_is_not_due(code: int) -> None:
    pair = opened("v10")
    tracemalloc.start()
    pair.worker.receive_data(header(code, 0xFFFFFFFC), 0.0)
    (failure,) = pair.worker.events()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    text = f"tp: invalid command frame type {code} (4294967292 bytes)"
    assert failure.text == text
    assert peak < 1 << 20


def test_a_cap_of_ours_names_itself() -> None:
    limits = replace(CONTROL_LIMITS, caps=Limits(small=100))
    pair = Pair("v14", limits=limits)
    pair.worker.receive_data(header(1, 104), 0.0)
    (failure,) = pair.worker.events()
    assert failure.problem.clause == "DS4T-CTRL-17"
    assert "cap of 100" in failure.problem.found


@pytest.mark.parametrize("size", [0, 255, 257, 0xFFFFFFFC])
def test_a_leader_judges_logits_by_their_header(size: int) -> None:
    pair = opened("v14")
    pair.leader.send(say.RunEval(1, 1), 0.0)
    pair.leader.receive_data(header(10, size), 0.0)
    (failure,) = pair.leader.events()
    assert failure.log == (f"ds4-tp: bad logits frame (type 10 bytes {size})",)
    assert failure.text == "tp: worker logits half missing"


def test_a_small_refused_frame_is_read_to_its_end_first() -> None:
    pair = opened("v14")
    pair.worker.receive_data(header(99, 65536), 0.0)
    assert list(pair.worker.events()) == []
    pair.worker.receive_data(bytes(65535), 0.0)
    assert list(pair.worker.events()) == []
    pair.worker.receive_data(b"\0", 0.0)
    (failure,) = pair.worker.events()
    assert failure.text == "tp: invalid command frame type 99 (65536 bytes)"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "tp: control channel closed"),
        (header(2, 24)[:6], "tp: control channel closed"),
        (header(2, 24), "tp: truncated command frame"),
        (header(2, 24) + bytes(10), "tp: truncated command frame"),
        (header(99, 24) + bytes(10), "tp: truncated command frame"),
        (struct.pack("<III", 0xDEADBEEF, 2, 24), "tp: control channel closed"),
    ],
)
def test_ends_of_the_control_stream(data: bytes, text: str) -> None:
    pair = opened("v14")
    pair.worker.receive_data(data, 0.0)
    pair.worker.receive_data(None, 0.0)
    (failure,) = pair.worker.events()
    assert failure.text == text
    assert failure.line("tp-worker") == f"tp worker: {text}"


def test_a_worker_notices_the_end_while_it_computes() -> None:
    pair = opened("v14")
    pair.say(say.RunEval(1, 1))
    pair.worker.receive_data(None, 5.0)
    (failure,) = pair.worker.events()
    assert failure.text == "tp: control channel closed"
    assert failure.peer_lost


def test_commands_before_the_end_still_count() -> None:
    pair = Pair("v14", vocabulary_split=False)
    pair.say(say.CreateSession(1, 256))
    pair.answer(say.SessionCreated(1))
    pair.say(say.RunEval(1, 1))
    pair.worker.receive_data(header(5, 0), 0.0)
    pair.worker.receive_data(None, 0.0)
    assert list(pair.worker.events()) == []
    pair.worker.send(say.EvalDone(1), 0.0)
    assert list(pair.worker.events()) == [say.Stop()]
    assert pair.worker.state is Worker.STOPPED


def test_idle_time_between_commands_has_no_limit() -> None:
    pair = synced("v14")
    assert pair.worker.deadline() is None
    assert pair.leader.deadline() is None


def test_a_stalled_frame_ends_the_worker() -> None:
    pair = opened("v14")
    pair.worker.receive_data(header(2, 24)[:6], 10.0)
    assert pair.worker.deadline() == 10.0 + CONTROL_LIMITS.stall
    pair.worker.receive_data(header(2, 24)[6:] + b"x", 20.0)
    due = pair.worker.deadline()
    assert due == 20.0 + CONTROL_LIMITS.stall
    pair.worker.timeout(due - 1)
    assert list(pair.worker.events()) == []
    pair.worker.timeout(due)
    (failure,) = pair.worker.events()
    assert failure.text == "tp: truncated command frame"
    assert "1 of 24 payload bytes" in failure.problem.found


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (say.RunEval(1, 1), "tp: worker logits half missing"),
        (say.DestroySession(1), "tp: worker failed during session destroy"),
    ],
)
def test_a_leader_waits_for_an_answer_with_a_limit(command: Any, text: str) -> None:
    pair = synced("v14")
    pair.leader.send(command, 3.0)
    due = pair.leader.deadline()
    assert due == 3.0 + CONTROL_LIMITS.answer
    pair.leader.timeout(due)
    (failure,) = pair.leader.events()
    assert failure.text == text
    assert failure.peer_lost


def test_a_verdict_that_does_not_come_ends_the_worker() -> None:
    pair = synced("v14")
    pair.say(say.RunVerify(1, (1, 2)))
    assert pair.worker.deadline() is None
    pair.worker.send(say.BlockRun(), 7.0)
    due = pair.worker.deadline()
    assert due == 7.0 + CONTROL_LIMITS.verdict
    pair.worker.timeout(due)
    (failure,) = pair.worker.events()
    assert (
        failure.line("tp-worker") == "tp worker verify: tp: verify commit frame missing"
    )


def test_a_leader_sees_the_death_of_an_idle_worker_at_once() -> None:
    pair = synced("v14")
    pair.leader.receive_data(None, 0.0)
    (failure,) = pair.leader.events()
    assert failure.peer_lost
    assert pair.leader.state is Leader.FAILED
    assert pair.leader.send(say.Stop(), 0.0)


def test_a_peer_that_runs_ahead_is_bounded() -> None:
    pair = opened("v14")
    pair.say(say.RunEval(1, 1))
    piece = bytes(1 << 20)
    for _ in range((MAX_BACKLOG >> 20) + 1):
        pair.worker.receive_data(piece, 0.0)
    (failure,) = pair.worker.events()
    assert failure.problem.clause == "DS4T-CTRL-17"


def test_reads_go_into_place_without_a_copy() -> None:
    pair = opened("v14")
    pair.leader.send(say.RunEval(1, 1), 0.0)
    data = header(10, 256) + HALF
    at = 0
    while at < len(data):
        room = pair.leader.get_buffer()
        count = min(len(room), 50)
        room[:count] = data[at : at + count]
        pair.leader.buffer_updated(count, 0.0)
        at += count
    (done,) = pair.leader.events()
    assert bytes(done.logits) == HALF
    assert len(pair.leader.get_buffer()) == 12


def test_a_reader_hands_on_what_it_did_not_use() -> None:
    reader = ControlReader()
    reader.feed(header(9, 0) + b"abc", 0.0)
    assert reader.header == (MAGIC, 9, 0)
    reader.keep(0.0)
    assert reader.body is not None
    assert bytes(reader.body) == b""
    reader.next(0.0)
    assert reader.rest() == b"abc"
    assert reader.rest() == b""


FRAMES = st.sampled_from(
    [
        struct.pack(form, MAGIC, *words)
        for form, words in (
            ("<IIIQII3i", (1, 28, 1, 3, 0, 7, 19, 5)),
            ("<IIIQQiI", (2, 24, 1, 1, 42, 0)),
            ("<IIIQIiiI", (22, 24, 1, 0, 0, 3, 0)),
            ("<IIIQiI", (13, 16, 2, 64, 0)),
            ("<IIIQ", (14, 8, 1)),
            ("<IIIQiI", (3, 16, 1, 1, 0)),
            ("<IIIQII2i", (11, 24, 1, 2, 0, 1, 2)),
            ("<IIIii", (12, 8, 0, 2)),
            ("<IIIQiI", (17, 16, 1, 0, 0)),
            ("<IIIIIQiI", (15, 24, 1, 0, 1, 1, 0)),
        )
    ]
)
NOISE = st.binary(max_size=60) | FRAMES


def told(events: list[Any]) -> list[Any]:
    """Return events without what depends on who reached a checkpoint first."""
    kept = [e for e in events if not isinstance(e, Violation | say.PeerCheckpoint)]
    return [
        (e.text, e.log, e.problem.clause) if isinstance(e, PairFailed) else repr(e)
        for e in kept
    ]


def run_worker(dialect: str, pieces: list[bytes]) -> list[Any]:
    """Feed a worker whose engine fails or succeeds at once."""
    pair = opened(dialect)
    found: list[Any] = []
    for piece in [*pieces, None]:
        pair.worker.receive_data(piece, 0.0)
        while events := list(pair.worker.events()):
            for event in events:
                found.append(event)
                if pair.worker.failure is None:
                    serve(pair, event)
    return found


def first_of(pair: Pair, event: say.RunSync) -> Any:
    """Return what an engine says first: a checkpoint where there are any."""
    if pair.worker._settings.rules.checkpoints:
        return say.Checkpoint(0, 0, len(event.tokens))
    return say.EngineFailed("no", 1)


def after(pair: Pair, event: say.Checkpoint) -> Any:
    """Return what an engine says next: END, then the result."""
    if event.point == say.END:
        command = pair.worker._command
        return say.SyncDone(command.session_id, event.current, HALF, "as agreed")
    return say.Checkpoint(say.END, 0, event.total)


def serve(pair: Pair, event: Any) -> None:
    known = getattr(event, "session_id", 0)
    answer: Any = {
        say.CreateSession: lambda: say.SessionCreated(known),
        say.DestroySession: lambda: say.SessionDestroyed(known),
        say.RunSync: lambda: first_of(pair, event),
        say.Checkpoint: lambda: after(pair, event),
        say.RunEval: lambda: say.EvalDone(known, HALF),
        say.RunVerify: say.BlockRun,
        say.RunBatch: lambda: say.BatchDone(0, (HALF,) * len(event.items)),
        say.RunMtp: lambda: say.MtpDone(known),
        say.RunMixed: lambda: say.EngineFailed("no", 1),
    }.get(type(event))
    if isinstance(event, say.CommitBlock):
        pair.worker.send(say.BlockCommitted(1, HALF), 0.0)
    elif answer is not None:
        pair.worker.send(answer(), 0.0)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.sampled_from(["v7", "v9w", "v10", "v14"]), st.lists(NOISE, max_size=8))
def test_any_bytes_end_a_worker_in_one_way_only(
    dialect: str, pieces: list[bytes]
) -> None:
    data = b"".join(pieces)
    whole = run_worker(dialect, [data])
    single = run_worker(dialect, [data[i : i + 1] for i in range(len(data))])
    assert told(single) == told(whole)
    failures = [e for e in whole if isinstance(e, PairFailed)]
    assert len(failures) == 1


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.sampled_from(["v7", "v10", "v14"]), st.integers(0, 4), NOISE, NOISE)
def test_any_bytes_end_a_leader_in_one_way_only(
    dialect: str, which: int, first: bytes, second: bytes
) -> None:
    command = [
        say.RunEval(1, 1),
        say.RunSync(1, PROMPT),
        say.CreateSession(7, 8),
        say.DestroySession(1),
        say.RunVerify(1, (1,)),
    ][which]
    found = []
    for pieces in ([first + second], [bytes([b]) for b in first + second]):
        pair = opened(dialect)
        pair.leader.send(command, 0.0)
        for piece in [*pieces, None]:
            pair.leader.receive_data(piece, 0.0)
        found.append([repr(e) for e in pair.leader.events()])
    assert found[0] == found[1]
    assert sum("PairFailed" in e for e in found[0]) <= 1
