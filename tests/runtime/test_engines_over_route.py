"""Real engines over three stages at 32 bits: the logits bits of one process."""

from __future__ import annotations

import threading

import pytest
from ds4proto_runtime.pipeline.coordinator import PipelineCoordinator
from ds4proto_runtime.pipeline.generation import Alone
from ds4proto_runtime.pipeline.models import choose, open_engine
from ds4proto_runtime.pipeline.worker import PipelineWorker

from tests.runtime.cluster import PATIENCE, same_bits
from tests.runtime.test_run import MODEL

PROMPT = [9, 200, 37, 4, 151, 77, 9, 13, 180, 42, 5]


@pytest.mark.parametrize("name", ["decoder", "deepseek_v4"])
def test_sliced_equals_unsliced(name: str) -> None:
    """Workers are threads here, so that torch is loaded once; the sockets are real."""
    choice = choose(name, MODEL if name == "decoder" else None)
    whole = Alone(open_engine(choice, range(8), head=True, ctx=256))
    engine = open_engine(choice, range(3), head=True, ctx=256)
    with PipelineCoordinator(engine) as coordinator:
        workers = [
            PipelineWorker(
                open_engine(choice, layers, head=layers.stop == 8, ctx=256),
                coordinator.address,
            )
            for layers in (range(3, 6), range(6, 8))
        ]
        threads = [
            threading.Thread(target=worker.run, daemon=True) for worker in workers
        ]
        for thread in threads:
            thread.start()
        try:
            coordinator.wait_route(PATIENCE)
            session = coordinator.session(1)
            far = session.sync(PROMPT).logits
            near = whole.prefill(PROMPT, lambda _tokens: None)
            assert same_bits(far, near)
            for _ in range(4):
                token = int(near.argmax())
                far, near = session.eval(token).logits, whole.step(token)
                assert same_bits(far, near)
        finally:
            for worker in workers:
                worker.stop()
            for thread in threads:
                thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
