"""What a slice needs in memory: weights, KV cache, runtime; and what the GPU may use.

The KV cache follows the tensors that a saved session holds (section of the DSVL
shard): raw rows of the window, compressed rows, indexer rows, compressor states, all
in 32 bits. It is an estimate of what the engine allocates, from below.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ds4proto.model import ModelFacts
from ds4proto.model.known import GLM_52, GLM_53_FLASH
from ds4proto.preflight.facts import Machine, ModelFile

__all__ = ["Need", "gpu_limit", "kv_bytes", "slice_need", "tp_need"]

_F32: Final = 4
_RAW_STEP: Final = 256
_RAW_CAP: Final = 8192
_INDEXED: Final = 4
"""Compression ratio of the layers that have an indexer."""
MACOS_SHARE: Final = 0.75
"""Share of memory that macOS lets the GPU wire where iogpu.wired_limit_mb is 0: an
assumption, the system decides."""
_GLM_LATENT: Final = 512 + 64
_GLM_INDEX: Final = 128


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that one process needs.

    Attributes
    ----------
    weights : int
        0 where the sizes of the layers are not known.
    kv : int or None
        Of all sessions; None where the model's cache is not known.
    runtime : int
    """

    weights: int
    kv: int | None
    runtime: int

    @property
    def total(self) -> int:
        """All that is known."""
        return self.weights + (self.kv or 0) + self.runtime


def kv_bytes(facts: ModelFacts, first: int, last: int, ctx: int) -> int | None:
    """Return the bytes of one session's cache for a slice; None if not known.

    Parameters
    ----------
    first, last : int
        Inclusive.
    ctx : int
        Context in tokens.
    """
    known = facts.known
    if known is not None and known.model_id in (GLM_52.model_id, GLM_53_FLASH.model_id):
        # The compact rows only: how many full rows there are is the engine's affair.
        return (last - first + 1) * ctx * (_GLM_LATENT + _GLM_INDEX) * _F32
    if known is not None and known.saved is not None:
        shape = known.saved
        window = shape.raw_window or ctx
        rows = min(-(-min(window + ctx, ctx) // _RAW_STEP) * _RAW_STEP, _RAW_CAP)
        total = 0
        for layer in range(first, last + 1):
            total += max(rows, window) * shape.head_dim * _F32
            ratio = shape.ratio(layer)
            if not ratio:
                continue
            factor = 4 if ratio == _INDEXED else 1
            total += (ctx // ratio + 2) * shape.head_dim * _F32
            total += 2 * factor * shape.head_dim * ratio * _F32
            if ratio == _INDEXED:
                total += (ctx // ratio + 2) * shape.indexer_head_dim * _F32
                total += 2 * factor * shape.indexer_head_dim * ratio * _F32
        return total
    heads, dim = facts.kv_heads, facts.head_dim
    if heads is None or dim is None:
        return None
    value = facts.value_dim or dim
    each = heads if isinstance(heads, tuple) else (heads,) * (last + 1)
    return sum(each[first : last + 1]) * (dim + value) * ctx * _F32


def slice_need(
    model: ModelFile,
    first: int,
    last: int,
    *,
    ctx: int,
    sessions: int,
    runtime: int,
    ends: bool,
) -> Need:
    """Return what a pipeline slice needs.

    Parameters
    ----------
    ends : bool
        The slice holds the embedding or the output head.
    """
    facts = model.facts
    weights = facts.slice_bytes(first, last)
    if weights and ends:
        weights += facts.other_bytes
    one = kv_bytes(facts, first, last, ctx)
    return Need(weights, None if one is None else one * sessions, runtime)


def tp_need(model: ModelFile, *, ctx: int, sessions: int, runtime: int) -> Need:
    """Return what a tensor-parallel rank needs: half of the experts, all the rest."""
    facts = model.facts
    weights = facts.slice_bytes(0, facts.layers - 1)
    if weights:
        weights += facts.other_bytes - sum(model.expert_bytes.values()) // 2
    one = kv_bytes(facts, 0, facts.layers - 1, ctx)
    return Need(weights, None if one is None else one * sessions, runtime)


def gpu_limit(machine: Machine) -> tuple[int, str] | None:
    """Return the bytes that a run may use on a machine, and where that comes from."""
    if machine.gpu_limit is not None:
        return machine.gpu_limit, "GPU limit"
    if machine.wired_limit_mb:
        return machine.wired_limit_mb << 20, "iogpu.wired_limit_mb"
    if machine.memory is None:
        return None
    if machine.system == "macos":
        share = int(machine.memory * MACOS_SHARE)
        return share, f"{MACOS_SHARE:.0%} of memory, assumed for iogpu.wired_limit_mb 0"
    return machine.memory, "memory"
