"""Drives one request of a coordinator: local slice, sending and reading.

A request of one chunk runs in the caller's thread alone. One of several chunks gets a
sending and a reading thread beside it, so that the three overlap (DS4D-COORD-20).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from ds4proto.link.ds4d_events import (
    EvaluateLocal,
    Failed,
    LocalDone,
    LocalFailed,
    NoRoute,
    Replaying,
    Rerouted,
    ResetLocal,
    RouteLost,
    Succeeded,
    Transmit,
    Written,
)
from ds4proto.link.ds4d_request import Request
from ds4proto.link.ds4d_route import Route, RouteError
from ds4proto.link.ds4d_texts import printable
from ds4proto.peer import PeerLost
from ds4proto.schema.problem import Buf
from ds4proto_runtime.engines.base import EngineError
from ds4proto_runtime.pipeline import activations
from ds4proto_runtime.pipeline.line import SLICE_S, now
from ds4proto_runtime.pipeline.routes import Door, Hop

Progress = Callable[[int], None]


class LocalSlice(Protocol):
    """The coordinator's own layers of one session."""

    def reset(self) -> None:
        """Empty it."""

    def run(self, tokens: tuple[int, ...], pos0: int) -> Buf:
        """Evaluate a chunk and return the hidden state at wire width."""


