"""Reference peers behind the proxy: a run with a fault in it, and its record.

Peers are threads of this process, so that a run costs well under a second. Nothing here
judges; `recorded_pipeline` and `recorded_pair` return what the peers themselves said.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ds4proto_runtime.engines.toy import ToyEngine
from ds4proto_runtime.pipeline.coordinator import PipelineCoordinator
from ds4proto_runtime.pipeline.worker import PipelineWorker
from ds4proto_runtime.tp.leader import TpLeader
from ds4proto_runtime.tp.script import Script
from ds4proto_runtime.tp.toy import ToyShape, ToyTpEngine
from ds4proto_runtime.tp.worker import TpWorker

from ds4proto.errors import Ds4ProtoError
from ds4proto.link.ds4d_limits import LinkLimits
from ds4proto.link.ds4t_limits import GateLimits
from ds4proto.peer import listen
from ds4proto.peer.proxy import Proxy
from ds4proto.peer.proxy_faults import parse_rule
from tests.runtime.tp.rig import options

PATIENT = 30.0
TOUR = "create;sync:1:1-10;eval:1:5,6,7,8,9,10;destroy:1"
RETRIES = 1
ENDS = 5.0


def slow(engine: Any, seconds: float, *, once: int | None = None) -> Any:
    """Make an engine take longer, at each call or at call number `once` alone."""
    run, calls = engine.run, [0]

    def late(*args: Any, **words: Any) -> Any:
        calls[0] += 1
        if once in (None, calls[0]):
            time.sleep(seconds)
        return run(*args, **words)

    engine.run = late
    return engine


def _layers(text: str) -> range:
    start, _, end = text.partition(":")
    return range(int(start), 8 if end == "output" else int(end) + 1)


def engine_of(layers: str, **words: Any) -> ToyEngine:
    """Return the toy engine of a slice."""
    return ToyEngine(_layers(layers), has_head=layers.endswith("output"), **words)


def recorded_pipeline(
    path: Path,
    rules: Sequence[str] = (),
    *,
    stages: Sequence[str] = ("0:1", "2:output"),
    prompt: int = 20,
    evals: int = 8,
    bits: int = 32,
    patience: float = PATIENT,
    engines: dict[str, Any] | None = None,
    between: Callable[[int, dict[str, PipelineWorker]], None] | None = None,
    worker_words: dict[str, Any] | None = None,
    wait: float = 10.0,
) -> list[str]:
    """Run a prompt and some tokens through a pipeline; return what was said.

    Parameters
    ----------
    path : Path
        Of the record.
    rules : sequence of str
        Faults, as for ``ds4proto proxy --fault``.
    stages : sequence of str
        Slices; the first is the coordinator's.
    prompt, evals : int
        Tokens of the prompt, and behind it.
    patience : float
        How long the coordinator waits for an answer.
    engines : dict
        Slice -> engine, where it is not the toy's own.
    between : callable
        Told the number of each token before it is asked for, and the workers.
    wait : float
        How long the route may take.
    """
    said: list[str] = []
    own, *rest = stages
    made = engines or {}
    limits = LinkLimits(result_s=patience, forward_s=patience, stall_s=patience)
    with ExitStack() as stack:
        coordinator = stack.enter_context(
            PipelineCoordinator(
                made.get(own) or engine_of(own), bits=bits, limits=limits,
                log=said.append,
            )
        )  # fmt: skip
        proxy = stack.enter_context(
            Proxy(
                listen(), coordinator.address, record=path,
                rules=[parse_rule(rule) for rule in rules],
            )
        )  # fmt: skip
        workers: dict[str, PipelineWorker] = {}
        threads = []
        for layers in rest:
            words = dict(worker_words or {})
            workers[layers] = worker = PipelineWorker(
                made.get(layers) or engine_of(layers, **words), proxy.address,
                limits=LinkLimits(forward_s=patience), log=said.append,
            )  # fmt: skip
            thread = threading.Thread(target=worker.run, daemon=True)
            thread.start()
            threads.append(thread)
        session = coordinator.session(1)
        tokens = [(7 * n + 3) % 256 for n in range(prompt)]
        failures = 0
        for number in range(-1, evals):
            try:
                if number < 0 or failures:
                    coordinator.wait_route(wait)
                if number < 0:
                    said.append(f"sync {session.sync(tokens).n_tokens}")
                    continue
                if between is not None:
                    between(number, workers)
                said.append(f"eval {session.eval(17 + number).n_tokens}")
            except (Ds4ProtoError, OSError) as error:
                said.append(f"failed: {error}")
                failures += 1
                if failures > RETRIES:
                    break
        coordinator.close()
        for worker in workers.values():
            worker.stop()
        for thread in threads:
            thread.join(PATIENT)
        until = time.monotonic() + ENDS
        while proxy.open and time.monotonic() < until:
            time.sleep(0.02)  # the ends of the connections belong into the record
        proxy.close()
        said += proxy.faults
    return said


def recorded_pair(
    path: Path,
    rules: Sequence[str] = (),
    *,
    script: str = TOUR,
    gate_seconds: float = PATIENT,
    shapes: tuple[ToyShape, ToyShape] | None = None,
    engines: Callable[[int], Any] | None = None,
    worker_words: dict[str, Any] | None = None,
    answer: float = PATIENT,
) -> list[str]:
    """Run operations on a tensor-parallel pair; return what was said."""
    said: list[str] = []
    one, two = shapes or (ToyShape(), ToyShape())
    gates = GateLimits(idle=gate_seconds, total=gate_seconds, bulk_total=gate_seconds)
    settings = options(gates=gates)
    other = options(gates=gates, **(worker_words or {}))
    make = engines or (lambda rank: ToyTpEngine((one, two)[rank], rank))
    leader = TpLeader(make(0), options=settings, say=said.append)
    proxy = Proxy(
        listen(), leader.address, record=path,
        rules=[parse_rule(rule) for rule in rules],
    )  # fmt: skip

    def work() -> None:
        try:
            with TpWorker(make(1), *proxy.address, other, say=said.append) as worker:
                worker.serve()
        except (Ds4ProtoError, OSError) as error:
            said.append(f"worker: {error}")

    thread = threading.Thread(target=work, daemon=True)
    with proxy:
        thread.start()
        try:
            with leader:
                leader.accept()
                Script(leader, said.append).run(script)
        except (Ds4ProtoError, OSError) as error:
            said.append(f"leader: {error}")
        thread.join(answer)
        proxy.close()
    said += proxy.faults
    return said
