"""Prefill over a route, decode at its last worker: between peers of our own.

While the route prefills, every hop sends the KV of each chunk to the worker that owns
the head and holds the whole model. It checks what came (position and token hash of
every layer, then the logits of the next token) and decodes alone. Before the next
prompt that goes on from there, every slice gets what was decoded. Whatever does not
fit means a cold start over there, never mixed KV.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Final

import numpy as np

from ds4proto.codec.token_hash import TokenHash, token_hash
from ds4proto.link.ds4d_local import local_frame, logits_hash
from ds4proto.link.ds4d_registry import WorkerEntry
from ds4proto.schema.ds4d_private import LOCAL_DECODE
from ds4proto.schema.ds4d_private_frames import (
    COLD,
    EXACT,
    KV_CHECK,
    LAST,
    LOCAL_GENERATE,
    NO_TOKEN,
)
from ds4proto_runtime import handover
from ds4proto_runtime.engines.base import F32, EngineError, Session
from ds4proto_runtime.pipeline.coordinator import PipelineCoordinator
from ds4proto_runtime.pipeline.generation import Generated, OverRoute, Progress
from ds4proto_runtime.pipeline.kv_return import hand_back
from ds4proto_runtime.pipeline.kv_spans import (
    KvSender,
    export,
    span_frame,
    spans_of,
)
from ds4proto_runtime.pipeline.local_client import LocalRequests, key_words, told
from ds4proto_runtime.pipeline.local_decode import COMPARED, Handover
from ds4proto_runtime.pipeline.session import PipelineError, PipelineSession

WAIT_S: Final = 30.0
"""Longest wait of the decoding worker for KV that is still on its way."""


class RemoteDecode:
    """A session that prefills over the route and decodes at its last worker.

    Parameters
    ----------
    coordinator : PipelineCoordinator
        Of the private dialect.
    session : PipelineSession
    wait_s : float
        Longest wait for KV on its way, at most 600.

    Raises
    ------
    EngineError
        The engine's KV does not move in spans.
    """

    def __init__(
        self,
        coordinator: PipelineCoordinator,
        session: PipelineSession,
        *,
        log: Callable[[str], None],
        wait_s: float = WAIT_S,
    ) -> None:
        spans_of(coordinator.engine)
        self._coordinator, self._session, self._log = coordinator, session, log
        self._wait_s = wait_s
        self._sender: KvSender | None = None
        self._address: tuple[str, int] | None = None
        self._request = 0
        self._hash, self._hashed = TokenHash(), 0
        self._held: list[int] = []
        self._ahead = self._cold_held = False
        self._spans: list[tuple[int, int]] = []
        self._there = range(0)
        self.gathered = Handover()
        self.returned = Handover()

    @property
    def tokens(self) -> list[int]:
        """Tokens whose KV the decoding worker holds."""
        return self._held

    def close(self) -> None:
        """End the connection that carries the own KV."""
        if self._sender is not None:
            self._sender.close()
            self._sender = None

    def _decoder(self) -> WorkerEntry:
        route = self._coordinator.door.route()
        last = route.workers[-1] if route.workers else None
        if last is None or not last.abilities & LOCAL_DECODE:
            who = "the route has no worker" if last is None else f"worker {last}"
            raise PipelineError(
                f"{who} cannot decode alone: start the worker of the last layer"
                " with --local-decode --dialect ds4proto"
            )
        return last

    def _key(self) -> dict[str, int]:
        self._request += 1
        number = self._session.transcript.session_id
        return key_words(self._coordinator, number, self._request)

    # prefill

    def generate(
        self,
        prompt: Sequence[int],
        count: int,
        *,
        temp: float = 0.0,
        seed: int = 1,
        eos: int | None = None,
        progress: Progress = lambda _tokens: None,
        each: Callable[[int], None] = lambda _token: None,
    ) -> Generated:
        """Prefill over the route and have up to ``count`` tokens decoded.

        Raises
        ------
        PipelineError
            The route and the decoding worker both fail, or the latter goes away.
        """
        done = Generated(list(prompt))
        started = perf_counter()
        self._decoder()
        fresh = self._give_back(prompt)
        self.gathered = Handover()
        why, far = self._over_route(prompt, fresh, progress)
        decoder = self._decoder()
        self._there = range(decoder.layer_start, decoder.layer_end + 1)
        requests = LocalRequests(self._coordinator, decoder)
        try:
            if not why and far is not None:
                why = self._check(requests, prompt, far)
            if why:
                self._log(f"cold start: {why}; the prompt is prefilled by {decoder}")
                self.gathered = Handover(cold=why)
                self._ask_check(requests, prompt, COLD, None)
            done.prefill_s = perf_counter() - started
            started = perf_counter()
            self._decode(requests, done, count, temp, seed, eos, each)
            done.decode_s = perf_counter() - started
        finally:
            requests.close()
        self._held = [*prompt, *done.tokens[:-1]]
        self._ahead, self._cold_held = True, bool(why)
        return done

    def _over_route(
        self, prompt: Sequence[int], fresh: bool, progress: Progress
    ) -> tuple[str, F32 | None]:
        """Prefill; return why it cannot be trusted, or the next-token logits."""
        session, before = self._session, list(prompt[:-1])
        route = str(self._coordinator.door.route())
        self._aim(self._decoder())
        self._spans, self._hashed = [], -1
        try:
            if before:
                session.slice.on_span = self._span
                try:
                    session.sync(before, fresh=fresh, progress=progress)
                finally:
                    session.slice.on_span = None
            far = session.sync(prompt, fresh=fresh and not before).logits
            progress(1)
            if str(self._coordinator.door.route()) != route:
                return "the route has changed since the prefill", None
        except PipelineError as error:
            return str(error), None
        return "", far

    def _aim(self, decoder: WorkerEntry) -> None:
        address = (decoder.host, decoder.port)
        if self._sender is None or address != self._address:
            self.close()
            owner = self._coordinator
            self._sender = KvSender(
                address, owner.sockets, recorder=owner.recorder, log=self._log
            )
            self._address = address

    def _span(self, state: Session, tokens: tuple[int, ...], pos: int) -> None:
        """Send what one chunk added to the own layers (DS4D-OURS-10)."""
        if pos != self._hashed:
            self._hash, self._hashed = TokenHash(state.tokens[:pos]), pos
        owner, before = self._coordinator, self._hash.value
        after = self._hash.update(tokens)
        self._hashed += len(tokens)
        if not pos:
            self._spans = []
        self._spans.append((pos, len(tokens)))
        data = export(owner.engine, state, owner.layers, pos, len(tokens))
        words = {
            **key_words(
                owner,
                self._session.transcript.session_id,
                self._session.transcript.last_request + 1,
            ),
            "prefix_hash": before,
            "result_hash": after,
            "pos0": pos,
            "n_tokens": len(tokens),
        }
        if self._sender is not None:
            self._sender.put(span_frame(words, owner.layers, data), len(data))

    # hand-over

    def _check(self, requests: LocalRequests, prompt: Sequence[int], far: F32) -> str:
        """Have the worker judge what it holds; return what speaks against it."""
        if not np.isfinite(far).all():
            return "next-token logits are not finite"
        started = perf_counter()
        flags = EXACT if self._coordinator.bits == 32 else 0
        try:
            nbytes, waited = self._ask_check(requests, prompt, flags, far)
        except PipelineError as error:
            return str(error)
        predicted = self._kv_of(self._spans)
        self.gathered = Handover(nbytes, perf_counter() - started, predicted)
        self.gathered.waited = waited
        return ""

    def _kv_of(self, spans: Sequence[tuple[int, int]], here: range = range(0)) -> int:
        """Return the KV bytes of some spans, without those of layers ``here``."""
        shape = self._coordinator.engine.shape
        layers = [layer for layer in range(shape.n_layers) if layer not in here]
        return sum(handover.span_size(shape, layers, *span) for span in spans)

    def _ask_check(
        self,
        requests: LocalRequests,
        prompt: Sequence[int],
        flags: int,
        far: F32 | None,
    ) -> tuple[int, float]:
        frame = local_frame(
            KV_CHECK,
            **self._key(),
            token_hash=token_hash(prompt),
            logits_hash=0 if far is None else logits_hash(far.tobytes()),
            next_token=0 if far is None else int(far.argmax()),
            flags=flags,
            wait_msec=int(self._wait_s * 1e3),
            tokens=tuple(prompt),
        )
        return told(requests.one(frame, more_s=self._wait_s).values)

    def _decode(
        self,
        requests: LocalRequests,
        done: Generated,
        count: int,
        temp: float,
        seed: int,
        eos: int | None,
        each: Callable[[int], None],
    ) -> None:
        if count < 1:
            return
        frame = local_frame(
            LOCAL_GENERATE,
            **self._key(),
            token_hash=token_hash(done.prompt),
            seed=seed,
            n_predict=count,
            eos=NO_TOKEN if eos is None else eos,
            temperature=struct.unpack(">I", struct.pack(">f", temp))[0],
        )
        for reply in requests.stream(frame):
            if reply.name != "LOCAL_TOKENS":
                raise PipelineError(reply.values.get("message") or "no tokens came")
            for token in reply.values["tokens"]:
                done.tokens.append(token)
                each(token)
            if reply.values["flags"] & LAST:
                requests.done()

    # back

    def _give_back(self, prompt: Sequence[int]) -> bool:
        """Bring every slice to what was decoded; return whether to begin anew."""
        self.returned = Handover()
        held, ahead = self._held, self._ahead
        self._ahead = False
        at = self._session.checkpoint
        if not ahead:
            # what was loaded, or left by a failure, the decoding worker does not have
            return at > 0
        goes_on = (
            not self._cold_held
            and len(prompt) > len(held) + 1
            and list(prompt[: len(held)]) == held
            and 0 < at <= len(held)
            and list(self._session.tokens) == held[:at]
        )
        if not goes_on:
            return True
        started = perf_counter()
        try:
            nbytes = 0
            if at < len(held):
                nbytes = hand_back(
                    self._coordinator,
                    self._session,
                    self._decoder(),
                    held,
                    at,
                    self._key,
                )
        except (PipelineError, EngineError) as error:
            self._log(f"the tail was not taken back ({error}); all is prefilled anew")
            self._session.transcript.forget()
            return True
        shape, count = self._coordinator.engine.shape, len(held) - at
        predicted = handover.span_size(shape, range(shape.n_layers), at, count)
        last = self._decoder()
        own = range(last.layer_start, last.layer_end + 1)
        predicted -= handover.span_size(shape, own, at, count)
        self.returned = Handover(nbytes, perf_counter() - started, predicted)
        return False

    # the comparison at the end

    def report(self, done: Generated) -> dict[str, Any]:
        """Return figures and lines, and plain distributed decode beside them."""
        gathered, link = self.gathered, self._coordinator.telemetry
        # all but the last chunk's KV moves while the next chunk computes
        last = self._kv_of(self._spans[-1:], here=self._there)
        lines = [
            f"prefill over the route: {done.prefill_rate:.1f} tokens/s,"
            f" decode at the last worker: {done.decode_rate:.1f} tokens/s"
        ]
        if gathered.cold:
            lines.append(f"no hand-over: {gathered.cold}")
        else:
            lines.append(
                f"hand-over: {gathered.nbytes} bytes of KV during the prefill,"
                f" predicted {gathered.predicted_bytes};"
                f" {gathered.waited:.3f} s waited for KV,"
                f" {gathered.seconds:.3f} s with the check,"
                f" predicted for the last chunk's {last} bytes:"
                f" {link.prediction(last)}"
            )
        plain, same = self._plain(done)
        if plain is not None:
            words = "same tokens" if same else "OTHER TOKENS"
            lines.append(f"plain distributed decode: {plain:.1f} tokens/s, {words}")
        return {
            "bytes": gathered.nbytes,
            "seconds": round(gathered.seconds, 6),
            "waited_seconds": round(gathered.waited, 6),
            "predicted_bytes": gathered.predicted_bytes,
            "predicted_seconds": link.predicted_s(last),
            "link_bytes_per_s": link.rate,
            "cold_start": gathered.cold,
            "distributed_decode_tokens_per_s": plain and round(plain, 3),
            "same_tokens": same,
            "lines": lines,
        }

    def _plain(self, done: Generated) -> tuple[float | None, bool]:
        """Decode some of the same tokens over the route; return rate and agreement."""
        count = min(COMPARED, len(done.tokens) - 1)
        if count < 1 or self.gathered.cold:
            return None, True
        route, same = OverRoute(self._session), True
        started = perf_counter()
        for at in range(count):
            logits = route.step(done.tokens[at])
            same = same and int(logits.argmax()) == done.tokens[at + 1]
        return count / (perf_counter() - started), same
