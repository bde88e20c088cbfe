"""A small model on numpy that splits as the large ones do, bit for bit.

Two ranks give the bits of one process: every product is taken row by row in one
shape, every sum in one order. The parts and their split are those of DeepSeek V4 and
of GLM (wire facts, chapter on the work split): output groups of the attention and
lanes of the shared expert in halves, routed experts by number, the rest replicated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from ds4proto.link.ds4t_events import Image
from ds4proto.link.ds4t_identity import Identity
from ds4proto.link.plan import GLM_MODELS
from ds4proto_runtime.engines.base import F32, EngineError
from ds4proto_runtime.tp.spans import Gates

_f = np.float32
CHOSEN: Final = 2
"""Experts that a token uses."""
MAX_CTX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ToyShape:
    """Shape and schedule of a toy model; the defaults are those of the captures.

    Attributes
    ----------
    n_layer, n_embd, n_vocab, n_expert : int
    model_id : int
        2 and 3 make it a GLM: FFN gates carry routed experts alone, logits are whole.
    start, step, gates_per_token, mask
        The gate schedule; 0 gates a token stand for every slot.
    gguf_bytes, quant_bits, features : int
        Further hello words.
    split : bool or None
        Whether the logits are split; None: by the family.
    seed : int
    null : bool
        True skips the arithmetic: for measuring the wire.
    """

    n_layer: int = 2
    n_embd: int = 16
    n_vocab: int = 32
    n_expert: int = 8
    model_id: int = 0
    start: int = 0
    step: int = 1
    gates_per_token: int | None = None
    mask: tuple[int, int, int] = (0, 0, 0)
    gguf_bytes: int = 86720111488
    quant_bits: int = 2
    features: int = 0
    split: bool | None = None
    seed: int = 1
    null: bool = False

    @property
    def glm(self) -> bool:
        """Whether this is a model of the GLM family."""
        return self.model_id in GLM_MODELS

    def identity(self) -> Identity:
        """Return the hello words."""
        gates = self.gates_per_token
        return Identity(
            self.gguf_bytes,
            self.model_id,
            self.n_layer,
            self.n_embd,
            self.n_vocab,
            self.quant_bits,
            self.start,
            self.step,
            2 * self.n_layer if gates is None else gates,
            self.mask,
            self.features,
        )


@dataclass(slots=True)
class _Layer:
    out: F32
    router: F32
    up: F32
    down: F32
    experts: F32


@dataclass(slots=True)
class ToyState:
    """The caches of one session: per layer, the running sum after each token."""

    ctx: int
    sums: list[list[F32]] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Tokens held."""
        return len(self.sums[0]) if self.sums else 0


