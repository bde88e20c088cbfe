"""Hand-over plans against figures worked out by hand, and local decode."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from ds4proto_runtime.cli.options import parse_options
from ds4proto_runtime.engines.base import EngineError
from ds4proto_runtime.engines.toy import ToyEngine
from ds4proto_runtime.handover import Plan, quantity, shard_size
from ds4proto_runtime.pipeline.coordinator import PipelineCoordinator
from ds4proto_runtime.pipeline.generation import Alone, OverRoute, Sampler, generate
from ds4proto_runtime.pipeline.local_decode import LocalDecode
from ds4proto_runtime.pipeline.telemetry import Telemetry

from ds4proto.cli import run as main
from ds4proto.errors import WrongUsage
from tests.runtime.cluster import LONG, PATIENCE, Cluster, alone, same_bits


def test_a_million_tokens_over_280_megabytes_a_second() -> None:
    plan = Plan(1_000_000, 26e9, 4096, 280e6)
    assert plan.chunks in (244, 245)
    assert 105e6 < plan.kv_chunk < 107e6
    assert 0.37 < plan.kv_chunk_s < 0.41
    assert plan.activation_chunk == 64 << 20
    assert Plan(1_000_000, 26e9, streams=4).activation_chunk == 256 << 20
    assert Plan(1_000_000, 26e9, streams=4, bits=8).activation_chunk == 64 << 20


def test_what_computation_hides() -> None:
    plan = Plan(1_000_000, 26e9, compute_s=2.0)
    assert plan.visible_s == 0
    hurried = Plan(1_000_000, 26e9, compute_s=0.1)
    assert hurried.visible_s == pytest.approx(0.52, abs=0.01)


@pytest.mark.parametrize(
    ("words", "value"),
    [("1M", 1e6), ("26GB", 26e9), ("280MB/s", 280e6), ("64MiB", 64 << 20), ("7", 7)],
)
def test_quantities(words: str, value: float) -> None:
    assert quantity(words) == value


def test_a_quantity_of_nothing_known() -> None:
    with pytest.raises(ValueError, match="expected a number"):
        quantity("26 elephants")


def test_the_plan_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--plan-handover", "--json", "--streams", "4"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["chunks"] == 245
    assert found["activation_chunk_bytes"] == 268435456
    assert main(["run", "--plan-handover", "--kv", "much"]) == 2
    assert "expected a number" in capsys.readouterr().err


def test_shard_sizes_of_the_toy_model() -> None:
    # 8 rows of 16 floats a layer; 62 // 4 = 15 rows and states where compressed
    shape = ToyEngine().shape
    raw = 8 * 16 * 4
    states4 = 2 * 4 * 16 * 4 * 4 + 2 * 4 * 8 * 4 * 4
    assert shard_size(shape, range(2), 62) == 2 * raw
    assert shard_size(shape, [2], 62) == raw + 15 * 16 * 4 + 15 * 8 * 4 + states4
    assert shard_size(shape, [3], 62) == raw + 2 * 16 * 128 * 4


@contextmanager
def local(log: list[str], bits: int = 32) -> Iterator[LocalDecode]:
    with PipelineCoordinator(
        ToyEngine(), layers=range(2), bits=bits, log=log.append
    ) as coordinator:
        found = Cluster(coordinator, log)
        try:
            found.start("2:4")
            found.start("5:output")
            coordinator.wait_route(PATIENCE)
            session = coordinator.session(1)
            yield LocalDecode(coordinator, session, log=log.append)
        finally:
            found.end()


def test_prefill_over_the_route_and_decode_here() -> None:
    log: list[str] = []
    with local(log) as runs:
        sampler = Sampler(0, 1)
        done = generate(runs, LONG, 10, sampler)
        assert done.tokens == generate(Alone(ToyEngine()), LONG, 10, sampler).tokens
        assert not runs.gathered.cold
        assert runs.gathered.nbytes - runs.gathered.predicted_bytes == 2 * 80
        told = runs.report(done)
        assert told["same_tokens"]
        assert told["distributed_decode_tokens_per_s"] > 0
        rate, due = told["link_bytes_per_s"], runs.gathered.predicted_bytes
        assert told["predicted_seconds"] == pytest.approx(due / rate)
        assert any("MB/s of the prefill's frames" in line for line in told["lines"])
        # the next prompt goes on from what was decoded here
        held = list(runs.tokens)
        longer = [*held, *range(30)]
        before = runs._session.transcript.last_request
        logits = runs.prefill(longer, lambda _tokens: None)
        assert same_bits(logits, alone(longer))
        assert runs.returned.nbytes > 0
        # 29 tokens in two chunks, then the last one: nothing was sent again
        assert runs._session.transcript.last_request == before + 3
        assert not any("cold start" in line for line in log)


def test_a_link_that_is_given_predicts_the_seconds() -> None:
    measured = Telemetry()
    assert measured.predicted_s(7) is None
    assert measured.prediction(7) == "no link rate known"
    measured.sent(100, 0.25)
    measured.sent(300, 0.75)
    assert measured.predicted_s(800) == 2.0
    given = Telemetry(280e6)
    given.sent(1, 1.0)
    assert given.predicted_s(140_000_000) == 0.5
    assert given.prediction(140_000_000) == "0.500 s at the 280 MB/s given"
    words = ["--role", "coordinator", "--layers", "0:1"]
    words += ["--listen", "127.0.0.1", "5000", "--link"]
    found = parse_options([*words, "280MB/s", "--local-decode"])
    assert found.link == 280e6
    for refused in ([*words, "1M"], [*words, "0", "--local-decode"], [*words, "x"]):
        with pytest.raises(WrongUsage):
            parse_options(refused)


def test_other_logits_mean_a_cold_start(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    with local(log) as runs:
        real = OverRoute(runs._session).session.sync

        def bent(tokens, **words):  # type: ignore[no-untyped-def]
            outcome = real(tokens, **words)
            if len(tokens) == len(LONG):
                logits = outcome.logits.copy()
                logits[3] = np.nextafter(logits[3], np.float32(9))
                object.__setattr__(outcome, "logits", logits)
            return outcome

        monkeypatch.setattr(runs._session, "sync", bent)
        done = generate(runs, LONG, 6, Sampler(0, 1))
        assert (
            done.tokens == generate(Alone(ToyEngine()), LONG, 6, Sampler(0, 1)).tokens
        )
        assert "next-token logits differ" in runs.gathered.cold
        assert any(line.startswith("cold start: ") for line in log)


def test_a_part_of_the_model_cannot_decode_alone() -> None:
    with (
        PipelineCoordinator(ToyEngine(range(2))) as coordinator,
        pytest.raises(EngineError, match="needs the whole model"),
    ):
        LocalDecode(coordinator, coordinator.session(1), log=lambda _line: None)
