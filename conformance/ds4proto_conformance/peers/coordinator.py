"""A small coordinator: the library's machines, one thread, and perhaps one fault."""

from __future__ import annotations

import contextlib
import queue
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from ds4proto.link.ds4d_events import (
    Close,
    EvaluateLocal,
    Failed,
    HelloAccepted,
    LocalDone,
    NoRoute,
    Rerouted,
    RouteLost,
    Succeeded,
    Transmit,
    Written,
)
from ds4proto.link.ds4d_limits import LinkLimits
from ds4proto.link.ds4d_registration import Expected, Registration
from ds4proto.link.ds4d_registry import Registry
from ds4proto.link.ds4d_request import Request
from ds4proto.link.ds4d_route import Route, RouteError, build_route
from ds4proto.link.ds4d_session import PrefillSettings, Session, new_session_id
from ds4proto.link.ds4d_work_link import WorkLink
from ds4proto_conformance.peers.coordinator_saves import Transfers
from ds4proto_conformance.peers.engine import MODEL, Engine, pack
from ds4proto_conformance.peers.faults import NONE, Fault
from ds4proto_conformance.peers.net import HOST, Net
from ds4proto_conformance.peers.worker import Connection

__all__ = ["SmallCoordinator"]

LOCAL: Final = (0, 1)
APART: Final = "apart"
"""Position of one that dials the first worker's data port for WORK."""
_CONTROL: Final = "control"
PACE: Final = 0.004
TICK: Final = 0.02
_now = time.monotonic


def _script(session: Session) -> Iterator[tuple[str, list[int]]]:
    """Yield the requests of one session."""
    yield "sync", [5, 6, 7, 8, 9]
    yield "eval", [42]
    yield "eval", [43]
    yield "sync", [*session.transcript, 11, 12, 13]
    yield "sync", list(range(1, 41))


