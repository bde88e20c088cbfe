"""Faults whose cause is known because it was put there, and what has to be found.

Most are injected by the proxy between two reference peers, or by an engine that
misbehaves behind them. ``built`` ones are captures written packet by packet, for what a
proxy cannot do to TCP; they are marked as such in the table.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from ds4proto_runtime.tp.toy import ToyShape, ToyTpEngine

from tests.trace.diagnosis.built import (
    delayed_acks,
    link_local_gid,
    log_of_a_timeout,
    lossy_wire,
    slow_link_from_both_sides,
    slow_rank_from_both_sides,
    slow_round_trip,
)
from tests.trace.diagnosis.stage import (
    engine_of,
    recorded_pair,
    recorded_pipeline,
    slow,
)

How = Literal["proxy", "engine", "peer", "built"]
Make = Callable[[Path], Sequence[Path]]

__all__ = ["FAULTS", "Fault"]


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes
    ----------
    name, kind : str
    how : str
        ``proxy``: a rule of the proxy; ``engine``: what a peer computes; ``peer``: how
        it was started or ended; ``built``: a capture made by hand.
    what : str
        What was done, in words.
    make : callable
        Takes a folder, returns the files to diagnose.
    expect : tuple of str
        Codes of findings that name the cause; none where no byte on the wire tells.
    words : tuple of str
        What the sentence has to say.
    """

    name: str
    kind: str
    how: How
    what: str
    make: Make
    expect: tuple[str, ...]
    words: tuple[str, ...] = ()


def pipe(*rules: str, **words: Any) -> Make:
    """A pipeline through the proxy."""

    def make(folder: Path) -> Sequence[Path]:
        path = folder / "run.pcapng"
        recorded_pipeline(path, rules, **words)
        return [path]

    return make


def engines(**made: Callable[[], Any]) -> Make:
    """A pipeline whose engines misbehave: `a` the coordinator's, `b` the worker's."""

    def make(folder: Path) -> Sequence[Path]:
        path = folder / "run.pcapng"
        names = {"a": "0:1", "b": "2:output"}
        found = {names[key]: build() for key, build in made.items()}
        recorded_pipeline(path, engines=found)
        return [path]

    return make


def pair(*rules: str, **words: Any) -> Make:
    """A tensor-parallel pair through the proxy."""

    def make(folder: Path) -> Sequence[Path]:
        path = folder / "pair.pcapng"
        recorded_pair(path, rules, **words)
        return [path]

    return make


def bent(layers: str, change: Callable[[Any], None], at: int = 4) -> Callable[[], Any]:
    """Make an engine whose output is changed from call number `at` on."""

    def build() -> Any:
        engine: Any = engine_of(layers)
        run, calls = engine.run, [0]

        def wrong(*args: Any, **words: Any) -> Any:
            calls[0] += 1
            result = np.array(run(*args, **words))
            if calls[0] >= at:
                change(result)
            return result

        engine.run = wrong
        return engine

    return build


def value(number: float) -> Callable[[Any], None]:
    """Change one value of a hidden state."""

    def change(result: Any) -> None:
        result.reshape(-1)[5] = number

    return change


def zeros(result: Any) -> None:
    """Leave a buffer unwritten."""
    result[...] = 0


def slow_rank(
    rank: int, seconds: float, once: int | None = None
) -> Callable[[int], Any]:
    """Make a pair of which one rank comes late to gates."""

    def make(number: int) -> Any:
        engine: Any = ToyTpEngine(ToyShape(), number)
        if number != rank:
            return engine
        attention = engine._attention
        calls = [0]

        def late(*args: Any, **words: Any) -> Any:
            calls[0] += 1
            if once in (None, calls[0]):
                time.sleep(seconds)
            return attention(*args, **words)

        engine._attention = late
        return engine

    return make


def stop_worker(number: int, workers: dict[str, Any]) -> None:
    """End the worker before token 4, while nothing is asked."""
    if number == 4:
        for worker in workers.values():
            worker.stop()
        time.sleep(3.0)


WIDE: Final = ("0:1", "2:4", "5:output")
OTHER: Final = (ToyShape(), ToyShape(n_layer=3))


def _uneven(folder: Path) -> Sequence[Path]:
    path = folder / "run.pcapng"
    late = slow(engine_of("5:output"), 0.036)
    early = slow(engine_of("2:4"), 0.006)
    recorded_pipeline(path, stages=WIDE, engines={"5:output": late, "2:4": early})
    return [path]


def _clipped(folder: Path) -> Sequence[Path]:
    path = folder / "run.pcapng"
    recorded_pipeline(path, bits=8, engines={"0:1": bent("0:1", value(300.0))()})
    return [path]


