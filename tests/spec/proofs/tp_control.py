"""The control connection of a pair: what leader and worker may say, and when."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from ds4proto.errors import WrongUsage
from ds4proto.link import ds4t_events as say
from ds4proto.link import ds4t_leader, ds4t_worker_intake
from ds4proto.link.ds4t_identity import TpSettings
from ds4proto.link.ds4t_leader import LeaderControl
from ds4proto.link.ds4t_states import Leader, Worker
from ds4proto.link.ds4t_texts import LocalProtocolError, PairFailed, text_of
from ds4proto.link.ds4t_worker import WorkerControl
from tests.link.ds4t import test_control as controls
from tests.link.ds4t.captured import frames_of
from tests.link.ds4t.pair import (
    HALF,
    PROMPT,
    SMALL,
    opened,
    synced,
    three,
)
from tests.link.ds4t.pair import settings as settings_of
from tests.spec.removing import without_check
from tests.spec.tp_showing import altered, shows

MAGIC = 0x44533454
LIVE = ("v7", "v10", "v12", "v14")
COMMANDS: tuple[tuple[Any, str], ...] = (
    (say.CreateSession(9, 8), "session create"),
    (say.DestroySession(1), "session destroy"),
    (say.RunSync(1, (*PROMPT, 1)), "prefill sync"),
    (
        say.RunBatch((say.BatchItem(1, 1), say.BatchItem(3, 1))),
        "decode batch",
    ),
    (
        say.RunMixed(1, (*PROMPT, 1), (say.BatchItem(3, 1),)),
        "mixed prefill/decode batch",
    ),
    (say.RunMtp(1, 1, 1), "GLM MTP"),
)


def ack(known: int, status: int = 0) -> bytes:
    return struct.pack("<IIIQiI", MAGIC, 17, 16, known, status, 0)


def header(code: int, size: int) -> bytes:
    return struct.pack("<III", MAGIC, code, size)


def error_frame(own: Any, machine: Any, known: int, status: int) -> list[Any]:
    prefix = [struct.pack("<Iii", MAGIC, -1, 0)] if status else []
    return prefix + own(machine, known, status)


@shows(
    (
        "DS4T-CTRL-14",
        "an error frame in front of the ack",
        altered(WorkerControl, "_ack", error_frame),
    )
)
def errors_travel_as_a_status_or_as_the_end() -> None:
    for command, _ in COMMANDS:
        pair = three("v10")
        before = len(pair.to_leader)
        pair.say(command)
        pair.answer(say.EngineFailed("no"))
        types = {code for code, _ in frames_of(pair.to_leader[before:])}
        assert types == {17}
    for data in (header(99, 0), header(2, 8) + bytes(8), bytes(12)):
        pair = opened("v14")
        pair.worker.receive_data(data, 0.0)
        (failure,) = pair.worker.events()
        assert isinstance(failure, PairFailed)  # and nothing is written


def cut(own: Any, machine: Any, *words: Any) -> list[Any]:
    return [b"".join(map(bytes, own(machine, *words)))[:-4]]


@shows(
    (
        "DS4T-CTRL-16",
        "a frame that ends before its announced length",
        altered(LeaderControl, "_build", cut),
    )
)
def every_announced_byte_is_delivered() -> None:
    for command, _ in (*COMMANDS, (say.RunEval(1, 1), ""), (say.Rewind(1, 0), "")):
        pair = three("v10")
        data = b"".join(map(bytes, pair.leader.send(command, 0.0)))
        assert len(data) == 12 + int.from_bytes(data[8:12], "little")


def any_type(own: Any, dialect: str) -> Any:
    found = own(dialect)
    return {code: found.get(code, found[5]) for code in range(1, 64)}


@shows(
    (
        "DS4T-CTRL-20",
        "types of other dialects are taken",
        altered(ds4t_worker_intake, "accepted_types", any_type),
    ),
    (
        "DS4T-CTRL-20",
        "GLM_MTP is unknown",
        altered(
            ds4t_worker_intake,
            "accepted_types",
            lambda own, dialect: {c: s for c, s in own(dialect).items() if c != 21},
        ),
    ),
    (
        "DS4T-RESTORE-04",
        "RESTORE_PAYLOAD is taken",
        altered(ds4t_worker_intake, "accepted_types", any_type),
    ),
    (
        "DS4T-CTRL-21",
        "types of other dialects are taken",
        altered(ds4t_worker_intake, "accepted_types", any_type),
    ),
)
def a_worker_takes_exactly_these_types() -> None:
    right = {
        1: struct.pack("<QII3i", 1, 3, 0, 1, 2, 3),
        2: struct.pack("<QQiI", 1, 1, 1, 0),
        3: struct.pack("<QiI", 1, 0, 0),
        4: struct.pack("<Q", 1),
        5: b"",
        11: struct.pack("<QII2i", 1, 2, 0, 1, 2),
        13: struct.pack("<QiI", 9, 8, 0),
        14: struct.pack("<Q", 1),
        15: struct.pack("<IIQiI", 1, 0, 1, 1, 0),
        16: struct.pack("<QII4iQiI", 1, 4, 1, *PROMPT, 1, 3, 1, 0),
        18: struct.pack("<QII3i", 1, 3, 0, 1, 2, 3),
        21: struct.pack("<QQiI", 1, 1, 1, 1),
    }
    for dialect in ("v10", "v12", "v14"):
        for code in (*range(26), 0xFFFFFFFF):
            pair = synced(dialect)
            body = right.get(code, bytes(16 if code == 23 else 0))
            pair.worker.receive_data(header(code, len(body)) + body, 0.0)
            events = list(pair.worker.events())
            text = f"tp: invalid command frame type {code} ({len(body)} bytes)"
            refused = any(isinstance(e, PairFailed) and e.text == text for e in events)
            assert refused == (code not in right), (dialect, code)


@shows(
    (
        "DS4T-ACK-07",
        "a failure is called an interruption",
        altered(
            WorkerControl,
            "_ack",
            lambda own, m, known, status: own(m, known, 2 if status else 0),
        ),
    ),
    (
        "DS4T-ACK-07",
        "one code for every failure",
        altered(
            WorkerControl,
            "_ack",
            lambda own, m, known, status: own(m, known, 1 if status else 0),
        ),
    ),
)
def the_status_of_a_failure_is_the_engines_own() -> None:
    for code, expected in ((7, 7), (1, 1), (-3, -3), (2, 1), (0, 1)):
        pair = three("v10")
        pair.say(say.RunSync(1, (*PROMPT, 1)))
        data = b"".join(pair.worker.send(say.EngineFailed("no", code), 0.0))
        assert data == ack(1, expected)


@shows(
    (
        "DS4T-ACK-11",
        "other words for a batch",
        lambda: patch.dict(say.OPERATION, {say.RunBatch: "batch"}),
    ),
    (
        "DS4T-ACK-11",
        "other words for GLM",
        lambda: patch.dict(say.OPERATION, {say.RunMtp: "decode"}),
    ),
)
def texts_name_the_operation() -> None:
    for command, words in COMMANDS:
        pair = three("v10")
        pair.leader.send(command, 0.0)
        pair.leader.receive_data(ack(77, 3), 0.0)
        (failure,) = pair.leader.events()
        assert failure.text == text_of("DS4T-ACK-05", words, 77, 3)
        pair = three("v10")
        pair.leader.send(command, 0.0)
        pair.leader.receive_data(None, 0.0)
        (failure,) = pair.leader.events()
        assert failure.text == f"tp: worker failed during {words}"


@shows(
    (
        "DS4T-ACK-12",
        "the pair goes on",
        lambda: without_check(ds4t_leader, "DS4T-ACK-05"),
    )
)
def an_ack_for_another_session_ends_the_pair() -> None:
    pair = three("v14")
    pair.leader.send(say.DestroySession(1), 0.0)
    pair.leader.receive_data(ack(77), 0.0)
    assert any(isinstance(e, PairFailed) for e in pair.leader.events())
    assert pair.leader.state is Leader.FAILED
    with pytest.raises(LocalProtocolError):
        pair.leader.send(say.RunEval(3, 1), 0.0)


def twice(own: Any, machine: Any, known: int, status: int) -> list[Any]:
    return own(machine, known, status) * 2


def goes_on(own: Any, machine: Any, text: str, now: float) -> None:
    if not text.startswith("tp worker GLM"):
        own(machine, text, now)
    else:
        machine._state = Worker.COMMAND


@shows(
    ("DS4T-MTP-03", "two acks", altered(WorkerControl, "_ack", twice)),
    (
        "DS4T-MTP-03",
        "the worker goes on after a failure",
        altered(WorkerControl, "_end", goes_on),
    ),
    ("DS4T-FLOW-17", "two acks", altered(WorkerControl, "_ack", twice)),
)
def a_glm_cycle_has_one_answer() -> None:
    for status in (0, 1):
        pair = synced("v14")
        assert pair.say(say.RunMtp(1, 7, 2)) == [say.RunMtp(1, 7, 2, 1)]
        before = len(pair.to_leader)
        events = pair.answer(say.MtpDone(1, status))
        assert pair.to_leader[before:] == ack(1, status)
        assert [type(e) for e in events] == [say.MtpDone]
        ended = any(isinstance(e, PairFailed) for e in pair.aside)
        assert ended == bool(status)


@shows(
    (
        "DS4T-LOGITS-04",
        "any vocabulary",
        altered(TpSettings, "__post_init__", lambda _own, _settings: None),
    )
)
def an_odd_vocabulary_is_not_split() -> None:
    odd = replace(SMALL, n_vocab=127)
    for role in ("tp-leader", "tp-worker"):
        with pytest.raises(WrongUsage, match="127 is odd"):
            settings_of(role, identity=odd)
        assert settings_of(role, identity=odd, vocabulary_split=False)


def logits_anyway(own: Any, machine: Any, entries: list[Any]) -> list[Any]:
    frame = [header(10, 256), HALF]
    return own(machine, entries) or [b for _ in entries for b in frame]


@shows(
    (
        "DS4T-LOGITS-05",
        "a half is sent anyway",
        altered(WorkerControl, "_logits", logits_anyway),
    ),
    (
        "DS4T-FLOW-21",
        "a half is sent anyway",
        altered(WorkerControl, "_logits", logits_anyway),
    ),
)
def without_a_split_there_are_no_logits() -> None:
    for dialect in LIVE:
        controls.test_without_a_split_no_logits_are_sent(dialect)


@shows(
    (
        "DS4T-SYNC-13",
        "any frame is taken for LOGITS",
        altered(LeaderControl, "_judge_header", lambda _own, _machine, _now: None),
    )
)
def a_sync_without_its_logits_has_failed() -> None:
    for data in (header(17, 16) + bytes(16), header(10, 255), header(10, 260), None):
        pair = opened("v10")
        pair.leader.send(say.RunSync(1, PROMPT), 0.0)
        pair.leader.receive_data(ack(1), 0.0)
        pair.leader.receive_data(data, 0.0)
        (failure,) = pair.leader.events()
        assert failure.text == "tp: worker sync logits half missing"
