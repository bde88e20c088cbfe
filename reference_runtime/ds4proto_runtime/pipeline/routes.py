"""Who has registered with a coordinator, and the route over them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from ds4proto.link.ds4d_events import Close, HelloAccepted, HelloRefused, Transmit
from ds4proto.link.ds4d_facts import ModelFacts
from ds4proto.link.ds4d_limits import LinkLimits
from ds4proto.link.ds4d_registration import Expected, Registration
from ds4proto.link.ds4d_registry import Registry, WorkerEntry
from ds4proto.link.ds4d_route import Route, RouteError, build_route
from ds4proto.link.ds4d_texts import printable
from ds4proto.link.ds4d_work_link import WorkLink
from ds4proto.peer import Listener, PeerLost, Recorder, SocketChannel
from ds4proto_runtime.pipeline.dialling import bound_listener
from ds4proto_runtime.pipeline.line import SLICE_S, Line, now, tapped
from ds4proto_runtime.pipeline.settings import SocketSettings

LOOK_S: Final = 0.25
"""Between two looks at idle control connections; ds4 looks once a second."""
MAX_REGISTERING: Final = 64
"""Connections that may be about to say HELLO at one time."""
Log = Callable[[str], None]


@dataclass(eq=False, slots=True)
class Hop:
    """A worker's control connection, which carries WORK if it is the first hop."""

    line: Line
    link: WorkLink
    write_error: str | None = None


