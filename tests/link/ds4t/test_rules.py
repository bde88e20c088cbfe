"""What a leader never sends, and what a worker refuses by rules of its own."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from ds4proto.link import ds4t_events as say
from ds4proto.link.ds4t_limits import ControlLimits
from ds4proto.link.ds4t_states import Worker
from ds4proto.link.ds4t_texts import LocalProtocolError, PairFailed, text_of
from ds4proto.link.ds4t_verdict import top2_of, verdict_of
from ds4proto.link.ds4t_worker_rules import Refusal
from ds4proto.link.events import Violation
from ds4proto.schema.registry import frame, to_bytes
from tests.link.ds4t.pair import PROMPT, Pair, opened, synced, three

ITEM = say.BatchItem(3, 1)
FORBIDDEN: list[tuple[str, Any, str]] = [
    ("v14", say.CreateSession(0, 8), "session id 0 is 0"),
    ("v14", say.CreateSession(1, 8), "next is 4"),
    ("v14", say.CreateSession(9, 0), "context 0"),
    ("v14", say.RunSync(9, (1,)), "session 9 is not open; open: 1, 3"),
    ("v14", say.RunSync(1, ()), "1 to 255 tokens"),
    ("v14", say.RunSync(1, (1,) * 256), "found 256"),
    ("v14", say.RunSync(1, (128,)), "outside 0..127"),
    ("v7", say.RunSync(1, (1,), (say.Image(0, 1, bytes(256)),)), "SYNC_MULTIMODAL"),
    ("v9w", say.RunSync(1, (1,), (say.Image(0, 1, bytes(256)),)), "DS4T-MM-12"),
    ("v14", say.RunSync(1, (1,), (say.Image(0, 2, bytes(512)),)), "leaves"),
    ("v14", say.RunSync(1, (1,), (say.Image(0, 1, bytes(4)),)), "256 bytes"),
    ("v14", say.RunEval(1, -5), "token -5"),
    ("v14", say.RunBatch((ITEM,)), "two items"),
    ("v14", say.RunBatch((ITEM, ITEM)), "distinct"),
    ("v14", say.RunMixed(1, (1, 2, 3, 4), (ITEM,)), "DS4T-MIXED-06"),
    ("v14", say.RunMixed(1, PROMPT, (ITEM,)), "DS4T-MIXED-06"),
    ("v14", say.RunMixed(1, (*PROMPT, 1), ()), "DS4T-MIXED-02"),
    ("v14", say.RunMixed(1, (*PROMPT, 1), (say.BatchItem(1, 1),)), "distinct"),
    ("v14", say.RunVerify(1, ()), "1 to 16"),
    ("v14", say.RunVerify(1, (1,) * 17), "found 17"),
    ("v14", say.RunVerify(1, (128,)), "draft token 128"),
    ("v7", say.RunMtp(1, 1, 1), "DS4T-MTP-04"),
    ("v14", say.RunMtp(1, 1, 3), "not 1 or 2"),
    ("v14", say.Rewind(1, -1), "negative"),
    ("v14", say.Invalidate(9), "not open"),
]


@pytest.mark.parametrize(("dialect", "command", "words"), FORBIDDEN)
def test_a_leader_does_not_send(dialect: str, command: Any, words: str) -> None:
    pair = three(dialect)
    before = pair.leader.state, pair.leader.eval_seq
    with pytest.raises(LocalProtocolError, match=None) as caught:
        pair.leader.send(command, 0.0)
    assert words in str(caught.value)
    assert (pair.leader.state, pair.leader.eval_seq) == before


@pytest.mark.parametrize(
    ("dialect", "mode", "count", "allowed"),
    [
        ("v14", 0, 0, True), ("v14", 0, 5, True), ("v14", 0, 6, False),
        ("v14", 1, 0, True), ("v14", 2, 1, True), ("v14", 2, 4, True),
        ("v14", 2, 5, False), ("v14", 2, 0, False), ("v14", 3, 0, False),
        ("v7", 2, 1, False), ("v9", 2, 1, False), ("v9w", 2, 4, True),
        ("v10", 2, 4, True), ("v7", 0, 5, True), ("v7", 1, 0, True),
    ],
)  # fmt: skip
def test_the_verdicts_that_a_leader_may_give(
    dialect: str, mode: int, count: int, allowed: bool
) -> None:
    pair = synced(dialect)
    pair.leader.send(say.RunVerify(1, (1, 2, 3, 4, 5)), 0.0)
    verdict = say.CommitBlock(mode, count)
    if allowed:
        data = b"".join(pair.leader.send(verdict, 0.0))
        assert data[12:] == struct.pack("<ii", mode, count)
    else:
        with pytest.raises(LocalProtocolError):
            pair.leader.send(verdict, 0.0)


@pytest.mark.parametrize(
    ("mode", "count", "prefix", "expected"),
    [
        (0, 3, True, say.CommitBlock(0, 3)),
        (0, 0x7FFFFFFF, True, say.CommitBlock(0, 5)),
        (0, -1, True, say.CommitBlock(0, 0)),
        (1, 77, True, say.CommitBlock(1, 0)),
        (2, 4, True, say.CommitBlock(2, 4)),
        (2, 5, True, "tp: invalid verifier prefix commit 5/5"),
        (2, 0, True, "tp: invalid verifier prefix commit 0/5"),
        (3, 0, True, "tp: invalid verifier commit mode 3"),
        (-1, 0, True, "tp: invalid verifier commit mode -1"),
        (2, 3, False, say.CommitBlock(1, 0)),
        (-1, 0, False, say.CommitBlock(1, 0)),
    ],
)
def test_what_a_worker_makes_of_a_verdict(
    mode: int, count: int, prefix: bool, expected: Any
) -> None:
    found = verdict_of({"mode": mode, "token_count": count}, 5, prefix)
    if isinstance(found, Refusal):
        assert found.text == f"tp worker verify: {expected}"
    else:
        assert found == expected


def send(pair: Pair, name: str, **values: Any) -> list[Any]:
    """Feed the worker a frame that no leader of ours would send."""
    dialect = pair.worker._settings.dialect
    spec = frame(f"DS4T.{name}", dialect=dialect)
    pair.worker.receive_data(to_bytes(spec, values, dialect=dialect), 0.0)
    return list(pair.worker.events())


REQUESTS = [
    ({"session_id": 0, "ctx_size": 8}, "DS4T-SESSION-04"),
    ({"session_id": 1, "ctx_size": 8}, "DS4T-SESSION-06"),
    ({"session_id": 2, "ctx_size": 0}, "DS4T-SESSION-05"),
    ({"session_id": 2, "ctx_size": -1}, "DS4T-SESSION-05"),
    ({"session_id": 2, "ctx_size": 1001}, "DS4T-ROBUST-13"),
]


@pytest.mark.parametrize(("values", "clause"), REQUESTS)
def test_a_bad_session_request_is_answered_and_nothing_else(
    values: dict[str, int], clause: str
) -> None:
    pair = Pair("v14", limits=ControlLimits(context=1000, sessions=2))
    pair.say(say.CreateSession(1, 256))
    pair.answer(say.SessionCreated(1))
    transmit, violation = send(pair, "SESSION_CREATE", **values)
    ack = b"".join(transmit.buffers)
    assert ack[12:] == struct.pack("<QiI", values["session_id"], 1, 0)
    assert isinstance(violation, Violation)
    assert violation.problem.clause == clause
    assert pair.worker.state is Worker.COMMAND
    assert send(pair, "SESSION_CREATE", session_id=2, ctx_size=8)[0].session_id == 2
    pair.answer(say.SessionCreated(2))
    full = send(pair, "SESSION_CREATE", session_id=3, ctx_size=8)
    assert full[1].problem.clause == "DS4T-ROBUST-13"


ENDS: list[tuple[str, dict[str, Any], str, int | None]] = [
    ("SYNC", {"session_id": 1, "tokens": ()}, "tp worker sync: empty prompt", 1),
    (
        "SYNC",
        {"session_id": 1, "tokens": (1,) * 256},
        "tp worker sync: prompt length 256 exceeds context 256 (one token of "
        "generation room is required)",
        1,
    ),
    (
        "SYNC",
        {"session_id": 1, "tokens": (-1,)},
        "tp worker sync: tp: token -1 is outside 0..127",
        1,
    ),
    (
        "SYNC",
        {"session_id": 7, "tokens": (1,)},
        "tp worker: unknown session 7 for frame 1",
        None,
    ),
    (
        "EVAL",
        {"session_id": 1, "seq": 1, "token": -5},
        "tp worker eval: tp: token -5 is outside 0..127",
        None,
    ),
    (
        "EVAL",
        {"session_id": 4, "seq": 1, "token": 5},
        "tp worker: unknown session 4 for frame 2",
        None,
    ),
    (
        "REWIND",
        {"session_id": 5, "position": 1},
        "tp worker: unknown session 5 for frame 3",
        None,
    ),
    ("INVALIDATE", {"session_id": 5}, "tp worker: unknown session 5 for frame 4", None),
    (
        "VERIFY",
        {"session_id": 1, "tokens": ()},
        "tp worker verify: tp: bad verify block size 0",
        None,
    ),
    (
        "VERIFY",
        {"session_id": 1, "tokens": (1,) * 17},
        "tp worker verify: tp: bad verify block size 17",
        None,
    ),
    (
        "VERIFY",
        {"session_id": 1, "tokens": (1, 128)},
        "tp worker verify: tp: bad draft token 128",
        None,
    ),
    (
        "EVAL_BATCH",
        {"items": [{"session_id": 8, "token": 1}]},
        "tp worker batch: failed",
        0,
    ),
    (
        "EVAL_BATCH",
        {"items": [{"session_id": 1, "token": 1}, {"session_id": 1, "token": 2}]},
        "tp worker batch: failed",
        0,
    ),
    (
        "MIXED_BATCH",
        {
            "prefill_session_id": 1,
            "tokens": (1, 2),
            "items": [{"session_id": 9, "token": 1}],
        },
        "tp worker batch: failed",
        1,
    ),
    (
        "GLM_MTP",
        {"session_id": 1, "seq": 1, "token": 128, "limit": 1},
        "tp worker eval: tp: token 128 is outside 0..127",
        1,
    ),
    (
        "SYNC_MULTIMODAL",
        {
            "session_id": 1,
            "tokens": (1, 2),
            "images": [
                {
                    "token_start": 1, "token_count": 2, "data_width": 64, "width": 1,
                    "height": 1, "content_width": 1, "content_height": 1,
                    "rows": bytes(512),
                }
            ],
        },
        "tp worker sync: image at 1..3 overlaps or leaves the prompt",
        1,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "values", "text", "ack"), ENDS)
def test_a_command_that_ends_the_worker(
    name: str, values: dict[str, Any], text: str, ack: int | None
) -> None:
    # from v12 on a sync's refusal stands between checkpoints: test_refused_prompts
    pair = opened("v10" if name.startswith("SYNC") else "v14")
    *before, failure = send(pair, name, **values)
    assert isinstance(failure, PairFailed)
    assert failure.line("tp-worker") == text
    acks = [b"".join(e.buffers)[12:] for e in before]
    expected = [] if ack is None else [struct.pack("<QiI", ack, 1, 0)]
    assert acks == expected


def test_a_verify_block_must_fit_the_context() -> None:
    pair = Pair("v14")
    pair.say(say.CreateSession(1, 4))
    pair.answer(say.SessionCreated(1))
    (failure,) = send(pair, "VERIFY", session_id=1, tokens=(1, 2, 3, 4, 5))
    assert failure.text == "tp worker verify: tp: verify block beyond context"


def test_placeholders_of_images_have_no_vocabulary_bound() -> None:
    pair = opened("v14")
    image = say.Image(1, 2, bytes(512))
    command = say.RunSync(1, (1, 128, 132), (image,))
    (event,) = pair.say(command)
    assert event.tokens == (1, 128, 132)
    assert bytes(event.images[0].rows) == bytes(512)


def test_a_worker_without_vision_says_so() -> None:
    pair = opened("v10")
    pair.worker._judge._vision = False
    pair.leader.send(say.RunSync(1, (1, 2), (say.Image(0, 1, bytes(256)),)), 0.0)
    values = {
        "session_id": 1,
        "tokens": (1, 2),
        "images": [
            {
                "token_start": 0, "token_count": 1, "data_width": 64, "width": 1,
                "height": 1, "content_width": 1, "content_height": 1,
                "rows": bytes(256),
            }
        ],
    }  # fmt: skip
    _, failure = send(pair, "SYNC_MULTIMODAL", **values)
    assert failure.text == "tp worker sync: vision encoder is not loaded"


@pytest.mark.parametrize(("position", "left"), [(-1, 0), (0, 0), (2, 2), (99, 3)])
def test_a_rewind_is_cut_to_what_the_session_holds(position: int, left: int) -> None:
    pair = synced("v14")
    (event,) = send(pair, "REWIND", session_id=1, position=position)
    assert event == say.Rewind(1, left)
    assert pair.worker.sessions[1].tokens == list(PROMPT[:left])


@pytest.mark.parametrize(
    ("command", "prefix", "acked"),
    [
        (say.RunEval(1, 1), "tp worker eval: ", None),
        (say.RunSync(1, (1, 2)), "tp worker sync: ", 1),
        (say.RunVerify(1, (1, 2)), "tp worker verify: ", None),
        (say.RunBatch((say.BatchItem(1, 1), say.BatchItem(3, 1))), None, 0),
        (say.RunMtp(1, 1, 1), "tp worker GLM MTP: ", 1),
    ],
)
def test_an_engine_that_fails(
    command: Any, prefix: str | None, acked: int | None
) -> None:
    pair = three("v10")
    pair.say(command)
    data = b"".join(
        pair.worker.send(say.EngineFailed("tp: gate transport failed", 7), 0.0)
    )
    (failure,) = pair.worker.events()
    wanted = (
        f"{prefix}tp: gate transport failed" if prefix else "tp worker batch: failed"
    )
    assert failure.text == wanted
    expected = b"" if acked is None else struct.pack("<QiI", acked, 7, 0)
    assert data[12:] == expected
    assert pair.worker.state is Worker.FAILED


def test_an_engine_that_cannot_open_a_session_goes_on() -> None:
    pair = Pair("v14")
    pair.say(say.CreateSession(1, 256))
    (answer,) = pair.answer(say.EngineFailed("no memory"))
    assert answer == say.SessionCreated(
        1, 1, "tp: worker session create failed (session 1, status 1)"
    )
    assert 1 not in pair.worker.sessions
    pair.say(say.CreateSession(2, 256))
    assert pair.answer(say.SessionCreated(2)) == [say.SessionCreated(2)]


def test_the_two_best_logits_are_chosen_without_nan() -> None:
    half = struct.pack("<5f", 1.0, float("nan"), 3.0, 3.0, float("-inf"))
    assert top2_of(half, 100) == say.Top2((102, 103), (3.0, 3.0))


def test_texts_are_those_of_the_clauses() -> None:
    assert text_of("DS4T-CTRL-05", 2**64 - 1, 2) == (
        "tp worker: unknown session 18446744073709551615 for frame 2"
    )
    with pytest.raises(LookupError, match="no text"):
        text_of("DS4T-CTRL-10")
