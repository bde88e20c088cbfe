"""A small worker: the library's machines, one thread, and perhaps one fault."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Final

from ds4proto.link.ds4d_events import Close, Transmit
from ds4proto.link.ds4d_facts import WorkerFacts
from ds4proto.link.ds4d_forward import Forwarder
from ds4proto.link.ds4d_limits import LinkLimits
from ds4proto.link.ds4d_worker import Worker, WorkerLink
from ds4proto.link.ds4d_worker_events import (
    DropSessions,
    EvaluateWork,
    LoadAborted,
    LoadData,
    LoadStarted,
    OpenForward,
    ResetSession,
    RestoreShard,
    SaveShard,
    ShardFailed,
    ShardRestored,
    ShardSaved,
    WorkEvaluated,
    WorkFailed,
)
from ds4proto_conformance.peers.engine import Engine, worker_facts
from ds4proto_conformance.peers.faults import NONE, Fault
from ds4proto_conformance.peers.net import HOST, Net

__all__ = ["Connection", "SmallWorker"]

TICK: Final = 0.05
LINGER: Final = 0.5
_now = time.monotonic


@dataclass(eq=False, slots=True)
class Connection:
    """One connection and its machine."""

    sock: socket.socket
    machine: Any
    kind: str
    ending: float | None = None
    shard: bytearray = field(default_factory=bytearray)
    memory: dict[str, Any] = field(default_factory=dict)
    """What a fault remembers of this connection."""


class SmallWorker:
    """One worker.

    Parameters
    ----------
    net : Net
    coordinator : tuple
        Where to dial.
    """

    redial = 0.02

    def __init__(
        self,
        net: Net,
        *,
        fault: Fault = NONE,
        coordinator: tuple[str, int] = (HOST, 0),
        facts: WorkerFacts | None = None,
    ) -> None:
        facts = facts or worker_facts(fault.position or "last")
        self.facts = fault.facts(facts) if fault.facts else facts
        limits = LinkLimits()
        self.machine = Worker(
            self.facts, limits=fault.settings(limits) if fault.settings else limits
        )
        self.engine = Engine(facts.model, (facts.layer_start, facts.layer_end))
        self.fault = fault
        self.memory: dict[str, Any] = {}
        self.crash: Exception | None = None
        self._net, self._coordinator = net, coordinator
        self._selector = selectors.DefaultSelector()
        self._connections: dict[Any, Connection] = {}
        self._stop = threading.Event()
        self._redial_at = 0.0

    def stop(self) -> None:
        """End ``run`` soon."""
        self._stop.set()

    def run(self) -> None:
        """Serve until ``stop``."""
        self._selector.register(self._net, selectors.EVENT_READ, None)
        with self.fault.patch() if self.fault.patch else contextlib.nullcontext():
            try:
                while not self._stop.is_set():
                    self._round()
            except Exception as error:  # a planted fault may well crash its peer
                self.crash = error
            finally:
                for connection in list(self._connections.values()):
                    connection.sock.close()
                self._selector.close()

    def _round(self) -> None:
        kinds = {c.kind for c in self._connections.values()}
        if "control" not in kinds and _now() >= self._redial_at:
            self._dial_control()
        for key, _ in self._selector.select(TICK):
            if key.data is None:
                self._accept()
            elif key.data.machine in self._connections:
                self._readable(key.data)
        now = _now()
        for connection in list(self._connections.values()):
            due = connection.machine.deadline()
            if due is not None and now >= due:
                connection.machine.timeout(now)
                self._settle(connection.machine)
            if connection.ending is not None and now >= connection.ending:
                self._forget(connection)

    # connections

    def _dial_control(self) -> None:
        self._redial_at = _now() + self.redial
        try:
            sock = self._net.dial(*self._coordinator)
        except OSError:
            return
        link = self.machine.open("control", _now())
        connection = self._add(sock, link, "control")
        self._write(connection, b"".join(map(bytes, link.hello(self._net.port))))

    def _accept(self) -> None:
        while (sock := self._net.accept()) is not None:
            self._add(sock, self.machine.open("data", _now()), "data")

    def _add(self, sock: socket.socket, machine: Any, kind: str) -> Connection:
        sock.settimeout(2.0)
        made = self._connections[machine] = Connection(sock, machine, kind)
        self._selector.register(sock, selectors.EVENT_READ, made)
        return made

    def _forget(self, connection: Connection) -> None:
        if self._connections.pop(connection.machine, None) is None:
            return
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.sock)
        connection.sock.close()
        if connection.kind == "control":
            self._redial_at = _now() + self.redial

    def _readable(self, connection: Connection) -> None:
        machine = connection.machine
        try:
            data = connection.sock.recv(1 << 16)
        except OSError as error:
            data = b""
            if self.fault.broken is not None:
                self.fault.broken(connection, error)
            if isinstance(machine, WorkerLink) and not machine.closed:
                machine.broken(str(error), _now())
        if connection.ending is not None:
            if not data:
                self._forget(connection)
            return
        if data and self.fault.received is not None:
            data = self.fault.received(connection, data)
            if not data:
                return
        if not machine.closed:
            machine.receive_data(data or None, _now())
        self._settle(machine)
        if not data and connection.machine in self._connections:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(connection.sock)
            if machine.closed:
                self._forget(connection)

    # what the machines want

    def _settle(self, *machines: Any) -> None:
        todo = list(machines)
        while todo:
            for machine in todo:
                connection = self._connections.get(machine)
                for event in machine.events():
                    self._take(machine, connection, event)
            todo = list(self.machine.woken())

    def _take(self, machine: Any, connection: Connection | None, event: Any) -> None:
        hook = self.fault.event
        if hook is not None and hook(self, connection, event):
            return
        if isinstance(event, Transmit):
            if connection is not None:
                self._write(connection, b"".join(map(bytes, event.buffers)))
        elif isinstance(event, Close):
            if connection is not None:
                self.end(connection)
        elif isinstance(event, EvaluateWork):
            machine.send(self._evaluate(event), _now())
            self.machine.wake(machine)
        elif isinstance(event, OpenForward):
            self._forward(event.forwarder, event.host, event.port)
        elif isinstance(event, ResetSession):
            self.engine.reset(event.session)
        elif isinstance(event, DropSessions):
            self.engine.drop(event.sessions)
        else:
            self._snapshot(machine, connection, event)

    def end(self, connection: Connection) -> None:
        """End our direction; the rest is read away for a while."""
        if connection.ending is None:
            connection.ending = _now() + LINGER
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_WR)

    def _snapshot(
        self, machine: Any, connection: Connection | None, event: Any
    ) -> None:
        answer: Any = None
        if isinstance(event, LoadStarted | LoadAborted):
            if connection is not None:
                connection.shard.clear()
        elif isinstance(event, LoadData):
            if connection is not None:
                connection.shard += event.data
        elif isinstance(event, SaveShard):
            shard = self.engine.save(event.session)
            answer = ShardSaved([shard], len(shard))
        elif isinstance(event, RestoreShard) and connection is not None:
            fault = self.engine.restore(
                event.session, bytes(connection.shard), event.tokens
            )
            connection.shard.clear()
            answer = ShardFailed(fault) if fault else ShardRestored()
        if answer is not None:
            machine.send(answer, _now())
            self.machine.wake(machine)

    def _evaluate(self, job: EvaluateWork) -> WorkEvaluated | WorkFailed:
        started = time.perf_counter()
        work = self.fault.evaluate
        payload = work(self.engine, job) if work else self.engine.evaluate(job)
        return WorkEvaluated(payload, time.perf_counter() - started)

    def _forward(self, forwarder: Forwarder, host: str, port: int) -> None:
        try:
            sock = self._net.dial(host, port)
        except OSError as error:
            forwarder.failed(error.strerror or str(error), _now())
            self.machine.wake(forwarder)
            return
        self._add(sock, forwarder, "forward")
        forwarder.opened(_now())
        self.machine.wake(forwarder)

    def _write(self, connection: Connection, frame: bytes) -> None:
        frames = [frame]
        if self.fault.out is not None:
            frames = self.fault.out(connection, frame)
        if self.fault.delay:
            self._stop.wait(self.fault.delay)
        for data in frames:
            try:
                connection.sock.sendall(data)
            except OSError as error:
                if self.fault.broken is not None:
                    self.fault.broken(connection, error)
