"""A decoder-only model from a GGUF file: Llama, Mixtral, Qwen2/3 and Qwen3-MoE.

Clear before fast: float32 throughout, one layer after the other. Each block is the
sum of two partials (rank 0 and rank 1): attention heads and dense lanes are halved,
experts are halved by number. One process adds both in that order; under tensor
parallelism each rank computes its own and a gate adds them, so that both ways give
the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from ds4proto.schema.problem import Buf
from ds4proto_runtime.engines.base import (
    F32,
    EngineError,
    Gate,
    GateKind,
    Session,
    Shape,
    check_span,
)
from ds4proto_runtime.engines.decoder_config import INTERLEAVED, Config
from ds4proto_runtime.engines.weights import Weights

PRIVATE_MODEL_ID: Final = 255
"""Announced for models that ds4 does not know; stock peers refuse it cleanly."""


@dataclass(slots=True)
class _Cache:
    keys: Tensor
    values: Tensor


class _Block:
    """One layer: its weights, and the partials of its two blocks."""

    def __init__(self, config: Config, weights: Weights, layer: int) -> None:
        self._c = config
        prefix = f"blk.{layer}."
        take, maybe = weights.get, weights.maybe
        self.attn_norm = take(prefix + "attn_norm.weight")
        self.q, self.k, self.v = (take(f"{prefix}attn_{x}.weight") for x in "qkv")
        self.biases = [maybe(f"{prefix}attn_{x}.bias") for x in "qkv"]
        self.q_norm = maybe(prefix + "attn_q_norm.weight")
        self.k_norm = maybe(prefix + "attn_k_norm.weight")
        self.out = take(prefix + "attn_output.weight")
        self.ffn_norm = take(prefix + "ffn_norm.weight")
        kind = "_exps" if config.experts else ""
        self.router = take(prefix + "ffn_gate_inp.weight") if kind else None
        self.gate, self.up, self.down = (
            take(f"{prefix}ffn_{x}{kind}.weight") for x in ("gate", "up", "down")
        )
        weights.all_taken(prefix)

    def attention(
        self, x: Tensor, cache: _Cache, pos: int, rope: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Return the heads' outputs ``[n, heads, head_dim]`` and extend the cache."""
        c, n = self._c, x.shape[0]
        q, k, v = (
            linear(x, weight, bias)
            for weight, bias in zip((self.q, self.k, self.v), self.biases, strict=True)
        )
        q = q.view(n, c.heads, c.head_dim)
        k = k.view(n, c.kv_heads, c.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = norm(q, self.q_norm, c.eps), norm(k, self.k_norm, c.eps)
        q, k = rotate(q, rope, c.arch), rotate(k, rope, c.arch)
        end = pos + n
        cache.keys[pos:end] = k
        cache.values[pos:end] = v.view(n, c.kv_heads, c.head_dim)
        groups = c.heads // c.kv_heads
        keys = cache.keys[:end].repeat_interleave(groups, 1)
        values = cache.values[:end].repeat_interleave(groups, 1)
        scores = torch.einsum("nhd,mhd->hnm", q, keys) * c.head_dim**-0.5
        later = (
            torch.arange(end, device=x.device)[None, :]
            > (torch.arange(pos, end, device=x.device)[:, None])
        )
        scores = scores.masked_fill(later[None], float("-inf"))
        return torch.einsum("hnm,mhd->nhd", torch.softmax(scores, -1), values)

    def attention_partial(self, heads: Tensor, rank: int) -> Tensor:
        """Return the output projection of one half of the heads, ``[n, width]``."""
        c = self._c
        own = halves(c.heads)[rank]
        columns = slice(own.start * c.head_dim, own.stop * c.head_dim)
        part = heads[:, own].reshape(heads.shape[0], -1)
        return linear(part, self.out[:, columns])

    def ffn_partial(self, x: Tensor, rank: int) -> Tensor:
        """Return one half of the lanes, or of the experts, ``[n, width]``."""
        if self.router is None:
            own = halves(self.gate.shape[0])[rank]
            inner = silu(linear(x, self.gate[own])) * linear(x, self.up[own])
            return linear(inner, self.down[:, own])
        return self._experts(x, halves(self._c.experts)[rank])

    def _experts(self, x: Tensor, own: slice) -> Tensor:
        assert self.router is not None
        chances = torch.softmax(linear(x, self.router), -1)
        best, chosen = torch.topk(chances, self._c.experts_used)
        best = best / best.sum(-1, keepdim=True)
        total = torch.zeros_like(x)
        # ascending expert numbers: the order of the sum is part of the result
        for expert in range(own.start, own.stop):
            rows, slots = torch.where(chosen == expert)
            if len(rows) == 0:
                continue
            part = x[rows]
            inner = silu(linear(part, self.gate[expert]))
            inner = inner * linear(part, self.up[expert])
            weight = best[rows, slots][:, None]
            total[rows] += weight * linear(inner, self.down[expert])
        return total


def halves(count: int) -> tuple[slice, slice]:
    """Return the lower and the upper half; the upper one gets an odd item."""
    middle = count // 2
    return slice(0, middle), slice(middle, count)


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the RMS norm over the last dimension."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rotate(x: Tensor, rope: tuple[Tensor, Tensor], arch: str) -> Tensor:
    """Rotate pairs: neighbours for Llama files, halves for Qwen."""
    cos, sin = (table[:, None, :] for table in rope)
    if arch in INTERLEAVED:
        even, odd = x[..., 0::2], x[..., 1::2]
        pairs = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1)
        return pairs.flatten(-2)
    low, high = x.chunk(2, -1)
    return torch.cat((low * cos - high * sin, low * sin + high * cos), -1)


