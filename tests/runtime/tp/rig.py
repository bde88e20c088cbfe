"""Two ranks for tests: in threads, as processes, and a relay between them."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ds4proto_runtime.tp.callers import peek
from ds4proto_runtime.tp.engine import RankEngine
from ds4proto_runtime.tp.leader import TpLeader
from ds4proto_runtime.tp.rank import TpOptions
from ds4proto_runtime.tp.toy import ToyShape, ToyTpEngine
from ds4proto_runtime.tp.worker import TpWorker

from ds4proto.link.ds4t_limits import ControlLimits, GateLimits
from tests.runtime.ports import held_port

PATIENCE = 180.0
"""Seconds after which a step hangs; nothing that passes waits so long."""
MODEL = Path(__file__).parents[2] / "data" / "tiny-moe-3m-q8_0.gguf"
EngineOf = Callable[[int], RankEngine]


def options(**words: Any) -> TpOptions:
    """Options with deadlines that a busy machine keeps and a hang does not."""
    gates = words.pop("gates", GateLimits(idle=40.0, total=50.0, bulk_total=50.0))
    control = ControlLimits(stall=40.0, answer=50.0, verdict=50.0)
    base: dict[str, Any] = {
        "gates": gates,
        "control": control,
        "dial_seconds": 10.0,
        "accept_seconds": 50.0,
        "hello_seconds": 40.0,
        "idle_seconds": 50.0,
        "transport": "tcp",
    }
    return TpOptions(**{**base, **words})


def toy(shape: ToyShape) -> EngineOf:
    return lambda rank: ToyTpEngine(shape, rank)


@dataclass
class Pair:
    """A leader in this thread and a worker in another."""

    leader: TpLeader
    worker: TpWorker | None = None
    worker_error: BaseException | None = None
    log: list[str] = field(default_factory=list)
    thread: threading.Thread | None = None

    def join(self) -> None:
        assert self.thread is not None
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), "the worker hangs"


@contextmanager
def pair(
    engine_of: EngineOf,
    settings: TpOptions | None = None,
    *,
    via: Callable[[tuple[str, int]], tuple[str, int]] | None = None,
    worker_settings: TpOptions | None = None,
    prepare: Callable[[TpWorker], None] | None = None,
) -> Iterator[Pair]:
    """Bring a pair up; the worker's thread is joined at the end."""
    settings = settings or options()
    log: list[str] = []
    engines = [engine_of(rank) for rank in (0, 1)]  # before any deadline runs
    leader = TpLeader(engines[0], options=settings, say=log.append)
    found = Pair(leader, log=log)
    address = leader.address if via is None else via(leader.address)

    def work() -> None:
        try:
            chosen = worker_settings or settings
            with TpWorker(engines[1], *address, chosen, say=log.append) as worker:
                found.worker = worker
                if prepare is not None:
                    prepare(worker)
                worker.serve()
        except BaseException as error:
            found.worker_error = error

    found.thread = threading.Thread(target=work, daemon=True)
    found.thread.start()
    try:
        with leader:
            leader.accept()
            yield found
    finally:
        found.join()


