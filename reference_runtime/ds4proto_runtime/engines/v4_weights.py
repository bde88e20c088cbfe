"""Where the weights of a DeepSeek V4 slice come from: a seed, or a GGUF file.

The shape comes from that file, from a configuration in JSON, or is a small one.

Generated weights depend on the seed and the tensor's own name alone, so that a
worker that builds two layers gets the very bits that a whole model has there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from ds4proto_runtime.engines.base import EngineError
from ds4proto_runtime.engines.weights import Weights

Source = Callable[[str, torch.Tensor], torch.Tensor]
"""Gives the values of a tensor by its name and a tensor of the wanted shape."""

ARCHITECTURE: Final = "deepseek_v4"
_ONES: Final = ("norm.weight", "layernorm.weight", ".scale", "hc_scale")
_ZEROS: Final = (".base", "hc_base", "sinks", "position_bias", "correction_bias")


def tiny_config(**changes: Any) -> Any:
    """Return the configuration of a small DeepSeek V4: every mechanism, few values.

    Eight layers, width 64, four streams, the first three layers hash-routed; sliding,
    compressed sparse and heavily compressed attention all occur.
    """
    from transformers import DeepseekV4Config

    words: dict[str, Any] = {
        "vocab_size": 256,
        "hidden_size": 64,
        "moe_intermediate_size": 32,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "head_dim": 32,
        "q_lora_rank": 32,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "hc_mult": 4,
        "sliding_window": 16,
        "o_groups": 2,
        "o_lora_rank": 16,
        "index_n_heads": 2,
        "index_head_dim": 16,
        "index_topk": 4,
        "compress_rates": {
            "compressed_sparse_attention": 4,
            "heavily_compressed_attention": 8,
        },
        "max_position_embeddings": 4096,
        "num_nextn_predict_layers": 0,
    }
    words.update(changes)
    count = words["num_hidden_layers"]
    cycle = ("compressed_sparse_attention", "heavily_compressed_attention")
    words.setdefault(
        "layer_types",
        ["sliding_attention"] * min(2, count)
        + [cycle[index % 2] for index in range(max(0, count - 2))],
    )
    words.setdefault(
        "mlp_layer_types", ["hash_moe"] * min(3, count) + ["moe"] * max(0, count - 3)
    )
    return DeepseekV4Config(**words)


def seeded(seed: int, std: float, vocab: int, experts: int) -> Source:
    """Return a source of generated weights."""

    def give(name: str, like: torch.Tensor) -> torch.Tensor:
        if name.endswith(_ONES):
            return torch.ones_like(like)
        if name.endswith(_ZEROS):
            return torch.zeros_like(like)
        digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
        draw = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        if name.endswith("tid2eid"):
            table = torch.stack(
                [torch.randperm(experts, generator=draw) for _ in range(vocab)]
            )
            return table[:, : like.shape[1]].contiguous()
        return torch.randn(like.shape, generator=draw) * std

    return give


def fill(module: nn.Module, prefix: str, source: Source) -> None:
    """Give every parameter and stored buffer of ``module`` its values."""
    state = module.state_dict()
    for name, tensor in state.items():
        values = source(f"{prefix}{name}", tensor)
        if values.shape != tensor.shape:
            raise EngineError(
                f"tensor {prefix}{name}: expected shape {tuple(tensor.shape)},"
                f" found {tuple(values.shape)}"
            )
        state[name] = values.to(tensor.dtype)
    module.load_state_dict(state)


class FileSource:
    """The tensors of a GGUF file as a source of weights."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    def __call__(self, name: str, like: torch.Tensor) -> torch.Tensor:
        """Return a tensor in the shape of another."""
        return self._weights.get(name).reshape(like.shape)

    def holds(self, name: str) -> bool:
        """Tell whether the file has a tensor."""
        return self._weights.has(name)


def from_gguf(path: Path) -> tuple[Any, FileSource]:
    """Return configuration and weights of a GGUF file that this module wrote.

    Raises
    ------
    EngineError
        If the file is of another architecture, or carries no configuration.
    """
    import json

    from transformers import DeepseekV4Config

    weights = Weights(path)
    arch = weights.metadata.get("general.architecture")
    text = weights.metadata.get(f"{ARCHITECTURE}.config")
    if arch != ARCHITECTURE or not isinstance(text, str):
        raise EngineError(
            f"{path}: architecture {arch!r}; the deepseek_v4 engine reads files"
            f" written by this package (architecture {ARCHITECTURE!r})"
        )
    try:
        config = DeepseekV4Config(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise EngineError(
            f"{path}: {ARCHITECTURE}.config is no configuration: {error}"
        ) from None
    return config, FileSource(weights)


def read_model(path: Path) -> tuple[Any, Source | None, bool]:
    """Return configuration, weights and whether there is a head, of a file.

    A configuration in JSON (``config.json`` of a published model, or some of its
    fields; the others are those of the small model) has no weights: they are
    generated.

    Raises
    ------
    EngineError
        The file is neither such a configuration nor a GGUF file of this package.
    """
    if path.suffix == ".json":
        return _from_json(path), None, True
    config, source = from_gguf(path)
    return config, source, source.holds("lm_head.weight")


def _from_json(path: Path) -> Any:
    import json

    from ds4proto_runtime.text_files import bounded_text

    try:
        words = json.loads(bounded_text(path))
    except (ValueError, RecursionError) as error:
        raise EngineError(f"{path}: expected a configuration in JSON: {error}") from (
            None
        )
    kind = words.pop("model_type", ARCHITECTURE) if isinstance(words, dict) else None
    if kind != ARCHITECTURE:
        raise EngineError(
            f"{path}: expected an object with the fields of a {ARCHITECTURE}"
            f" configuration, found {'another model' if kind else 'no object'}"
        )
    try:
        return tiny_config(**words)
    except Exception as error:  # whatever a class of another package checks
        told = " ".join(str(error).split())[:300]
        raise EngineError(f"{path}: no {ARCHITECTURE} configuration: {told}") from None


def write_gguf(path: Path, config: Any, tensors: dict[str, torch.Tensor]) -> None:
    """Write a small model's weights as F32; the file appears whole or not at all."""
    import json

    from gguf import GGUFWriter

    part = path.with_name(path.name + ".part")
    writer = GGUFWriter(str(part), ARCHITECTURE)
    writer.add_string(f"{ARCHITECTURE}.config", json.dumps(config.to_diff_dict()))
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor.detach().float().contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.replace(path)
