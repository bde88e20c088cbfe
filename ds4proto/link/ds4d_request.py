"""One request of a coordinator: spans, window, recovery, as one machine."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from ds4proto.link.ds4d_endpoint import LocalProtocolError
from ds4proto.link.ds4d_events import (
    Drained,
    EvaluateLocal,
    Failed,
    Fault,
    LocalDone,
    LocalFailed,
    NoRoute,
    RemoteError,
    Replaying,
    Rerouted,
    ResetLocal,
    ResultReceived,
    RouteLost,
    Succeeded,
    Transmit,
    TransportError,
    Written,
)
from ds4proto.link.ds4d_facts import ModelFacts
from ds4proto.link.ds4d_route import Route
from ds4proto.link.ds4d_session import (
    Chunk,
    PrefillSettings,
    Session,
    SettingError,
    Span,
)
from ds4proto.link.ds4d_work_link import WorkLink
from ds4proto.schema.ds4d_work import KV_SPANS
from ds4proto.schema.problem import Buf

State = Literal["running", "draining", "rerouting", "done"]
TRANSITIONS: Final[dict[tuple[State, str], State]] = {
    ("running", "all answered"): "done",
    ("running", "nothing to send"): "done",
    ("running", "bad setting"): "done",
    ("running", "remote error"): "draining",
    ("running", "local failure"): "draining",
    ("running", "transport error"): "rerouting",
    ("running", "transport error again"): "done",
    ("draining", "remote error"): "draining",
    ("draining", "local failure"): "draining",
    ("draining", "transport error"): "rerouting",
    ("draining", "transport error again"): "done",
    ("draining", "replay"): "running",
    ("draining", "give up"): "done",
    ("rerouting", "replay"): "running",
    ("rerouting", "give up"): "done",
}
"""States of one request.