class ToyTpEngine:
    """One rank of the toy model, or all of it.

    Parameters
    ----------
    shape : ToyShape
    rank : int or None
    """

    vision = True

    def __init__(self, shape: ToyShape | None = None, rank: int | None = None) -> None:
        self.shape = shape = shape or ToyShape()
        self.identity = shape.identity()
        self.vocabulary_split = not shape.glm if shape.split is None else shape.split
        self.rank = rank
        if shape.n_embd % 2 or shape.n_vocab % 2 or shape.n_embd < 2:
            raise EngineError(
                f"a toy model needs an even width and vocabulary, found {shape.n_embd} "
                f"and {shape.n_vocab}"
            )
        self._zero = np.zeros((1, shape.n_embd), np.float32)
        if not shape.null:
            self._make(np.random.default_rng(shape.seed))

    def _make(self, rng: np.random.Generator) -> None:
        s = self.shape

        def weights(*size: int) -> F32:
            values = rng.uniform(-1, 1, size) / np.sqrt(size[-1])
            rounded: F32 = values.astype(np.float32)
            return rounded

        width = s.n_embd
        self._embedding = weights(s.n_vocab, width) * _f(2)
        self._head = weights(width, s.n_vocab) * _f(4)
        self._layers = [
            _Layer(
                weights(width, width),
                weights(width, s.n_expert),
                weights(width, width),
                weights(width, width),
                weights(s.n_expert, width) * _f(2),
            )
            for _ in range(s.n_layer)
        ]

    def open(self, ctx: int) -> ToyState:
        """Return the state of an empty session."""
        if not 0 < ctx <= MAX_CTX:
            raise EngineError(f"the toy engine has contexts of 1 to {MAX_CTX} tokens")
        return ToyState(ctx, [[] for _ in range(self.shape.n_layer)])

    def run(
        self,
        state: ToyState,
        tokens: Sequence[int],
        gates: Gates,
        images: Sequence[Image] = (),
    ) -> F32:
        """Run one span, layer by layer over all of its rows."""
        if state.count + len(tokens) > state.ctx:
            raise EngineError(f"{len(tokens)} tokens more exceed context {state.ctx}")
        if self.shape.null:
            return self._null(state, len(tokens), gates)
        x = self._embed(tokens, images, gates.span.position)
        for number, layer in enumerate(self._layers):
            x = x + self._attention(state.sums[number], number, layer, x, gates)
            x = x + self._experts(number, layer, x, gates)
        return x

    def _null(self, state: ToyState, count: int, gates: Gates) -> F32:
        rows = np.broadcast_to(self._zero, (count, self.shape.n_embd))
        for layer in range(self.shape.n_layer):
            state.sums[layer].extend([self._zero[0]] * count)
            gates.attention(layer, lambda _: rows, lambda part: rows[part])
            gates.experts(layer, lambda _: rows)
        return rows

    def _embed(
        self, tokens: Sequence[int], images: Sequence[Image], position: int
    ) -> F32:
        wanted = np.clip(np.asarray(tokens), 0, self.shape.n_vocab - 1)
        x: F32 = self._embedding[wanted]
        for image in images:
            rows = np.frombuffer(image.rows, np.float32).reshape(-1, self.shape.n_embd)
            for at, row in enumerate(rows, image.token_start - position):
                if 0 <= at < len(x):
                    x[at] = row
        return x

    def _attention(
        self, sums: list[F32], number: int, layer: _Layer, x: F32, gates: Gates
    ) -> F32:
        first = len(sums)
        for row in x:
            held = sums[-1] if sums else self._zero[0]
            sums.append(held * _f(0.5) + row)
        seen = [_bend(value) for value in sums[first:]]
        middle = self.shape.n_embd // 2
        lower, upper = layer.out[:middle], layer.out[middle:]

        def one(value: F32, rank: int) -> F32:
            part: F32
            part = value[:middle] @ lower if rank == 0 else value[middle:] @ upper
            return part

        def partial(rank: int) -> F32:
            return np.stack([one(value, rank) for value in seen])

        def rows(part: slice) -> F32:
            whole = [one(value, 0) + one(value, 1) for value in seen[part]]
            return np.stack(whole) if whole else x[:0]

        return gates.attention(number, partial, rows)

    def _experts(self, number: int, layer: _Layer, x: F32, gates: Gates) -> F32:
        s, span = self.shape, gates.span
        h = [_bend(row) for row in x]
        scores = [row @ layer.router for row in h]
        lanes = [_bend(row @ layer.up) for row in h]
        middle = s.n_embd // 2

        def shared(rank: int) -> F32:
            own = slice(0, middle) if rank == 0 else slice(middle, None)
            return np.stack([row[own] @ layer.down[own] for row in lanes])

        def routed(rank: int) -> F32:
            half = s.n_expert // 2
            own = range(half) if rank == 0 else range(half, s.n_expert)
            return np.stack(
                [self._routed(layer, row, score, own)
                 for row, score in zip(h, scores, strict=True)]
            )  # fmt: skip

        if not gates.fires(number, "FFN"):
            return (routed(0) + routed(1)) + (shared(0) + shared(1))
        if span.mode == "token" and not s.glm:
            return gates.experts(number, lambda rank: shared(rank) + routed(rank))
        if span.mode == "chunk" and span.shared_rows:
            complete = shared(0) + shared(1)

            def with_rows(rank: int) -> F32:
                total, mine = routed(rank), span.own_rows(rank)
                total[mine] = total[mine] + complete[mine]
                return total

            return gates.experts(number, with_rows)
        return gates.experts(number, routed) + (shared(0) + shared(1))

    @staticmethod
    def _routed(layer: _Layer, row: F32, score: F32, own: range) -> F32:
        best = np.argsort(-score, kind="stable")[:CHOSEN]
        scale = np.abs(score[best]).sum() + _f(1e-3)
        total: F32 = np.zeros_like(row)
        for expert in sorted(int(e) for e in best):
            if expert in own:
                weight: Any = score[expert] / scale
                total += row * layer.experts[expert] * weight
        return total

    def half(self, hidden: F32, rank: int) -> F32:
        """Return the lower or the upper half of one row's logits."""
        middle = self.shape.n_vocab // 2
        if self.shape.null:
            return np.zeros(middle, np.float32)
        own = slice(0, middle) if rank == 0 else slice(middle, None)
        logits: F32 = _bend(hidden) @ np.ascontiguousarray(self._head[:, own])
        return logits

    def full(self, hidden: F32) -> F32:
        """Return all logits of one row."""
        return np.concatenate([self.half(hidden, rank) for rank in (0, 1)])

    def mark(self, state: ToyState) -> int:
        """Return the number of tokens held."""
        return state.count

    def back(self, state: ToyState, mark: Any) -> None:
        """Cut to a mark."""
        self.cut(state, int(mark))

    def cut(self, state: ToyState, position: int) -> bool:
        """Forget tokens; this model can be cut anywhere."""
        for sums in state.sums:
            del sums[position:]
        return True

    def draft(self, state: ToyState, hidden: F32, token: int, gates: Gates) -> int:
        """Return a proposal of the prediction block, joined by its own gate."""
        del state
        if self.shape.null:
            joined = gates.extra(self.shape.n_layer, self._zero)
            return int(joined[0, 0])
        row = _bend(hidden + self._embedding[token])
        layer = self._layers[-1]
        half = self.shape.n_embd // 2
        own = [row[:half] @ layer.up[:half], row[half:] @ layer.up[half:]]
        mine = own[0] + own[1] if gates.rank is None else own[gates.rank]
        joined = gates.extra(self.shape.n_layer, mine[None, :])
        return int(np.argmax(self.full(joined[0])))


def _bend(x: F32) -> F32:
    """Return x / (1 + |x|): bounded, and the same bits everywhere."""
    one: Any = _f(1)
    bent: F32 = np.divide(x, one + np.abs(x), dtype=np.float32)
    return bent
