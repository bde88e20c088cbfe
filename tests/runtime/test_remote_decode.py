"""Prefill over the route, decode at the last worker: KV, checks, the way back."""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ds4proto_runtime.engines.base import F32, Engine, EngineError
from ds4proto_runtime.engines.deepseek_v4 import DeepseekV4Engine
from ds4proto_runtime.engines.toy import ToyEngine
from ds4proto_runtime.engines.v4_weights import tiny_config
from ds4proto_runtime.handover import span_size
from ds4proto_runtime.pipeline import kv_spans
from ds4proto_runtime.pipeline.coordinator import PipelineCoordinator
from ds4proto_runtime.pipeline.generation import Alone, Sampler, generate
from ds4proto_runtime.pipeline.remote_decode import RemoteDecode
from ds4proto_runtime.pipeline.session import PipelineError
from ds4proto_runtime.pipeline.worker import PipelineWorker

from ds4proto.codec.token_hash import token_hash
from ds4proto.link.ds4d_local import local_frame
from ds4proto.peer import Recorder, spawn
from ds4proto.schema.ds4d_private import FORMAT_IDS
from ds4proto.schema.ds4d_private_frames import KV_INCREMENT
from ds4proto.trace.decoder import decode
from tests.runtime.cluster import ENV, LONG, PATIENCE, alone, same_bits, wait_until
from tests.runtime.ports import held_port
from tests.runtime.test_private_dialect import PRIVATE, Make, error, running, tiny_moe
from tests.runtime.test_private_dialect import toy as toy_model
from tests.runtime.test_run import RUN, finish

SLICES = (range(3), range(3, 6), range(6, 8))


@dataclass
class Found:
    """A route whose last worker holds the whole model."""

    coordinator: PipelineCoordinator
    workers: list[PipelineWorker]
    runs: RemoteDecode
    log: list[str]

    @property
    def decoder(self) -> Any:
        return self.workers[-1]._local


@contextmanager
def route(
    make: Make,
    bits: int = 32,
    wait_s: float = 30.0,
    recorders: tuple[Recorder | None, Recorder | None] = (None, None),
) -> Iterator[Found]:
    log: list[str] = []
    with ExitStack() as stack:
        coordinator = stack.enter_context(
            PipelineCoordinator(
                make(SLICES[0], False),
                bits=bits,
                dialect=PRIVATE,
                chunk=16,
                rejoin_s=PATIENCE,
                recorder=recorders[0],
                log=log.append,
            )
        )
        workers = []
        for layers in SLICES[1:]:
            last = layers.stop == 8
            workers.append(
                PipelineWorker(
                    make(range(8) if last else layers, last),
                    coordinator.address,
                    dialect=PRIVATE,
                    layers=layers,
                    local_decode=last,
                    recorder=None if last else recorders[1],
                    log=log.append,
                )
            )
        stack.enter_context(running(*workers))
        coordinator.wait_route(PATIENCE)
        session = coordinator.session(1)
        runs = RemoteDecode(coordinator, session, log=log.append, wait_s=wait_s)
        stack.callback(runs.close)
        yield Found(coordinator, workers, runs, log)


def tiny_v4(layers: range, head: bool) -> Engine:
    """Return a generated DeepSeek V4: compressors with states, hashed and routed."""
    return DeepseekV4Engine(tiny_config(), layers, has_head=head, ctx=256)


def near(make: Make, prompt: list[int], count: int) -> list[int]:
    """Return what one process generates."""
    return generate(Alone(make(range(8), True)), prompt, count, Sampler(0, 1)).tokens


def fed(engine: Engine, spans: Sequence[Sequence[int]]) -> F32:
    """Return the logits of one process that evaluates these very spans."""
    session = engine.open()
    for span in spans:
        rows = engine.run(session, engine.embed(span), span, len(session.tokens))
    return engine.head(rows[-1])


@pytest.mark.parametrize("make", [toy_model, tiny_moe, tiny_v4])
def test_the_last_worker_decodes_what_one_process_does(make: Make) -> None:
    with route(make) as found:
        seen: list[int] = []
        done = found.runs.generate(LONG, 10, each=seen.append)
        assert done.tokens == seen == near(make, LONG, 10)
        assert found.runs.gathered.cold == ""
        whole = found.decoder._wholes[found.runs._session.transcript.session_id]
        assert whole.session.tokens == found.runs.tokens == [*LONG, *done.tokens[:-1]]
        # every layer's rows crossed or were there, and as many as were predicted
        assert found.runs.gathered.nbytes == found.runs.gathered.predicted_bytes > 0
        report = found.runs.report(done)
        assert report["same_tokens"]
        # 60 tokens in chunks of 16; the layers of the decoding worker do not cross
        crossing = span_size(make(range(1), False).shape, range(6), 48, 12)
        rate = report["link_bytes_per_s"]
        assert report["predicted_seconds"] == pytest.approx(crossing / rate)
        assert report["distributed_decode_tokens_per_s"] > 0


