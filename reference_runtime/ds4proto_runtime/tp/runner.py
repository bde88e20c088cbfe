"""What a rank does with a command: plan, spans, sessions. The same on both ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ds4proto.link import ds4t_events as say
from ds4proto.link.plan import Chunk, PlanOptions, SyncPlan, plan_sync
from ds4proto.link.schedule import Schedule
from ds4proto_runtime.engines.base import F32, EngineError
from ds4proto_runtime.tp.engine import RankEngine
from ds4proto_runtime.tp.spans import Gates, ReplayGates, SoloGates, Span, chunk_span

Progress = Callable[[int], bool]
"""Takes the tokens that a prefill has reached; True stops it there."""


@dataclass(slots=True)
class Held:
    """One session of a rank.

    Attributes
    ----------
    ctx : int
    tokens : list of int
        What the caches hold.
    hidden : ndarray or None
        The last row behind the last layer.
    valid : bool
        False after a rewind that the caches could not follow, or a failure.
    """

    ctx: int
    state: Any
    tokens: list[int] = field(default_factory=list)
    hidden: F32 | None = None
    valid: bool = True


@dataclass(slots=True)
class _Block:
    known: int
    drafts: tuple[int, ...]
    mark: Any
    sums: dict[int, F32]
    rows: F32


class Runner:
    """Runs commands on one rank's engine.

    Parameters
    ----------
    engine : RankEngine
    options : PlanOptions
        Chunk and thresholds; both ranks need the same (no hello shows them).
    gates : Gates, optional
        Default: both partials here, which is the single process to compare with.
    token_prefill : bool
        Prefill token by token (``--tensor-parallel-token-prefill``).
    """

    def __init__(
        self,
        engine: RankEngine,
        options: PlanOptions | None = None,
        gates: Gates | None = None,
        *,
        token_prefill: bool = False,
    ) -> None:
        self.engine = engine
        self.options = options or PlanOptions()
        self._schedule = Schedule.from_hello(engine.identity.words())
        self.gates = gates or SoloGates(self._schedule)
        self._token_prefill = token_prefill
        self._held: dict[int, Held] = {}
        self._block: _Block | None = None

    def __getitem__(self, known: int) -> Held:
        return self._held[known]

    def create(self, known: int, ctx: int) -> None:
        """Open a session; raises EngineError where the engine cannot."""
        self._held[known] = Held(ctx, self.engine.open(ctx))

    def destroy(self, known: int) -> None:
        """Close a session."""
        self._held.pop(known, None)

    def plan(self, known: int, tokens: Sequence[int]) -> SyncPlan:
        """Return what a sync of ``tokens`` does in a session as it stands."""
        held = self._held[known]
        before = held.tokens if held.valid else []
        plan = plan_sync(
            before,
            tokens,
            held.ctx,
            self.options,
            model_id=self.engine.identity.model_id,
        )
        if self._token_prefill and plan.chunks:
            return SyncPlan(plan.start, (), len(tokens) - plan.start)
        return plan

    def sync(
        self,
        known: int,
        tokens: Sequence[int],
        images: Sequence[say.Image] = (),
        progress: Progress | None = None,
    ) -> F32 | None:
        """Bring a session to a prompt.

        Returns
        -------
        ndarray or None
            The hidden row of the last token; None where ``progress`` stopped it.
        """
        held, plan = self._held[known], self.plan(known, tokens)
        if images and not self.engine.vision:
            raise EngineError("vision encoder is not loaded")
        if plan.start < len(held.tokens) or not held.valid:
            self.invalidate(known)
        for chunk in plan.chunks:
            part = tokens[chunk.position : chunk.position + chunk.rows]
            self._chunk(held, part, chunk, images)
            if progress is not None and progress(chunk.position + chunk.rows):
                return None
        for token in tokens[len(tokens) - plan.single_tokens :]:
            self._run(held, (token,), Span("token", len(held.tokens), 1), images)
        return held.hidden

    def _chunk(
        self,
        held: Held,
        part: Sequence[int],
        chunk: Chunk,
        images: Sequence[say.Image] = (),
    ) -> None:
        model = self.engine.identity.model_id
        span = chunk_span(chunk, self._schedule, self.options, model)
        self._run(held, part, span, images)

    def _run(
        self,
        held: Held,
        tokens: Sequence[int],
        span: Span,
        images: Sequence[say.Image] = (),
        gates: Gates | None = None,
    ) -> F32:
        gates = gates or self.gates
        gates.span = span
        held.valid = False  # until the whole span has run
        rows = self.engine.run(held.state, tokens, gates, images)
        held.tokens.extend(tokens)
        held.hidden = rows[-1]
        held.valid = True
        return rows

    def ready(self, known: int, count: int = 1) -> Held:
        """Return a session that can take ``count`` more tokens, else EngineError."""
        if known not in self._held:
            raise EngineError(f"session {known} is not open")
        held = self._held[known]
        if not held.valid:
            raise EngineError(f"session {known} is not valid; bring it to a prompt")
        if len(held.tokens) + count > held.ctx:
            raise EngineError(f"the context of session {known} is full")
        return held

    def eval(self, known: int, token: int) -> F32:
        """Decode one token and return its hidden row."""
        held = self.ready(known)
        row: F32 = self._run(held, (token,), Span("token", len(held.tokens), 1))[-1]
        return row

    def batch(self, items: Sequence[say.BatchItem]) -> list[F32]:
        """Decode one token in each session, in order (DS4T-BATCH)."""
        for item in items:
            self.ready(item.session_id)
        return [self.eval(item.session_id, item.token) for item in items]

    def mixed(
        self, known: int, tokens: Sequence[int], items: Sequence[say.BatchItem]
    ) -> list[F32]:
        """Prefill one session in one chunk, then decode in the others."""
        held = self.ready(known, 0)
        before = len(held.tokens)
        for item in items:
            self.ready(item.session_id)
        self._chunk(held, tokens[before:], Chunk(before, len(tokens) - before))
        first = held.hidden
        assert first is not None
        return [first, *(self.eval(i.session_id, i.token) for i in items)]

    def block(self, known: int, drafts: Sequence[int]) -> F32:
        """Run a draft block and return its hidden rows; ``commit`` follows."""
        held = self.ready(known, len(drafts))
        mark = self.engine.mark(held.state)
        sums: dict[int, F32] = {}
        self.gates.record = sums
        before = list(held.tokens)
        try:
            span = Span("block", len(before), len(drafts))
            rows = self._run(held, drafts, span)
        finally:
            self.gates.record = None
        self._block = _Block(known, tuple(drafts), mark, sums, rows)
        held.tokens[:] = before
        return rows

    def commit(self, mode: int, count: int) -> F32 | None:
        """Apply the verdict; returns the hidden row of the last replayed token."""
        block, self._block = self._block, None
        if block is None:
            raise EngineError("no draft block has run")
        held = self._held[block.known]
        if mode == say.KEEP_ALL:
            held.tokens.extend(block.drafts)
            held.hidden = block.rows[-1]
            return None
        self.engine.back(held.state, block.mark)
        if mode == say.KEEP_PREFIX:
            gates = ReplayGates(self._schedule, block.sums, self.engine.rank)
            span = Span("block", len(held.tokens), count)
            self._run(held, block.drafts[:count], span, gates=gates)
            return None
        rows = [self.eval(block.known, token) for token in block.drafts[:count]]
        return rows[-1] if rows else None

    def mtp(self, known: int, token: int, limit: int) -> list[int]:
        """Run one GLM speculative cycle and return the tokens it accepted.

        Both ranks hold the same hidden rows and the whole head, so both come to the
        same verdict (the order inside a cycle is this engine's own).
        """
        held = self.ready(known)
        row = self.eval(known, token)
        proposed = self.engine.draft(held.state, row, token, self.gates)
        following = int(np.argmax(self.engine.full(row)))
        if limit < 2 or proposed != following or len(held.tokens) >= held.ctx:
            return [token]
        self.eval(known, proposed)
        return [token, proposed]

    def rewind(self, known: int, position: int) -> None:
        """Shorten a session; below 0 counts as 0, beyond the end as no change."""
        held = self._held[known]
        position = max(position, 0)
        if position >= len(held.tokens):
            return
        held.valid = self.engine.cut(held.state, position)
        del held.tokens[position if held.valid else 0 :]

    def invalidate(self, known: int) -> None:
        """Empty a session; it stays open."""
        held = self._held[known]
        self.engine.cut(held.state, 0)
        held.tokens.clear()
        held.valid = True
