"""A tiny split model for small ranks: every gate's sum shows in all that follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from ds4proto.link.ds4t_events import KEEP_ALL, KEEP_PREFIX, BatchItem
from ds4proto.link.ds4t_identity import Identity
from ds4proto.link.plan import Chunk, PlanKind, PlanOptions, chunk_gates, plan_sync
from ds4proto.link.schedule import Schedule
from ds4proto.schema.ds4t_gates import ATTN, FFN, MAX_ROWS

__all__ = ["TINY", "Exchange", "TinyRank", "TinySession"]

F32 = npt.NDArray[np.float32]
TINY: Final = Identity(86720111488, 0, 2, 16, 32, 2, 0, 1, 4)
"""The shape of the recorded toy pairs: two layers, 16 values, 32 tokens."""
SEED: Final = 7


class Exchange(Protocol):
    """Sends the own rows of a gate and returns the peer's."""

    def __call__(self, kind: PlanKind, layer: int, third: int, own: F32) -> F32:
        """Exchange one gate; `third` is the kind of a row gate, else 0."""


@dataclass(slots=True)
class TinySession:
    """One session: its tokens, and a running sum per layer behind each of them."""

    ctx: int
    sums: list[list[F32]]
    tokens: list[int] = field(default_factory=list)
    hidden: F32 | None = None
    rows: F32 | None = None

    def cut(self, position: int) -> None:
        """Forget the tokens from a position on."""
        del self.tokens[position:]
        for layer in self.sums:
            del layer[position:]


def _bend(x: F32) -> F32:
    bent: F32 = (x / (1 + np.abs(x))).astype(np.float32)
    return bent


