"""Prefill in flight: the stages compute at once, and the run says how much."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from ds4proto_runtime.engines.base import F32, Gate, Session
from ds4proto_runtime.engines.toy import ToyEngine
from ds4proto_runtime.pipeline.coordinator import PipelineCoordinator
from ds4proto_runtime.pipeline.generation import OverRoute
from ds4proto_runtime.pipeline.telemetry import HopTotals, Telemetry
from ds4proto_runtime.pipeline.worker import PipelineWorker

from tests.runtime.cluster import LONG, PATIENCE, alone, same_bits
from tests.runtime.test_private_dialect import running

CHUNK = 8
CHUNKS = -(-len(LONG) // CHUNK)


class Meeting(ToyEngine):
    """Evaluates some chunks only while the other stage evaluates one, too."""

    def __init__(self, layers: range, meet: threading.Barrier, chunks: range) -> None:
        super().__init__(layers)
        self._meet, self._chunks, self._at = meet, chunks, 0

    def run(
        self,
        session: Session,
        hidden: F32,
        tokens: Sequence[int],
        pos0: int,
        gate: Gate | None = None,
    ) -> F32:
        if self._at in self._chunks:
            self._meet.wait(PATIENCE)
        self._at += 1
        return super().run(session, hidden, tokens, pos0, gate)


def test_a_stage_computes_a_chunk_while_the_next_has_the_one_before() -> None:
    meet = threading.Barrier(2)
    first = Meeting(range(4), meet, range(1, CHUNKS))
    last = Meeting(range(4, 8), meet, range(CHUNKS - 1))
    with (
        PipelineCoordinator(first, chunk=CHUNK) as coordinator,
        running(PipelineWorker(last, coordinator.address)),
    ):
        coordinator.wait_route(PATIENCE)
        route = OverRoute(coordinator.session(1), coordinator.telemetry)
        logits = route.prefill(LONG, lambda _tokens: None)
    assert same_bits(logits, alone(LONG))
    own = coordinator.telemetry.own
    assert (own.layers, own.requests, own.tokens) == ("0:3", CHUNKS, len(LONG))
    assert own.eval_usec > 0
    assert route.overlap is not None
    # each of two stages is busy or waits for the other, which counts as well
    assert 0 < route.overlap < 2.1


def test_what_all_stages_computed() -> None:
    found = Telemetry(own=HopTotals("0:3"))
    found.evaluated(8, 0.25)
    found.evaluated(8, 0.5)
    record = {
        "layer_start": 4, "layer_end": 7, "n_tokens": 8, "eval_usec": 1_500_000,
        "forward_send_usec": 1, "downstream_wait_usec": 2, "input_bytes": 3,
        "output_bytes": 4,
    }  # fmt: skip
    found.add([(1, (record,)), (2, (record,))])
    assert found.busy_s == pytest.approx(3.75)
    assert (found.own.requests, found.own.tokens) == (2, 16)


def test_without_computation_nothing_is_claimed() -> None:
    assert OverRoute(None).overlap is None