@pytest.mark.parametrize("make", [toy_model, tiny_moe, tiny_v4])
def test_the_next_prompt_goes_on_from_the_decoded_text(make: Make) -> None:
    with route(make) as found:
        first = found.runs.generate(LONG, 10)
        longer = [*found.runs.tokens, *range(30)]
        sent = found.runs._session.transcript.last_request
        second = found.runs.generate(longer, 6)
        assert found.runs.gathered.cold == ""
        # what crossed for this prompt, not what the first one brought
        assert found.runs.gathered.nbytes == found.runs.gathered.predicted_bytes > 0
        assert found.runs.returned.nbytes == found.runs.returned.predicted_bytes > 0
        # 29 tokens in two chunks, then the last one: nothing was sent again
        assert found.runs._session.transcript.last_request == sent + 3
        # every slice holds what one process would
        plain = found.runs._session.eval(second.tokens[0]).logits
        spans = [
            *(LONG[at : min(at + 16, 60)] for at in range(0, 60, 16)),
            *([token] for token in (LONG[60], *first.tokens[:-1])),
            *(longer[70:86], longer[86:99], longer[99:]),
            *([token] for token in second.tokens),
        ]
        engine = make(range(8), True)
        assert same_bits(plain, fed(engine, spans[:-5]))
        for at, token in enumerate(second.tokens):
            assert int(fed(engine, spans[: at - 6]).argmax()) == token


def test_a_prompt_that_goes_elsewhere_begins_anew() -> None:
    with route(toy_model) as found:
        found.runs.generate(LONG, 10)
        other = [*LONG, 1, 2, 3]
        assert found.runs.generate(other, 5).tokens == near(toy_model, other, 5)
        assert found.runs.gathered.cold == ""
        assert found.runs.returned.nbytes == 0


def test_a_packed_width_agrees_by_the_next_token() -> None:
    with route(tiny_moe, FORMAT_IDS["int8"]) as found:
        done = found.runs.generate(LONG[:20], 4)
        assert found.runs.gathered.cold == ""
        assert len(done.tokens) == 4


def test_one_token_needs_no_kv() -> None:
    with route(toy_model) as found:
        assert found.runs.generate([7], 5).tokens == near(toy_model, [7], 5)
        assert found.runs.gathered.cold == ""


def test_what_crosses_is_recorded_and_decoded_without_a_fault(tmp_path: Path) -> None:
    paths = (tmp_path / "coordinator.pcapng", tmp_path / "middle.pcapng")
    with (
        Recorder(paths[0]) as ours,
        Recorder(paths[1]) as theirs,
        route(toy_model, recorders=(ours, theirs)) as found,
    ):
        done = found.runs.generate(LONG, 4)
        longer = [*found.runs.tokens, 1, 2, 3]
        found.runs.generate(longer, 2)
    both = [list(decode(str(path))) for path in paths]
    assert [p for rows in both for row in rows for p in row.problems] == []
    counts, middle = (Counter(row.type for row in rows) for rows in both)
    # 60 tokens in four chunks and 2 in one
    assert counts["KV_INCREMENT"] == middle["KV_INCREMENT"] == 4 + 1
    assert counts["KV_CHECK"] == counts["LOCAL_GENERATE"] == 2
    assert counts["LOCAL_TOKENS"] == 4 + 2
    # fetched for the coordinator and the middle; pushed to both workers
    assert (counts["KV_FETCH"], counts["KV_RETURN"]) == (2, 4)
    assert (middle["KV_RETURN"], middle["LOCAL_ANSWER"]) == (1, 1)
    assert counts["LOCAL_ANSWER"] == 2 + 2
    spans = [r.fields for rows in both for r in rows if r.type == "KV_INCREMENT"]
    chunks = {(0, 16), (16, 16), (32, 16), (48, 12), (64, 2)}
    assert {(f["pos0"], f["n_tokens"]) for f in spans} == chunks
    assert {(f["layer_start"], f["layer_end"]) for f in spans} == {(0, 2), (3, 5)}
    asked = [r.fields for r in both[1] if r.type == "WORK"]
    assert len(asked) == 2 * 7
    assert {f["pos0"] for f in asked if f["flags"] & 0x100} == {0, 16, 32, 48, 64}
    assert {f["pos0"] for f in asked if not f["flags"] & 0x100} == {60, 66}
    assert len(done.tokens) == 4


