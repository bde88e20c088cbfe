"""DeepSeek V4 at any size: hyper-connection streams, compressed KV, routed experts.

The architecture is that of the ``transformers`` package; slices, KV, masks and the
sums over ranks are in our hands, so that a sliced run equals the whole model bit for
bit. A hidden state holds ``n_hc x n_embd`` values a token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ds4proto.schema.problem import Buf
from ds4proto_runtime.engines.base import (
    F32,
    EngineError,
    Gate,
    Session,
    Shape,
    check_span,
)
from ds4proto_runtime.engines.decoder import PRIVATE_MODEL_ID, halves
from ds4proto_runtime.engines.v4_parts import Joint, join
from ds4proto_runtime.engines.v4_state import (
    export_layer,
    extend_layer,
    import_layer,
    row_counts,
)
from ds4proto_runtime.engines.v4_weights import Source, fill, read_model, seeded

_RATES: Final = {
    "sliding_attention": 0,
    "compressed_sparse_attention": 4,
    "heavily_compressed_attention": 128,
}


class DeepseekV4Engine:
    """Some layers of a DeepSeek V4 model.

    Parameters
    ----------
    config : transformers.DeepseekV4Config
        The model; ``v4_weights.tiny_config()`` gives a small one.
    layers : range or None
        The slice; only its layers are built.
    seed, std : int, float
        Of generated weights, used where ``source`` is None.
    source : callable or None
        Where the weights come from instead.
    ctx, prefill_cap : int
        Tokens of the context, and of one span.
    rank : int or None
        Rank under tensor parallelism; None computes both partials here.
    """

    def __init__(
        self,
        config: Any,
        layers: range | None = None,
        *,
        seed: int = 1,
        std: float = 0.08,
        source: Source | None = None,
        ctx: int = 1024,
        prefill_cap: int = 256,
        has_head: bool = True,
        rank: int | None = None,
        device: str = "cpu",
        name: str = "DeepSeek V4 (generated)",
    ) -> None:
        from transformers.models.deepseek_v4 import modeling_deepseek_v4 as v4

        config._attn_implementation = "eager"
        self.config = config
        count = config.num_hidden_layers
        self.layers = layers if layers is not None else range(count)
        if self.layers.start < 0 or self.layers.stop > count:
            raise EngineError(f"layer range ends past final model layer {count - 1}")
        self.has_head = has_head
        self._device = device
        self._joint = Joint(rank)
        give = source or seeded(seed, std, config.vocab_size, config.n_routed_experts)
        self._blocks: dict[int, Any] = {}
        for layer in self.layers:
            block = v4.DeepseekV4DecoderLayer(config, layer)
            fill(block, f"model.layers.{layer}.", give)
            join(block, config, layer, self._joint)
            self._blocks[layer] = block.to(device).eval()
        self._rotary = v4.DeepseekV4RotaryEmbedding(config).to(device)
        self._embedding: Any = None
        if self.layers.start == 0:
            self._embedding = nn.Embedding(config.vocab_size, config.hidden_size)
            fill(self._embedding, "model.embed_tokens.", give)
            self._embedding.to(device)
        self._collapse: Any = None
        if has_head:
            self._collapse = v4.DeepseekV4HyperHead(config)
            self._norm = v4.DeepseekV4RMSNorm(config.hidden_size, config.rms_norm_eps)
            self._output = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
            for module, prefix in (
                (self._collapse, "model.hc_head."),
                (self._norm, "model.norm."),
                (self._output, "lm_head."),
            ):
                fill(module, prefix, give)
                module.to(device)
        self.shape = self._shape(ctx, prefill_cap, name)

    @classmethod
    def from_file(cls, path: Path, **words: Any) -> DeepseekV4Engine:
        """Return an engine over a GGUF file of this package, or a configuration."""
        config, source, _ = read_model(path)
        return cls(config, source=source, name=path.stem, **words)

    def _shape(self, ctx: int, prefill_cap: int, name: str) -> Shape:
        c = self.config
        rates = [c.compress_rates.get(kind, 0) for kind in c.layer_types]
        # the cache keeps one row less than the window: the newest token is its own
        window = c.sliding_window - 1
        smallest = min((rate for rate in rates if rate), default=1)
        return Shape(
            PRIVATE_MODEL_ID,
            name[:127],
            4,
            c.num_hidden_layers,
            c.hidden_size,
            c.hc_mult * c.hidden_size,
            c.vocab_size,
            ctx,
            min(prefill_cap, ctx),
            max(window, -(-min(window + prefill_cap, ctx) // 256) * 256),
            window,
            ctx // smallest + 2,
            c.head_dim,
            c.index_head_dim,
            tuple(rates),
            c.n_routed_experts,
        )

    def open(self, layers: range | None = None) -> Session:
        """Return an empty session over all own layers, or some of them."""
        session = Session(self.layers if layers is None else layers)
        self.reset(session)
        return session

    def reset(self, session: Session) -> None:
        """Empty the session."""
        from transformers import DynamicCache

        session.tokens.clear()
        session.broken = False
        session.state = DynamicCache(config=self.config)

    @torch.inference_mode()
    def embed(self, tokens: Sequence[int]) -> F32:
        """Return the embedding, the same in every stream."""
        if self._embedding is None:
            raise EngineError("this slice does not start at layer 0")
        ids = torch.tensor(list(tokens), device=self._device)
        rows = self._embedding(ids)[:, None, :].expand(-1, self.config.hc_mult, -1)
        flat: F32 = rows.reshape(len(tokens), -1).cpu().numpy()
        return flat

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
        check_span(self.shape, session, len(tokens), pos0, layers=self.layers)
        if self._joint.rank is not None and gate is None:
            raise EngineError("a rank of a tensor-parallel pair needs its gates")
        c, count = self.config, len(tokens)
        x = torch.from_numpy(np.ascontiguousarray(hidden)).to(self._device)
        x = x.view(1, count, c.hc_mult, c.hidden_size)
        ids = torch.tensor([list(tokens)], device=self._device)
        places = torch.arange(pos0, pos0 + count, device=self._device)[None]
        tables = {
            kind: self._rotary(x, position_ids=places, layer_type=kind)
            for kind in ("main", "compress")
        }
        mask = self._mask(pos0, count)
        self._joint.gate = gate
        session.broken = True
        try:
            for layer in session.layers:
                x = self._blocks[layer](
                    x,
                    input_ids=ids,
                    position_embeddings=tables,
                    position_ids=places,
                    attention_mask=mask,
                    cache=session.state,
                )
        finally:
            self._joint.gate = None
        session.broken = False
        session.tokens.extend(tokens)
        result: F32 = x.reshape(count, -1).cpu().numpy()
        return result

    def _mask(self, pos0: int, count: int) -> Tensor:
        """Return the sliding causal mask over the kept rows and the new ones."""
        window = self.config.sliding_window
        first = pos0 - min(pos0, window - 1)
        keys = torch.arange(first, pos0 + count, device=self._device)[None, :]
        rows = torch.arange(pos0, pos0 + count, device=self._device)[:, None]
        seen = (keys <= rows) & (keys > rows - window)
        mask = torch.zeros(seen.shape, device=self._device)
        return mask.masked_fill(~seen, torch.finfo(torch.float32).min)[None, None]

    @torch.inference_mode()
    def head(self, hidden: F32) -> F32:
        """Return the logits of one token's hidden state (this rank's half of them)."""
        c = self.config
        x = torch.from_numpy(np.ascontiguousarray(hidden)).to(self._device)
        logits: F32 = self._logits(x.view(1, 1, c.hc_mult, -1)).view(-1).cpu().numpy()
        return logits

    @torch.inference_mode()
    def heads(self, hidden: F32) -> F32:
        """Return the logits of several tokens."""
        c = self.config
        x = torch.from_numpy(np.ascontiguousarray(hidden)).to(self._device)
        logits: F32 = (
            self._logits(x.view(1, len(hidden), c.hc_mult, -1))[0].cpu().numpy()
        )
        return logits

    def _logits(self, x: Tensor) -> Tensor:
        if self._collapse is None:
            raise EngineError("this slice does not own the output head")
        c = self.config
        x = self._norm(self._collapse(x))
        rank = self._joint.rank
        own = halves(c.vocab_size)
        # both halves are always taken apart, so that a split head gives the same bits
        parts = [
            linear(x, self._output.weight[own[part]])
            for part in ((0, 1) if rank is None else (rank,))
        ]
        return torch.cat(parts, -1)

    def truncate(self, session: Session, pos: int) -> None:
        """Cut to 0 only: compressed rows cannot be undone."""
        if pos == len(session.tokens):
            return
        if pos != 0:
            raise EngineError("DeepSeek V4 caches rewind to position 0 only")
        self.reset(session)

    def kv_rows(self, session: Session, layer: int) -> tuple[int, int]:
        """Return the compressed and indexer rows of a layer."""
        return row_counts(session.state.layers[layer])

    def kv_export(self, session: Session, layer: int) -> Iterable[Buf]:
        """Yield the tensors of a layer in the order of a saved session."""
        live = self.shape.raw_live(len(session.tokens))
        return export_layer(session.state.layers[layer], self.shape, layer, live)

    def kv_import(
        self,
        session: Session,
        layer: int,
        tokens: Sequence[int],
        rows: tuple[int, int],
        tensors: Sequence[F32],
    ) -> None:
        """Take the tensors of a layer."""
        cache = session.state.layers[layer]
        import_layer(cache, self.shape, layer, len(tokens), rows, tensors)

    def kv_span(self, session: Session, layer: int, pos: int, count: int) -> Buf:
        """Return the rows of ``count`` tokens, and the states behind them."""
        cache, live = session.state.layers[layer], min(count, self.shape.raw_window)
        span = (pos, pos + count)
        return b"".join(export_layer(cache, self.shape, layer, live, span))

    def kv_extend(
        self,
        session: Session,
        layer: int,
        pos: int,
        count: int,
        tensors: Sequence[F32],
    ) -> None:
        """Add such rows to a layer, and take its states."""
        from transformers import DynamicCache

        held = session.state.layers[layer] if pos else None
        fresh = DynamicCache(config=self.config).layers[layer]
        extend_layer(held, fresh, self.shape, layer, (pos, pos + count), tensors)
        session.state.layers[layer] = fresh
