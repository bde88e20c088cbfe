"""The coordinator's end: RESULT checks in their order, draining, times."""

from __future__ import annotations

from typing import Any

import pytest

from ds4proto.codec.token_hash import token_hash
from ds4proto.link.ds4d_endpoint import LocalProtocolError
from ds4proto.link.ds4d_events import (
    Close,
    Drained,
    RemoteError,
    ResultReceived,
    TransportError,
)
from ds4proto.link.ds4d_limits import LinkLimits
from ds4proto.link.ds4d_work_link import WorkLink
from ds4proto.schema.ds4d_records import TELEMETRY
from ds4proto.schema.ds4d_result import ACK, HIDDEN_STATE, LOGITS
from tests.link.ds4d import toy
from tests.link.ds4d.build import make, raw, result

TOKENS = (5, 6, 7)
HASH = token_hash(TOKENS)
ROW = 4 * toy.HIDDEN
GOOD: dict[str, Any] = {
    "result_hash": HASH,
    "result_kind": LOGITS,
    "payload": bytes(1024),
    "payload_bits": 32,
}
HIDDEN = {**GOOD, "result_kind": HIDDEN_STATE, "payload": bytes(3 * ROW)}
ACKED = {**GOOD, "result_kind": ACK, "payload": b"", "payload_bits": 0}
RECORD = {field.path: 1 for field in TELEMETRY.fields}


def ask(link: WorkLink, request: int = 1, **options: Any) -> None:
    values = {
        "model_id": 0,
        "session": 1,
        "request": request,
        "prefix_hash": token_hash(()),
        "result_hash": HASH,
        "pos0": 0,
        "n_tokens": 3,
        "layer_start": 2,
        "layer_end": 7,
        "flags": 7,
        "input_hc_bits": 32,
        "route_count": 1,
        "route_index": 0,
        "tokens": TOKENS,
        "hidden": bytes(3 * ROW),
        "route_blob": b"blob",
    }
    link.work(values, 0.0, **options)


def hear(data: bytes | None, *, has_head: bool = True, **options: Any) -> list[Any]:
    link = WorkLink(toy.MODEL, has_head=has_head)
    ask(link, **options)
    link.receive_data(data, 1.0)
    return list(link.events())


def fault_of(events: list[Any]) -> str:
    assert isinstance(events[-1], Close)
    assert isinstance(events[-2], TransportError)
    assert events[-2].fault.kind == "transport"
    return events[-2].fault.text


@pytest.mark.parametrize(
    "values",
    [
        GOOD,
        {**GOOD, "payload_bits": 0},
        {**GOOD, "payload_bits": 77},
        {**GOOD, "telemetry": [RECORD] * 3},
        {**GOOD, "payload": b"\xff" * 1024},
        HIDDEN,
        {**HIDDEN, "payload_bits": 8, "payload": bytes(3 * toy.HIDDEN)},
        {**HIDDEN, "payload_bits": 0},
    ],
)
def test_accepted(values: dict[str, Any]) -> None:
    (event,) = hear(result(1, **values))
    assert isinstance(event, ResultReceived)
    assert (event.kind, bytes(event.payload), event.waited) == (
        values["result_kind"],
        values["payload"],
        1.0,
    )
    assert list(event.telemetry) == values.get("telemetry", [])


NO_KIND = "distributed route did not return logits or hidden-state"
BAD_META = "distributed result telemetry metadata mismatch"

# In the order of the checks; each frame has the faults of those below it too.
REFUSED = [
    ("distributed worker closed connection", None),
    ("bad frame magic 0xa5a5a5a5", b"\xa5" * 64),
    ("distributed worker returned invalid frame", make("ERROR", text="x")),
    ("distributed worker returned invalid frame", raw(3, bytes(80))),
    ("distributed worker returned invalid frame", raw(4, bytes(39))),
    (BAD_META, result(2, telemetry=[RECORD], telemetry_count=2)),
    (BAD_META, result(2, **{**GOOD, "telemetry_bytes": 41})),
    (BAD_META, result(2, **{**GOOD, "telemetry_bytes": 4000, "telemetry_count": 100})),
    (BAD_META, result(2, **{**GOOD, "payload_bytes": 1023})),
    ("distributed result metadata mismatch", result(2, status=1)),
    (
        "invalid distributed activation width: 7 bits",
        result(1, result_kind=HIDDEN_STATE, payload=bytes(3), payload_bits=7),
    ),
    (
        "invalid distributed activation payload size",
        result(1, result_kind=HIDDEN_STATE, payload=bytes(3), payload_bits=16),
    ),
    (
        "distributed result prefix hash mismatch",
        result(1, result_kind=HIDDEN_STATE, payload=bytes(4), payload_bits=16),
    ),
    (
        "distributed route returned invalid hidden-state size",
        result(1, **{**HIDDEN, "payload": bytes(2 * ROW)}),
    ),
    (NO_KIND, result(1, **ACKED)),
    (NO_KIND, result(1, **{**GOOD, "result_kind": 9})),
    (NO_KIND, result(1, **{**GOOD, "payload": bytes(1020)})),
    (NO_KIND, result(1, **{**GOOD, "payload": b""})),
]


@pytest.mark.parametrize(("text", "data"), REFUSED)
def test_refused(text: str, data: bytes | None) -> None:
    assert fault_of(hear(data)) == text


def test_a_hidden_state_is_of_no_use_without_a_head() -> None:
    assert fault_of(hear(result(1, **HIDDEN), has_head=False)) == NO_KIND