class Drive:
    """One request on its way.

    Parameters
    ----------
    request : Request
    hop : Hop or None
        The first hop; None where the route has no workers.
    local : LocalSlice
    door : Door
        For a new route after a loss.
    rejoin_s : float
        How long a lost route may take to come back; 0 builds it at once.
    send_s : float
        Longest standstill of a send.
    progress : callable
        Told the tokens of each evaluated chunk.
    on_sent : callable
        Told bytes and seconds of each WORK that was written.
    on_evaluated : callable
        Told tokens and seconds of each evaluation of the own slice.
    """

    def __init__(
        self,
        request: Request,
        hop: Hop | None,
        local: LocalSlice,
        door: Door,
        *,
        rejoin_s: float,
        send_s: float,
        log: Callable[[str], None],
        progress: Progress,
        on_sent: Callable[[int, float], None] = lambda _bytes, _seconds: None,
        on_evaluated: Callable[[int, float], None] = lambda _tokens, _seconds: None,
    ) -> None:
        self._request, self._hop = request, hop
        self._local, self._door = local, door
        self._rejoin_s, self._send_s = rejoin_s, send_s
        self._log, self._progress = log, progress
        self._on_sent, self._on_evaluated = on_sent, on_evaluated
        self._result: Succeeded | Failed | None = None
        self._changed = threading.Condition()
        self._news: deque[Any] = deque()
        self._outbox: deque[Transmit] = deque()
        self._helpers: list[threading.Thread] = []
        self._over = False

    def run(self) -> Succeeded | Failed:
        """Run to the end; a failure is returned, not raised."""
        try:
            while self._result is None:
                due = self._collect()
                if self._result is not None:
                    break
                if due is not None:
                    self._evaluate(due)
                elif self._helpers:
                    with self._changed:
                        self._news.extend(self._request.events())
                        if not self._news:
                            self._changed.wait(SLICE_S)
                elif self._hop is not None:
                    self._read(self._hop)
                else:
                    raise AssertionError("a request without workers waits for one")
        finally:
            self._stop_helpers()
        return self._result

    def _collect(self) -> EvaluateLocal | None:
        """Carry out what the request asks for, up to the next local chunk."""
        while True:
            with self._changed:
                self._news.extend(self._request.events())
                event: Any = self._news.popleft() if self._news else None
                if isinstance(event, Transmit) and self._helpers:
                    self._outbox.append(event)
                    self._changed.notify_all()
                    continue
            if event is None:
                return None
            if isinstance(event, EvaluateLocal):
                if not event.last and not self._helpers and self._hop is not None:
                    self._start_helpers(self._hop)
                return event
            self._carry_out(event)
            if self._result is not None:
                return None

    def _carry_out(self, event: Any) -> None:
        if isinstance(event, Transmit):
            if self._hop is not None:
                self._send(self._hop, event)
        elif isinstance(event, ResetLocal):
            self._local.reset()
        elif isinstance(event, Replaying):
            why = printable(event.fault.text)
            self._log(f"replaying {event.tokens} tokens with reset: {why}")
        elif isinstance(event, RouteLost):
            self._lost(event)
        elif isinstance(event, Succeeded | Failed):
            self._result = event

    def _evaluate(self, due: EvaluateLocal) -> None:
        answer: LocalDone | LocalFailed
        started = now()
        try:
            answer = LocalDone(due.index, self._local.run(due.tokens, due.pos0))
        except EngineError as error:
            answer = LocalFailed(due.index, str(error))
        self._on_evaluated(len(due.tokens), now() - started)
        with self._changed:
            self._request.send(answer, now())
        self._progress(len(due.tokens))

    def _lost(self, event: RouteLost) -> None:
        self._log(f"route lost: {printable(event.fault.text)}")
        self._door.forget(event.workers)
        self._stop_helpers()
        if not event.replay:
            return
        answer: Rerouted | NoRoute
        try:
            route: Route = self._door.wait(self._rejoin_s)
        except RouteError as error:
            answer, self._hop = NoRoute(str(error)), None
        else:
            self._hop = route.workers[0].handle if route.workers else None
            link = self._hop.link if self._hop is not None else None
            answer = Rerouted(route, link)
        with self._changed:
            self._request.send(answer, now())

    # the connection

    def _send(self, hop: Hop, event: Transmit) -> None:
        def send(buffers: Any) -> None:
            hop.line.channel.send(buffers, deadline=now() + self._send_s)

        started = now()
        try:
            if hop.write_error is None:
                activations.write(event.buffers, send)
                self._on_sent(sum(map(len, event.buffers)), now() - started)
        except PeerLost as error:
            # What the worker said before it went is still read.
            hop.write_error = error.reason or error.kind
        if event.request is not None:
            with self._changed:
                self._request.send(Written(event.request), now())
                self._changed.notify_all()

    def _read(self, hop: Hop) -> None:
        """Read once from the first hop and tell the request."""
        link = hop.link
        with self._changed:
            buffer, due = link.get_buffer(), link.deadline()
            if not len(buffer):
                self._changed.wait(SLICE_S / 4)
                return
        until = now() + SLICE_S
        if due is not None:
            until = min(until, due)
        got, failed = -1, None
        try:
            got = hop.line.channel.recv_into(buffer, deadline=until)
        except PeerLost as error:
            if error.kind != "timeout":
                failed = hop.write_error or error.reason or error.kind
            elif hop.write_error is not None:
                failed = hop.write_error
        with self._changed:
            if got >= 0:
                link.received(got, now())
            elif failed is not None:
                link.failed(failed, now())
            elif due is not None and now() >= due:
                link.timeout(now())
            for event in link.events():
                self._request.result(event)
            self._changed.notify_all()

    # helpers

    def _start_helpers(self, hop: Hop) -> None:
        self._over = False
        self._helpers = [
            threading.Thread(target=self._send_all, args=(hop,), name="send"),
            threading.Thread(target=self._read_all, args=(hop,), name="read"),
        ]
        for thread in self._helpers:
            thread.daemon = True
            thread.start()

    def _stop_helpers(self) -> None:
        helpers, self._helpers = self._helpers, []
        with self._changed:
            self._over = True
            self._outbox.clear()
            self._changed.notify_all()
        for thread in helpers:
            thread.join(self._send_s + SLICE_S)

    def _send_all(self, hop: Hop) -> None:
        while True:
            with self._changed:
                while not self._outbox and not self._over:
                    self._changed.wait(SLICE_S)
                if self._over:
                    return
                event = self._outbox.popleft()
            self._send(hop, event)

    def _read_all(self, hop: Hop) -> None:
        while not self._over and not hop.link.closed:
            self._read(hop)