class SmallCoordinator:
    """One coordinator that prefills and decodes for as long as it has a route."""

    def __init__(self, net: Net, *, fault: Fault = NONE) -> None:
        self.fault = fault
        self.model = MODEL
        self.settings = PrefillSettings(16, chunk=8)
        if fault.settings is not None:
            self.settings = fault.settings(self.settings)
        expected = Expected(MODEL.model_id, MODEL.model_name, MODEL.n_layers, MODEL.ctx)
        self.expected = fault.facts(expected) if fault.facts else expected
        self.memory: dict[str, Any] = {}
        self.crash: Exception | None = None
        self.has_head = True
        self._limits = LinkLimits(result_s=20.0)
        self._net = net
        self._engine = Engine(MODEL, LOCAL)
        self._registry = Registry()
        self._connections: dict[Any, Connection] = {}
        self._selector = selectors.DefaultSelector()
        self._stop = threading.Event()
        self._seed = 1
        self._session: Session | None = None
        self._todo: Iterator[tuple[str, list[int]]] = iter(())
        self._request: Request | None = None
        self._out: deque[tuple[Connection, bytes]] = deque()
        self._next_at = 0.0
        self._asked: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._transfers = Transfers(net, MODEL.model_id, fault, self._stop)

    def ask(self, kind: str) -> None:
        """Make it ``save`` or ``load`` its session with the first worker, soon."""
        self._asked.put(kind)

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
        if self._request is None and _now() >= self._next_at:
            self._begin()
        for key, _ in self._selector.select(TICK if self._request else PACE):
            if key.data is None:
                self._accept()
            elif isinstance(key.data, dict):
                self._watched(key.data)
            elif key.data.machine in self._connections:
                self._readable(key.data)
        now = _now()
        for connection in list(self._connections.values()):
            due = connection.machine.deadline()
            if due is not None and now >= due:
                connection.machine.timeout(now)
                self._settle(connection)

    # connections

    def _accept(self) -> None:
        while (sock := self._net.accept()) is not None:
            sock.settimeout(2.0)
            machine = Registration(self.expected, now=_now(), limits=self._limits)
            made = Connection(sock, machine, "new")
            self._connections[machine] = made
            self._selector.register(sock, selectors.EVENT_READ, made)

    def _close(self, connection: Connection) -> None:
        self._connections.pop(connection.machine, None)
        socks = [connection.sock]
        if _CONTROL in connection.memory:
            socks.append(connection.memory[_CONTROL])
        for sock in socks:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(sock)
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_WR)
                sock.settimeout(0.01)
                while sock.recv(1 << 16):
                    pass
            sock.close()

    def _readable(self, connection: Connection) -> None:
        machine = connection.machine
        idle = connection.kind == "worker" and not machine.pending
        try:
            flags = socket.MSG_PEEK if idle else 0
            data = connection.sock.recv(1 << 16, flags)
        except OSError:
            data = b""
        if idle and data:
            self._selector.unregister(connection.sock)  # read when a RESULT is due
            connection.memory["paused"] = True
            return
        if data and self.fault.received is not None:
            data = self.fault.received(connection, data)
            if not data:
                return
        if idle:
            self._forget(connection)
            return
        machine.receive_data(data or None, _now())
        self._settle(connection)

    def _forget(self, connection: Connection) -> None:
        gone = [e for e in self._registry.workers() if e.handle is connection]
        self._registry.remove(gone)
        connection.machine.peer_closed(_now())
        self._close(connection)

    def _settle(self, connection: Connection) -> None:
        machine = connection.machine
        for event in machine.events():
            if self.fault.event is not None and self.fault.event(
                self, connection, event
            ):
                continue
            if isinstance(event, Transmit):
                self._write(connection, b"".join(map(bytes, event.buffers)))
            elif isinstance(event, HelloAccepted):
                self._registered(connection, machine, event.hello)
            elif isinstance(event, Close) and not isinstance(machine, WorkLink):
                self._close(connection)
            elif self._request is not None:
                self._request.result(event)
        self._advance()

    def _registered(self, connection: Connection, machine: Any, hello: Any) -> None:
        link = WorkLink(
            self.model,
            has_head=self.has_head,
            limits=self._limits,
            initial=machine.trailing_data,
        )
        del self._connections[machine]
        connection.machine, connection.kind = link, "worker"
        self._connections[link] = connection
        _, replaced = self._registry.register(hello, HOST, connection)
        if replaced is not None and not self.memory.get("keeps replaced"):
            self._replace(replaced.handle)
        self._next_at = min(self._next_at, _now() + PACE)

    def _replace(self, old: Connection) -> None:
        """End a connection whose worker has come again, and tell who waits on it."""
        old.machine.peer_closed(_now())
        self._settle(old)
        self._close(old)

    # requests

    def _route(self) -> Route:
        return build_route(
            LOCAL,
            self._registry.workers(),
            self.model.n_layers,
            coordinator_has_head=self.has_head,
        )

    def _begin(self) -> None:
        self._next_at = _now() + PACE
        try:
            route = self._route()
        except RouteError:
            return
        if self._session is not None and self._session.checkpoint:
            with contextlib.suppress(queue.Empty):
                kind = self._asked.get_nowait()
                self._transfers.run(kind, route.workers[0], self._session)
                return
        step = next(self._todo, None)
        if step is None or self._session is None:
            self._session = Session(new_session_id(self._seed))
            self._seed += 1
            self._todo = _script(self._session)
            step = next(self._todo)
        kind, tokens = step
        link = route.workers[0].handle.machine
        self._request = Request(
            self._session,
            self.model,
            route,
            link,
            tokens,
            kind="eval" if kind == "eval" else "sync",
            settings=self.settings,
        )
        self._take_hop(route)
        self._advance()

    def _take_hop(self, route: Route) -> None:
        """Make the first worker of a route the one that gets WORK."""
        self._hop = route.workers[0].handle
        if self.fault.position == APART and _CONTROL not in self._hop.memory:
            self._dial_hop(self._hop, route.workers[0].port)
        self._wake(self._hop)

    def _dial_hop(self, hop: Connection, port: int) -> None:
        """Go on over a connection of our own; that of the registration is watched."""
        try:
            sock = self._net.dial(HOST, port)
        except OSError:
            return  # WORK then goes where nobody reads it, and the worker is lost
        sock.settimeout(2.0)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(hop.sock)
        hop.memory[_CONTROL], hop.sock = hop.sock, sock
        hop.memory.pop("paused", None)
        self._selector.register(hop.memory[_CONTROL], selectors.EVENT_READ, hop.memory)
        self._selector.register(sock, selectors.EVENT_READ, hop)
        hop.memory["hop"] = hop

    def _watched(self, memory: dict[str, Any]) -> None:
        """Take note of what a worker does on the connection that it registered on."""
        try:
            data = memory[_CONTROL].recv(1 << 16)
        except OSError:
            data = b""
        if not data and memory["hop"].machine in self._connections:
            hop = memory["hop"]
            hop.machine.receive_data(None, _now())
            self._settle(hop)
            if hop.machine in self._connections:
                self._forget(hop)

    def _wake(self, connection: Connection) -> None:
        if connection.memory.pop("paused", False):
            self._selector.register(connection.sock, selectors.EVENT_READ, connection)

    def _advance(self) -> None:
        request = self._request
        if request is None:
            return
        news = deque(request.events())
        while news:
            event = news.popleft()
            if isinstance(event, EvaluateLocal):
                rows = self._engine.embed(event.tokens)
                wire = pack(np.asarray(rows * 0.5, np.float32), self.settings.bits)
                request.send(LocalDone(event.index, wire), _now())
            elif isinstance(event, Transmit):
                self._write(self._hop, b"".join(map(bytes, event.buffers)))
                if event.request is not None:
                    request.send(Written(event.request), _now())
            elif isinstance(event, RouteLost):
                self._lost(event, request)
            elif isinstance(event, Succeeded | Failed):
                self._request = None
                if isinstance(event, Failed):
                    self._todo = iter(())
                self._next_at = _now() + PACE
                return
            news.extend(request.events())

    def _lost(self, event: RouteLost, request: Request) -> None:
        self._registry.remove(event.workers)
        for entry in event.workers:
            self._close(entry.handle)
        if not event.replay:
            return
        try:
            route = self._route()
        except RouteError as error:
            request.send(NoRoute(str(error)), _now())
            return
        self._take_hop(route)
        request.send(Rerouted(route, self._hop.machine), _now())

    def _write(self, connection: Connection, frame: bytes) -> None:
        frames = [frame]
        if self.fault.out is not None:
            frames = self.fault.out(connection, frame)
        for data in frames:
            with contextlib.suppress(OSError):
                connection.sock.sendall(data)
