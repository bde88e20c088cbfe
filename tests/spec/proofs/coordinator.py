"""What a coordinator sends, over workers in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
from ds4proto_runtime.pipeline.settings import prefill_settings

from ds4proto.codec.token_hash import TokenHash
from ds4proto.link import ds4d_facts, ds4d_request, ds4d_session
from ds4proto.link.ds4d_events import EvaluateLocal, Failed, LocalDone, LocalFailed
from ds4proto.link.ds4d_facts import ModelFacts
from ds4proto.link.ds4d_request import Request
from ds4proto.link.ds4d_session import PrefillSettings, Session, Span
from tests.link.ds4d import toy
from tests.link.ds4d.build import frames, result
from tests.link.ds4d.cluster import Cluster
from tests.spec.proving import proof
from tests.spec.removing import without_check

CAP = PrefillSettings(prefill_cap=toy.PREFILL_CAP, chunk=8)
TWO = ((2, 4, False), (5, 7, True))
LONG = tuple(range(1, 46))


def works(cluster: Cluster) -> list[dict[str, Any]]:
    return [values for name, values in frames(cluster.sent) if name == "WORK"]


def spans(cluster: Cluster) -> list[tuple[int, int, int]]:
    """Return (pos0, n_tokens, flags) of every WORK so far."""
    return [(w["pos0"], w["n_tokens"], w["flags"]) for w in works(cluster)]


def refuse_once(cluster: Cluster, number: int) -> None:
    """Turn the answer to one WORK into an error."""

    def tamper(_: int, data: bytes) -> bytes:
        ((_, values),) = frames(data)
        if values["request"] == number:
            return result(values["request"], status=1, payload=b"no")
        return data

    cluster.tamper = tamper


# ids


@proof(
    "DS4D-COORD-03",
    "snapshot ids out of the range of WORK",
    patch.object(Session, "next_snapshot_request", Session.next_request),
)
def snapshot_ids_have_a_range_of_their_own() -> None:
    session = Session(5)
    assert [session.next_request() for _ in range(2)] == [1, 2]
    assert [session.next_snapshot_request() for _ in range(2)] == [2**63, 2**63 + 1]
    assert session.next_request() == 3


# spans


def never_equal(self: Any, tokens: Any) -> Span:
    return Span(0, tokens, True, TokenHash())


@proof(
    "DS4D-COORD-10",
    "everything sent anew although nothing changed",
    patch.object(Session, "sync_span", never_equal),
)
def a_sync_without_news_sends_nothing() -> None:
    cluster = Cluster(*TWO)
    cluster.sync((5, 6, 7))
    sent = len(cluster.sent)
    done = cluster.sync((5, 6, 7))
    assert (done.kind, done.n_tokens) == (None, 0)
    assert len(cluster.sent) == sent


def rewinds(self: Any, tokens: Any) -> Span:
    """Go on from where a shorter transcript ends, as if workers could rewind."""
    keep = 0
    for known, token in zip(self.transcript, tokens, strict=False):
        if known != token:
            break
        keep += 1
    at = max(0, min(keep, len(tokens) - 1))
    return Span(at, tokens[at:], not at, TokenHash(tokens[:at]))


@proof(
    "DS4D-COORD-14",
    "a rewind that the wire does not have",
    patch.object(Session, "sync_span", rewinds),
)
def a_shorter_or_other_transcript_starts_anew() -> None:
    for other in ((5, 6), (5, 6, 9), (9, 6, 7, 8, 1)):
        cluster = Cluster(*TWO)
        cluster.sync((5, 6, 7, 8))
        done = cluster.sync(other)
        assert spans(cluster)[1:] == [(0, len(other), 5)]
        whole = toy.logits(toy.Slice(0, 7).run(other, None)[-1])
        assert np.array_equal(cluster.row(done), whole)


# chunks


@proof(
    "DS4D-COORD-15",
    "the option passed over",
    patch.object(PrefillSettings, "chunk_tokens", lambda self: self.prefill_cap),
)
def no_chunk_is_above_the_cap() -> None:
    for settings, cap in (
        (prefill_settings(16, chunk=5, env={"DS4_DIST_PREFILL_CHUNK": "7"}), 5),
        (prefill_settings(16, env={"DS4_DIST_PREFILL_CHUNK": "7"}), 7),
        (prefill_settings(16, env={}), 16),
    ):
        cluster = Cluster(*TWO, settings=settings)
        cluster.sync(LONG)
        sizes = [n for _, n, _ in spans(cluster)]
        assert max(sizes) == cap
        assert sum(sizes) == len(LONG)


@proof(
    "DS4D-COORD-16",
    "the check left out",
    lambda: without_check(ds4d_session, "DS4D-COORD-16"),
)
@proof(
    "DS4D-COORD-37",
    "workers dropped over a setting of our own",
    patch.object(
        ds4d_request,
        "SettingError",
        type("Other", (Exception,), {}),
    ),
)
def a_chunk_above_the_prefill_cap_is_an_error_of_our_own() -> None:
    cluster = Cluster(*TWO)
    cluster.sync(LONG[:4])
    sent, good = len(cluster.sent), cluster.settings
    cluster.settings = PrefillSettings(prefill_cap=16, chunk=17)
    done = attempt(cluster)
    assert isinstance(done, Failed)
    text = "distributed prefill chunk 17 exceeds session prefill cap 16"
    assert done.text == text
    assert (len(cluster.sent), len(cluster.registry)) == (sent, 2)
    cluster.settings = good
    cluster.eval(9)
    assert spans(cluster)[-1] == (4, 1, 1)


def attempt(cluster: Cluster) -> Any:
    """Return what a sync ends with, an exception included."""
    try:
        return cluster.sync(LONG)
    except Exception as error:
        return error


def eager(self: Any, span: Span) -> None:
    real_begin(self, span)
    self._window = 8


@proof(
    "DS4D-COORD-18",
    "the next chunk sent before the answer",
    lambda: patch.object(Request, "_begin", eager),
)
def a_sequential_request_has_one_work_unanswered() -> None:
    cluster = Cluster(*TWO, settings=replace(CAP, pipeline=False, send_depth=8))
    cluster.sync(LONG)
    assert [n for _, n, _ in spans(cluster)] == [8, 8, 8, 8, 8, 5]
    assert cluster.most_in_flight == 1
    assert all(not flags & 8 for *_, flags in spans(cluster))


@proof(
    "DS4D-COORD-20",
    "everything pipelined",
    patch.object(ds4d_request, "len", lambda _x: 1 << 20, create=True),
)
def only_a_long_span_with_a_head_is_pipelined() -> None:
    for settings, head, last_head, tokens, pipelined in (
        (CAP, True, True, LONG, True),
        (CAP, True, False, LONG, True),
        (CAP, True, True, LONG[:8], False),
        (replace(CAP, pipeline=False), True, True, LONG, False),
    ):
        cluster = Cluster((2, 7, last_head), settings=settings, head=head)
        cluster.sync(tokens)
        marks = [bool(flags & 8) for *_, flags in spans(cluster)]
        assert any(marks) == pipelined
        assert (cluster.most_in_flight > 1) == pipelined


@proof(
    "DS4D-COORD-25",
    "a queue of three",
    patch.object(PrefillSettings, "depth_chunks", lambda _self, _chunks: 3),
)
def the_sender_queue_holds_what_it_is_told() -> None:
    for depth, chunks, due in (
        (None, 6, 2),
        (1, 6, 1),
        (8, 6, 6),
        (9, 20, 2),
        (8, 20, 8),
    ):
        words = {} if depth is None else {"DS4_DIST_PREFILL_SEND_DEPTH": str(depth)}
        settings = prefill_settings(16, env=words)
        assert settings.depth_chunks(chunks) == due
    settings = prefill_settings(16, chunk=8, window=6, env={})
    cluster = Cluster((2, 7, True), settings=settings)
    route = cluster.route()
    link = route.workers[0].handle[2]
    request = Request(cluster.session, toy.MODEL, route, link, LONG, settings=settings)
    evaluated = 0
    for event in request.events():
        if isinstance(event, EvaluateLocal):
            request.send(LocalDone(event.index, bytes(len(event.tokens) * 256)), 0.0)
            evaluated += 1
    assert evaluated == 2


# the environment


@proof(
    "DS4D-OPT-50",
    "the variable passed over",
    patch.dict(prefill_settings.__kwdefaults__, env={}),
)
@proof(
    "DS4D-OPT-51",
    "the variable passed over",
    patch.dict(prefill_settings.__kwdefaults__, env={}),
)
def the_switches_of_the_environment_show_on_the_wire() -> None:
    seen = {}
    for name in ("PIPELINE", "ACK_ONLY"):
        env = {f"DS4_DIST_DISABLE_PREFILL_{name}": ""}
        with patch.dict("os.environ", env):
            settings = prefill_settings(16, chunk=8)
        cluster = Cluster(*TWO, settings=settings)
        cluster.sync(LONG)
        acks = [bool(flags & 8) for *_, flags in spans(cluster)]
        seen[name] = (cluster.most_in_flight > 1, any(acks))
    assert seen == {"PIPELINE": (False, False), "ACK_ONLY": (True, False)}


# recovery


def without_reset(self: Any, kind: str, tokens: Any) -> Span:
    whole = tokens if kind == "sync" else [*self.transcript, *tokens]
    return Span(0, whole, False, TokenHash())


@proof(
    "DS4D-FWD-23",
    "a repeat without RESET",
    patch.object(Session, "replay_span", without_reset),
)
def a_failed_dial_of_a_hop_is_healed_by_reset() -> None:
    cluster = Cluster(*TWO)
    cluster.sync((5, 6))
    answered = []

    def dial_fails(_: int, data: bytes) -> bytes:
        ((_, values),) = frames(data)
        if answered:
            return data
        answered.append(1)
        words = b"unable to connect to 10.0.0.2:2: Connection refused"
        return result(values["request"], status=1, payload=words)

    cluster.tamper = dial_fails
    done = cluster.eval(7)
    assert spans(cluster)[-2:] == [(2, 1, 1), (0, 3, 5)]
    whole = toy.logits(toy.Slice(0, 7).run((5, 6, 7), None)[-1])
    assert np.array_equal(cluster.row(done), whole)


def in_one_piece(self: Any, span: Span) -> None:
    if span.reset and self._replayed:
        self._settings = replace(self._settings, chunk=None, prefill_cap=1 << 20)
    real_begin(self, span)


real_begin = Request._begin


@proof(
    "DS4D-COORD-33",
    "a replay in one piece",
    patch.object(Request, "_begin", in_one_piece),
)
def a_replay_is_cut_like_a_first_attempt() -> None:
    cluster = Cluster(*TWO, settings=CAP)
    refuse_once(cluster, 3)
    cluster.sync(LONG)
    sizes = [n for _, n, _ in spans(cluster)]
    begun = max(i for i, (pos0, _, _) in enumerate(spans(cluster)) if pos0 == 0)
    assert begun > 0
    assert sizes[begun:] == [8, 8, 8, 8, 8, 5]
    assert [bool(f & 8) for *_, f in spans(cluster)[begun:]] == [True] * 5 + [False]


def drops_all(self: Any, event: Any) -> None:
    from ds4proto.link.ds4d_events import Fault, RouteLost

    fault = Fault("DS4D-COORD-37", event.text)
    self._out.append(RouteLost(self._route.workers, fault, replay=False))
    real_local_failed(self, event)


real_local_failed = Request._local_failed


@proof(
    "DS4D-COORD-37",
    "workers dropped over a failure of our own engine",
    patch.object(Request, "_local_failed", drops_all),
)
def a_failure_of_the_own_engine_costs_no_worker_its_connection() -> None:
    cluster = Cluster(*TWO)
    route = cluster.route()
    link = route.workers[0].handle[2]
    request = Request(cluster.session, toy.MODEL, route, link, LONG, settings=CAP)
    list(request.events())
    request.send(LocalFailed(0, "own engine failed"), 0.0)
    said = [type(event).__name__ for event in request.events()]
    assert said == ["Failed"]
    assert link.state == "idle" or not link.pending


def rounded(self: Any, link: Any, chunk: Any, hidden: Any, now: float) -> None:
    if self._pipelined and chunk.index:
        hidden = bytes(4) + bytes(hidden)[4:]
    real_submit(self, link, chunk, hidden, now)


real_submit = Request._submit


@proof(
    "DS4D-COORD-26",
    "a pipelined chunk with another first value",
    patch.object(Request, "_submit", rounded),
)
def pipelined_and_sequential_prefill_lead_to_the_same_bits() -> None:
    for bits in (32, 8):
        rows = []
        for pipeline in (True, False):
            settings = replace(CAP, pipeline=pipeline, bits=bits)
            rows.append(Cluster(*TWO, settings=settings).logits(LONG[:20]))
        assert np.array_equal(*rows)


@proof(
    "DS4D-WORK-42",
    "a chunk of the size that the option says",
    patch.object(ModelFacts, "most_tokens", 1 << 30),
)
def no_work_holds_more_tokens_than_its_lengths_can_say() -> None:
    with patch.object(ds4d_facts, "U32", 6 * 4 * toy.HIDDEN + 3):
        cluster = Cluster(*TWO, settings=CAP)
        cluster.sync(LONG)
    assert max(n for _, n, _ in spans(cluster)) == 6
