"""The decoder engine against another implementation, one small model a family."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from ds4proto_runtime.engines.base import EngineError
from ds4proto_runtime.engines.decoder import DecoderEngine
from ds4proto_runtime.engines.decoder_config import Config
from ds4proto_runtime.engines.tokenizer import Tokenizer

VOCAB = 96
TOKENS = [int(t) for t in np.random.default_rng(5).integers(0, VOCAB, 40)]
BASE = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
}
EXPERTS = {"num_experts_per_tok": 2, "head_dim": 16}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
Family = tuple[str, str, Mapping[str, Any]]
FAMILIES: dict[str, Family] = {
    "llama": ("llama", "Llama", {}),
    "llama, tied": ("llama", "Llama", {"tie_word_embeddings": True}),
    "llama 3": ("llama", "Llama", {"rope_parameters": LLAMA3}),
    "llama, linear scaling": ("llama", "Llama", {"rope_parameters": LINEAR}),
    "mixtral": ("llama", "Mixtral", {"num_local_experts": 4, **EXPERTS}),
    "qwen2": ("qwen2", "Qwen2", {}),
    "qwen3": ("qwen3", "Qwen3", {"head_dim": 16}),
    "qwen3-moe": (
        "qwen3moe",
        "Qwen3Moe",
        {"num_experts": 6, "moe_intermediate_size": 32, "norm_topk_prob": True,
         "decoder_sparse_step": 1, "mlp_only_layers": [], **EXPERTS},
    ),
}  # fmt: skip
PLAIN = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.o_proj.bias": "attn_output.bias",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
}
TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def neighbours(rows: Any, heads: int) -> Any:
    """Put the two halves of each head's rows side by side, as Llama files do."""
    half = rows.shape[0] // heads // 2
    return (
        rows.reshape(heads, 2, half, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)
    )


def file_tensors(name: str, rows: Any, arch: str, config: Any) -> dict[str, Any]:
    """Return what a tensor of the other implementation is called in a file."""
    if name in TOP:
        return {TOP[name]: rows}
    _, _, layer, rest = name.split(".", 3)
    prefix = f"blk.{layer}."
    if rest in PLAIN:
        return {prefix + PLAIN[rest]: rows}
    if rest == "mlp.experts.gate_up_proj":
        gate, up = np.split(rows, 2, axis=1)
        return {
            prefix + "ffn_gate_exps.weight": gate,
            prefix + "ffn_up_exps.weight": up,
        }
    letter, kind = rest.removeprefix("self_attn.").split("_proj.")
    assert letter in "qkv", name
    if arch == "llama" and letter != "v":
        heads = config.num_attention_heads
        rows = neighbours(rows, heads if letter == "q" else config.num_key_value_heads)
    return {f"{prefix}attn_{letter}.{kind}": rows}


def write(path: Path, arch: str, model: Any) -> None:
    """Write a model of the other implementation as a file."""
    config = model.config
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // 4
    writer.add_key_length(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope["rope_theta"])
    experts = getattr(config, "num_experts", getattr(config, "num_local_experts", 0))
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "llama3":
        plain = rope["rope_theta"] ** (-np.arange(0, head_dim, 2) / head_dim)
        scaled = model.model.rotary_emb.inv_freq.numpy()
        writer.add_tensor("rope_freqs.weight", (plain / scaled).astype(np.float32))
    writer.add_token_list([f"t{n}" for n in range(VOCAB)])
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        rows = tensor.float().numpy()
        for own, values in file_tensors(name, rows, arch, config).items():
            writer.add_tensor(own, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def other(family: str) -> Any:
    """Return a seeded model of the other implementation."""
    _, kind, words = FAMILIES[family]
    config = getattr(transformers, f"{kind}Config")(**{**BASE, **words})
    torch.manual_seed(7)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():  # norms and biases that do nothing would hide a mistake
        for name, tensor in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                tensor.add_(0.2 * torch.randn_like(tensor))
            else:
                tensor.mul_(4.0)
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_another_implementation(
    family: str, tmp_path: Path
) -> None:
    model = other(family)
    path = tmp_path / "model.gguf"
    write(path, FAMILIES[family][0], model)
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS])).logits[0].numpy()
    engine = DecoderEngine(path, ctx=64)
    session = engine.open()
    found, pos = [], 0
    for span in (TOKENS[:25], TOKENS[25:39], TOKENS[39:]):
        hidden = engine.run(session, engine.embed(span), span, pos)
        found += [engine.head(row) for row in hidden]
        pos += len(span)
    spread = float(expected.std())
    assert np.abs(np.array(found) - expected).max() < 1e-4 * spread
    assert spread > 0.1


def test_a_part_that_the_engine_does_not_know_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    model = other("llama")
    bias = torch.nn.Parameter(torch.ones(48))
    model.model.layers[1].self_attn.o_proj.bias = bias
    write(path, "llama", model)
    DecoderEngine(path, range(1), ctx=64, has_head=False)
    with pytest.raises(EngineError, match=r"no use for blk\.1\.attn_output\.bias"):
        DecoderEngine(path, ctx=64)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("rope.scaling.type", "yarn", "rope.scaling.type is 'yarn'"),
        ("rope.dimension_count", 8, "rotates whole heads of 12 values"),
    ],
)
def test_positions_that_the_engine_does_not_know_are_refused(
    key: str, value: Any, told: str
) -> None:
    words = {"block_count": 1, "attention.head_count": 4, "embedding_length": 48}
    meta = {f"llama.{name}": number for name, number in {**words, key: value}.items()}
    with pytest.raises(EngineError, match=told):
        Config.of({"general.architecture": "llama", **meta}, VOCAB)


def tokenizer(pre: str) -> Tokenizer:
    """Return a tokenizer of single letters and digits, and of numbers up to 999."""
    words = [*"abc 0123456789", "Ġ", *(str(n) for n in range(10, 1000))]
    merges = [f"{word[:-1]} {word[-1]}" for word in words if len(word) > 1]
    return Tokenizer(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": words,
            "tokenizer.ggml.merges": merges,
        }
    )


@pytest.mark.parametrize(
    ("pre", "parts"),
    [
        ("gpt-2", ["12", "34", "567"]),  # one word: its merges in their order
        ("qwen2", ["1", "2", "3", "4", "5", "6", "7"]),
        ("smollm", ["1", "2", "3", "4", "5", "6", "7"]),
        ("llama-bpe", ["123", "456", "7"]),
    ],
)
def test_numbers_are_cut_up_as_the_file_says(pre: str, parts: list[str]) -> None:
    found = tokenizer(pre)
    ids = found.encode("1234567")
    assert [found.decode([token]) for token in ids] == parts


def test_a_way_to_cut_up_text_that_is_not_known_is_refused() -> None:
    with pytest.raises(EngineError, match=r"tokenizer\.ggml\.pre is 'tekken'"):
        tokenizer("tekken")
