"""The private dialect: who is refused, rows of a format, KV by spans, the check."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from ds4proto_runtime.engines.toy import ToyEngine
from ds4proto_runtime.pipeline import kv_spans, local_worker
from ds4proto_runtime.pipeline.generation import Alone
from ds4proto_runtime.pipeline.local_worker import LocalWorker
from ds4proto_runtime.pipeline.settings import SocketSettings
from ds4proto_runtime.pipeline.worker_engine import EngineRoom

from ds4proto.codec.token_hash import token_hash
from ds4proto.link import ds4d_facts, ds4d_registration, ds4d_worker
from ds4proto.link.ds4d_events import HelloAccepted, HelloRefused
from ds4proto.link.ds4d_facts import ModelFacts, WorkerFacts
from ds4proto.link.ds4d_local import TO_WORKER, local_frame, logits_hash
from ds4proto.link.ds4d_registration import Expected, Registration
from ds4proto.link.ds4d_work_checks import judge_work, read_head
from ds4proto.link.ds4d_worker import Worker
from ds4proto.link.ds4d_worker_events import LocalFrame
from ds4proto.schema import frame, read, to_bytes
from ds4proto.schema.ds4d_private import DIALECT, FORMAT_IDS
from ds4proto.schema.ds4d_private_frames import EXACT
from tests.link.ds4d.build import texts, work
from tests.link.ds4d.host import Host
from tests.spec.proving import proof
from tests.spec.removing import without_check

OURS = ModelFacts(0, "Toy V4", 8, 64, 256, 256, DIALECT)
STOCK = ModelFacts(0, "Toy V4", 8, 64, 256, 256)
TOKENS = (5, 6, 7, 8, 9, 10)


def heard(hello: bytes, bits: int = 32) -> str:
    """Return what a coordinator of the dialect makes of a HELLO."""
    expected = Expected(0, "Toy V4", 8, 256, DIALECT, bits)
    machine = Registration(expected, now=0.0)
    machine.receive_data(hello, 0.0)
    for event in machine.events():
        if isinstance(event, HelloAccepted):
            return "accepted"
        if isinstance(event, HelloRefused):
            return f"{'ERROR' if event.answered else 'close'}: {event.fault.text}"
    return "nothing"


@proof(
    "DS4D-OURS-02",
    "a close without a word",
    lambda: without_check(ds4d_registration, "hello"),
)
def a_hello_of_another_dialect_is_told_so() -> None:
    told = "ERROR: worker does not speak dialect ds4proto"
    own = WorkerFacts(OURS, 2, 7, True).hello_frame(5555)
    assert heard(WorkerFacts(STOCK, 2, 7, True).hello_frame(5555)) == told
    assert heard(own.replace(b"d4px", b"d4py")) == told
    assert heard(own) == "accepted"


def without_mxfp4() -> bytes:
    values = {**WorkerFacts(OURS, 2, 7, True).hello(5555), "abilities": 0x7F & ~0x10}
    return to_bytes(frame("DS4D.HELLO", dialect=DIALECT), values, dialect=DIALECT)


@proof(
    "DS4D-OURS-03",
    "the check left out",
    lambda: patch.object(
        ds4d_registration,
        "CHECKS",
        tuple(c for c in ds4d_registration.CHECKS if c.clause != "DS4D-OURS-03"),
    ),
)
def a_worker_without_the_format_in_use_is_refused() -> None:
    hello = without_mxfp4()
    told = "ERROR: worker does not take wire format mxfp4"
    assert heard(hello, FORMAT_IDS["mxfp4"]) == told
    assert heard(hello, FORMAT_IDS["int8"]) == "accepted"
    assert heard(hello, 16) == "accepted"


@proof(
    "DS4D-OURS-05",
    "rows without scales",
    patch.object(ds4d_facts, "row_bytes", lambda _word, values: values),
)
def a_hidden_state_in_a_format_is_rows_with_scales_of_their_own() -> None:
    facts = WorkerFacts(OURS, 5, 7, True)
    for size, told in (
        (3 * 68, None),
        (3 * 64, "input hidden-state size does not match token span"),
        (3 * 64 + 4, "input hidden-state size does not match token span"),
    ):
        data = work((1, 2, 3), bits=FORMAT_IDS["int8"], hidden=bytes(size))
        body = memoryview(data)[12:]
        fault = judge_work(read_head(facts, len(body), body), body)
        assert (fault and fault.text) == told, size


@proof(
    "DS4D-OURS-17",
    "a worker of a slice that takes all the same",
    patch.object(ds4d_worker, "DECODER_ONLY", frozenset()),
)
def a_worker_of_a_slice_refuses_what_needs_the_whole_model() -> None:
    span = {"layer_start": 0, "layer_end": 2, "pos0": 0, "n_tokens": 1}
    head = {"model_id": 0, "session": 1, "request": 1}
    ends = {"prefix_hash": 5, "result_hash": 6}
    frames = {
        "KV_INCREMENT": {**head, **ends, **span, "tokens": (), "payload": b""},
        "KV_FETCH": {**head, **span},
    }
    for name, values in frames.items():
        (spec,) = (s for s in TO_WORKER.values() if s.name == name)
        host = Host(WorkerFacts(OURS, 2, 4, False))
        link = host.open()
        host.give(link, b"".join(map(bytes, local_frame(spec, **values))))
        assert texts(host.wrote[link]) == ["worker does not decode alone"], name
        assert link in host.closed


# spans and the check


class Decoder:
    """The last worker of a route, which holds the whole model."""

    def __init__(self) -> None:
        self.engine, self.far = ToyEngine(), ToyEngine()
        facts = WorkerFacts(OURS, 0, 7, True, local_decode=True)
        self.local = LocalWorker(
            EngineRoom(self.engine, profile="strict", log=lambda _line: None),
            Worker(facts),
            threading.Lock(),
            sockets=SocketSettings.of({}),
            recorder=None,
            log=lambda _line: None,
        )
        self.session = self.far.open()
        self.said: list[str] = []

    def span(self, count: int, **lies: Any) -> None:
        """Evaluate some more tokens elsewhere, and bring their KV here."""
        pos = len(self.session.tokens)
        tokens = TOKENS[pos : pos + count]
        self.far.run(self.session, self.far.embed(tokens), tokens, pos)
        layers = self.far.layers
        data = kv_spans.export(self.far, self.session, layers, pos, count)
        values = {
            "model_id": 0,
            "session": 1,
            "request": 1,
            "prefix_hash": token_hash(TOKENS[:pos]),
            "result_hash": token_hash(TOKENS[: pos + count]),
            "layer_start": 0,
            "layer_end": 7,
            "pos0": pos,
            "n_tokens": count,
            "payload": data,
            **lies,
        }
        self.local.take(LocalFrame("KV_INCREMENT", values), self.line)

    @property
    def line(self) -> Any:
        def put(buffers: Any) -> None:
            spec = frame("DS4D.LOCAL_ANSWER", dialect=DIALECT)
            data = b"".join(map(bytes, buffers))
            self.said.append(read(spec, data, dialect=DIALECT).values["message"])

        return SimpleNamespace(put=put, flush=lambda: None)

    @property
    def held(self) -> set[tuple[int, int]]:
        return set(self.local._wholes[1].held.values())

    def check(self, **lies: Any) -> str:
        """Ask for the next token's logits; return what is wrong with them."""
        logits = Alone(ToyEngine()).prefill(list(TOKENS), lambda _n: None)
        values = {
            "model_id": 0,
            "session": 1,
            "request": 2,
            "tokens": TOKENS,
            "token_hash": token_hash(TOKENS),
            "flags": EXACT,
            "wait_msec": 0,
            "next_token": int(logits.argmax()),
            "logits_hash": logits_hash(logits.tobytes()),
            **lies,
        }
        self.local.take(LocalFrame("KV_CHECK", values), self.line)
        return self.said[-1]


