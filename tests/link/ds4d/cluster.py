"""A coordinator and its workers as machines, joined in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ds4proto.link.ds4d_events import (
    Close,
    EvaluateLocal,
    Failed,
    LocalDone,
    NoRoute,
    Replaying,
    Rerouted,
    ResetLocal,
    RouteLost,
    Succeeded,
    Transmit,
    Written,
)
from ds4proto.link.ds4d_forward import Forwarder
from ds4proto.link.ds4d_registry import Registry, WorkerEntry
from ds4proto.link.ds4d_request import Request
from ds4proto.link.ds4d_route import Route, RouteError, build_route
from ds4proto.link.ds4d_session import PrefillSettings, Session
from ds4proto.link.ds4d_work_link import WorkLink
from ds4proto.schema.ds4d_result import HIDDEN_STATE
from tests.link.ds4d import toy
from tests.link.ds4d.host import Host

Tamper = Callable[[int, bytes], bytes | None]
"""``tamper(n, frame bytes)``: what arrives instead; None loses the connection."""


class Cluster:
    """Coordinator 0:1 of the toy model and workers behind it.

    ``sent`` records what left on the first hop's connection, ``log`` the events of
    requests. Answers reach the coordinator only in ``exchange``.
    """

    def __init__(
        self,
        *slices: tuple[int, int, bool],
        settings: PrefillSettings | None = None,
        head: bool = True,
        session: int = 77,
    ) -> None:
        self.registry = Registry()
        self.settings = settings or PrefillSettings(prefill_cap=toy.PREFILL_CAP)
        self.session = Session(session)
        self.head = head
        self.local = toy.Slice(0, 1)
        self.sent = bytearray()
        self.log: list[Any] = []
        self.tamper: Tamper | None = None
        self.before_work: Callable[[int], None] | None = None
        self.most_in_flight = 0
        self.in_flight: list[int] = []
        self._count = 0
        self.hosts: list[Host] = []
        for number, (start, end, output) in enumerate(slices):
            self.add(toy.facts(start, end, head=output), f"10.0.0.{number + 1}")

    def add(self, facts: Any, host: str) -> WorkerEntry:
        """Register a worker; its control connection is ``handle``."""
        process = Host(facts)
        self.hosts.append(process)
        control = process.open("control")
        link = WorkLink(toy.MODEL, has_head=self.head)
        hello = facts.hello(len(self.hosts))
        entry, _ = self.registry.register(hello, host, (process, control, link))
        return entry

    def route(self) -> Route:
        return build_route(
            (0, 1), self.registry.workers(), 8, coordinator_has_head=self.head
        )

    # one request

    def sync(self, tokens: Sequence[int], **options: Any) -> Any:
        return self._run(tokens, kind="sync", **options)

    def eval(self, token: int, **options: Any) -> Any:
        return self._run((token,), kind="eval", **options)

    def logits(self, tokens: Sequence[int], **options: Any) -> Any:
        return self.row(self.sync(tokens, **options))

    def row(self, done: Any) -> Any:
        """Return the logits that a success leads to."""
        assert isinstance(done, Succeeded), done
        if done.kind == HIDDEN_STATE:
            count = len(done.payload) * 8 // done.bits // toy.HIDDEN
            return toy.logits(toy.unpack(done.payload, done.bits, count)[-1])
        return np.frombuffer(done.payload, toy.F)

    def _run(self, tokens: Sequence[int], **options: Any) -> Any:
        try:
            route = self.route()
        except RouteError as error:
            return error
        link = route.workers[0].handle[2] if route.workers else None
        request = Request(
            self.session,
            toy.MODEL,
            route,
            link,
            tokens,
            settings=self.settings,
            **options,
        )
        self._route = route
        written: list[Written] = []
        for _ in range(10_000):
            moved = self._coordinator(request, written)
            if request.done and not moved:
                break
            moved = self.exchange(request) or moved
            while written:
                request.send(written.pop(0), 0.0)
                moved = True
            assert moved, f"nothing happens while {request.state}"
        (end,) = (e for e in self.log[-4:] if isinstance(e, Succeeded | Failed))
        self.log.clear()
        return end

    def _coordinator(self, request: Request, written: list[Written]) -> bool:
        moved = False
        for event in request.events():
            moved = True
            self.log.append(event)
            if isinstance(event, ResetLocal):
                self.local.reset()
            elif isinstance(event, EvaluateLocal):
                rows = self.local.run(event.tokens, None)
                request.send(
                    LocalDone(event.index, toy.pack(rows, self.settings.bits)), 0.0
                )
            elif isinstance(event, Transmit):
                data = b"".join(event.buffers)
                self.sent += data
                self._deliver(data)
                assert event.request is not None
                written.append(Written(event.request))
            elif isinstance(event, RouteLost):
                self._forget(event.workers)
                if event.replay:
                    self._reroute(request)
            elif isinstance(event, Succeeded | Failed | Replaying):
                pass
        return moved

    def _deliver(self, data: bytes) -> None:
        host, control, link = self._route.workers[0].handle
        self.in_flight.append(link.pending)
        self.most_in_flight = max(self.in_flight)
        self._count += 1
        if self.before_work is not None:
            self.before_work(self._count)
        if control not in host.closed:
            host.give(control, data)

    def _reroute(self, request: Request) -> None:
        try:
            self._route = self.route()
        except RouteError as error:
            request.send(NoRoute(str(error)), 0.0)
            return
        link = self._route.workers[0].handle[2]
        request.send(Rerouted(self._route, link), 0.0)

    def _forget(self, workers: Sequence[WorkerEntry]) -> None:
        self.registry.remove(workers)
        for worker in workers:
            host, control, _ = worker.handle
            if control not in host.closed:
                host.give(control, None)

    # the wires

    def exchange(self, request: Request | None = None) -> bool:
        """Carry bytes between workers, and one frame to the coordinator."""
        moved = True
        any_moved = False
        while moved:
            moved = any(self._forward(host) for host in self.hosts)
            any_moved = any_moved or moved
        if request is None or not self._route.workers:
            return any_moved
        host, control, link = self._route.workers[0].handle
        wrote = host.wrote[control]
        if wrote and link.state in ("waiting", "draining"):
            size = 12 + int.from_bytes(wrote[8:12], "big")
            data: bytes | None = bytes(wrote[:size])
            del wrote[:size]
            if self.tamper is not None and data is not None:
                data = self.tamper(self._count, data)
            link.receive_data(data, 0.0)
            any_moved = True
        elif control in host.closed and link.state in ("waiting", "draining"):
            link.receive_data(None, 0.0)
            any_moved = True
        for event in link.events():
            self.log.append(event)
            request.result(event)
            if isinstance(event, Close) and control not in host.closed:
                host.give(control, None)
        return any_moved

    def _forward(self, host: Host) -> bool:
        moved = False
        for dial in host.dials:
            target = self.hosts[dial.port - 1]
            assert isinstance(dial.forwarder, Forwarder)
            end = target.open("data")
            host.pipes[dial.forwarder] = (target, end)
            dial.forwarder.opened(0.0)
            host.settle(dial.forwarder)
            moved = True
        host.dials.clear()
        for forwarder, (target, end) in list(host.pipes.items()):
            down, up = bytes(host.wrote[forwarder]), bytes(target.wrote[end])
            host.wrote[forwarder].clear()
            target.wrote[end].clear()
            if down and end not in target.closed:
                target.give(end, down)
            if up and forwarder not in host.closed:
                host.give(forwarder, up)
            if end in target.closed and forwarder not in host.closed:
                host.give(forwarder, None)
                del host.pipes[forwarder]
            moved = moved or bool(down or up)
        return moved
