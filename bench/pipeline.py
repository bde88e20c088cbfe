"""The pipeline on loopback: ``python -m bench.pipeline [--json]``.

Three questions, each beside a baseline of the same run:

* round trips: one decode step over two stages with a model that computes nothing,
  against two bare Python sockets that pass messages of the same sizes;
* frames: hidden state of 64 MiB (float32) at 32, 16 and 8 bits and in two formats
  with scales, encoded, sent, received and decoded, against a plain copy of 64 MiB
  from socket to socket;
* position: a decode step after 1,000 and after 200,000 tokens.

Two processes take part: rates are of wall time, the ratio of the CPU time of the
busier one, which other load disturbs less. Best of the rounds. Linux.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
from ds4proto_runtime.engines.base import F32, Gate, Session, Shape
from ds4proto_runtime.pipeline.activations import warm
from ds4proto_runtime.pipeline.coordinator import PipelineCoordinator
from ds4proto_runtime.pipeline.worker import PipelineWorker

from bench._timing import Row, report
from ds4proto.schema.ds4d_private import DIALECT as PRIVATE
from ds4proto.schema.ds4d_private import FORMAT_IDS, FORMATS
from ds4proto.schema.problem import Buf

WIDTH = 16384
CHUNK = 1024
FRAME = WIDTH * CHUNK * 4
CHUNKS = 6
VOCAB = 256
STEPS = 1000
CONTEXT = 1 << 19
REQUEST_BYTES, ANSWER_BYTES = 12 + 80 + 4 + 256 + 58, 12 + 40 + 40 + 1024
"""Sizes of WORK and RESULT of one decode step of the small model."""


# ruff: noqa: D102, ARG002 -- methods are those of Engine


class NullEngine:
    """A model of two layers that passes hidden state on and computes nothing."""

    def __init__(self, layers: range, width: int, cap: int) -> None:
        self.layers, self.has_head = layers, True
        self.shape = Shape(
            0, "null", 2, 2, width, width, VOCAB, CONTEXT, cap, 256, 8, 0, 8, 0, (0, 0)
        )
        self._rows = np.random.default_rng(1).standard_normal((cap, width), np.float32)
        self._logits = np.zeros(VOCAB, np.float32)

    def open(self, layers: range | None = None) -> Session:
        return Session(self.layers if layers is None else layers)

    def reset(self, session: Session) -> None:
        session.tokens.clear()

    def embed(self, tokens: Sequence[int]) -> F32:
        return self._rows[: len(tokens)]

    def run(
        self,
        session: Session,
        hidden: F32,
        tokens: Sequence[int],
        pos0: int,
        gate: Gate | None = None,
    ) -> F32:
        session.tokens.extend(tokens)
        return hidden

    def head(self, hidden: F32) -> F32:
        return self._logits

    def heads(self, hidden: F32) -> F32:
        return np.tile(self._logits, (len(hidden), 1))

    def truncate(self, session: Session, pos: int) -> None:
        del session.tokens[pos:]

    def kv_rows(self, session: Session, layer: int) -> tuple[int, int]:
        return 0, 0

    def kv_export(self, session: Session, layer: int) -> Iterable[Buf]:
        return ()

    def kv_import(
        self,
        session: Session,
        layer: int,
        tokens: Sequence[int],
        rows: tuple[int, int],
        tensors: Sequence[F32],
    ) -> None:
        pass


def cpu_of(pid: int) -> float:
    """Return the CPU seconds of a process; Linux names its clock by its number."""
    return time.clock_gettime((~pid << 3) | 2)


def by_turns(
    cases: Mapping[str, tuple[int, Callable[[], object]]],
    *,
    baseline: str,
    work: float,
    rounds: int,
) -> list[Row]:
    """Run all cases in turn, best of the rounds.

    Each case comes with the other process's number. CPU seconds are those of the
    busier of the two processes: what bounds the rate where each has a core.
    """
    cpu = dict.fromkeys(cases, float("inf"))
    wall = dict.fromkeys(cases, float("inf"))
    for _, case in cases.values():
        case()
    for _ in range(rounds):
        for name, (pid, case) in cases.items():
            started, own, other = time.perf_counter(), time.process_time(), cpu_of(pid)
            case()
            busier = max(time.process_time() - own, cpu_of(pid) - other)
            cpu[name] = min(cpu[name], busier)
            wall[name] = min(wall[name], time.perf_counter() - started)
    return [
        Row(
            name,
            cpu[name],
            wall[name],
            work / wall[name],
            cpu[baseline] / cpu[name],
            wall[baseline] / wall[name],
        )
        for name in cases
    ]


@contextmanager
def child(*words: str) -> Iterator[int]:
    argv = [sys.executable, "-m", "bench.pipeline", *words]
    process = subprocess.Popen(argv, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def dialect_of(bits: int) -> str:
    return PRIVATE if bits in FORMATS else "upstream"


@contextmanager
def pipeline(
    width: int, cap: int, bits: int = 32
) -> Iterator[tuple[int, PipelineCoordinator]]:
    with PipelineCoordinator(
        NullEngine(range(1), width, cap),
        bits=bits,
        chunk=min(cap, CHUNK),
        dialect=dialect_of(bits),
    ) as coordinator:
        port = str(coordinator.address[1])
        with child("--worker", port, str(width), str(cap), str(bits)) as pid:
            coordinator.wait_route(60)
            yield pid, coordinator


@contextmanager
def echo(mode: str) -> Iterator[tuple[int, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        with child("--echo", str(server.getsockname()[1]), mode) as pid:
            sock, _ = server.accept()
            with sock:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                yield pid, sock


def exactly(sock: socket.socket, view: memoryview) -> bool:
    at = 0
    while at < len(view):
        got = sock.recv_into(view[at:])
        if not got:
            return False
        at += got
    return True


def serve_echo(port: int, mode: str) -> None:
    """Answer messages (``steps``), or take frames and acknowledge each (``frames``)."""
    sizes = (REQUEST_BYTES, ANSWER_BYTES) if mode == "steps" else (FRAME, 1)
    taken, answer = memoryview(bytearray(sizes[0])), bytes(sizes[1])
    with socket.create_connection(("127.0.0.1", port), 60) as sock:
        sock.settimeout(600)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while exactly(sock, taken):
            sock.sendall(answer)


def round_trips(rounds: int, as_json: bool) -> None:
    request = bytes(REQUEST_BYTES)
    answer = memoryview(bytearray(ANSWER_BYTES))
    with pipeline(64, 16) as (pid, coordinator), echo("steps") as (other, sock):
        session = coordinator.session(1)
        session.sync([1])

        def bare() -> None:
            for _ in range(STEPS):
                sock.sendall(request)
                exactly(sock, answer)

        def ours() -> None:
            for _ in range(STEPS):
                session.eval(5)

        cases = {"bare sockets": (other, bare), "WORK and RESULT": (pid, ours)}
        rows = by_turns(cases, baseline="bare sockets", work=STEPS, rounds=rounds)
    report(
        "decode round trips, 2 stages", rows, baseline="bare sockets",
        unit="round trips/s", as_json=as_json,
    )  # fmt: skip


def frames(rounds: int, as_json: bool) -> None:
    plain = bytearray(FRAME)
    byte = memoryview(bytearray(1))
    tokens = [7] * (CHUNK * CHUNKS)
    with (
        echo("frames") as (other, sock),
        pipeline(WIDTH, CHUNK, 32) as p32,
        pipeline(WIDTH, CHUNK, 16) as p16,
        pipeline(WIDTH, CHUNK, 8) as p8,
        pipeline(WIDTH, CHUNK, FORMAT_IDS["int8"]) as p_int8,
        pipeline(WIDTH, CHUNK, FORMAT_IDS["mxfp4"]) as p_mxfp4,
    ):

        def copy() -> None:
            answers = threading.Thread(
                target=lambda: [exactly(sock, byte) for _ in range(CHUNKS)]
            )
            answers.start()
            for _ in range(CHUNKS):
                sock.sendall(plain)
            answers.join()

        def prefill(
            found: tuple[int, PipelineCoordinator],
        ) -> tuple[int, Callable[[], object]]:
            session = found[1].session(1)
            return found[0], lambda: session.sync(tokens, fresh=True)

        for bits in (16, 8, FORMAT_IDS["int8"], FORMAT_IDS["mxfp4"]):
            warm(bits, "strict")
        cases = {
            "32 bits": prefill(p32),
            "16 bits": prefill(p16),
            "8 bits": prefill(p8),
            "int8, private": prefill(p_int8),
            "mxfp4, private": prefill(p_mxfp4),
            "plain socket copy": (other, copy),
        }
        rows = by_turns(cases, baseline="32 bits", work=FRAME * CHUNKS, rounds=rounds)
    report(
        "hidden state of 64 MiB a frame", rows, baseline="32 bits",
        unit="GB/s of f32", scale=1e9, as_json=as_json,
    )  # fmt: skip


def positions(rounds: int, as_json: bool) -> None:
    with pipeline(64, CONTEXT) as (pid, coordinator):
        cases: dict[str, tuple[int, Callable[[], object]]] = {}
        for count in (1_000, 200_000):
            session = coordinator.session(count)
            session.sync([9] * count)

            # A default binds the session of this turn, its type is that session's.
            def steps(session=session) -> None:  # type: ignore[no-untyped-def]
                for _ in range(STEPS):
                    session.eval(5)

            cases[f"after {count} tokens"] = (pid, steps)
        first = next(iter(cases))
        rows = by_turns(cases, baseline=first, work=STEPS, rounds=rounds)
    report(
        "decode steps by position", rows, baseline=first, unit="steps/s",
        as_json=as_json,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON line a table")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("steps", "frames", "positions"))
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--echo", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        port, width, cap, bits = map(int, options.worker)
        if bits != 32:
            warm(bits, "strict")
        engine = NullEngine(range(1, 2), width, cap)
        to = ("127.0.0.1", port)
        PipelineWorker(engine, to, dialect=dialect_of(bits)).run()
        return
    if options.echo:
        serve_echo(int(options.echo[0]), options.echo[1])
        return
    parts = {"steps": round_trips, "frames": frames, "positions": positions}
    for name, part in parts.items():
        if options.only in (None, name):
            part(options.rounds, options.json)


if __name__ == "__main__":
    main()