PIPE = "distributed pipelined prefill returned invalid result"


@pytest.mark.parametrize(
    ("values", "last", "logits", "text"),
    [
        (ACKED, False, True, None),
        (GOOD, False, True, None),
        (GOOD, True, True, None),
        (HIDDEN, False, False, None),
        (HIDDEN, True, False, None),
        (ACKED, True, True, PIPE),
        ({**ACKED, "payload": b"x"}, False, True, PIPE),
        (HIDDEN, True, True, PIPE),
        ({**HIDDEN, "payload": bytes(ROW)}, True, False, PIPE),
        ({**GOOD, "payload": bytes(4)}, True, True, PIPE),
        (
            {**GOOD, "result_hash": 1},
            True,
            True,
            "distributed pipelined prefill prefix hash mismatch",
        ),
    ],
)
def test_pipelined(
    values: dict[str, Any], last: bool, logits: bool, text: str | None
) -> None:
    events = hear(result(1, **values), pipelined=True, last=last, route_logits=logits)
    if text is None:
        assert isinstance(events[0], ResultReceived)
    else:
        assert fault_of(events) == text


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b"", "distributed worker returned an error"),
        (b"no room", "no room"),
        (b"m" * 600, "m" * 255),
        (b"ab\0cd", "ab"),
    ],
)
def test_remote_errors_keep_the_connection(message: bytes, text: str) -> None:
    link = WorkLink(toy.MODEL)
    ask(link)
    data = result(1, status=2, payload=message, telemetry=[RECORD])
    link.receive_data(data, 0.0)
    (event,) = link.events()
    assert isinstance(event, RemoteError)
    assert (event.fault.text, event.fault.kind, event.status) == (text, "remote", 2)
    assert link.state == "idle"
    ask(link, 2)
    link.receive_data(result(2, **GOOD), 0.0)
    assert isinstance(next(link.events()), ResultReceived)


def test_a_payload_above_any_legal_answer_is_not_stored() -> None:
    link = WorkLink(toy.MODEL)
    ask(link)
    head = result(1, payload_bytes=1 << 31)[12:]
    link.receive_data(raw(4, head, size=40 + (1 << 31)), 0.0)
    assert len(link._intake.kept) == 40


def test_draining_takes_one_answer_for_each_work() -> None:
    link = WorkLink(toy.MODEL)
    for request in (1, 2, 3):
        ask(link, request, pipelined=True, last=False)
    link.receive_data(result(1, status=1), 0.0)
    assert isinstance(next(link.events()), RemoteError)
    link.drain()
    with pytest.raises(LocalProtocolError):
        ask(link, 4)
    link.receive_data(result(2, status=1, payload=b"x") + result(3, **ACKED), 0.0)
    assert list(link.events()) == [Drained(2)]
    ask(link, 4)
    link.receive_data(result(4, **GOOD), 0.0)
    assert isinstance(next(link.events()), ResultReceived)


def test_a_wrong_answer_while_draining_is_a_transport_error() -> None:
    link = WorkLink(toy.MODEL)
    ask(link)
    link.drain()
    link.receive_data(result(9), 0.0)
    assert fault_of(list(link.events())) == "distributed result metadata mismatch"


def test_early_bytes_are_the_head_of_the_first_result() -> None:
    link = WorkLink(toy.MODEL, initial=b"early")
    assert not list(link.events())
    ask(link)
    link.receive_data(result(1, **GOOD), 0.0)
    assert fault_of(list(link.events())) == "bad frame magic 0x6561726c"


def test_a_second_answer_fails_the_next_request() -> None:
    link = WorkLink(toy.MODEL)
    ask(link)
    link.receive_data(result(1, **GOOD) * 2, 0.0)
    assert isinstance(next(link.events()), ResultReceived)
    assert link.state == "idle"
    assert len(link.get_buffer()) == 0
    ask(link, 2)
    link.receive_data(result(2, **GOOD), 0.0)
    assert fault_of(list(link.events())) == "distributed result metadata mismatch"


def test_a_silent_worker_is_noticed() -> None:
    link = WorkLink(toy.MODEL, limits=LinkLimits(result_s=7.0))
    assert link.deadline() is None
    ask(link, 1)
    ask(link, 2)
    assert link.deadline() == 7.0
    link.receive_data(result(1, **GOOD), 5.0)
    list(link.events())
    assert link.deadline() == 12.0
    link.timeout(11.9)
    assert not list(link.events())
    link.timeout(12.0)
    wanted = "distributed worker did not answer within 7 s"
    assert fault_of(list(link.events())) == wanted


def test_a_failed_read_has_the_words_of_upstream() -> None:
    link = WorkLink(toy.MODEL)
    ask(link)
    link.failed("Connection reset by peer", 0.0)
    wanted = "failed to read frame header: Connection reset by peer"
    assert fault_of(list(link.events())) == wanted


@pytest.mark.parametrize("step", [1, 3, 41])
def test_any_split_says_the_same(step: int) -> None:
    data = b"".join(
        [
            result(1, **{**GOOD, "telemetry": [RECORD] * 2}),
            result(2, status=3, payload=b"late"),
            result(3, **{**GOOD, "payload_bytes": 3}),
        ]
    )

    def told(size: int) -> list[str]:
        link = WorkLink(toy.MODEL)
        for request in (1, 2, 3):
            ask(link, request)
        for at in range(0, len(data), size):
            link.receive_data(data[at : at + size], 0.0)
        return [repr(e).split("payload=")[0] for e in link.events()]

    assert told(step) == told(len(data))
