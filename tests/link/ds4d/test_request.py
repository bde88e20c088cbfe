"""Requests over a route in memory: spans, window, recovery."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ds4proto.codec.token_hash import token_hash
from ds4proto.link.ds4d_events import (
    EvaluateLocal,
    Failed,
    LocalDone,
    LocalFailed,
    Succeeded,
    Transmit,
    Written,
)
from ds4proto.link.ds4d_request import Request
from ds4proto.link.ds4d_route import Route
from ds4proto.link.ds4d_session import PrefillSettings, Session, new_session_id
from tests.link.ds4d import toy
from tests.link.ds4d.build import frames, result
from tests.link.ds4d.cluster import Cluster

CAP = PrefillSettings(prefill_cap=toy.PREFILL_CAP, chunk=8)
TWO = ((2, 4, False), (5, 7, True))
LONG = tuple(range(1, 46))


def alone(tokens: tuple[int, ...]) -> Any:
    """Return the logits of the unsliced model."""
    return toy.logits(toy.Slice(0, 7).run(tokens, None)[-1])


def spans(cluster: Cluster) -> list[tuple[int, int, int, int]]:
    """Return (request, pos0, n_tokens, flags) of every WORK so far."""
    return [
        (v["request"], v["pos0"], v["n_tokens"], v["flags"])
        for _, v in frames(cluster.sent)
    ]


def same(found: Any, tokens: tuple[int, ...]) -> bool:
    return bool(np.array_equal(found, alone(tokens)))


# spans


def test_prefill_and_decode_send_what_upstream_sends() -> None:
    cluster = Cluster(*TWO)
    assert same(cluster.logits((5, 6, 7, 8, 9)), (5, 6, 7, 8, 9))
    assert same(cluster.row(cluster.eval(42)), (5, 6, 7, 8, 9, 42))
    same_again = cluster.sync((5, 6, 7, 8, 9, 42))
    assert (same_again.kind, same_again.n_tokens) == (None, 0)
    cluster.sync((5, 6, 7, 8, 9, 42, 1, 2))
    cluster.sync((5, 6))
    assert spans(cluster) == [
        (1, 0, 5, 5),
        (2, 5, 1, 1),
        (3, 6, 2, 1),
        (4, 0, 2, 5),
    ]


@pytest.mark.parametrize("last_head", [True, False])
@pytest.mark.parametrize("ack", [True, False])
def test_pipelined_flags(last_head: bool, ack: bool) -> None:
    cluster = Cluster((2, 7, last_head), settings=replace(CAP, ack_only=ack))
    assert same(cluster.logits(LONG[:20]), LONG[:20])
    logits, only = 2 * last_head, 8 * ack
    assert spans(cluster) == [
        (1, 0, 8, 1 + logits + 4 + only),
        (2, 8, 8, 1 + logits + only),
        (3, 16, 4, 1 + logits),
    ]


def test_the_flags_of_one_and_of_several_hops() -> None:
    one, several = Cluster((2, 7, True), settings=CAP), Cluster(*TWO, settings=CAP)
    for cluster in (one, several):
        cluster.sync(LONG[:20])
        cluster.eval(3)
    assert [flags for *_, flags in spans(one)] == [15, 11, 3, 3]
    assert [flags for *_, flags in spans(several)] == [13, 9, 1, 1]


@pytest.mark.parametrize("bits", [32, 16, 8])
def test_pipelined_equals_sequential(bits: int) -> None:
    rows = []
    for pipeline in (True, False):
        settings = replace(CAP, pipeline=pipeline, bits=bits)
        cluster = Cluster(*TWO, settings=settings)
        rows.append(cluster.logits(LONG))
        assert (cluster.most_in_flight > 1) == pipeline
        if not pipeline:
            assert [flags for *_, flags in spans(cluster)] == [5, 1, 1, 1, 1, 1]
    assert np.array_equal(*rows)


@pytest.mark.parametrize(
    ("window", "hops", "chunks", "wanted"),
    [
        (None, 1, 99, 3),
        (None, 0, 99, 2),
        (None, 4, 99, 6),
        (None, 60, 99, 8),
        (None, 4, 3, 3),
        (64, 1, 99, 64),
        (1, 1, 99, 1),
        (9, 1, 4, 4),
    ],
)
def test_the_window(window: int | None, hops: int, chunks: int, wanted: int) -> None:
    settings = PrefillSettings(window=window)
    assert settings.window_chunks(hops, chunks) == wanted


@pytest.mark.parametrize("window", [1, 2, 3, 5])
def test_no_more_chunks_in_flight_than_the_window(window: int) -> None:
    cluster = Cluster((2, 7, True), settings=replace(CAP, window=window, send_depth=8))
    assert same(cluster.logits(LONG), LONG)
    assert cluster.most_in_flight == window


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            PrefillSettings(prefill_cap=16, chunk=17),
            "distributed prefill chunk 17 exceeds session prefill cap 16",
        ),
        (
            PrefillSettings(prefill_cap=16, window=65),
            "distributed prefill window 65 exceeds limit 64",
        ),
    ],
)
def test_a_bad_setting_costs_nobody_anything(
    settings: PrefillSettings, text: str
) -> None:
    cluster = Cluster(*TWO)
    cluster.sync(LONG[:4])
    good, cluster.settings = cluster.settings, settings
    done = cluster.sync(LONG)
    assert isinstance(done, Failed)
    assert done.text == text
    assert len(cluster.registry) == 2
    cluster.settings = good
    assert same(cluster.row(cluster.eval(9)), (*LONG[:4], 9))
    assert spans(cluster)[-1] == (2, 4, 1, 1)


# recovery


def refuse(numbers: set[int], text: bytes = b"no") -> Any:
    """Return a tamper that turns the answers to some WORK into errors."""

    def tamper(_: int, data: bytes) -> bytes:
        ((name, values),) = frames(data)
        assert name == "RESULT"
        if values["request"] in numbers:
            return result(values["request"], status=1, payload=text)
        return data

    return tamper


def test_a_refused_step_is_replayed_without_doubling_its_token() -> None:
    cluster = Cluster(*TWO)
    cluster.sync(LONG[:7])
    cluster.tamper = refuse({2})
    done = cluster.eval(9)
    assert done.replayed
    assert same(cluster.row(done), (*LONG[:7], 9))
    assert spans(cluster)[1:] == [(2, 7, 1, 1), (3, 0, 8, 5)]
    (*_, (_, last)) = frames(cluster.sent)
    assert last["tokens"] == (*LONG[:7], 9)
    assert len(cluster.registry) == 2


def test_a_remote_error_in_the_pipeline_recovers_on_the_same_connection() -> None:
    cluster = Cluster(*TWO, settings=CAP)
    cluster.tamper = refuse({2, 3})
    done = cluster.sync(LONG)
    assert done.replayed
    assert same(cluster.row(done), LONG)
    assert len(cluster.registry) == 2
    first = [i for i, s in enumerate(spans(cluster)) if s[1] == 0]
    assert [spans(cluster)[i][3] for i in first] == [13, 13]
    # Nothing was due any more when the replay began.
    assert [cluster.in_flight[i] for i in first] == [1, 1]
    assert all(n <= 8 for _, _, n, _ in spans(cluster))


def test_errors_that_come_together_are_one_error() -> None:
    cluster = Cluster((2, 7, True), settings=replace(CAP, window=3, send_depth=8))
    route = cluster.route()
    link = route.workers[0].handle[2]
    settings = cluster.settings
    request = Request(cluster.session, toy.MODEL, route, link, LONG, settings=settings)
    asked = 0
    while asked < 3:
        for event in request.events():
            if isinstance(event, EvaluateLocal):
                request.send(LocalDone(event.index, bytes(8 * 256)), 0.0)
                asked += 1
    errors = [result(n, status=1, payload=b"no") for n in (1, 2, 3)]
    link.receive_data(b"".join(errors), 0.0)
    for event in link.events():
        request.result(event)
    said = [type(event).__name__ for event in request.events()]
    assert said.count("Replaying") == 1
    assert (request.state, said[-1]) == ("running", "EvaluateLocal")


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_no_more_evaluated_chunks_wait_to_be_sent_than_asked_for(depth: int) -> None:
    settings = replace(CAP, window=6, send_depth=depth)
    cluster = Cluster((2, 7, True), settings=settings)
    route = cluster.route()
    link = route.workers[0].handle[2]
    request = Request(cluster.session, toy.MODEL, route, link, LONG, settings=settings)
    ready: list[int] = []

    def settle() -> None:
        for event in request.events():
            if isinstance(event, EvaluateLocal):
                request.send(LocalDone(event.index, bytes(8 * 256)), 0.0)
            elif isinstance(event, Transmit):
                assert event.request is not None
                ready.append(event.request)

    settle()
    assert len(ready) == depth
    request.send(Written(ready[0]), 0.0)
    settle()
    assert len(ready) == depth + 1


def test_a_long_continuation_after_lost_sessions_recovers_at_once() -> None:
    cluster = Cluster(*TWO, settings=CAP)
    cluster.sync(LONG[:8])
    for host in cluster.hosts:
        host.worker.sessions.clear()
    done = cluster.sync(LONG)
    assert done.replayed
    assert same(cluster.row(done), LONG)
    assert len(cluster.registry) == 2


def test_a_replay_that_fails_leaves_an_empty_checkpoint() -> None:
    cluster = Cluster(*TWO, settings=CAP)
    cluster.sync(LONG[:8])
    cluster.tamper = refuse(set(range(2, 50)), b"still no")
    done = cluster.sync(LONG)
    assert isinstance(done, Failed)
    assert (done.text, done.cause.text) == ("still no", "still no")
    assert cluster.session.checkpoint == 0
    assert len(cluster.registry) == 2
    cluster.tamper = None
    begun = len(spans(cluster))
    assert same(cluster.row(cluster.eval(3)), (*LONG[:8], 3))
    assert spans(cluster)[begun][1:] == (0, 8, 13)


def damaged(_: int, data: bytes) -> bytes:
    return data[:4] + b"\0\0\0\x09" + data[8:]


def test_a_transport_error_without_another_route() -> None:
    cluster = Cluster(*TWO)
    cluster.sync(LONG[:4])
    cluster.tamper = damaged
    done = cluster.eval(1)
    assert isinstance(done, Failed)
    assert done.text == "distributed route incomplete: missing layer 2"
    assert done.cause.text == "distributed worker returned invalid frame"
    assert len(cluster.registry) == 0
    assert "distributed route incomplete: missing layer 2" in str(cluster.eval(1))


def test_a_transport_error_with_a_standby() -> None:
    cluster = Cluster((2, 7, True))
    cluster.add(toy.facts(2, 7, head=True), "10.0.0.9")
    cluster.sync(LONG[:4])
    hits = []

    def once(_: int, data: bytes) -> bytes | None:
        hits.append(1)
        return None if len(hits) == 1 else data

    cluster.tamper = once
    done = cluster.eval(9)
    assert done.replayed
    assert same(cluster.row(done), (*LONG[:4], 9))
    assert spans(cluster)[1:] == [(2, 4, 1, 3), (3, 0, 5, 7)]
    assert [worker.host for worker in cluster.registry.workers()] == ["10.0.0.1"]


def test_the_next_worker_dies_between_requests() -> None:
    # The middle worker closes as well, drops its sessions and registers again.
    cluster = Cluster(*TWO)
    cluster.sync(LONG[:4])
    second = cluster.hosts[1]
    for link in [m for m, _ in second.said if m not in second.closed]:
        second.give(link, None)
    cluster.exchange()
    assert len(cluster.hosts[0].closed) == 2
    done = cluster.eval(9)
    assert isinstance(done, Failed)
    cluster.add(toy.facts(2, 4, head=False), "10.0.0.1")
    cluster.add(toy.facts(5, 7, head=True), "10.0.0.2")
    assert same(cluster.row(cluster.eval(9)), (*LONG[:4], 9))


def test_a_failure_of_the_own_slice_keeps_the_workers() -> None:
    cluster = Cluster(*TWO, settings=CAP)
    route = cluster.route()
    link = route.workers[0].handle[2]
    request = Request(cluster.session, toy.MODEL, route, link, LONG, settings=CAP)
    list(request.events())
    request.send(LocalFailed(0, "own engine failed"), 0.0)
    (done,) = request.events()
    assert isinstance(done, Failed)
    assert done.text == "own engine failed"
    assert same(cluster.logits(LONG[:5]), LONG[:5])


def test_a_model_without_workers_needs_no_wire() -> None:
    session = Session(1)
    request = Request(session, toy.MODEL, Route((), False, b""), None, LONG)
    _, ask = request.events()
    assert isinstance(ask, EvaluateLocal)
    request.send(LocalDone(0, b""), 0.0)
    (done,) = request.events()
    assert isinstance(done, Succeeded)
    assert session.checkpoint == len(LONG)


# the session


def test_ids_and_hash() -> None:
    session = Session(5)
    assert [session.next_request() for _ in range(3)] == [1, 2, 3]
    assert [session.next_snapshot_request() for _ in range(2)] == [1 << 63, 2**63 + 1]
    session.loaded(LONG)
    assert session.token_hash == token_hash(LONG)
    assert session.checkpoint == len(LONG)
    session.advanced(session.eval_span(7))
    assert session.token_hash == token_hash((*LONG, 7))
    assert new_session_id(3) == new_session_id(3) != new_session_id(4)
    with pytest.raises(ValueError, match="expected 1 to"):
        Session(0)


def test_a_step_costs_the_same_at_any_length() -> None:
    session = Session(1)
    session.loaded(range(200_000))

    class Untouchable(list[int]):
        def __iter__(self) -> Any:
            raise AssertionError("the whole transcript is looked at")

        __getitem__ = __iter__  # type: ignore[assignment]

    session._tokens = Untouchable(session._tokens)
    span = session.eval_span(5)
    (chunk,) = span.chunks(16, logits=True, input_hidden=True, ack_only=False)
    session.advanced(span)
    assert (chunk.pos0, session.checkpoint) == (200_000, 200_001)
