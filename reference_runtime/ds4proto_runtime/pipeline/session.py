"""A session over a route: sync, eval, save, load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Literal

import numpy as np

from ds4proto.errors import Ds4ProtoError, ExitCode
from ds4proto.link.ds4d_events import Failed
from ds4proto.link.ds4d_facts import row_bytes
from ds4proto.link.ds4d_request import Request
from ds4proto.link.ds4d_route import RouteError
from ds4proto.link.ds4d_session import Session as Transcript
from ds4proto.link.ds4d_session import SettingError, new_session_id
from ds4proto.link.ds4d_snapshot_client import ShardKey
from ds4proto.schema.ds4d_result import HIDDEN_STATE
from ds4proto.schema.problem import Buf
from ds4proto_runtime import kv
from ds4proto_runtime.engines.base import F32, Engine, Session
from ds4proto_runtime.pipeline import transfer
from ds4proto_runtime.pipeline.activations import pack_late, unpack
from ds4proto_runtime.pipeline.request import Drive, Progress

if TYPE_CHECKING:
    from ds4proto.link.ds4d_registry import WorkerEntry
    from ds4proto.link.ds4d_route import Route
    from ds4proto_runtime.pipeline.coordinator import PipelineCoordinator


OnSpan = Callable[[Session, tuple[int, ...], int], None]
"""Told the state, the tokens and the first position of each evaluated span."""


class PipelineError(Ds4ProtoError):
    """A request over a route failed for good; the text is the peer's, or ds4's."""


class RouteIncomplete(PipelineError):
    """No complete route exists; the text names the first missing layer."""

    exit_code = ExitCode.PEER_LOST


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a request brought.

    Attributes
    ----------
    logits : F32
        ``[vocab]``, those of the last token.
    n_tokens : int
        Tokens that were sent, those of a replay included.
    seconds : float
    replayed : bool
        Whether the whole transcript went out once more.
    """

    logits: F32
    n_tokens: int
    seconds: float
    replayed: bool


class Slice:
    """The coordinator's own layers of one session (see ``request.LocalSlice``)."""

    def __init__(self, engine: Engine, layers: range, bits: int, profile: str) -> None:
        self._engine, self._layers = engine, layers
        self._bits, self._profile = bits, profile
        self.state = kv.open_slice(engine, layers)
        self.last: F32 | None = None
        self.on_span: OnSpan | None = None

    def reset(self) -> None:
        """Empty it."""
        self._engine.reset(self.state)

    def run(self, tokens: tuple[int, ...], pos0: int) -> Buf:
        """Evaluate a chunk; its last row stays for a head of our own."""
        rows = self._engine.embed(tokens)
        rows = self._engine.run(self.state, rows, tokens, pos0)
        self.last = rows[-1]
        if self.on_span is not None:
            self.on_span(self.state, tokens, pos0)
        return pack_late(rows, self._bits, self._profile)