class DecoderEngine:
    """Some layers of a decoder-only model.

    Parameters
    ----------
    path : Path
        GGUF file.
    layers : range or None
        The slice; None takes all. Only its weights are read.
    ctx : int
        Context in tokens.
    has_head : bool
        Whether to load the output head.
    rank : int or None
        Rank under tensor parallelism; None computes both partials here.
    device : str
        Torch device.
    """

    def __init__(
        self,
        path: Path,
        layers: range | None = None,
        *,
        ctx: int = 4096,
        prefill_cap: int = 4096,
        has_head: bool = True,
        rank: int | None = None,
        device: str = "cpu",
    ) -> None:
        weights = Weights(path, device)
        vocab = len(weights.metadata.get("tokenizer.ggml.tokens", ())) or 0
        self.config = Config.of(weights.metadata, vocab)
        c = self.config
        self.layers = layers if layers is not None else range(c.n_layers)
        if self.layers.start < 0 or self.layers.stop > c.n_layers:
            raise EngineError(
                f"layer range ends past final model layer {c.n_layers - 1}"
            )
        self.has_head = has_head
        self.rank = rank
        self.weights = weights
        self._device = device
        self._blocks = {layer: _Block(c, weights, layer) for layer in self.layers}
        embedding = self.layers.start == 0
        self._embedding = weights.get("token_embd.weight") if embedding else None
        self._norm = weights.get("output_norm.weight") if has_head else None
        tied = "output.weight" if weights.has("output.weight") else "token_embd.weight"
        self._output = weights.get(tied) if has_head else None
        row = 2 * c.kv_heads * c.head_dim
        self.shape = Shape(
            PRIVATE_MODEL_ID,
            str(weights.metadata.get("general.name", path.stem))[:127],
            4,
            c.n_layers,
            c.width,
            c.width,
            vocab,
            ctx,
            min(prefill_cap, ctx),
            -(-ctx // 256) * 256,
            ctx,
            0,
            row,
            0,
            (0,) * c.n_layers,
            c.experts,
        )
        self._rope = self._rope_tables(ctx)

    def _rope_tables(self, ctx: int) -> tuple[Tensor, Tensor]:
        c = self.config
        half = torch.arange(0, c.head_dim, 2, dtype=torch.float64) / c.head_dim
        turns = c.rope_base**-half
        factors = self.weights.maybe("rope_freqs.weight")  # Llama 3 and later
        if factors is not None:
            turns = turns / factors.double().cpu()
        places = torch.arange(ctx, dtype=torch.float64) / c.rope_scale
        angles = torch.outer(places, turns)
        return (
            angles.cos().float().to(self._device),
            angles.sin().float().to(self._device),
        )

    def open(self, layers: range | None = None) -> Session:
        """Return an empty session over all own layers, or some of them."""
        session = Session(self.layers if layers is None else layers)
        self.reset(session)
        return session

    def reset(self, session: Session) -> None:
        """Empty the session; its memory is kept."""
        session.tokens.clear()
        session.broken = False
        if session.state is None:
            c = self.config
            shape = (self.shape.ctx, c.kv_heads, c.head_dim)
            session.state = {
                layer: _Cache(
                    torch.zeros(shape, device=self._device),
                    torch.zeros(shape, device=self._device),
                )
                for layer in session.layers
            }

    def embed(self, tokens: Sequence[int]) -> F32:
        """Return the rows of the embedding."""
        if self._embedding is None:
            raise EngineError("this slice does not start at layer 0")
        rows: F32 = self._embedding[torch.tensor(list(tokens))].cpu().numpy()
        return rows

    @torch.inference_mode()
    def run(
        self,
        session: Session,
        hidden: F32,
        tokens: Sequence[int],
        pos0: int,
        gate: Gate | None = None,
    ) -> F32:
        """Run the slice over a span."""
        x = torch.from_numpy(np.ascontiguousarray(hidden)).to(self._device)
        last, residual = self.run_parts(session, x, tokens, pos0, gate)
        result: F32 = (residual + last).cpu().numpy()
        return result

    @torch.inference_mode()
    def run_parts(
        self,
        session: Session,
        x: Tensor,
        tokens: Sequence[int],
        pos0: int,
        gate: Gate | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run the slice; return its last block's output and the stream it joins.

        Their sum is the hidden state. Other engines send the two apart.

        Parameters
        ----------
        x : Tensor
            Hidden state in front of the slice, ``[n, width]`` on the engine's device.
        """
        check_span(self.shape, session, len(tokens), pos0, layers=self.layers)
        if self.rank is not None and gate is None:
            raise EngineError("a rank of a tensor-parallel pair needs its gates")
        end = pos0 + len(tokens)
        rope = (self._rope[0][pos0:end], self._rope[1][pos0:end])
        c = self.config
        last = torch.zeros_like(x)
        for layer in session.layers:
            block = self._blocks[layer]
            x = x + last if layer != session.layers.start else x
            heads = block.attention(
                norm(x, block.attn_norm, c.eps), session.state[layer], pos0, rope
            )
            x = x + self._join(layer, "ATTN", block.attention_partial, heads, gate)
            inner = norm(x, block.ffn_norm, c.eps)
            last = self._join(layer, "FFN", block.ffn_partial, inner, gate)
        session.tokens.extend(tokens)
        return last, x

    def _join(
        self, layer: int, kind: GateKind, partial: Any, x: Tensor, gate: Gate | None
    ) -> Tensor:
        if self.rank is None or gate is None:
            both: Tensor = partial(x, 0) + partial(x, 1)
            return both
        own: F32 = partial(x, self.rank).cpu().numpy()
        return torch.from_numpy(gate(layer, kind, own)).to(self._device)

    @torch.inference_mode()
    def head(self, hidden: F32) -> F32:
        """Return the logits of one token's hidden state (this rank's half of them)."""
        x = torch.from_numpy(np.ascontiguousarray(hidden)).to(self._device)
        logits: F32 = self._logits(x.view(1, -1))[0].cpu().numpy()
        return logits

    @torch.inference_mode()
    def heads(self, hidden: F32) -> F32:
        """Return the logits of several tokens."""
        x = torch.from_numpy(np.ascontiguousarray(hidden)).to(self._device)
        logits: F32 = self._logits(x).cpu().numpy()
        return logits

    def _logits(self, x: Tensor) -> Tensor:
        if self._norm is None or self._output is None:
            raise EngineError("this slice does not own the output head")
        x = norm(x, self._norm, self.config.eps)
        # both halves are always taken apart, so that a split head gives the same bits
        ranks = (0, 1) if self.rank is None else (self.rank,)
        own = halves(self._output.shape[0])
        parts = [linear(x, self._output[own[rank]]) for rank in ranks]
        return torch.cat(parts, -1)

    def truncate(self, session: Session, pos: int) -> None:
        """Forget every token from ``pos`` on; rows behind it are never read."""
        if not 0 <= pos <= len(session.tokens):
            raise EngineError(f"rewind to {pos} of {len(session.tokens)} tokens")
        del session.tokens[pos:]

    def kv_rows(self, session: Session, layer: int) -> tuple[int, int]:
        """Return (0, 0): all rows are raw."""
        del session, layer
        return 0, 0

    def kv_export(self, session: Session, layer: int) -> Iterable[Buf]:
        """Yield keys and values of every token, one row a token."""
        count = len(session.tokens)
        cache: _Cache = session.state[layer]
        rows = torch.cat(
            (cache.keys[:count].flatten(1), cache.values[:count].flatten(1)), 1
        )
        yield memoryview(rows.cpu().numpy().tobytes())

    def kv_import(
        self,
        session: Session,
        layer: int,
        tokens: Sequence[int],
        rows: tuple[int, int],
        tensors: Sequence[F32],
    ) -> None:
        """Take keys and values of every token."""
        del rows
        c, count = self.config, len(tokens)
        both = torch.from_numpy(np.array(tensors[0], np.float32)).to(self._device)
        keys, values = both.chunk(2, 1)
        cache: _Cache = session.state[layer]
        shape = (count, c.kv_heads, c.head_dim)
        cache.keys[:count] = keys.reshape(shape)
        cache.values[:count] = values.reshape(shape)

    def kv_span(self, session: Session, layer: int, pos: int, count: int) -> Buf:
        """Return keys and values of ``count`` tokens, one row a token."""
        cache: _Cache = session.state[layer]
        span = slice(pos, pos + count)
        rows = torch.cat(
            (cache.keys[span].flatten(1), cache.values[span].flatten(1)), 1
        )
        return memoryview(rows.cpu().numpy().tobytes())

    def kv_extend(
        self,
        session: Session,
        layer: int,
        pos: int,
        count: int,
        tensors: Sequence[F32],
    ) -> None:
        """Take such rows; what lies behind them is never read."""
        both = torch.from_numpy(np.array(tensors[0], np.float32)).to(self._device)
        cache: _Cache = session.state[layer]
        for rows, part in zip(
            (cache.keys, cache.values), both.chunk(2, 1), strict=True
        ):
            rows[pos : pos + count] = part.reshape(rows[pos : pos + count].shape)
