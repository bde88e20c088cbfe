"""What a leader does not send, and what a worker makes of prompts with images."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from ds4proto.link import ds4t_events as say
from ds4proto.link import ds4t_prefill, ds4t_worker_rules
from ds4proto.link.ds4t_leader_frames import CommandRules
from ds4proto.link.ds4t_sessions import Session, Sessions
from ds4proto.link.ds4t_texts import LocalProtocolError, PairFailed
from ds4proto.link.ds4t_worker import WorkerControl
from ds4proto.link.ds4t_worker_rules import CommandJudge, Refusal
from tests.link.ds4t import test_prefill as prefills
from tests.link.ds4t import test_rules as rules
from tests.link.ds4t.captured import frames_of
from tests.link.ds4t.pair import END, HALF, PROMPT, START, Pair, meet, opened, three
from tests.link.ds4t.test_refused_prompts import checkpoint
from tests.spec.removing import without_check
from tests.spec.tp_showing import altered, shows

ITEM = say.BatchItem(3, 1)


def not_sent(command: Any, dialect: str = "v14") -> None:
    pair = three(dialect)
    before = pair.leader.state, pair.leader.eval_seq
    with pytest.raises(LocalProtocolError):
        pair.leader.send(command, 0.0)
    assert (pair.leader.state, pair.leader.eval_seq) == before


def any_items(_own: Any, _rules: Any, items: Any, _apart: Any) -> list[Any]:
    return [{"session_id": i.session_id, "token": i.token} for i in items]


@shows(
    (
        "DS4T-EVAL-08",
        "any token",
        altered(CommandRules, "_token", lambda _own, _rules, *_: None),
    )
)
def tokens_outside_the_vocabulary_are_not_sent() -> None:
    for token in (-1, 128, 1 << 30):
        not_sent(say.RunEval(1, token))
        not_sent(say.RunBatch((say.BatchItem(1, 1), say.BatchItem(3, token))))
        not_sent(say.RunMixed(1, (*PROMPT, token), (ITEM,)))
        not_sent(say.RunMixed(1, (*PROMPT, 1), (say.BatchItem(3, token),)))


@shows(
    ("DS4T-BATCH-07", "any sessions", altered(CommandRules, "_items", any_items)),
    ("DS4T-MIXED-07", "any sessions", altered(CommandRules, "_items", any_items)),
)
def sessions_of_a_batch_are_distinct_and_have_room() -> None:
    not_sent(say.RunBatch((ITEM, ITEM)))
    not_sent(say.RunBatch((ITEM, say.BatchItem(9, 1))))
    not_sent(say.RunMixed(1, (*PROMPT, 1), (say.BatchItem(1, 1),)))
    not_sent(say.RunMixed(1, (*PROMPT, 1), (ITEM, ITEM)))
    not_sent(say.RunMixed(1, (*PROMPT, 1), (say.BatchItem(9, 1),)))
    pair = Pair("v14")
    for known in (1, 2):
        pair.say(say.CreateSession(known, 1))
        pair.answer(say.SessionCreated(known))
    full = (say.BatchItem(1, 1), say.BatchItem(2, 1))
    pair.leader.sessions.extend(2, 1)
    with pytest.raises(LocalProtocolError, match="no room"):
        pair.leader.send(say.RunBatch(full), 0.0)


@shows(
    (
        "DS4T-MIXED-06",
        "any prompt",
        altered(Session, "extends", lambda _own, _session, _prompt: True),
    )
)
def a_mixed_prompt_goes_on_from_what_is_held() -> None:
    for prompt in ((1, 2, 3, 4), PROMPT, PROMPT[:2], (*PROMPT[:2], 9, 9)):
        not_sent(say.RunMixed(1, prompt, (ITEM,)))
    not_sent(say.RunMixed(1, (*PROMPT, *[1] * 300), (ITEM,)))
    pair = three("v14")
    assert pair.leader.send(say.RunMixed(1, (*PROMPT, 1), (ITEM,)), 0.0)


@shows(
    (
        "DS4T-MIXED-08",
        "whenever the prompt goes on",
        altered(
            ds4t_prefill,
            "may_mix",
            lambda _own, session, prompt, *_, **__: session.extends(prompt),
        ),
    )
)
def a_leader_mixes_only_one_chunk_of_enough_rows() -> None:
    with patch.object(prefills, "may_mix", ds4t_prefill.may_mix):
        for case in (
            (14, {}, 0, False, True),
            (13, {}, 0, False, False),
            (10, {}, 0, False, False),
            (14, {}, 2, False, False),
            (14, {}, 0, True, False),
            (14, {"chunk": 12}, 0, False, False),
            (300, {}, 0, False, False),
        ):
            prefills.test_when_a_leader_may_mix(*case)


@shows(
    (
        "DS4T-ROBUST-24",
        "prompts of any length",
        altered(CommandRules, "_prompt", lambda _own, _rules, *_: None),
    )
)
def an_over_long_prompt_is_not_sent() -> None:
    for prompt in ((), (1,) * 256, (1,) * 1000):
        not_sent(say.RunSync(1, prompt))
    pair = three("v14")
    assert pair.leader.send(say.RunSync(1, (1,) * 255), 0.0)


def image(**words: Any) -> dict[str, Any]:
    return {
        "token_start": 1, "token_count": 1, "data_width": 64, "width": 3, "height": 2,
        "content_width": 3, "content_height": 2, "fingerprint": bytes(range(32)),
        "rows": bytes(256), **words,
    }  # fmt: skip


def with_images(
    *images: dict[str, Any], tokens: tuple[int, ...] = (7, 130, 131, 5)
) -> tuple[Pair, list[Any]]:
    pair = opened("v14")
    words = {"session_id": 1, "tokens": tokens, "images": list(images)}
    return pair, rules.send(pair, "SYNC_MULTIMODAL", **words)


@shows(
    (
        "DS4T-MM-07",
        "spans anywhere",
        lambda: without_check(ds4t_worker_rules, "DS4T-MM-07"),
    )
)
def spans_in_another_order_are_refused() -> None:
    for spans in ([3, 1], [1, 1], [4], [3, 4]):
        pair, _ = with_images(*(image(token_start=at) for at in spans))
        # the refusal stands between the checkpoints START and END of the sync
        for seq, point, code in ((1, say.START, 0), (2, say.END, 1)):
            pair.worker.receive_data(checkpoint(seq, point, code, 4), 0.0)
        *_, failure = [None, *pair.worker.events()]
        assert isinstance(failure, PairFailed), spans
        assert failure.problem.clause == "DS4T-MM-07"
    _, (command,) = with_images(image(token_start=1), image(token_start=2))
    assert isinstance(command, say.RunSync)


def looks_inside(own: Any, judge: Any, values: dict[str, Any]) -> Any:
    for one in values["images"]:
        if not one["height"] or not any(bytes(one["fingerprint"])):
            return Refusal("DS4T-MM-08", "tp worker sync: odd picture")
    return own(judge, values)


@shows(
    (
        "DS4T-MM-08",
        "a worker that looks at the picture",
        altered(CommandJudge, "_multimodal", looks_inside),
    )
)
def what_a_picture_is_does_not_matter() -> None:
    for words in (
        {"height": 0},
        {"content_width": 0, "content_height": 1 << 31},
        {"fingerprint": bytes(32)},
        {"fingerprint": b"\xff" * 32},
    ):
        _, (command,) = with_images(image(**words))
        assert isinstance(command, say.RunSync)
        (found,) = command.images
        assert bytes(found.rows) == bytes(256)


def bounded(own: Any, judge: Any, values: dict[str, Any]) -> Any:
    if judge._outside(values["tokens"]) is not None:
        return Refusal("DS4T-ROBUST-12", "tp worker sync: outside")
    return own(judge, values)


@shows(
    (
        "DS4T-MM-09",
        "placeholders have the vocabulary's bound",
        altered(CommandJudge, "_multimodal", bounded),
    )
)
def placeholders_lie_outside_the_vocabulary() -> None:
    for extra in range(5):
        tokens = (7, 128 + extra, 128 + extra, 5)
        _, (command,) = with_images(image(), tokens=tokens)
        assert command.tokens == tokens
    rules.test_placeholders_of_images_have_no_vocabulary_bound()


@shows(
    (
        "DS4T-MM-10",
        "a worker without vision goes on",
        lambda: without_check(ds4t_worker_rules, "DS4T-MM-10"),
    )
)
def a_worker_without_vision_fails_the_command() -> None:
    rules.test_a_worker_without_vision_says_so()


def no_half(own: Any, machine: Any, event: Any, now: float) -> Any:
    found = own(machine, event, now)
    return found[:1] if getattr(machine._command, "images", ()) else found


@shows(
    (
        "DS4T-MM-11",
        "no logits after images",
        altered(WorkerControl, "_acknowledge", no_half),
    )
)
def images_are_answered_like_a_prompt() -> None:
    said = []
    for pictures in ((), (say.Image(1, 1, bytes(256)),)):
        pair = opened("v14")
        before = len(pair.to_leader)
        pair.say(say.RunSync(1, (7, 9, 5), pictures))
        meet(pair, START)
        meet(pair, END)
        (done,) = pair.answer(say.SyncDone(1, 0, HALF))
        assert bytes(done.logits) == HALF
        said.append([code for code, _ in frames_of(pair.to_leader[before:])])
    assert said == [[22, 22, 17, 10]] * 2


def without_rows(own: Any, frames: Any, picture: Any) -> dict[str, Any]:
    return {**own(frames, picture), "rows": bytes(256)}


@shows(
    (
        "DS4T-FLOW-32",
        "pictures without their rows",
        altered(CommandRules, "_image", without_rows),
    )
)
def a_leader_sends_the_rows_of_a_picture_and_decodes_as_ever() -> None:
    rows = bytes(range(256))
    pair = opened("v14")
    (command,) = pair.say(say.RunSync(1, (7, 9, 5), (say.Image(1, 1, rows),)))
    assert bytes(command.images[0].rows) == rows
    meet(pair, START)
    meet(pair, END)
    pair.answer(say.SyncDone(1, 0, HALF))
    assert pair.say(say.RunEval(1, 4)) == [say.RunEval(1, 4, 1)]
    assert pair.to_worker[-36:-28] == bytes.fromhex("5434534402000000")


def below_zero(own: Any, book: Any, known: int, position: int) -> int:
    if not 0 <= position <= len(book[known].tokens):
        book[known].tokens.clear()
        return position
    return int(own(book, known, position))


@shows(
    (
        "DS4T-ROBUST-15",
        "a position outside ends the session",
        altered(Sessions, "rewind", below_zero),
    )
)
def a_rewind_outside_the_session_is_cut() -> None:
    for position, left in ((-1, 0), (-(1 << 31), 0), (99, 3), (0x7FFFFFFF, 3)):
        rules.test_a_rewind_is_cut_to_what_the_session_holds(position, left)
    pair = three("v14")
    rules.send(pair, "REWIND", session_id=1, position=99)
    (command,) = rules.send(pair, "EVAL", session_id=1, seq=1, token=4)
    assert command == say.RunEval(1, 4, 1)
