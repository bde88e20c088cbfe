"""DeepSeek V4 of any size, from a file or a configuration, as ``run`` opens it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ds4proto_runtime.engines.base import F32, Engine
from ds4proto_runtime.engines.v4_weights import seeded, tiny_config, write_gguf
from ds4proto_runtime.pipeline.models import choose, open_engine

from ds4proto.errors import WrongUsage

TOKENS = [7, 1, 200, 33, 5]
SMALLER = {
    "model_type": "deepseek_v4",
    "num_hidden_layers": 4,
    "hidden_size": 32,
    "vocab_size": 100,
    "hc_mult": 2,
    "n_routed_experts": 4,
}


def logits(engines: list[Engine], tokens: list[int]) -> F32:
    rows = engines[0].embed(tokens)
    for engine in engines:
        rows = engine.run(engine.open(), rows, tokens, 0)
    return engines[-1].head(rows[-1])


def test_a_file_of_this_package_is_opened_slice_by_slice(tmp_path: Path) -> None:
    from transformers import DeepseekV4ForCausalLM

    config = tiny_config()
    give = seeded(1, 0.08, config.vocab_size, config.n_routed_experts)
    state = DeepseekV4ForCausalLM(config).state_dict()
    path = tmp_path / "model.gguf"
    write_gguf(path, config, {name: give(name, like) for name, like in state.items()})
    choice = choose(None, str(path))
    assert (choice.engine, choice.n_layers, choice.has_output) == (
        "deepseek_v4", 8, True,
    )  # fmt: skip
    parts = [
        open_engine(choice, range(3), head=False, ctx=64),
        open_engine(choice, range(3, 8), head=True, ctx=64),
    ]
    small = choose("deepseek_v4", None)
    whole = open_engine(small, range(8), head=True, ctx=64)
    assert logits(parts, TOKENS).tobytes() == logits([whole], TOKENS).tobytes()


def test_a_configuration_gives_a_model_of_its_size(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SMALLER))
    choice = choose(None, str(path))
    assert choice.n_layers == 4
    whole = open_engine(choice, range(4), head=True, ctx=64)
    shape = whole.shape
    assert (shape.n_embd, shape.hidden_values, shape.vocab) == (32, 64, 100)
    parts = [
        open_engine(choice, range(1), head=False, ctx=64),
        open_engine(choice, range(1, 4), head=True, ctx=64),
    ]
    tokens = [token % 100 for token in TOKENS]
    assert logits(parts, tokens).tobytes() == logits([whole], tokens).tobytes()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("no json", "expected a configuration in JSON"),
        ("[" * 100_000, "expected a configuration in JSON"),
        ("[1]", "found no object"),
        (json.dumps({"model_type": "llama"}), "found another model"),
        (json.dumps({"num_hidden_layers": "four"}), "no deepseek_v4 configuration"),
    ],
)
def test_another_text_is_no_configuration(
    words: str, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(words)
    with pytest.raises(WrongUsage, match=told):
        choose(None, str(path))


@pytest.mark.parametrize(("engine", "name", "told"), [
    ("decoder", "config.json", "use --engine deepseek_v4"),
    (None, "nowhere.json", "No such file"),
])  # fmt: skip
def test_wrong_words_for_a_configuration(
    engine: Any, name: str, told: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALLER))
    with pytest.raises(WrongUsage, match=told):
        choose(engine, str(tmp_path / name))