# what does not fit


def test_a_hop_that_sends_no_kv_means_a_cold_start() -> None:
    with route(toy_model, wait_s=0.2) as found:
        found.workers[0]._room.on_span = None
        judge, decoder = found.decoder._await, found.decoder

        def await_(whole: Any, before: list[int], seconds: float) -> None:
            """Be patient with the layers whose KV does come."""
            wanted = (len(before), token_hash(before))
            coming = [*SLICES[0], *SLICES[2]]
            decoder._changed.wait_for(
                lambda: all(whole.held.get(layer) == wanted for layer in coming),
                PATIENCE,
            )
            judge(whole, before, seconds)

        decoder._await = await_
        done = found.runs.generate(LONG, 6)
        assert done.tokens == near(toy_model, LONG, 6)
        assert (
            found.runs.gathered.cold == "KV of layer 3 ends at 0, the prompt needs 60"
        )
        assert sum(line.startswith("cold start: ") for line in found.log) == 1
        # nothing of a cold start goes back to the slices
        longer = [*found.runs.tokens, 4, 5, 6]
        assert found.runs.generate(longer, 3).tokens == near(toy_model, longer, 3)
        assert found.runs.returned.nbytes == 0


def test_bent_kv_means_a_cold_start(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ToyEngine.kv_span

    def bent(self: ToyEngine, session: Any, layer: int, pos: int, count: int) -> Any:
        rows = np.frombuffer(real(self, session, layer, pos, count), np.float32).copy()
        if layer == 1:
            rows[-1] = np.nextafter(rows[-1], np.float32(9))
            rows[-9:] += np.float32(0.5)
        return rows.tobytes()

    monkeypatch.setattr(ToyEngine, "kv_span", bent)
    with route(toy_model) as found:
        done = found.runs.generate(LONG, 6)
        assert found.runs.gathered.cold == "next-token logits differ"
    monkeypatch.undo()
    assert done.tokens == near(toy_model, LONG, 6)


def test_a_span_of_another_transcript_is_not_mixed_in() -> None:
    with route(toy_model) as found:
        found.runs.generate(LONG, 3)
        number = found.runs._session.transcript.session_id
        whole = found.decoder._wholes[number]
        before = dict(whole.held)
        engine = ToyEngine(range(3))
        size = span_size(engine.shape, range(3), 63, 1)
        frame = local_frame(
            KV_INCREMENT, model_id=0, session=number, request=99, prefix_hash=5,
            result_hash=6, layer_start=0, layer_end=2, pos0=63, n_tokens=1, tokens=(),
            payload=bytes(size),
        )  # fmt: skip
        with closing(
            socket.create_connection(("127.0.0.1", found.workers[-1].port), 20)
        ) as sock:
            sock.sendall(b"".join(bytes(part) for part in frame))
            told = "does not follow what is held"
            wait_until(lambda: any(told in line for line in found.log), found.log)
        assert {layer: before[layer] for layer in range(3, 8)} == whole.held


def test_kv_that_comes_behind_a_cold_start_is_not_mixed_in() -> None:
    """Spans of the prefill that failed may still be under way."""
    late = [1] * 8
    engine = ToyEngine()
    session = engine.open()
    engine.run(session, engine.embed(late), late, 0)
    with route(toy_model, wait_s=0.2) as found:
        found.workers[0]._room.on_span = None
        decoder, generated = found.decoder, found.decoder._generate

        def generate_(values: Any, line: Any) -> None:
            words = {
                "session": values["session"],
                "pos0": 0,
                "n_tokens": len(late),
                "prefix_hash": token_hash([]),
                "result_hash": token_hash(late),
            }
            for layers in SLICES[:2]:
                data = kv_spans.export(engine, session, layers, 0, len(late))
                decoder._span(words, layers, data)
            generated(values, line)

        decoder._generate = generate_
        done = found.runs.generate(LONG, 6)
        assert found.runs.gathered.cold
        assert done.tokens == near(toy_model, LONG, 6)


def test_a_changed_route_means_a_cold_start() -> None:
    """A worker goes in the middle of the prefill, and another takes its slice."""
    with route(toy_model) as found, ExitStack() as stack:

        def change(_tokens: int) -> None:
            if len(found.workers) == 3:
                return
            found.workers[0].stop()
            other = PipelineWorker(
                ToyEngine(SLICES[1], has_head=False),
                found.coordinator.address,
                dialect=PRIVATE,
                layers=SLICES[1],
            )
            found.workers.append(other)
            stack.enter_context(running(other))
            workers = found.coordinator.door.workers
            wait_until(
                lambda: other.port in [entry.port for entry in workers()], found.log
            )

        done = found.runs.generate(LONG, 4, progress=change)
        assert found.runs.gathered.cold == "the route has changed since the prefill"
        assert done.tokens == near(toy_model, LONG, 4)
        assert any(line.startswith("replaying ") for line in found.log)


def test_spans_of_the_toy_model_have_the_size_of_their_rows() -> None:
    engine = ToyEngine()
    size = span_size
    # two states of 8 rows (two groups of 4) of twice the width, for both compressors
    states = 2 * 8 * (2 * 16 + 2 * 8) * 4
    # 3 raw rows of 16 floats; none of 8 positions ends a group of 4
    assert size(engine.shape, [2], 4, 3) == 3 * 64 + states
    # from 4 to 12: 8 raw rows, two compressed of 16 floats, two indexer rows of 8
    assert size(engine.shape, [2], 4, 8) == 8 * 64 + 2 * 64 + 2 * 32 + states
    # the raw window holds 8 rows; position 127 ends the first group of 128
    assert size(engine.shape, [3], 112, 16) == 8 * 64 + 64 + 2 * 128 * 64
    session = engine.open()
    with pytest.raises(EngineError, match=r"KV span of 12 bytes, .* call for 3264"):
        kv_spans.extend(engine, session, range(2, 3), 0, 3, bytes(12))


def test_spans_rebuild_a_session_bit_by_bit() -> None:
    far, here = ToyEngine(), ToyEngine()
    session, copy = far.open(), here.open()
    for at in range(0, len(LONG), 13):
        span = LONG[at : at + 13]
        far.run(session, far.embed(span), span, at)
        data = kv_spans.export(far, session, far.layers, at, len(span))
        kv_spans.extend(here, copy, here.layers, at, len(span), data)
        copy.tokens.extend(span)
    rows = far.run(session, far.embed([9]), [9], len(LONG))
    again = here.run(copy, here.embed([9]), [9], len(LONG))
    assert same_bits(rows, again)
    assert same_bits(far.head(rows[-1]), alone([*LONG, 9]))


# who cannot


def test_a_worker_without_the_whole_model_refuses() -> None:
    frame = local_frame(
        KV_INCREMENT, model_id=0, session=1, request=1, prefix_hash=5, result_hash=6,
        layer_start=0, layer_end=2, pos0=0, n_tokens=1, tokens=(), payload=b"",
    )  # fmt: skip
    with route(toy_model) as found:
        for worker, told in (
            (found.workers[0], error("worker does not decode alone")),
        ):
            with closing(
                socket.create_connection(("127.0.0.1", worker.port), 20)
            ) as sock:
                sock.settimeout(20)
                sock.sendall(b"".join(bytes(part) for part in frame))
                data = b""
                while part := sock.recv(4096):
                    data += part
            assert data == told


def test_a_route_without_such_a_worker_says_so() -> None:
    with (
        PipelineCoordinator(ToyEngine(range(3)), dialect=PRIVATE) as coordinator,
        running(
            PipelineWorker(ToyEngine(range(3, 8)), coordinator.address, dialect=PRIVATE)
        ),
    ):
        coordinator.wait_route(PATIENCE)
        runs = RemoteDecode(coordinator, coordinator.session(1), log=lambda _line: None)
        with pytest.raises(PipelineError, match="cannot decode alone: start the"):
            runs.generate(LONG, 3)


def test_an_engine_whose_kv_does_not_move_in_spans() -> None:
    class Other:
        shape = ToyEngine().shape

    engine: Engine = Other()  # type: ignore[assignment]
    with pytest.raises(EngineError, match="does not move in spans"):
        kv_spans.spans_of(engine)


def test_three_processes_by_the_command_line() -> None:
    with held_port() as port:
        _three_processes(str(port))


def _three_processes(port: str) -> None:
    there = ["--coordinator", "127.0.0.1", port, "--dialect", PRIVATE]
    workers = [
        spawn([*RUN, "--role", "worker", "--layers", *words, *there], env=ENV)
        for words in (["3:5"], ["6:output", "--local-decode"])
    ]
    try:
        done = finish(
            ["--role", "coordinator", "--layers", "0:2", "--listen", "127.0.0.1", port,
             "--dialect", PRIVATE, "--local-decode", "-p", "1,2,3,4,5", "-n", "6",
             "--json", "--route-wait", "240s"]
        )  # fmt: skip
    finally:
        for worker in workers:
            worker.end()
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["tokens"] == near(toy_model, [1, 2, 3, 4, 5], 6)
    assert told["handover"]["cold_start"] == ""
    assert told["handover"]["bytes"] == told["handover"]["predicted_bytes"] > 0
