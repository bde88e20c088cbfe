"""Prefill over a route of stock workers, decode alone.

The coordinator holds the whole model. Its route prefills; the workers' shards are
gathered once, checked, and the coordinator decodes without the wire. Before the next
prefill over the route the shards go back. Whatever does not fit (a changed route,
another token hash, other logits) means a cold start here, never mixed KV.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

import numpy as np

from ds4proto.codec.token_hash import token_hash
from ds4proto.schema.ds4d_private import width_text
from ds4proto_runtime import handover, kv
from ds4proto_runtime.engines.base import F32, EngineError
from ds4proto_runtime.pipeline.coordinator import PipelineCoordinator
from ds4proto_runtime.pipeline.generation import Alone, Generated, OverRoute, Progress
from ds4proto_runtime.pipeline.session import PipelineError, PipelineSession

COMPARED: Final = 8
"""Steps of plain distributed decode that are run beside, for the comparison."""


@dataclass(slots=True)
class Handover:
    """One gathering of shards, or its return."""

    nbytes: int = 0
    seconds: float = 0.0
    predicted_bytes: int = 0
    cold: str = ""
    """Why there was a cold start; empty where there was none."""
    waited: float = 0.0
    """Seconds that the decoding side waited for KV on its way."""


class LocalDecode:
    """A session that prefills over the route and decodes here.

    Parameters
    ----------
    coordinator : PipelineCoordinator
        Its engine holds every layer, its ``layers`` are those of the route.
    session : PipelineSession
    """

    def __init__(
        self,
        coordinator: PipelineCoordinator,
        session: PipelineSession,
        *,
        log: Callable[[str], None],
    ) -> None:
        engine = coordinator.engine
        if len(engine.layers) != engine.shape.n_layers or not engine.has_head:
            raise EngineError(
                "local decode needs the whole model and its head here; load all layers"
            )
        self._coordinator, self._session, self._log = coordinator, session, log
        self._alone = Alone(engine)
        self._ahead = False
        self.gathered = Handover()
        self.returned = Handover()

    @property
    def tokens(self) -> list[int]:
        """Tokens that the local session holds."""
        return self._alone.session.tokens

    def prefill(self, tokens: Sequence[int], progress: Progress) -> F32:
        """Prefill over the route, take the KV over, check it; return the logits."""
        self._give_back(tokens)
        self.gathered = Handover()
        before, last = list(tokens[:-1]), tokens[-1]
        route = str(self._coordinator.door.route())
        if before:
            self._session.sync(before, progress=progress)
            try:
                self._gather(before, route)
            except (EngineError, PipelineError) as error:
                return self._cold(tokens, str(error), progress)
        else:
            self._alone.engine.reset(self._alone.session)
        far = self._session.sync(tokens).logits
        progress(1)
        near = self._alone.step(last)
        fault = self._compare(near, far)
        if fault:
            return self._cold(tokens, fault, progress)
        return near

    def step(self, token: int) -> F32:
        """Evaluate one token here."""
        self._ahead = True
        return self._alone.step(token)

    def _gather(self, tokens: list[int], route: str) -> None:
        started = perf_counter()
        engine = self._coordinator.engine
        full = engine.open()
        first: kv.Values | None = None
        for layers, data in self._session.shards():
            own = layers == self._coordinator.layers
            first = kv.read_shard(
                data, self._coordinator.model, layers, engine.shape, first
            )
            kv.load_shard(engine, data, tokens, layers, into=full)
            if not own:
                self.gathered.nbytes += len(data)
                self.gathered.predicted_bytes += handover.shard_size(
                    engine.shape, layers, len(tokens)
                )
        if str(self._coordinator.door.route()) != route:
            raise PipelineError("the route has changed since the prefill")
        if self._session.transcript.token_hash != token_hash(tokens):
            raise PipelineError("the token hash is not that of the prompt")
        self._alone.session = full
        self.gathered.seconds = perf_counter() - started

    def _compare(self, near: F32, far: F32) -> str:
        """Return what speaks against the next-token logits of here and there."""
        if not (np.isfinite(near).all() and np.isfinite(far).all()):
            return "next-token logits are not finite"
        if self._coordinator.bits == 32 and not np.array_equal(
            near.view(np.uint32), far.view(np.uint32)
        ):
            gap = float(np.abs(near - far).max())
            return f"next-token logits differ by up to {gap:g}"
        # A packed width rounds at every hop of the route, but not here.
        if int(near.argmax()) != int(far.argmax()):
            width = width_text(self._coordinator.bits)
            return f"another next token at {width} on the wire"
        return ""

    def _cold(self, tokens: Sequence[int], why: str, progress: Progress) -> F32:
        self._log(f"cold start: {why}; the prompt is prefilled here")
        self.gathered = Handover(cold=why)
        self._ahead = True
        alone = self._alone
        alone.session = alone.engine.open()
        return alone.prefill(tokens, progress)

    def _give_back(self, tokens: Sequence[int]) -> None:
        """Bring the workers to what was decoded here, where the prompt goes on."""
        self.returned = Handover()
        held = self.tokens
        goes_on = bool(held) and list(tokens[: len(held)]) == held
        if not (self._ahead and goes_on and len(tokens) > len(held) + 1):
            self._ahead = False
            return
        started = perf_counter()
        engine, alone = self._coordinator.engine, self._alone
        whole = memoryview(b"".join(kv.shard_bytes(engine, alone.session)))
        values = kv.read_shard(
            whole, self._coordinator.model, engine.layers, engine.shape, None
        )
        logits = np.zeros(engine.shape.vocab, np.float32)
        file = b"".join(kv.join_shards([values], held, logits))
        saved = kv.judge_saved(memoryview(file), engine.shape)
        try:
            self._session.restore(saved, list(held))
        except PipelineError as error:
            self._log(f"shards were not taken back ({error}); all is prefilled anew")
            return
        self._ahead = False
        own = handover.shard_size(engine.shape, self._coordinator.layers, len(held))
        total = handover.shard_size(engine.shape, engine.layers, len(held))
        self.returned = Handover(total - own, perf_counter() - started, total - own)

    # the comparison at the end

    def report(self, done: Generated) -> dict[str, Any]:
        """Return figures and lines, and plain distributed decode beside them."""
        gathered, link = self.gathered, self._coordinator.telemetry
        lines = [
            f"prefill over the route: {done.prefill_rate:.1f} tokens/s,"
            f" decode here: {done.decode_rate:.1f} tokens/s"
        ]
        if gathered.cold:
            lines.append(f"no hand-over: {gathered.cold}")
        else:
            lines.append(
                f"hand-over: {gathered.nbytes} bytes in {gathered.seconds:.3f} s,"
                f" predicted {gathered.predicted_bytes} bytes of tensors in"
                f" {link.prediction(gathered.predicted_bytes)}"
            )
        plain, same = self._plain(done)
        if plain is not None:
            words = "same tokens" if same else "OTHER TOKENS"
            lines.append(f"plain distributed decode: {plain:.1f} tokens/s, {words}")
        return {
            "bytes": gathered.nbytes,
            "seconds": round(gathered.seconds, 6),
            "predicted_bytes": gathered.predicted_bytes,
            "predicted_seconds": link.predicted_s(gathered.predicted_bytes),
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
        self._ahead = True
        return count / (perf_counter() - started), same