A request is replayed at most once (DS4D-COORD-32). ``draining``: nothing more is
submitted, every WORK already sent is still answered and the answer thrown away, so
that the connection can be used again (DS4D-COORD-34, -38).
"""
_NOTHING: Final = memoryview(b"")


class Request:
    """A sync (whole transcript) or an eval (one more token) over a route.

    Events: ``ResetLocal``, ``EvaluateLocal``, ``Transmit`` (on the first hop's
    connection), ``Replaying``, ``RouteLost``, then ``Succeeded`` or ``Failed``.
    Commands to ``send``: ``LocalDone``, ``LocalFailed``, ``Written``, ``Rerouted``,
    ``NoRoute``. Events of the ``WorkLink`` go to ``result``.

    Parameters
    ----------
    session : Session
    model : ModelFacts
    route : Route
        Complete; without workers everything is local.
    link : WorkLink or None
        Machine of the first hop's connection; None without workers.
    tokens : sequence of int
        The whole transcript of a sync, or the one token of an eval.
    kind : {"sync", "eval"}
    settings : PrefillSettings, optional
    fresh : bool
        True sends the whole transcript with RESET whatever the checkpoint says
        (the replay check, DS4D-COORD-41).
    """

    def __init__(
        self,
        session: Session,
        model: ModelFacts,
        route: Route,
        link: WorkLink | None,
        tokens: Sequence[int],
        *,
        kind: Literal["sync", "eval"] = "sync",
        settings: PrefillSettings | None = None,
        fresh: bool = False,
    ) -> None:
        self.state: State = "running"
        self._session, self._model = session, model
        self._route, self._link = route, link
        self._tokens, self._kind = tuple(tokens), kind
        self._settings = settings or PrefillSettings()
        self._out: deque[Any] = deque()
        self._replayed = False
        self._cause: Fault | None = None
        self._give_up: Fault | None = None
        self._telemetry: list[tuple[int, tuple[Mapping[str, Any], ...]]] = []
        self._local: Chunk | None = None
        self._rerouted = self._drained = self._pipelined = False
        self._next = self._sent = self._answered = self._written = 0
        self._chunk_count = self._first_request = 0
        self._window = self._depth = 1
        if kind == "eval" and len(self._tokens) != 1:
            raise ValueError(f"an eval has 1 token, found {len(self._tokens)}")
        if fresh:
            span: Span | None = session.replay_span(kind, self._tokens)
        elif kind == "sync":
            span = session.sync_span(self._tokens)
        else:
            span = session.eval_span(self._tokens[0])
        if span is None or not span.tokens:
            self._move("nothing to send")
            self._out.append(Succeeded(None, _NOTHING, 32, 0, False))
            return
        self._begin(span)

    # for the caller

    @property
    def done(self) -> bool:
        """True after ``Succeeded`` or ``Failed``."""
        return self.state == "done"

    def events(self) -> Iterator[Any]:
        """Yield what has to be done, in order."""
        while self._out:
            yield self._out.popleft()

    def send(self, event: Any, now: float) -> list[Buf]:
        """Take a command; what follows from it comes as events.

        Raises
        ------
        LocalProtocolError
            If nothing of the kind was asked for.
        """
        if isinstance(event, LocalDone):
            self._local_done(event, now)
        elif isinstance(event, LocalFailed):
            self._local_failed(event)
        elif isinstance(event, Written):
            self._written = max(self._written, event.request - self._first_request + 1)
            self._advance()
        elif isinstance(event, Rerouted) and self.state == "rerouting":
            self._route, self._link = event.route, event.link
            self._rerouted = True
            self._after_reroute()
        elif isinstance(event, NoRoute) and self.state == "rerouting":
            self._move("give up")
            self._fail(event.text)
        else:
            raise LocalProtocolError(f"{event!r} while {self.state}")
        return []

    def result(self, event: Any) -> None:
        """Take an event of the route's ``WorkLink``; others are passed over.

        Answers to WORK of an attempt that has been given up are passed over too:
        several can lie in one read, in front of the events of the next attempt.
        """
        if self.done or getattr(event, "request", self._first_request) < (
            self._first_request
        ):
            return
        if isinstance(event, ResultReceived) and self.state == "running":
            self._answered += 1
            self._telemetry.append((event.request, event.telemetry))
            if self._answered == self._chunk_count:
                self._succeed(event)
            else:
                self._advance()
        elif isinstance(event, RemoteError):
            self._stop("remote error", event.fault)
        elif isinstance(event, Drained) and self.state == "draining":
            self._drained = True
            self._after_drain()
        elif isinstance(event, TransportError):
            self._lost(event.fault)

    # one attempt

    def _move(self, cause: str) -> None:
        self.state = TRANSITIONS[self.state, cause]

    def _begin(self, span: Span) -> None:
        settings, hops = self._settings, self._route.workers
        self._span = span
        self._next = self._sent = self._answered = self._written = 0
        self._drained = self._rerouted = self._pipelined = False
        self._first_request = self._session.last_request + 1
        self._window = self._depth = 1
        try:
            size = min(settings.chunk_tokens(), self._model.most_tokens)
            self._chunk_count = -(-len(span.tokens) // size)
            finish = self._route.logits or self._link is None or self._link.has_head
            self._pipelined = (
                len(span.tokens) > size and settings.pipeline and bool(hops) and finish
            )
            if self._pipelined:
                self._window = settings.window_chunks(len(hops), self._chunk_count)
                self._depth = settings.depth_chunks(self._chunk_count)
        except SettingError as error:
            self._move("bad setting")
            self._out.append(Failed(str(error), Fault("DS4D-COORD-37", str(error))))
            return
        self._chunks = span.chunks(
            size,
            logits=bool(hops) and hops[0].has_output,
            input_hidden=bool(hops) and hops[0].layer_start > 0,
            ack_only=self._pipelined and settings.ack_only,
        )
        if span.reset:
            self._out.append(ResetLocal())
        self._advance()

    def _advance(self) -> None:
        """Ask for the next local chunk if window and queue have room."""
        waiting = self._sent - max(self._written, self._answered)
        if (
            self.state != "running"
            or self._local is not None
            or self._next == self._chunk_count
            or self._next >= self._answered + self._window
            or (self._pipelined and waiting >= self._depth)
        ):
            return
        chunk = self._local = next(self._chunks)
        self._next += 1
        self._out.append(
            EvaluateLocal(chunk.index, chunk.pos0, chunk.tokens, chunk.last)
        )

    def _take_local(self, index: int) -> Chunk:
        chunk, self._local = self._local, None
        if chunk is None or chunk.index != index:
            raise LocalProtocolError(f"chunk {index} is not being evaluated")
        return chunk

    def _local_done(self, event: LocalDone, now: float) -> None:
        chunk = self._take_local(event.index)
        if self.state == "draining":
            self._after_drain()
        elif self.state == "rerouting":
            self._after_reroute()
        elif self.state == "running" and self._link is None:
            self._answered += 1
            if chunk.last:
                self._succeed(None)
            else:
                self._advance()
        elif self.state == "running" and self._link is not None:
            self._submit(self._link, chunk, event.hidden, now)
            self._advance()

    def _local_failed(self, event: LocalFailed) -> None:
        self._take_local(event.index)
        if self.state == "rerouting":
            self._after_reroute()
        elif self.state != "done":
            self._stop("local failure", Fault("DS4D-COORD-37", event.text))

    def _submit(self, link: WorkLink, chunk: Chunk, hidden: Buf, now: float) -> None:
        first = self._route.workers[0]
        request = self._session.next_request()
        values = {
            "model_id": self._model.model_id,
            "session": self._session.session_id,
            "request": request,
            "prefix_hash": chunk.prefix_hash,
            "result_hash": chunk.result_hash,
            "pos0": chunk.pos0,
            "n_tokens": len(chunk.tokens),
            "layer_start": first.layer_start,
            "layer_end": first.layer_end,
            "flags": chunk.flags | (KV_SPANS if self._settings.kv_spans else 0),
            "input_hc_bits": self._settings.bits,
            "route_count": len(self._route.workers),
            "route_index": 0,
            "tokens": chunk.tokens,
            "hidden": hidden,
            "route_blob": self._route.blob,
        }
        frame = link.work(
            values,
            now,
            pipelined=self._pipelined,
            last=chunk.last,
            route_logits=self._route.logits,
        )
        self._sent += 1
        self._out.append(Transmit(frame, request))

    # ends

    def _succeed(self, event: ResultReceived | None) -> None:
        self._move("all answered")
        self._session.advanced(self._span)
        self._out.append(
            Succeeded(
                None if event is None else event.kind,
                _NOTHING if event is None else event.payload,
                32 if event is None else event.bits,
                len(self._span.tokens),
                self._replayed,
                tuple(self._telemetry),
            )
        )

    def _fail(self, words: str) -> None:
        """Fail after something was sent: no slice can be trusted (DS4D-COORD-35)."""
        self._session.forget()
        cause = self._cause or Fault("DS4D-COORD-37", words)
        self._out.append(Failed(words, cause))

    def _stop(self, cause: str, fault: Fault) -> None:
        """Submit nothing more; drain what was sent, then replay or give up."""
        already = self.state == "draining"
        self._cause = self._cause or fault
        self._move(cause)
        if cause == "local failure" or self._replayed:
            self._give_up = self._give_up or fault
        if already:
            self._after_drain()
            return
        if self._link is not None and self._link.pending:
            self._link.drain()
        else:
            self._drained = True
            self._after_drain()

    def _after_drain(self) -> None:
        if not self._drained or self._local is not None:
            return
        if self._give_up is not None:
            self._move("give up")
            self._fail(self._give_up.text)
        else:
            self._replay()

    def _lost(self, fault: Fault) -> None:
        self._cause = self._cause or fault
        again = self._replayed or self._give_up is not None
        self._move("transport error again" if again else "transport error")
        self._out.append(RouteLost(self._route.workers, fault, replay=not again))
        if again:
            self._fail((self._give_up or fault).text)

    def _after_reroute(self) -> None:
        """Replay on the new route, once the own slice is free."""
        if self._rerouted and self._local is None:
            self._replay()

    def _replay(self) -> None:
        self._move("replay")
        self._replayed = True
        span = self._session.replay_span(self._kind, self._tokens)
        fault = self._cause or Fault("DS4D-COORD-30", "")
        self._out.append(Replaying(fault, len(span.tokens)))
        self._begin(span)
