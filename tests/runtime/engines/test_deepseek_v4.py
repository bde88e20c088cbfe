"""DeepSeek V4 in small: slices, ranks, saved rows, against the whole model."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ds4proto_runtime.engines.base import F32, EngineError, Gate, Session
from ds4proto_runtime.engines.deepseek_v4 import DeepseekV4Engine
from ds4proto_runtime.engines.v4_parts import Joint, join
from ds4proto_runtime.engines.v4_weights import fill, seeded, tiny_config, write_gguf
from ds4proto_runtime.handover import span_size
from ds4proto_runtime.pipeline import kv_spans

from ds4proto.schema.dsv4 import layer_tensors

TOKENS = [int(t) for t in np.random.default_rng(3).integers(0, 256, 40)]
SPANS = (TOKENS[:17], TOKENS[17:39], TOKENS[39:])


@pytest.fixture(scope="module")
def config() -> Any:
    return tiny_config()


@pytest.fixture(scope="module")
def whole(config: Any) -> DeepseekV4Engine:
    return DeepseekV4Engine(config)


def _run(engines: list[DeepseekV4Engine]) -> tuple[F32, list[Session]]:
    sessions = [engine.open() for engine in engines]
    pos = 0
    for span in SPANS:
        hidden = engines[0].embed(span)
        for engine, session in zip(engines, sessions, strict=True):
            hidden = engine.run(session, hidden, span, pos)
        pos += len(span)
    return hidden, sessions


def test_every_mechanism_occurs(config: Any) -> None:
    assert set(config.layer_types) == {
        "sliding_attention",
        "compressed_sparse_attention",
        "heavily_compressed_attention",
    }
    assert set(config.mlp_layer_types) == {"hash_moe", "moe"}


def test_hidden_states_hold_all_streams(config: Any, whole: DeepseekV4Engine) -> None:
    assert whole.shape.hidden_values == config.hc_mult * config.hidden_size == 256
    assert whole.embed([1, 2]).shape == (2, 256)


@pytest.mark.parametrize("cuts", [(3,), (2, 5), (1, 2, 3, 4, 5, 6, 7)])
def test_sliced_equals_unsliced(
    config: Any, whole: DeepseekV4Engine, cuts: tuple[int, ...]
) -> None:
    expected, _ = _run([whole])
    bounds = (0, *cuts, 8)
    parts = [
        DeepseekV4Engine(config, range(a, b), has_head=b == 8)
        for a, b in itertools.pairwise(bounds)
    ]
    found, _ = _run(parts)
    assert found.tobytes() == expected.tobytes()
    assert parts[-1].head(found[-1]).tobytes() == whole.head(expected[-1]).tobytes()


def _model(config: Any, *, joined: bool) -> Any:
    from transformers import DeepseekV4ForCausalLM

    model = DeepseekV4ForCausalLM(config).eval()
    fill(model, "", seeded(1, 0.08, config.vocab_size, config.n_routed_experts))
    if joined:
        for index, layer in enumerate(model.model.layers):
            join(layer, config, index, Joint(None))
    return model


def test_the_whole_model_gives_the_same_bits(
    config: Any, whole: DeepseekV4Engine
) -> None:
    session = whole.open()
    hidden = whole.run(session, whole.embed(TOKENS), TOKENS, 0)
    with torch.inference_mode():
        inner = _model(config, joined=True).model
        state = inner(torch.tensor([TOKENS])).last_hidden_state
        streams = torch.from_numpy(hidden).view(1, len(TOKENS), config.hc_mult, -1)
        ours = inner.norm(inner.hc_head(streams))
    assert ours.numpy().tobytes() == state.numpy().tobytes()


def test_the_split_sums_agree_with_the_plain_model(
    config: Any, whole: DeepseekV4Engine
) -> None:
    session = whole.open()
    hidden = whole.run(session, whole.embed(TOKENS), TOKENS, 0)
    with torch.inference_mode():
        model = _model(config, joined=False)
        expected = model(torch.tensor([TOKENS])).logits[0, -1].numpy()
    # another order of the same sums: a few float32 steps apart, no more
    np.testing.assert_allclose(whole.head(hidden[-1]), expected, atol=1e-5)


def test_two_ranks_give_the_bits_of_one_process(
    config: Any, whole: DeepseekV4Engine
) -> None:
    import threading

    ranks = [DeepseekV4Engine(config, rank=rank) for rank in (0, 1)]
    posted: list[list[F32]] = [[], []]
    meet = threading.Barrier(2, timeout=60)
    out: list[F32] = [np.empty(0, np.float32)] * 2

    def gate_of(rank: int) -> Gate:
        def gate(_layer: int, _kind: str, own: F32) -> F32:
            posted[rank].append(own)
            meet.wait()
            total: F32 = posted[0][-1] + posted[1][-1]
            meet.wait()
            return total

        return gate

    def run(rank: int) -> None:
        engine = ranks[rank]
        session = engine.open()
        hidden = engine.embed(TOKENS)
        out[rank] = engine.run(session, hidden, TOKENS, 0, gate_of(rank))

    other = threading.Thread(target=run, args=(1,))
    other.start()
    run(0)
    other.join(60)
    expected = whole.run(whole.open(), whole.embed(TOKENS), TOKENS, 0)
    assert out[0].tobytes() == out[1].tobytes() == expected.tobytes()
    assert len(posted[0]) == 16  # two gates in each of eight layers
    logits = np.concatenate([ranks[rank].head(out[0][-1]) for rank in (0, 1)])
    assert logits.tobytes() == whole.head(expected[-1]).tobytes()


def test_saved_rows_continue_the_session(config: Any, whole: DeepseekV4Engine) -> None:
    _, (first,) = _run([whole])
    other = DeepseekV4Engine(config)
    second = other.open()
    count = len(first.tokens)
    for layer in range(config.num_hidden_layers):
        rows = whole.kv_rows(first, layer)
        data = b"".join(bytes(part) for part in whole.kv_export(first, layer))
        values = {
            "layer_start": layer,
            "n_comp": (rows[0],),
            "n_index_comp": (rows[1],),
            "raw_live": whole.shape.raw_live(count),
            "head_dim": whole.shape.head_dim,
            "indexer_head_dim": whole.shape.indexer_head_dim,
        }
        places = layer_tensors(values, whole.shape.ratios)
        assert places[-1].offset + places[-1].nbytes == len(data)
        tensors = [
            np.frombuffer(data, np.float32, p.rows * p.width, p.offset).reshape(
                p.rows, p.width
            )
            for p in places
        ]
        other.kv_import(second, layer, first.tokens, rows, tensors)
    second.tokens.extend(first.tokens)
    # far enough that every compressor closes a window
    for step in range(10):
        token = [step]
        one = whole.run(first, whole.embed(token), token, count + step)
        two = other.run(second, other.embed(token), token, count + step)
        assert one.tobytes() == two.tobytes()


def test_a_written_model_is_the_same_model(
    config: Any, whole: DeepseekV4Engine, tmp_path: Path
) -> None:
    model = _model(config, joined=False)
    path = tmp_path / "tiny-v4.gguf"
    write_gguf(path, config, model.state_dict())
    read = DeepseekV4Engine.from_file(path)
    expected, _ = _run([whole])
    found, _ = _run([read])
    assert found.tobytes() == expected.tobytes()


def test_another_file_is_refused() -> None:
    path = Path(__file__).parents[2] / "data" / "tiny-moe-3m-q8_0.gguf"
    with pytest.raises(EngineError, match="reads files written by this package"):
        DeepseekV4Engine.from_file(path)


@pytest.mark.parametrize("step", [1, 3, 16, 40])
def test_spans_rebuild_a_session_bit_by_bit(
    config: Any, whole: DeepseekV4Engine, step: int
) -> None:
    """Every state between two groups occurs: the ratios are 4 and 128."""
    tokens = (TOKENS * 4)[:140]
    far, here = whole.open(), whole.open()
    for at in range(0, len(tokens), step):
        span = tokens[at : at + step]
        whole.run(far, whole.embed(span), span, at)
        data = kv_spans.export(whole, far, whole.layers, at, len(span))
        assert len(data) == span_size(whole.shape, whole.layers, at, len(span))
        kv_spans.extend(whole, here, whole.layers, at, len(span), data)
        here.tokens.extend(span)
    for layer in whole.layers:
        a, b = (b"".join(whole.kv_export(s, layer)) for s in (far, here))
        assert a == b
    rows = [whole.run(s, whole.embed(TOKENS[:5]), TOKENS[:5], 140) for s in (far, here)]
    assert rows[0].tobytes() == rows[1].tobytes()


def test_a_span_behind_other_rows_is_refused(whole: DeepseekV4Engine) -> None:
    far, here = whole.open(), whole.open()
    whole.run(far, whole.embed(TOKENS), TOKENS, 0)
    data = kv_spans.export(whole, far, whole.layers, 20, 20)
    with pytest.raises(EngineError, match="compressed rows behind position 20"):
        kv_spans.extend(whole, here, whole.layers, 20, 20, data)
