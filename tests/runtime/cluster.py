"""Pipelines for tests: peers as processes over loopback, ended whatever happens."""

from __future__ import annotations

import os
import select
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from ds4proto_runtime.engines.toy import LAYERS, ToyEngine
from ds4proto_runtime.pipeline.coordinator import PipelineCoordinator
from ds4proto_runtime.pipeline.generation import Alone

from ds4proto.link.ds4d_limits import LinkLimits
from ds4proto.peer import PeerProcess, Recorder, spawn

PATIENCE = 120.0
"""Seconds that any step may take; a pass takes far less."""
ENV = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
PEER = (sys.executable, "-m", "ds4proto_runtime.peer_main")
LONG = [(7 * n + 3) % 256 for n in range(61)]
SPLITS = {
    2: ("0:3", "4:output"),
    3: ("0:1", "2:4", "5:output"),
    4: ("0:1", "2:3", "4:5", "6:output"),
    8: (*tuple(f"{n}:{n}" for n in range(7)), "7:output"),
}


def alone(tokens: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the logits of a transcript in one process."""
    return Alone(ToyEngine()).prefill(tokens, lambda _tokens: None)


def same_bits(one: Any, two: Any) -> bool:
    return bool(np.array_equal(one.view(np.uint32), two.view(np.uint32)))


def worker_argv(address: tuple[str, int], layers: str, *words: str) -> tuple[str, ...]:
    host, port = address
    return (*PEER, "worker", "--address", host, str(port), "--layers", layers, *words)


def wait_until(
    holds: Callable[[], object], what: object, seconds: float = PATIENCE
) -> None:
    """Wait for a condition of another thread or process, with an end."""
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            raise AssertionError(f"not within {seconds:g} s: {what}")  # as it is now
        time.sleep(0.01)


class Cluster:
    """A coordinator in this process, workers as processes of their own."""

    def __init__(self, coordinator: PipelineCoordinator, log: list[str]) -> None:
        self.coordinator = coordinator
        self.log = log
        self.workers: dict[str, PeerProcess] = {}
        self._registered = 0

    def start(self, layers: str, *words: str) -> PeerProcess:
        argv = worker_argv(self.coordinator.address, layers, *words)
        self.workers[layers] = process = spawn(argv, env=ENV)
        return process

    def restart(self, layers: str, *words: str) -> PeerProcess:
        self.workers[layers].kill()
        self.workers[layers].end()
        return self.start(layers, *words)

    def route(self) -> str:
        return str(self.coordinator.wait_route(PATIENCE))

    def registrations(self, layers: str) -> int:
        ends = f" {layers}"
        return sum(
            line.startswith("registered") and line.endswith(ends) for line in self.log
        )

    def wait_registered(self, layers: str, count: int) -> None:
        try:
            wait_until(lambda: self.registrations(layers) >= count, self.log)
        except AssertionError as error:
            error.add_note(f"{count} registrations of worker {layers} were awaited")
            raise

    @contextmanager
    def door_shut(self) -> Iterator[None]:
        """Let nobody register in the block: who is back in time is a matter of luck."""
        door: Any = self.coordinator.door
        register, opened = door._registered, threading.Event()

        def later(*words: Any) -> None:
            opened.wait(PATIENCE)
            register(*words)

        door._registered = later
        try:
            yield
        finally:
            door._registered = register
            opened.set()

    @contextmanager
    def impatient(self, seconds: float = 0.5) -> Iterator[None]:
        """Let the coordinator soon give up in the block, where all that is asked fails.

        With a short patience from the start, a worker that is well but slow would be
        given up too.
        """
        coordinator: Any = self.coordinator
        patient = coordinator.limits
        short = LinkLimits(result_s=seconds, forward_s=seconds, stall_s=seconds)
        links = [entry.handle.link for entry in coordinator.door.workers()]

        def use(limits: LinkLimits) -> None:
            coordinator.limits = limits
            for link in links:
                link._limits = limits

        use(short)
        try:
            yield
        finally:
            use(patient)

    def end(self) -> None:
        for process in self.workers.values():
            process.end()


@contextmanager
def cluster(
    *stages: str,
    bits: int = 32,
    patience: float = PATIENCE,
    record: Path | None = None,
    words: dict[str, tuple[str, ...]] | None = None,
    **options: Any,
) -> Iterator[Cluster]:
    """Start a pipeline on the toy engine; the first stage is the coordinator's."""
    first, *rest = stages
    end = int(first.partition(":")[2])
    log: list[str] = []
    with ExitStack() as stack:
        recorder = None
        if record is not None:
            recorder = stack.enter_context(Recorder(record))
        coordinator = stack.enter_context(
            PipelineCoordinator(
                ToyEngine(range(end + 1)),
                bits=bits,
                limits=LinkLimits(
                    result_s=patience, forward_s=patience, stall_s=patience
                ),
                recorder=recorder,
                log=log.append,
                **options,
            )
        )
        found = Cluster(coordinator, log)
        stack.callback(found.end)
        for layers in rest:
            extra = (words or {}).get(layers, ())
            found.start(layers, "--patience", str(patience), *extra)
        if rest:
            found.route()
        yield found


class Scripted:
    """A coordinator as a process: commands in, one line of answer each."""

    def __init__(self, *words: str, layers: str = "0:1") -> None:
        ours, theirs = socket.socketpair()
        argv = (*PEER, "coordinator", "--address", "127.0.0.1", "0", "--stdin")
        try:
            self.process = spawn(
                (*argv, "--layers", layers, *words), env=ENV, stdio=theirs
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._sock = ours
        self._rest = b""
        try:
            line = self._line("listening")
        except BaseException:
            self.close()
            raise
        host, _, port = line.removeprefix("listening on ").rpartition(":")
        self.address = (host, int(port))

    def ask(self, command: str) -> str:
        """Send a command and return its answer without the command's name."""
        self._sock.sendall(command.encode() + b"\n")
        name = command.split(maxsplit=1)[0]
        return self._line(f"{name} ").removeprefix(f"{name} ")

    def _line(self, start: str) -> str:
        until = time.monotonic() + PATIENCE
        while True:
            line, end, rest = self._rest.partition(b"\n")
            if end:
                self._rest = rest
                if line.decode().startswith(start):
                    return line.decode()
                continue
            left = until - time.monotonic()
            ready, _, _ = select.select([self._sock], [], [], max(0.0, left))
            data = self._sock.recv(65536) if ready else b""
            if not data:
                raise AssertionError(f"no line {start!r}: {self.process.output()}")
            self._rest += data

    def close(self) -> None:
        self._sock.close()
        self.process.end()


def open_sockets() -> set[tuple[int, int]]:
    """Return this process's sockets: descriptors and inodes."""
    found = set()
    for entry in Path("/dev/fd").iterdir():
        try:
            status = os.fstat(int(entry.name))
        except OSError:
            continue
        if stat.S_ISSOCK(status.st_mode):
            found.add((int(entry.name), status.st_ino))
    return found


assert all(stages[-1].endswith("output") for stages in SPLITS.values())
assert LAYERS == 8