class Door:
    """The coordinator's listener and the workers that came through it.

    Parameters
    ----------
    model : ModelFacts
    local : range
        The coordinator's own layers.
    has_head : bool
        Whether the coordinator can finish a hidden state.
    bits : int
        The width word in use.
    idle : threading.Lock
        Held while a request uses the connections; nobody looks at them then.
    """

    def __init__(
        self,
        model: ModelFacts,
        local: range,
        *,
        has_head: bool,
        bits: int,
        idle: threading.Lock,
        listen: tuple[str, int],
        limits: LinkLimits,
        sockets: SocketSettings,
        recorder: Recorder | None,
        log: Log,
        debug: Log,
    ) -> None:
        self._model, self._local, self._has_head = model, local, has_head
        self._expected = Expected(
            model.model_id,
            model.model_name,
            model.n_layers,
            model.ctx,
            model.dialect,
            bits,
        )
        self._idle = idle
        self._limits, self._sockets = limits, sockets
        self._recorder, self._log, self._debug = recorder, log, debug
        self._registry = Registry()
        self._known: tuple[int, Route] | None = None
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._registering = threading.Semaphore(MAX_REGISTERING)
        self._listener: Listener = bound_listener(listen, log)
        self.address = self._listener.address
        self._thread = threading.Thread(
            target=self._accept_all, name="registration", daemon=True
        )
        self._thread.start()

    # routes

    @property
    def generation(self) -> int:
        """Counts registrations and removals (DS4D-HELLO-33)."""
        return self._registry.generation

    def workers(self) -> tuple[WorkerEntry, ...]:
        """Return the registered workers in the order in which a route tries them."""
        with self._changed:
            return self._registry.workers()

    def route(self) -> Route:
        """Return the route over the present workers.

        Raises
        ------
        RouteError
            No complete one exists; the text names the first missing layer.
        """
        generation = self.generation
        known = self._known
        if known is not None and known[0] == generation:
            return known[1]
        route = build_route(
            (self._local.start, self._local.stop - 1),
            self.workers(),
            self._model.n_layers,
            coordinator_has_head=self._has_head,
        )
        self._known = (generation, route)
        return route

    def wait(self, seconds: float) -> Route:
        """Wait for a complete route, at most ``seconds``; else raise ``RouteError``."""
        until = now() + seconds
        while True:
            try:
                return self.route()
            except RouteError:
                left = until - now()
                if left <= 0 or self._stop.is_set():
                    raise
                with self._changed:
                    self._changed.wait(min(left, LOOK_S))

    def forget(self, entries: Iterable[WorkerEntry]) -> None:
        """Drop workers and close their connections; they register anew."""
        gone = list(entries)
        with self._changed:
            self._registry.remove(gone)
            self._changed.notify_all()
        for entry in gone:
            entry.handle.line.close()

    # registration

    def _accept_all(self) -> None:
        while not self._stop.is_set():
            try:
                channel = self._listener.accept(deadline=now() + LOOK_S)
            except PeerLost:
                self._look()
                continue
            except OSError as error:
                if not self._stop.wait(SLICE_S):  # out of descriptors: no busy loop
                    self._log(f"listener: {error}")
                continue
            if not self._registering.acquire(blocking=False):
                self._log("too many unregistered connections, one refused")
                channel.close()
                continue
            self._sockets.apply(channel.fileno())
            tapped(channel, self._recorder, opened_by_us=False)
            threading.Thread(
                target=self._register, args=(channel,), name="HELLO", daemon=True
            ).start()

    def _register(self, channel: SocketChannel) -> None:
        try:
            line = Line(channel, self._sockets, on_broken=lambda _reason: None)
            machine = Registration(self._expected, now=now(), limits=self._limits)
            seen = bytearray()
            while not self._stop.is_set():
                self._read_hello(channel, machine, seen)
                for event in machine.events():
                    if isinstance(event, Transmit):
                        line.put(event.buffers)
                    elif isinstance(event, HelloRefused):
                        self._refused(channel, event, bytes(seen))
                    elif isinstance(event, Close):
                        line.put_close()
                        line.flush()
                        line.linger()
                        return
                    elif isinstance(event, HelloAccepted):
                        self._registered(line, machine, event)
                        return
            channel.close()
        finally:
            self._registering.release()

    def _read_hello(
        self, channel: SocketChannel, machine: Registration, seen: bytearray
    ) -> None:
        buffer, due = machine.get_buffer(), machine.deadline()
        until = now() + SLICE_S if due is None else min(due, now() + SLICE_S)
        try:
            got = channel.recv_into(buffer, deadline=until)
        except PeerLost as error:
            if error.kind != "timeout":
                machine.receive_data(None, now())
            elif due is not None and now() >= due:
                machine.timeout(now())
            return
        if len(seen) < 256:
            seen += buffer[: min(got, 256)]
        machine.received(got, now())

    def _refused(
        self, channel: SocketChannel, event: HelloRefused, seen: bytes
    ) -> None:
        from ds4proto.schema import dialect_candidates

        host, port = channel.remote
        verb = "rejecting" if event.answered else "bad HELLO from"
        self._log(f"{verb} {host}:{port}: {printable(event.fault.text)}")
        if event.answered:
            return
        for name, settled_by in dialect_candidates({"a>b": seen}):
            if name.rstrip("?") != self._model.dialect:
                self._log(f"{host}:{port} may speak dialect {name}: {settled_by}")

    def _registered(
        self, line: Line, machine: Registration, event: HelloAccepted
    ) -> None:
        link = WorkLink(
            self._model,
            has_head=self._has_head,
            limits=self._limits,
            initial=machine.trailing_data,
        )
        hop = Hop(line, link)
        with self._changed:
            if self._stop.is_set():
                line.close()
                return
            entry, replaced = self._registry.register(
                event.hello, line.channel.remote[0], hop
            )
            self._changed.notify_all()
        self._log(f"registered worker {entry}")
        if replaced is not None:
            self._log(f"worker {replaced} is replaced")
            replaced.handle.line.close()

    def _look(self) -> None:
        """Notice idle workers that have closed; ds4 on Linux misses an orderly end."""
        if not self._idle.acquire(blocking=False):
            return
        try:
            gone = [
                entry
                for entry in self.workers()
                if not entry.handle.line.channel.alive()
            ]
            for entry in gone:
                self._log(f"worker {entry} has gone")
                entry.handle.link.peer_closed(now())
            self.forget(gone)
        finally:
            self._idle.release()

    def close(self) -> None:
        """Stop listening and end every connection."""
        self._stop.set()
        self._thread.join(2 * LOOK_S + SLICE_S)
        self._listener.close()
        with self._changed:
            entries = self._registry.workers()
            self._registry.remove(entries)
            self._changed.notify_all()
        for entry in entries:
            entry.handle.line.close()
