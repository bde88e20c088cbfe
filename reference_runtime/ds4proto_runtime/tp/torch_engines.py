"""The torch engines as ranks: decoder-only files and DeepSeek V4.

The engines know where their joints are; here each joint asks the ``Gates`` of the
pair. Attention of prefill chunks and draft blocks is replicated, as on the wire of
real pairs; a row swap exchanges rows that both ranks could have computed, because a
product over half of the rows may round its last bit otherwise. The FFN partial of a
rank is its half of the shared lanes plus its experts in every span.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ds4proto.link.ds4t_events import Image
from ds4proto.link.ds4t_identity import Identity
from ds4proto.schema.slab import slab_size
from ds4proto_runtime.engines.base import F32, EngineError, Gate, GateKind, Session
from ds4proto_runtime.engines.decoder import DecoderEngine
from ds4proto_runtime.engines.deepseek_v4 import DeepseekV4Engine
from ds4proto_runtime.engines.v4_parts import Joint
from ds4proto_runtime.tp.spans import Gates


class HostPath:
    """Partials between a device and host memory.

    On CUDA both ways go through pinned memory that lives as long as this object, so
    that no copy stages through pageable pages. That path has not run on a GPU yet.

    Parameters
    ----------
    device : str
        Torch device.
    """

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._pinned: dict[str, Tensor] = {}

    @property
    def pinned(self) -> bool:
        """Whether pinned memory is used."""
        return self._device.type == "cuda"

    def slab_memory(self, identity: Identity) -> npt.NDArray[np.uint8] | None:
        """Return pinned memory for the slab, None where plain memory will do."""
        if not self.pinned:
            return None
        size = slab_size(identity.n_layer, identity.n_embd)
        memory = torch.zeros(size, dtype=torch.uint8, pin_memory=True)
        array: npt.NDArray[np.uint8] = memory.numpy()
        return array

    def down(self, partial: Tensor, rank: int) -> F32:
        """Return a rank's partial as float32 rows in host memory."""
        flat = partial.reshape(-1, partial.shape[-1])
        if not self.pinned:
            plain: F32 = flat.numpy()
            return plain
        place = self._place(f"down {rank}", flat.shape)
        place.copy_(flat)  # blocks until the copy is complete
        rows: F32 = place.numpy()
        return rows

    def up(self, rows: F32) -> Tensor:
        """Return rows as a tensor on the device."""
        if not self.pinned:
            return torch.from_numpy(np.ascontiguousarray(rows))
        place = self._place("up", torch.Size(rows.shape))
        np.copyto(place.numpy(), rows)
        return place.to(self._device)

    def _place(self, name: str, shape: torch.Size) -> Tensor:
        held = self._pinned.get(name)
        if held is None or held.numel() < shape.numel():
            held = torch.zeros(shape.numel(), pin_memory=True)
            self._pinned[name] = held
        return held[: shape.numel()].view(shape)


class _Join:
    """The joints of one engine: partials of a block, combined as the gates say."""

    def __init__(self, host: HostPath) -> None:
        self.host = host
        self.gates: Gates | None = None

    def add(
        self,
        layer: int,
        kind: GateKind,
        partial: Callable[[Tensor, int], Tensor],
        x: Tensor,
    ) -> Tensor:
        gates, host = self.gates, self.host
        if gates is None:
            raise EngineError("a rank of a tensor-parallel pair needs its gates")

        def part(rank: int) -> F32:
            return host.down(partial(x, rank), rank)

        if kind == "FFN":
            joined = gates.experts(layer, part)
        else:

            def rows(chosen: slice) -> F32:
                whole: F32 = part(0) + part(1)
                return whole[chosen]

            joined = gates.attention(layer, part, rows)
        return host.up(joined)


class _Decoder(DecoderEngine):
    join: _Join

    def _join(
        self, layer: int, kind: GateKind, partial: Any, x: Tensor, gate: Gate | None
    ) -> Tensor:
        del gate
        return self.join.add(layer, kind, partial, x)


class _V4Joint(Joint):
    def __init__(self, join: _Join) -> None:
        super().__init__(None)
        self._join = join

    def add(self, layer: int, kind: GateKind, partial: Any, x: Tensor) -> Tensor:
        """Return the sum of both partials of one block."""
        return self._join.add(layer, kind, partial, x).view(*x.shape[:-1], -1)