def mixes(self: LocalWorker, values: Any, layers: range, data: Any) -> None:
    """Take any span as the one that follows."""
    whole = self._whole(values["session"])
    count = values["n_tokens"]
    kv_spans.extend(self._engine, whole.session, layers, values["pos0"], count, data)
    for layer in layers:
        whole.held[layer] = (values["pos0"] + count, values["result_hash"])


@proof(
    "DS4D-OURS-12",
    "a span taken wherever it comes from",
    patch.object(LocalWorker, "_span", mixes),
)
def a_span_follows_what_its_layer_holds_or_the_layer_is_forgotten() -> None:
    decoder = Decoder()
    decoder.span(3)
    assert decoder.held == {(3, token_hash(TOKENS[:3]))}
    decoder.span(2)
    assert decoder.held == {(5, token_hash(TOKENS[:5]))}
    for lie in ({"prefix_hash": 5}, {"pos0": 2, "prefix_hash": token_hash(TOKENS[:2])}):
        decoder = Decoder()
        decoder.span(3)
        decoder.span(2, **lie)
        assert decoder.held == set(), lie


@proof(
    "DS4D-OURS-14",
    "any logits taken for those of the route",
    patch.object(local_worker, "_other", lambda _logits, _values: False),
)
def the_next_tokens_logits_are_compared_with_those_of_the_route() -> None:
    differ = "next-token logits differ"
    for lies, told in (
        ({}, ""),
        ({"logits_hash": 1}, differ),
        ({"next_token": 3}, differ),
        ({"next_token": 3, "flags": 0}, differ),
        ({"logits_hash": 1, "flags": 0}, ""),
    ):
        decoder = Decoder()
        decoder.span(5)
        assert decoder.check(**lies) == told, lies