class Relay:
    """A TCP relay that keeps what crosses, connection by connection.

    What a worker wrote before it dialled again is at the leader before that connection
    is, as it is without a relay.

    Attributes
    ----------
    streams : list of dict
        Per connection ``{"up": bytes from the worker, "down": bytes to it}``.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(PATIENCE)
        self._sockets: list[socket.socket] = []
        self._moving = [threading.Lock(), threading.Lock()]
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self.streams: list[dict[str, bytearray]] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, run: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=run, args=args, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _accept(self) -> None:
        for moving in self._moving:
            try:
                near, _ = self._listener.accept()
            except OSError:  # closed: the pair did not come up
                return
            if self._sockets:
                self._delivered(self._sockets[0])
            self._sockets.append(near)
            try:
                far = socket.create_connection(self._target, PATIENCE)
            except OSError:  # the leader has gone; the worker hears of it
                near.close()
                return
            self._sockets.append(far)
            seen = {"up": bytearray(), "down": bytearray()}
            self.streams.append(seen)
            self._start(self._pump, near, far, seen, moving)

    def _delivered(self, near: socket.socket) -> None:
        """Wait until nothing that has come on the first connection is under way."""

        def empty() -> bool:
            with self._moving[0]:
                return near.fileno() < 0 or peek(near) in (None, b"")

        until(empty, "a relay stands still")

    def _pump(
        self,
        near: socket.socket,
        far: socket.socket,
        seen: dict[str, bytearray],
        moving: threading.Lock,
    ) -> None:
        with near, far, selectors.DefaultSelector() as ready:
            ways = {near: (far, "up"), far: (near, "down")}
            for sock in ways:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                ready.register(sock, selectors.EVENT_READ)
            while ready.get_map():
                for key, _ in ready.select(PATIENCE):
                    source: Any = key.fileobj
                    other, name = ways[source]
                    with moving, suppress(OSError):  # a reset is an end too
                        data = source.recv(1 << 16)
                        seen[name] += data
                        if data:
                            other.sendall(data)
                            continue
                    with suppress(OSError):
                        other.shutdown(socket.SHUT_WR)
                    ready.unregister(source)

    def close(self) -> None:
        """Let what is under way arrive, then end both sides' connections."""
        with suppress(OSError):  # wakes a thread that still accepts
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(PATIENCE)
        for sock in self._sockets:
            sock.close()


def environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("DS4_")}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **more}


class Rank:
    """One rank as a process of the command line."""

    def __init__(self, role: str, port: int, *words: str, **env: str) -> None:
        at = ("--listen", "127.0.0.1", str(port))
        if role == "worker":
            at = ("--coordinator", "127.0.0.1", str(port))
        command = [sys.executable, "-m", "ds4proto_runtime.tp", "--role", role, *at]
        command += ["--transport", "tcp", "--hello-wait", "60", "--answer-wait", "60"]
        if "--gate-timeout" not in words:  # a dialect's own is 750 ms
            command += ["--gate-timeout", "60"]
        self.process = subprocess.Popen(
            [*command, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(**env),
            start_new_session=True,
        )
        self.out = self.err = ""
        self._stopped = False

    def stands_still(self) -> bool:
        """Tell whether SIGSTOP has struck it; a child that has ended is reaped."""
        try:
            found, status = os.waitpid(self.process.pid, os.WUNTRACED | os.WNOHANG)
        except ChildProcessError:
            return False
        if found and not os.WIFSTOPPED(status):
            self.process.returncode = os.waitstatus_to_exitcode(status)
        self._stopped = self._stopped or bool(found and os.WIFSTOPPED(status))
        return self._stopped

    def end(self, seconds: float = PATIENCE) -> int:
        """Wait for its end and return its status; a hang is a failed test."""
        try:
            out, err = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            out, err = self.process.communicate()
            raise AssertionError(f"hangs; it said:\n{self.err}{err}\n{out}") from None
        self.out += out
        self.err += err
        return self.process.returncode

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)


@contextmanager
def processes(
    leader: Sequence[str] = (),
    worker: Sequence[str] = (),
    *both: str,
    leader_first: bool = True,
    env: dict[str, str] | None = None,
) -> Iterator[tuple[Rank, Rank]]:
    """Start both ranks; whatever is left of them is killed at the end."""
    ranks: dict[str, Rank] = {}
    order = ("coordinator", "worker") if leader_first else ("worker", "coordinator")
    words = {"coordinator": leader, "worker": worker}
    try:
        with held_port() as port:
            for role in order:
                ranks[role] = Rank(role, port, *both, *words[role], **(env or {}))
            yield ranks["coordinator"], ranks["worker"]
    except BaseException as error:
        for role, rank in ranks.items():
            error.add_note(f"{role} said:\n{rank.err}")
        raise
    finally:
        for rank in ranks.values():
            rank.kill(signal.SIGCONT)
            rank.kill()
            rank.process.communicate()


def until(true: Callable[[], bool], what: object) -> None:
    """Wait, bounded, for something that another thread brings about."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, str(what)  # as it is by now
        time.sleep(0.002)