class TinyRank:
    """One rank's share, and what it does with commands.

    Parameters
    ----------
    identity : Identity
    rank : int
    exchange : Exchange
    """

    def __init__(self, identity: Identity, rank: int, exchange: Exchange) -> None:
        self.identity = identity
        self.rank = rank
        self.exchange = exchange
        self.options = PlanOptions()
        self.schedule = Schedule.from_hello(identity.words())
        self.sessions: dict[int, TinySession] = {}
        rng = np.random.default_rng(SEED)
        width = identity.n_embd

        def weights(*size: int) -> F32:
            return rng.uniform(-0.5, 0.5, size).astype(np.float32)

        self._embedding = weights(identity.n_vocab, width)
        self._head = weights(width, identity.n_vocab)
        layers = identity.n_layer
        self._attn, self._ffn = (
            weights(layers, width, width),
            weights(layers, width, width),
        )

    def __getitem__(self, known: int) -> TinySession:
        return self.sessions[known]

    def create(self, known: int, ctx: int) -> None:
        """Open a session."""
        self.sessions[known] = TinySession(
            ctx, [[] for _ in range(self.identity.n_layer)]
        )

    def destroy(self, known: int) -> None:
        """Close a session."""
        self.sessions.pop(known, None)

    def half(self, row: F32, rank: int | None = None) -> memoryview:
        """Return the bytes of one half of a row's logits."""
        middle = self.identity.n_vocab // 2
        own = (
            slice(middle)
            if (self.rank if rank is None else rank) == 0
            else slice(middle, None)
        )
        return memoryview(
            (_bend(row) @ self._head[:, own]).astype(np.float32).tobytes()
        )

    def sync(
        self,
        known: int,
        tokens: Sequence[int],
        progress: Callable[[int], bool] = lambda _at: False,
    ) -> F32 | None:
        """Bring a session to a prompt; None where `progress` stopped it."""
        held = self.sessions[known]
        plan = plan_sync(held.tokens, tokens, held.ctx, self.options)
        held.cut(plan.start)
        for chunk in plan.chunks:
            end = chunk.position + chunk.rows
            self._chunk(held, tokens[chunk.position : end], chunk)
            if progress(end):
                return None
        for token in tokens[len(tokens) - plan.single_tokens :]:
            self._run(held, (token,), "row")
        return held.hidden

    def _chunk(self, held: TinySession, part: Sequence[int], chunk: Chunk) -> None:
        gates = chunk_gates(chunk, self.schedule, self.options)
        self._run(held, part, "bulk", any(gate.gate == "ATTN" for gate in gates))

    def eval(self, known: int, token: int) -> F32:
        """Decode one token."""
        row: F32 = self._run(self.sessions[known], (token,), "row")[-1]
        return row

    def mixed(
        self, known: int, tokens: Sequence[int], items: Sequence[BatchItem]
    ) -> list[F32]:
        """Prefill one session in one chunk, then decode in others."""
        held = self.sessions[known]
        at = len(held.tokens)
        self._chunk(held, tokens[at:], Chunk(at, len(tokens) - at))
        assert held.hidden is not None
        return [held.hidden, *(self.eval(i.session_id, i.token) for i in items)]

    def block(self, known: int, drafts: Sequence[int]) -> F32:
        """Run a draft block; ``commit`` follows."""
        held = self.sessions[known]
        kind: PlanKind = "batch" if len(drafts) <= MAX_ROWS else "bulk"
        held.rows = self._run(held, drafts, kind)
        return held.rows

    def commit(
        self, known: int, drafts: Sequence[int], mode: int, count: int
    ) -> F32 | None:
        """Apply a verdict; returns the row of the last replayed token."""
        held = self.sessions[known]
        assert held.rows is not None
        before = len(held.tokens) - len(drafts)
        if mode == KEEP_ALL:
            return None
        if mode == KEEP_PREFIX:
            held.cut(before + count)
            held.hidden = held.rows[count - 1]
            return None
        held.cut(before)
        rows = [self.eval(known, token) for token in drafts[:count]]
        return rows[-1] if rows else None

    def _run(
        self,
        held: TinySession,
        tokens: Sequence[int],
        kind: PlanKind,
        swap: bool = False,
    ) -> F32:
        x: F32 = self._embedding[np.clip(tokens, 0, self.identity.n_vocab - 1)]
        with np.errstate(invalid="ignore"):  # NaN and infinity pass, as they came
            return self._layers(held, tokens, x, kind, swap)

    def _layers(
        self,
        held: TinySession,
        tokens: Sequence[int],
        x: F32,
        kind: PlanKind,
        swap: bool,
    ) -> F32:
        for layer in range(self.identity.n_layer):
            seen = self._seen(held.sums[layer], x)
            x = x + self._attention(layer, seen, kind, swap)
            x = x + self._experts(layer, _bend(x), kind)
        held.tokens.extend(tokens)
        held.hidden = x[-1]
        return x

    @staticmethod
    def _seen(sums: list[F32], x: F32) -> F32:
        first = len(sums)
        for row in x:
            sums.append((sums[-1] * np.float32(0.5) + row) if sums else row)
        return _bend(np.stack(sums[first:]))

    def _part(self, weights: Any, rows: F32, rank: int) -> F32:
        middle = self.identity.n_embd // 2
        own = slice(middle) if rank == 0 else slice(middle, None)
        part: F32 = np.stack([row[own] @ weights[own] for row in rows]).astype(
            np.float32
        )
        return part

    def _attention(self, layer: int, seen: F32, kind: PlanKind, swap: bool) -> F32:
        weights = self._attn[layer]
        if kind == "row" and 2 * layer + ATTN in self.schedule.slots:
            own = self._part(weights, seen, self.rank)
            return self._sum(own, self.exchange("row", layer, ATTN, own))
        whole = self._part(weights, seen, 0) + self._part(weights, seen, 1)
        if not swap or layer not in self.schedule.ffn_layers:
            return whole
        half = -(-len(seen) // 2)
        mine = whole[:half] if self.rank == 0 else whole[half:]
        padded = np.zeros((half, seen.shape[1]), np.float32)
        padded[: len(mine)] = mine
        theirs = self.exchange("bulk", layer, 0, padded)
        first, second = (padded, theirs) if self.rank == 0 else (theirs, padded)
        return np.concatenate((first, second))[: len(seen)]

    def _experts(self, layer: int, rows: F32, kind: PlanKind) -> F32:
        weights = self._ffn[layer]
        if 2 * layer + FFN not in self.schedule.slots:
            return self._part(weights, rows, 0) + self._part(weights, rows, 1)
        own = self._part(weights, rows, self.rank)
        return self._sum(own, self.exchange(kind, layer, FFN, own))

    def _sum(self, own: F32, peer: F32) -> F32:
        return own + peer if self.rank == 0 else peer + own