FAULTS: Final = (
    # delay
    Fault("delay-up", "delay", "proxy", "answers of the worker come 20 ms late",
          pipe("delay=20ms,way=up"), ("pipeline.slow-network",), ("worker 2:output",)),
    Fault("delay-down", "delay", "proxy", "requests reach the worker 30 ms late",
          pipe("delay=30ms,way=down"), ("pipeline.slow-coordinator",),
          ("cannot tell",)),
    Fault("delay-second-hop", "delay", "proxy",
          "the hop between two workers takes 25 ms each way",
          pipe("delay=25ms,kind=hop", stages=WIDE), ("pipeline.slow-network",),
          ("worker 2:4 -> worker 5:output",)),
    Fault("delay-gates", "delay", "proxy", "gates take 4 ms each way",
          pair("delay=4ms"), ("tp.slow-gates",), ("link",)),
    # jitter
    Fault("jitter-up", "jitter", "proxy", "answers come up to 120 ms late, by chance",
          pipe("delay=0ms,jitter=120ms,way=up"),
          ("pipeline.slow-network", "pipeline.jitter")),
    Fault("jitter-gates", "jitter", "proxy", "gates come up to 40 ms late, by chance",
          pair("delay=0ms,jitter=40ms,way=up"), ("tp.slow-gates", "tp.skew")),
    # rate
    Fault("rate-up", "rate", "proxy", "answers pass at 20 kB/s",
          pipe("rate=20k,way=up", prompt=61), ("pipeline.slow-transfer",), ("MB/s",)),
    Fault("rate-down", "rate", "proxy", "requests pass at 20 kB/s",
          pipe("rate=20k,way=down"),
          ("pipeline.slow-transfer", "pipeline.slow-coordinator")),
    Fault("rate-gates", "rate", "proxy", "gates pass at 10 kB/s",
          pair("rate=10k"), ("tp.slow-gates",)),
    # cut
    Fault("cut-inside-result", "cut", "proxy",
          "the connection is cut after 1000 bytes from the worker, inside a RESULT",
          pipe("cut=1000,way=up"), ("end.cut-off",), ("RESULT", "missing")),
    Fault("cut-inside-header", "cut", "proxy",
          "the connection is cut 7 bytes into the header of the first RESULT",
          pipe("cut=65,way=up"), ("end.cut-off",), ("header", "7 bytes")),
    Fault("cut-between", "cut", "proxy",
          "the connection is reset right behind HELLO",
          pipe("cut=58,way=up,reset=yes", wait=2.0),
          ("end.peer-gone", "route.rejoined", "connect.no-request")),
    Fault("cut-gates", "cut", "proxy", "the gate connection is cut after 1500 bytes",
          pair("cut=1500,way=up,conn=2"),
          ("end.cut-off", "tp.peer-gone", "tp.gate-missing"), ("worker",)),
    # stall
    Fault("stall-up", "stall", "proxy", "nothing of the worker passes after 2000 bytes",
          pipe("stall=2000,way=up", patience=3.0),
          ("stall.inside-frame", "end.gave-up"), ("3.0 s",)),
    Fault("stall-down", "stall", "proxy",
          "nothing reaches the worker after 7000 bytes",
          pipe("stall=7000,way=down", patience=3.0),
          ("stall.inside-frame", "route.request-missing"), ("WORK",)),
    Fault("stall-gates", "stall", "proxy",
          "no gate of the worker passes after 2400 bytes, the timeout is 1.5 s",
          pair("stall=2400,way=up,conn=2", gate_seconds=1.5),
          ("tp.gate-missing", "stall.inside-frame"), ("worker",)),
    Fault("stall-first-gate", "stall", "proxy",
          "no gate of the worker ever passes, the timeout is 1.5 s",
          pair("stall=0,way=up,conn=2", gate_seconds=1.5),
          ("tp.gate-missing", "tp.stall"), ("0 gates",)),
    # dropped frames
    Fault("drop-result", "dropped frame", "proxy", "the third RESULT is lost",
          pipe("drop=RESULT,nth=3,way=up", patience=2.0),
          ("end.gave-up",), ("coordinator gave up first", "request 3")),
    Fault("drop-work", "dropped frame", "proxy", "the fourth WORK is lost",
          pipe("drop=WORK,nth=4,way=down", patience=2.0), ("route.request-missing",)),
    Fault("drop-eval", "dropped frame", "proxy", "the second EVAL is lost",
          pair("drop=EVAL,nth=2,way=down", gate_seconds=1.5),
          ("tp.gate-missing",), ("worker's partial of token 2",)),
    Fault("drop-logits", "dropped frame", "proxy", "the third LOGITS is lost",
          pair("drop=LOGITS,nth=3,way=up"),
          ("tp.answer-missing",), ("LOGITS",)),
    # corrupted fields
    Fault("corrupt-request", "corrupted field", "proxy",
          "the request id of the fourth RESULT is changed",
          pipe("corrupt=RESULT.request,nth=4,value=99,way=up", patience=3.0),
          ("rule.broken", "route.stray-answer"), ("99",)),
    Fault("corrupt-position", "corrupted field", "proxy",
          "the position of the fourth WORK is changed",
          pipe("corrupt=WORK.pos0,nth=4,value=200,way=down"),
          ("route.error-status",), ("position",)),
    Fault("corrupt-hash", "corrupted field", "proxy",
          "the result hash of the fourth RESULT is changed",
          pipe("corrupt=RESULT.result_hash,nth=4,way=up"), ("rule.broken",),
          ("hash",)),
    Fault("corrupt-length", "corrupted field", "proxy",
          "the length of the third WORK is changed",
          pipe("corrupt=WORK.header.bytes,nth=3,value=80,way=down", patience=3.0),
          ("frame.out-of-step", "rule.broken"), ("WORK",)),
    # hello
    Fault("hello-layers", "wrong hello", "proxy", "the worker announces 61 layers",
          pipe("corrupt=HELLO.n_layers,value=61,way=up", wait=2.0),
          ("route.error", "identity.workers"), ("61",)),
    Fault("hello-context", "wrong hello", "proxy",
          "the worker announces a context of 16 tokens",
          pipe("corrupt=HELLO.ctx_size,value=16,way=up", wait=2.0),
          ("route.error",), ("context",)),
    Fault("hello-version", "wrong hello", "proxy", "the worker announces version 9",
          pair("corrupt=HELLO.version,value=9,way=up"), ("identity.version",), ("9",)),
    Fault("hello-model", "wrong hello", "peer",
          "the ranks load models of 2 and of 3 layers",
          pair(shapes=OTHER), ("identity.mismatch",), ("n_layer",)),
    # flipped bytes
    Fault("flip-magic", "flipped byte", "proxy",
          "one byte of a RESULT's magic is inverted",
          pipe("flip=59,way=up"), ("rule.broken",), ("magic",)),
    Fault("flip-gate", "flipped byte", "proxy", "one byte of a gate header is inverted",
          pair("flip=8,way=up,conn=2", gate_seconds=2.0),
          ("rule.broken",), ("GATE_BULK.seq",)),
    Fault("flip-state", "flipped byte", "proxy",
          "the exponent of one hidden value is inverted",
          pipe("flip=159,way=down"), ()),
    # computing
    Fault("slow-worker", "slow computing", "engine",
          "one of two workers needs 12 ms a layer more",
          _uneven, ("pipeline.uneven",), ("5:output",)),
    Fault("spike", "slow computing", "engine", "one token takes 300 ms in the worker",
          engines(b=lambda: slow(engine_of("2:output"), 0.3, once=6)),
          ("pipeline.spike",), ("computing",)),
    Fault("slow-rank", "slow computing", "engine",
          "the worker comes 3 ms late to each attention gate",
          pair(engines=slow_rank(1, 0.003)), ("tp.skew", "tp.slow-gates"), ("worker",)),
    Fault("late-rank-once", "slow computing", "engine",
          "the leader comes 200 ms late to one gate",
          pair(engines=slow_rank(0, 0.2, once=9)), ("tp.spike",), ("leader",)),
    # values
    Fault("nan", "values", "engine", "a hidden value is NaN from the fourth request on",
          engines(a=bent("0:1", value(float("nan")))), ("numeric.non-finite",),
          ("layer 2", "NaN")),
    Fault("above-65504", "values", "engine", "a hidden value is 70,000",
          engines(a=bent("0:1", value(70_000.0))), ("numeric.above-65504",),
          ("16-bit unsafe", "layer 2")),
    Fault("clipped", "values", "engine", "a hidden value is 300 on an 8-bit hop",
          _clipped, ("numeric.clipped",), ("240",)),
    Fault("zeros", "values", "engine", "the coordinator's buffer is never written",
          engines(a=bent("0:1", zeros, at=1)), ("numeric.all-zero",), ("layer 2",)),
    # ends
    Fault("worker-ends", "ended peer", "peer", "the worker ends between two requests",
          pipe(between=stop_worker, patience=3.0),
          ("end.worker-left",), ("worker 2:output",)),
    Fault("gate-timeout", "ended peer", "engine",
          "the worker comes 2.5 s late to a gate, the timeout is 1 s",
          pair(engines=slow_rank(1, 2.5, once=5), gate_seconds=1.0),
          ("tp.gate-missing", "tp.gate-timeout"), ("leader",)),
    # what a proxy cannot do
    Fault("delayed-ack", "TCP", "built", "header and payload are written apart, and "
          "each waits 40 ms for an acknowledgement", delayed_acks,
          ("tcp.delayed-ack",), ("stood still",)),
    Fault("lost-segments", "TCP", "built", "every fifth WORK is sent twice",
          lossy_wire, ("tcp.retransmissions",), ("sent again",)),
    Fault("slow-wire", "TCP", "built", "the round trip of the link is 77 ms",
          slow_round_trip, ("tcp.round-trip",), ("77 ms",)),
    Fault("both-link", "both sides", "built",
          "a capture on each side of a link of 6 ms, clocks 3 s apart",
          slow_link_from_both_sides, ("both.link",), ("6.0 ms",)),
    Fault("both-rank", "both sides", "built",
          "a capture on each side, the worker 4 ms late, clocks 3 s apart",
          slow_rank_from_both_sides, ("both.late-rank",), ("worker", "4.0 ms")),
    Fault("gid", "RDMA", "built", "a rank sends a link-local GID", link_local_gid,
          ("rdma.gid",), ("IPv4",)),
    Fault("log-line", "log", "built", "a log says: timeout waiting gate seq 128",
          log_of_a_timeout, ("log.gate",), ("token 2, layer 20, FFN",)),
)  # fmt: skip
