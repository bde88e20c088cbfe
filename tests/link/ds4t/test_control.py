"""Flows of both control machines, the golden frames, checkpoints, and refusals."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from ds4proto.link import ds4t_events as say
from ds4proto.link.ds4t_leader import LeaderControl
from ds4proto.link.ds4t_states import LEADER, WORKER, Leader, Worker
from ds4proto.link.ds4t_texts import LocalProtocolError, PairFailed
from ds4proto.link.ds4t_worker_rules import accepted_types
from ds4proto.schema.registry import frame, to_bytes
from tests.link.ds4t.pair import (
    END,
    HALF,
    PROMPT,
    SMALL,
    START,
    V4_FLASH,
    Pair,
    meet,
    opened,
    settings,
    synced,
    three,
)

DIALECTS = ["v7", "v9", "v9-late", "v9w", "v10", "v12", "v14"]
GOLDEN = {
    "sync": "54345344 01000000 1c000000 0100000000000000 03000000 00000000 07000000 "
    "13000000 05000000",
    "eval": "54345344 02000000 18000000 0100000000000000 0100000000000000 2a000000 "
    "00000000",
    "mtp": "54345344 15000000 18000000 0100000000000000 0200000000000000 c9000000 "
    "02000000",
    "ack": "54345344 11000000 10000000 0100000000000000 00000000 00000000",
    "checkpoint": "54345344 16000000 18000000 0100000000000000 00000000 00000000 "
    "03000000 00000000",
    "commit": "54345344 0c000000 08000000 02000000 03000000",
    "logits": "54345344 0a000000 00f20300",
    "stop": "54345344 05000000 00000000",
}


def test_v14_frames_equal_the_golden_vectors() -> None:
    pair = Pair(identity=V4_FLASH)
    lead, work = pair.leader, pair.worker
    pair.say(say.CreateSession(1, 256))
    half = bytes(2 * 129280)
    sent: dict[str, bytes] = {}

    def note(name: str, buffers: list[Any], to: Any) -> None:
        sent[name] = b"".join(buffers)
        to.receive_data(sent[name], 0.0)

    note("ack", work.send(say.SessionCreated(1), 0.0), lead)
    note("sync", lead.send(say.RunSync(1, PROMPT), 0.0), work)
    note("checkpoint", lead.send(START, 0.0), work)
    list(work.events())
    pair.answer(START)
    meet(pair, END)
    pair.answer(say.SyncDone(1, 0, half))
    note("eval", lead.send(say.RunEval(1, 42), 0.0), work)
    note("logits", work.send(say.EvalDone(1, half), 0.0), lead)
    sent["logits"] = sent["logits"][:12]
    note("mtp", lead.send(say.RunMtp(1, 201, 2), 0.0), work)
    pair.answer(say.MtpDone(1))
    pair.say(say.RunVerify(1, (1, 2, 3, 4)))
    work.send(say.BlockRun(), 0.0)
    note("commit", lead.send(say.CommitBlock(2, 3), 0.0), work)
    work.send(say.BlockCommitted(1), 0.0)
    note("stop", lead.send(say.Stop(), 0.0), work)
    assert {name: data.hex() for name, data in sent.items()} == {
        name: text.replace(" ", "") for name, text in GOLDEN.items()
    }
    assert work.state is Worker.STOPPED


def test_a_v9w_worker_sends_the_two_best_of_its_half() -> None:
    identity = SMALL.__class__(**{**slots(SMALL), "runtime_features": 1 << 5})
    pair = opened("v9w", identity=identity)
    assert pair.worker._settings.top2
    half = [0.0] * 64
    half[20], half[25] = 1.1882, 0.7227
    pair.say(say.RunEval(1, 1))
    (done,) = pair.answer(say.EvalDone(1, struct.pack("<64f", *half)))
    assert done.logits.ids == (64 + 20, 64 + 25)
    assert pair.to_leader[-28:-16].hex() == "543453441200000010000000"
    # the recorded row: ids 20 and 25
    row = bytes.fromhex("14000000 19000000 7718983f 02b9203f")
    pair.say(say.RunEval(1, 1))
    values = struct.unpack("<ff", row[8:])
    pair.answer(say.EvalDone(1, say.Top2((20, 25), (values[0], values[1]))))
    assert pair.to_leader[-16:] == row


def slots(identity: Any) -> dict[str, Any]:
    return {name: getattr(identity, name) for name in identity.__slots__}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_flow_goes_round(dialect: str) -> None:
    pair = synced(dialect)
    assert pair.leader.sessions[1].tokens == list(PROMPT)
    pair.say(say.CreateSession(2, 64))
    pair.answer(say.SessionCreated(2))
    for seq in (1, 2):
        assert pair.say(say.RunEval(1, 9)) == [say.RunEval(1, 9, seq)]
        (done,) = pair.answer(say.EvalDone(1, HALF))
        assert bytes(done.logits) == HALF
    items = (say.BatchItem(1, 4), say.BatchItem(2, 5))
    assert pair.say(say.RunBatch(items)) == [say.RunBatch(items)]
    (batch,) = pair.answer(say.BatchDone(0, (HALF, HALF)))
    assert [bytes(x) for x in batch.logits] == [HALF, HALF]
    assert pair.to_leader.count(struct.pack("<QI", 0, 0)) >= 1
    held = tuple(pair.leader.sessions[1].tokens)
    assert held == (7, 19, 5, 9, 9, 4)
    mixed = say.RunMixed(1, (*held, 1, 2, 3, 4), (say.BatchItem(2, 6),))
    assert pair.say(mixed) == [mixed]
    (answer,) = pair.answer(say.MixedDone(1, 0, (HALF, HALF)))
    assert len(answer.logits) == 2
    pair.say(say.Rewind(1, 8))
    pair.say(say.RunVerify(1, (3, 4, 5)))
    pair.answer(say.BlockRun())
    assert pair.say(say.CommitBlock(say.REPLAY, 2)) == [say.CommitBlock(0, 2)]
    (committed,) = pair.answer(say.BlockCommitted(1, HALF))
    assert bytes(committed.logits) == HALF
    pair.say(say.RunVerify(1, (6, 7)))
    pair.answer(say.BlockRun())
    assert pair.say(say.CommitBlock(say.KEEP_ALL)) == [say.CommitBlock(1, 0)]
    assert pair.answer(say.BlockCommitted(1)) == []
    both = [m.sessions[1].tokens for m in (pair.leader, pair.worker)]
    assert both[0] == both[1] == [7, 19, 5, 9, 9, 4, 1, 2, 3, 4, 6, 7]
    pair.say(say.Invalidate(1))
    assert pair.worker.sessions[1].tokens == []
    pair.say(say.DestroySession(2))
    assert pair.answer(say.SessionDestroyed(2)) == [say.SessionDestroyed(2)]
    assert pair.say(say.Stop()) == [say.Stop()]
    assert (pair.leader.state, pair.worker.state) == (Leader.STOPPED, Worker.STOPPED)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_without_a_split_no_logits_are_sent(dialect: str) -> None:
    pair = Pair(dialect, vocabulary_split=False)
    pair.say(say.CreateSession(1, 256))
    pair.answer(say.SessionCreated(1))
    before = len(pair.to_leader)
    for _ in range(3):  # commands may come before the last one has run
        pair.leader.send(say.RunEval(1, 2), 0.0)
    data = b"".join(pair.leader.send(say.RunEval(1, 2), 0.0))
    pair.worker.receive_data(data * 3, 0.0)
    for _ in range(3):
        (event,) = pair.worker.events()
        assert isinstance(event, say.RunEval)
        assert pair.worker.send(say.EvalDone(1), 0.0) == []
    assert len(pair.to_leader) == before
    assert pair.leader.sessions[1].tokens == [2] * 4


def test_the_accepted_commands_of_each_dialect() -> None:
    base = {1, 2, 3, 4, 5, 11, 13, 14, 15, 16}
    assert set(accepted_types("v7")) == set(accepted_types("v9w")) == base
    assert set(accepted_types("v10")) == base | {18, 21}
    assert set(accepted_types("v12")) == set(accepted_types("v14")) == base | {18, 21}
    assert set(accepted_types("v15")) == base | {18, 21, 23}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    "code", [0, 6, 7, 8, 9, 10, 12, 17, 19, 20, 22, 23, 24, 255, 0xFFFFFFFF]
)
def test_types_that_are_no_commands(dialect: str, code: int) -> None:
    pair = opened(dialect)
    pair.worker.receive_data(struct.pack("<III", 0x44533454, code, 16) + bytes(16), 0.0)
    (failure,) = pair.worker.events()
    assert failure.text == f"tp: invalid command frame type {code} (16 bytes)"
    assert ("RDMA_WARMUP" in failure.problem.found) == (code in (19, 20))
    assert pair.worker.state is Worker.FAILED


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("extra", [-4, 4])
def test_every_command_of_another_length_is_refused(dialect: str, extra: int) -> None:
    for code, spec in accepted_types(dialect).items():
        if code == 5 and extra < 0:
            continue
        values: dict[str, Any] = {
            "session_id": 1, "tokens": (1, 2), "seq": 1, "token": 1, "limit": 1,
            "position": 0, "ctx_size": 8, "prefill_session_id": 1,
            "items": [{"session_id": 1, "token": 1}],
        }  # fmt: skip
        whole = to_bytes(spec, values, dialect=dialect)
        body = whole[12:] + bytes(4) if extra > 0 else whole[12:extra]
        data = whole[:8] + len(body).to_bytes(4, "little") + body
        pair = opened(dialect)
        pair.worker.receive_data(data, 0.0)
        *_, failure = pair.worker.events()
        text = f"tp: invalid command frame type {code} ({len(body)} bytes)"
        assert failure.text == text, spec.name


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_reserved_word_in_eval(dialect: str) -> None:
    pair = opened(dialect)
    data = bytearray(b"".join(pair.leader.send(say.RunEval(1, 3), 0.0)))
    data[-4:] = b"\x01\0\0\0"
    pair.worker.receive_data(bytes(data), 0.0)
    (event,) = pair.worker.events()
    if dialect in ("v10", "v12", "v14"):
        assert event.text == "tp: invalid command frame type 2 (24 bytes)"
    else:
        assert event == say.RunEval(1, 3, 1)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_reserved_word_in_an_ack(dialect: str) -> None:
    pair = Pair(dialect)
    pair.say(say.CreateSession(1, 256))
    ack = bytearray(b"".join(pair.worker.send(say.SessionCreated(1), 0.0)))
    ack[-1] = 1
    pair.leader.receive_data(bytes(ack), 0.0)
    (event,) = pair.leader.events()
    if dialect == "v14":
        assert event.text == "tp: worker session create failed (session 1, status 0)"
        assert event.problem.clause == "DS4T-ACK-08"
    else:
        assert event == say.SessionCreated(1)


ACKED = [
    (say.CreateSession(2, 8), "session create", 2),
    (say.DestroySession(1), "session destroy", 1),
    (say.RunSync(1, (1, 2)), "prefill sync", 1),
    (
        say.RunBatch((say.BatchItem(1, 1), say.BatchItem(3, 1))),
        "decode batch",
        0,
    ),
    (
        say.RunMixed(1, (7, 19, 5, 1, 2, 3, 4), (say.BatchItem(3, 1),)),
        "mixed prefill/decode batch",
        1,
    ),
    (say.RunMtp(1, 1, 1), "GLM MTP", 1),
]


@pytest.mark.parametrize(("command", "words", "known"), ACKED)
def test_leader_texts_for_wrong_answers(command: Any, words: str, known: int) -> None:
    status = struct.pack("<IIIQiI", 0x44533454, 17, 16, known, -7, 0)
    foreign = struct.pack("<IIIQiI", 0x44533454, 17, 16, 99, 0, 0)
    wrong = struct.pack("<III", 0x44533454, 8, 0)
    for data, text, fatal in (
        (status, f"tp: worker {words} failed (session {known}, status -7)", False),
        (foreign, f"tp: worker {words} failed (session 99, status 0)", True),
        (wrong, f"tp: worker failed during {words}", True),
        (None, f"tp: worker failed during {words}", True),
    ):
        pair = three("v10")
        pair.leader.send(command, 0.0)
        pair.leader.receive_data(data, 0.0)
        event, *more = pair.leader.events()
        assert event.text == text
        assert isinstance(event, PairFailed) == fatal
        assert (pair.leader.state is Leader.FAILED) == fatal
        invalidates = [e for e in more if isinstance(e, say.Transmit)]
        failed_sync = isinstance(command, say.RunSync) and not fatal
        assert len(invalidates) == int(failed_sync)


def test_after_a_failure_only_stop_is_sent() -> None:
    pair = three("v14")
    pair.leader.mark_failed("tp: gate transport failed", 0.0)
    (failure,) = pair.leader.events()
    assert failure.text == "tp: gate transport failed"
    pair.leader.mark_failed("again", 1.0)
    pair.leader.receive_data(None, 1.0)
    assert list(pair.leader.events()) == []
    assert pair.leader.failure is failure
    for silent in (say.Invalidate(1), say.Rewind(1, 0), say.DestroySession(1)):
        assert pair.leader.send(silent, 0.0) == []
    with pytest.raises(LocalProtocolError, match="due: Stop"):
        pair.leader.send(say.RunEval(1, 1), 0.0)
    assert pair.say(say.Stop()) == [say.Stop()]


def test_answers_before_the_own_gates_are_kept() -> None:
    pair = synced("v14")
    verify = pair.say(say.RunVerify(1, (1, 2)))
    assert verify
    pair.worker.send(say.BlockRun(), 0.0)
    # the verdict comes while the worker still applies: nothing is lost
    pair.say(say.CommitBlock(1))
    pair.leader.send(say.RunEval(1, 3), 0.0)
    ahead = b"".join(LeaderControlBytes.eval_frame())
    pair.worker.receive_data(ahead, 0.0)
    assert list(pair.worker.events()) == []
    pair.worker.send(say.BlockCommitted(1), 0.0)
    (event,) = pair.worker.events()
    assert isinstance(event, say.RunEval)


class LeaderControlBytes:
    @staticmethod
    def eval_frame() -> list[Any]:
        spec = frame("DS4T.EVAL", dialect="v14")
        return [to_bytes(spec, {"session_id": 1, "seq": 1, "token": 3}, dialect="v14")]


def test_the_tables_are_closed() -> None:
    """Every state can be reached, and leads to the end or to a failure."""
    for table, first in ((LEADER, Leader.IDLE), (WORKER, Worker.COMMAND)):
        assert set(table) == set(type(first))
        reached = {first}
        for _ in table:
            reached |= {t for s in reached for t in table[s].values()}  # type: ignore[index]
        assert reached | {Leader.FAILED} >= set(table) - {Worker.FAILED}
    assert LEADER[Leader.STOPPED] == {}
    assert set(LEADER[Leader.FAILED].values()) == {Leader.STOPPED}


def test_a_machine_says_what_is_due() -> None:
    leader = LeaderControl(settings("tp-leader"))
    with pytest.raises(
        LocalProtocolError, match="CommitBlock is not due in state IDLE"
    ):
        leader.send(say.CommitBlock(1), 0.0)
    pair = opened()
    with pytest.raises(LocalProtocolError, match="not due in state COMMAND"):
        pair.worker.send(say.EvalDone(1, HALF), 0.0)
    pair.say(say.RunEval(1, 1))
    with pytest.raises(LocalProtocolError, match="256 bytes are due"):
        pair.worker.send(say.EvalDone(1, b"short"), 0.0)
    with pytest.raises(LocalProtocolError, match="found none"):
        pair.worker.send(say.EvalDone(1), 0.0)
    pair.answer(say.EvalDone(1, HALF))