class PipelineSession:
    """One session; several may live on one coordinator. Made by ``session()``.

    Attributes
    ----------
    logits : F32 or None
        Of the last token, where a request or a load has succeeded.
    """

    def __init__(self, owner: PipelineCoordinator, seed: int | None) -> None:
        self._owner = owner
        self._transcript = Transcript(
            new_session_id("random" if seed is None else seed)
        )
        self._local = Slice(owner.engine, owner.layers, owner.bits, owner.profile)
        self.logits: F32 | None = None

    @property
    def tokens(self) -> Sequence[int]:
        """Tokens of the last successful request; do not change them."""
        return self._transcript.transcript

    @property
    def checkpoint(self) -> int:
        """Tokens that every slice is known to hold."""
        return self._transcript.checkpoint

    @property
    def slice(self) -> Slice:
        """The coordinator's own layers."""
        return self._local

    @property
    def transcript(self) -> Transcript:
        """The session of the machines."""
        return self._transcript

    def sync(
        self,
        tokens: Sequence[int],
        *,
        fresh: bool = False,
        progress: Progress = lambda _tokens: None,
    ) -> Outcome:
        """Bring every slice to a transcript; send what is missing.

        Raises
        ------
        PipelineError
            With ds4's text; the checkpoint is then empty.
        RouteIncomplete
            No complete route exists.
        """
        return self._request(tokens, "sync", fresh, progress)

    def eval(self, token: int) -> Outcome:
        """Add one token; raises as ``sync`` does."""
        return self._request((token,), "eval", False, lambda _tokens: None)

    def _request(
        self,
        tokens: Sequence[int],
        kind: Literal["sync", "eval"],
        fresh: bool,
        progress: Progress,
    ) -> Outcome:
        owner = self._owner
        started = perf_counter()
        with owner.route_lock:
            # whether a loss was noticed before the request or in it is a matter of luck
            route = self._route(owner.rejoin_s)
            hop = route.workers[0].handle if route.workers else None
            try:
                settings = owner.settings()
                if self._local.on_span is not None:
                    settings = replace(settings, kv_spans=True)
            except SettingError as error:
                raise PipelineError(str(error)) from None
            request = Request(
                self._transcript,
                owner.model,
                route,
                hop.link if hop is not None else None,
                tokens,
                kind=kind,
                settings=settings,
                fresh=fresh,
            )
            done = Drive(
                request,
                hop,
                self._local,
                owner.door,
                rejoin_s=owner.rejoin_s,
                send_s=owner.sockets.send_s,
                log=owner.log,
                progress=progress,
                on_sent=owner.telemetry.sent,
                on_evaluated=owner.telemetry.evaluated,
            ).run()
        if isinstance(done, Failed):
            raise PipelineError(done.text)
        owner.telemetry.add(done.telemetry)
        if done.n_tokens:
            self.logits = self._finish(done.kind, done.payload, done.bits)
        if self.logits is None:
            raise PipelineError("nothing has been evaluated yet: the prompt is empty")
        seconds = perf_counter() - started
        if kind == "eval" and owner.sockets.profile:
            owner.log(f"decode at {len(self.tokens) - 1}: {seconds * 1e3:.3f} ms")
        return Outcome(self.logits, done.n_tokens, seconds, done.replayed)

    def _route(self, wait_s: float = 0.0) -> Route:
        try:
            return self._owner.door.wait(wait_s)
        except RouteError as error:
            raise RouteIncomplete(str(error)) from None

    def _finish(self, kind: int | None, payload: memoryview, bits: int) -> F32:
        """Return the logits of an answer; a hidden state gets our own head."""
        engine = self._owner.engine
        if kind is None and self._local.last is not None:
            return engine.head(self._local.last)
        if kind == HIDDEN_STATE:
            width = engine.shape.hidden_values
            last = payload[len(payload) - row_bytes(bits, width) :]
            return engine.head(unpack(last, bits, width, self._owner.profile)[0])
        return np.frombuffer(payload, np.float32).copy()

    # snapshots

    def _key(self, entry: WorkerEntry, tokens: int, token_hash: int) -> ShardKey:
        return ShardKey(
            self._owner.model.model_id,
            self._transcript.session_id,
            self._transcript.next_snapshot_request(),
            token_hash,
            tokens,
            entry.layer_start,
            entry.layer_end,
        )

    def shards(self) -> list[tuple[range, Buf]]:
        """Gather the shard of every slice, the own one first; route order.

        Raises
        ------
        PipelineError
            With ds4's text; route and sessions go on undisturbed.
        """
        owner = self._owner
        with owner.route_lock:
            route = self._route()
            count = self.checkpoint
            if not count:
                raise PipelineError("there is no session to save: sync a prompt first")
            own = b"".join(kv.shard_bytes(owner.engine, self._local.state))
            found: list[tuple[range, Buf]] = [(owner.layers, own)]
            for entry in route.workers:
                key = self._key(entry, count, self._transcript.token_hash)
                data = transfer.fetch(owner, entry, key)
                found.append((range(entry.layer_start, entry.layer_end + 1), data))
        return found

    def save(self, path: Path) -> int:
        """Write the session to a DSV4 file and return its bytes.

        The file does not depend on the route. Raises ``PipelineError``.
        """
        return kv.write_atomic(path, self.saved())

    def saved(self) -> list[Buf]:
        """Return the bytes of the DSV4 file of this session."""
        owner = self._owner
        values: list[kv.Values] = []
        for layers, data in self.shards():
            first = values[0] if values else None
            shape = owner.engine.shape
            values.append(kv.read_shard(data, owner.model, layers, shape, first))
        if self.logits is None:
            raise PipelineError("there are no logits to save")
        return kv.join_shards(values, list(self.tokens), self.logits)

    def load(self, path: Path) -> None:
        """Restore a DSV4 file over the present route.

        Everything is judged before any slice is touched. If a worker then fails, its
        predecessors hold the new session already; the next request puts the old
        transcript back with a reset.

        Raises
        ------
        ds4proto_runtime.engines.base.EngineError
            The file is refused; nothing has changed.
        PipelineError
            A worker refused or went away.
        """
        saved = kv.judge_saved(kv.map_file(path), self._owner.engine.shape)
        self.restore(saved, list(saved.values["tokens"]))

    def restore(self, saved: kv.Saved, tokens: list[int]) -> None:
        """Restore a judged session over the present route; see ``load``."""
        from ds4proto.codec.token_hash import token_hash

        owner = self._owner
        with owner.route_lock:
            route = self._route()
            own = b"".join(kv.cut_shard(saved, owner.layers))
            state = kv.load_shard(owner.engine, own, tokens, owner.layers)
            value = token_hash(tokens)
            for number, entry in enumerate(route.workers):
                layers = range(entry.layer_start, entry.layer_end + 1)
                parts = kv.cut_shard(saved, layers)
                key = self._key(entry, len(tokens), value)
                try:
                    transfer.push(owner, entry, key, tokens, parts)
                except PipelineError:
                    if number:
                        self._transcript.forget()
                    raise
            self._local.state = state
            self._transcript.loaded(tokens)
            self.logits = saved.logits
