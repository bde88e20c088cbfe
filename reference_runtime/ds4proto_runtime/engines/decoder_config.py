"""What a GGUF file's metadata says of a decoder-only model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ds4proto_runtime.engines.base import EngineError

INTERLEAVED: Final = frozenset({"llama"})
HALVED: Final = frozenset({"qwen2", "qwen3", "qwen3moe"})
ARCHITECTURES: Final = INTERLEAVED | HALVED


@dataclass(frozen=True, slots=True)
class Config:
    """What the metadata says of the model.

    Attributes
    ----------
    rope_scale : float
        Positions are divided by it (linear scaling); 1 leaves them.
    """

    arch: str
    n_layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    rope_base: float
    rope_scale: float
    vocab: int
    experts: int
    experts_used: int
    context: int

    @staticmethod
    def of(meta: Mapping[str, Any], vocab: int) -> Config:
        """Read the configuration from GGUF metadata.

        Raises
        ------
        EngineError
            For an architecture, or a kind of position, that this engine does not know:
            it would run and give another text.
        """
        arch = str(meta.get("general.architecture", "?"))
        if arch not in ARCHITECTURES:
            known = ", ".join(sorted(ARCHITECTURES))
            raise EngineError(
                f"the decoder engine knows {known}; this file is {arch!r}"
            )

        def word(key: str, default: Any = None) -> Any:
            value = meta.get(f"{arch}.{key}", default)
            if value is None:
                raise EngineError(f"GGUF metadata lacks {arch}.{key}")
            return value

        heads, width = int(word("attention.head_count")), int(word("embedding_length"))
        head_dim = int(word("attention.key_length", width // heads))
        if int(word("rope.dimension_count", head_dim)) != head_dim:
            raise EngineError(
                f"{arch}.rope.dimension_count is {word('rope.dimension_count')}: this"
                f" engine rotates whole heads of {head_dim} values"
            )
        scaling = str(word("rope.scaling.type", "none"))
        if scaling not in ("none", "linear"):
            raise EngineError(
                f"{arch}.rope.scaling.type is {scaling!r}; this engine knows linear"
                " scaling and rope_freqs.weight"
            )
        factor = float(word("rope.scaling.factor", 1.0))
        return Config(
            arch,
            int(word("block_count")),
            width,
            heads,
            int(word("attention.head_count_kv", heads)),
            head_dim,
            float(word("attention.layer_norm_rms_epsilon", 1e-5)),
            float(word("rope.freq_base", 10000.0)),
            factor if scaling == "linear" and factor > 0 else 1.0,
            vocab,
            int(word("expert_count", 0)),
            int(word("expert_used_count", 0)),
            int(word("context_length", 4096)),
        )