class _V4(DeepseekV4Engine):
    def rejoin(self, joint: Joint) -> None:
        """Put another joint in every layer."""
        self._joint = joint
        for block in self._blocks.values():
            block.self_attn.o_b_proj._joint = joint
            block.mlp._joint = joint


class TorchRank:
    """A torch engine as one rank; see ``RankEngine``."""

    vision = False

    def __init__(
        self, engine: Any, join: _Join, rank: int | None, gguf_bytes: int
    ) -> None:
        self._engine = engine
        self._join = join
        self.rank = rank
        shape = engine.shape
        self.identity = Identity(
            gguf_bytes,
            shape.model_id,
            shape.n_layers,
            shape.n_embd,
            shape.vocab,
            shape.quant_bits,
            gates_per_token=2 * shape.n_layers,
        )
        self.vocabulary_split = shape.vocab % 2 == 0

    @classmethod
    def decoder(
        cls, path: Path, rank: int | None, *, ctx: int, device: str = "cpu"
    ) -> TorchRank:
        """Return a decoder-only GGUF file as a rank."""
        engine = _Decoder(path, ctx=ctx, prefill_cap=ctx, device=device)
        engine.join = _Join(HostPath(device))
        return cls(engine, engine.join, rank, path.stat().st_size)

    @classmethod
    def deepseek_v4(
        cls, path: Path | None, rank: int | None, *, ctx: int, device: str = "cpu"
    ) -> TorchRank:
        """Return a DeepSeek V4 file, or the generated small model, as a rank."""
        from ds4proto_runtime.engines.v4_weights import tiny_config

        words: dict[str, Any] = {"ctx": ctx, "prefill_cap": ctx, "device": device}
        if path is None:
            engine, size = _V4(tiny_config(), **words), 0
        else:
            made = _V4.from_file(path, **words)
            assert isinstance(made, _V4)
            engine, size = made, path.stat().st_size
        join = _Join(HostPath(device))
        engine.rejoin(_V4Joint(join))
        return cls(engine, join, rank, size)

    @property
    def metadata(self) -> Any:
        """GGUF metadata where the engine has a file, for a tokenizer."""
        weights = getattr(self._engine, "weights", None)
        return None if weights is None else weights.metadata

    def slab_memory(self) -> npt.NDArray[np.uint8] | None:
        """Return pinned memory for the slab on CUDA."""
        return self._join.host.slab_memory(self.identity)

    def open(self, ctx: int) -> Session:
        """Return the state of an empty session."""
        if ctx > self._engine.shape.ctx:
            raise EngineError(
                f"context {ctx} exceeds the engine's {self._engine.shape.ctx}"
            )
        session: Session = self._engine.open()
        return session

    def run(
        self,
        state: Session,
        tokens: Sequence[int],
        gates: Gates,
        images: Sequence[Image] = (),
    ) -> F32:
        """Run one span through all layers."""
        del images
        self._join.gates = gates
        hidden = self._engine.embed(tokens)
        out: F32 = self._engine.run(state, hidden, tokens, len(state.tokens))
        return out

    def half(self, hidden: F32, rank: int) -> F32:
        """Return one half of one row's logits."""
        # the engine takes the halves apart, so that a part of the whole is the half
        middle = self.identity.n_vocab // 2
        whole = self.full(hidden)
        return whole[:middle] if rank == 0 else whole[middle:]

    def full(self, hidden: F32) -> F32:
        """Return all logits of one row."""
        logits: F32 = self._engine.head(hidden)
        return logits

    def mark(self, state: Session) -> Any:
        """Return the tokens held, and a copy of caches that cannot be cut."""
        if isinstance(self._engine, DecoderEngine):
            return list(state.tokens), None
        with torch.inference_mode():
            return list(state.tokens), copy.deepcopy(state.state)

    def back(self, state: Session, mark: Any) -> None:
        """Return to a mark."""
        tokens, caches = mark
        state.tokens[:] = tokens
        state.broken = False
        if caches is not None:
            with torch.inference_mode():
                state.state = copy.deepcopy(caches)

    def cut(self, state: Session, position: int) -> bool:
        """Forget tokens; DeepSeek V4 caches are emptied where they cannot be cut."""
        try:
            if position == 0:
                self._engine.reset(state)
            else:
                self._engine.truncate(state, position)
        except EngineError:
            self._engine.reset(state)
            return False
        return True

    def draft(self, state: Session, hidden: F32, token: int, gates: Gates) -> int:
        """Refuse: these engines have no prediction block."""
        del state, hidden, token, gates
        raise EngineError("this engine has no prediction block for GLM_MTP")
