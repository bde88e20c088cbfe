"""Facts, known models and the identity in both hellos, against the protocol tables."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from ds4proto.model import (
    KNOWN_MODELS,
    GgufError,
    KnownModel,
    ModelFacts,
    ds4d_hello_identity,
    ds4t_identity,
    known_model,
    model_facts,
    read_gguf,
)
from ds4proto.model.known import GLM_52, V4_FLASH, V4_PRO, Backend
from tests.model.gguf_writer import Arr, Writer, model

TINY = Path(__file__).parents[1] / "data" / "tiny-moe-3m-q8_0.gguf"
F32, Q8_0, Q2_K, Q4_K, IQ2_XXS, MXFP4 = 0, 8, 10, 12, 16, 39

# DS4D HELLO table: id, name, layers, hidden values per token, vocabulary.
DS4D_TABLE = [
    (0, "DeepSeek V4 Flash", 43, 16384, 129280),
    (1, "DeepSeek V4 Pro", 61, 28672, 129280),
    (2, "GLM 5.2", 78, 6144, 154880),
]
# DS4T model table: id, layers, width, vocabulary, experts, start, step, gates, mask.
DS4T_TABLE = [
    (0, 43, 4096, 129280, 256, 0, 1, 86, (0, 0, 0)),
    (1, 61, 7168, 129280, 384, 0, 1, 122, (0, 0, 0)),
    (2, 78, 6144, 154880, 256, 6, 1, 150, (0, 0, 0)),
    (3, 45, 4096, 154880, 288, 6, 1, 53, (0xEAEAEAEAEAEAEAC0, 0x2EAEAEA, 0)),
    (4, 40, 5120, 129280, 384, 0, 1, 80, (0, 0, 0)),
]


def test_known_models_equal_the_ds4d_table() -> None:
    rows = [
        (m.model_id, m.name, m.layers, m.hidden_values, m.vocabulary)
        for m in KNOWN_MODELS
        if m.in_ds4d
    ]
    assert rows == DS4D_TABLE


def test_known_models_equal_the_ds4t_table() -> None:
    rows = [
        (
            m.model_id,
            m.layers,
            m.width,
            m.vocabulary,
            m.experts,
            m.gates.start,
            m.gates.step,
            m.gates.gates_per_token,
            m.gates.mask,
        )
        for m in KNOWN_MODELS
    ]
    assert rows == DS4T_TABLE


def test_every_schedule_is_valid_for_its_model() -> None:
    # The rule both ranks apply: set bits = gates per token, every slot < 2 * layers.
    for m in KNOWN_MODELS:
        for gates in filter(None, (m.gates, m.gates_streaming)):
            slots = gates.slots()
            assert len(set(slots)) == gates.gates_per_token
            assert max(slots) < 2 * m.layers
            assert sum(word.bit_count() for word in gates.mask) in (0, len(slots))


def test_glm_53_slots_are_those_of_the_facts() -> None:
    m = known_model(3)
    assert m is not None
    slots = m.gates.slots()
    assert slots[:7] == (6, 7, 9, 11, 13, 14, 15)
    assert slots[-4:] == (85, 86, 87, 89)


def test_glm_52_streaming_schedule() -> None:
    assert GLM_52.gates_streaming is not None
    assert GLM_52.gates_streaming.slots()[:3] == (7, 9, 11)
    assert GLM_52.gates_streaming.gates_per_token == 75


@pytest.mark.parametrize(
    ("known", "ratios"),
    [(V4_FLASH, [0, 0, 4, 128, 4, 128]), (V4_PRO, [128, 128, 4, 128, 4, 128])],
)
def test_saved_session_shapes(known: KnownModel, ratios: list[int]) -> None:
    saved = known.saved
    assert saved is not None
    assert [saved.ratio(n) for n in range(6)] == ratios
    assert (saved.head_dim, saved.indexer_head_dim, saved.raw_window) == (512, 128, 128)


def test_facts_of_the_real_file() -> None:
    facts = model_facts(TINY)
    assert facts.architecture == "llama"
    assert (facts.layers, facts.width, facts.streams) == (8, 128, 1)
    assert (facts.heads, facts.kv_heads, facts.head_dim) == (4, 2, 32)
    assert (facts.experts, facts.experts_used, facts.ffn_width) == (4, 2, 192)
    assert (facts.vocabulary, facts.context) == (2048, 256)
    assert (facts.rope_base, facts.rope_dims) == (10000.0, 32)
    assert facts.norm_epsilon == pytest.approx(1e-5)
    assert facts.layers_present == tuple(range(8))
    assert facts.has_output
    assert facts.has_embedding
    assert facts.known is None
    # Every tensor byte belongs to a layer or to the rest; no padding in this file.
    total = facts.slice_bytes(0, 7) + facts.other_bytes
    assert total == read_gguf(TINY).tensor_bytes == 3_573_760 - 67_072
    gate = facts.layer_facts[0].gate
    assert gate is not None
    assert gate.name == "Q8_0"


def test_identity_of_a_model_that_ds4_does_not_number() -> None:
    facts = model_facts(TINY)
    hello = ds4d_hello_identity(facts, 2, 7)
    assert (hello.model_id, hello.n_layers, hello.quant_bits) == (None, 8, 2)
    assert hello.model_name == "ds4proto-tiny-moe"
    assert hello.notes
    tp = ds4t_identity(facts)
    assert tp.gguf_bytes == 3_573_760
    assert (tp.n_layer, tp.n_embd, tp.n_vocab, tp.quant_bits) == (8, 128, 2048, 2)
    assert tp.gates.gates_per_token == 16


@pytest.mark.parametrize("key", ["block_count", "nextn_predict_layers"])
def test_layers_beyond_any_model_are_refused_before_they_are_counted(key: str) -> None:
    w = Writer().add("general.architecture", "string", "x")
    w.add(f"x.{key}", "u64", (1 << 64) - 1)
    with pytest.raises(GgufError, match=f"value of 'x.{key}'.*at most 65536 layers"):
        read_gguf(w.header(), file_size=1 << 33)


def test_a_tensor_name_makes_no_model_deep() -> None:
    w = Writer().tensor("blk.123456.x", (32,), F32, 128)
    assert _facts(w).layers == 0


def _facts(w: Writer) -> ModelFacts:
    return model_facts(read_gguf(w.header(), file_size=1 << 33))


FILES = [
    ("deepseek4", 43, 4096, 129280, {"hyper_connection.count": 4}, 0, 43),
    ("deepseek4", 61, 7168, 129280, {"hyper_connection.count": 4}, 1, 61),
    ("glm-dsa", 79, 6144, 154880, {"nextn_predict_layers": 1}, 2, 78),
    ("glm5next", 46, 4096, 154880, {"nextn_predict_layers": 1}, 3, 45),
    (
        "deepseek41",
        43,
        5120,
        129280,
        {"trunk_block_count": 40, "nextn_predict_layers": 3},
        4,
        40,
    ),
    ("deepseek41", 40, 5120, 129280, {}, 4, 40),
]


@pytest.mark.parametrize("file", FILES)
def test_models_are_recognised_from_metadata(
    file: tuple[str, int, int, int, dict[str, int], int, int],
) -> None:
    arch, blocks, width, vocabulary, extra, model_id, layers = file
    w = model(arch, blocks=blocks, width=width, vocabulary=vocabulary, extra=extra)
    facts = _facts(w)
    known = known_model(model_id)
    assert known is not None
    assert facts.known is known
    assert facts.certainty == "architecture and shape"
    assert facts.layers == layers
    assert facts.prediction_layers == blocks - layers
    assert facts.hidden_values == known.hidden_values
    tp = ds4t_identity(facts)
    assert (tp.model_id, tp.n_layer, tp.gates) == (model_id, layers, known.gates)
    assert tp.gguf_bytes == 1 << 33
    if known.in_ds4d:
        hello = ds4d_hello_identity(facts, 0, layers - 1)
        assert (hello.model_id, hello.model_name) == (model_id, known.name)
        assert (hello.n_layers, hello.notes) == (layers, ())


def test_shape_alone_is_a_hypothesis() -> None:
    facts = _facts(model("other", blocks=43, width=4096, vocabulary=129280))
    assert facts.known is V4_FLASH
    assert facts.certainty == "hypothesis"
    assert "shape alone" in ds4d_hello_identity(facts, 0, 1).notes[0]


def test_another_depth_is_another_model() -> None:
    facts = _facts(model("deepseek4", blocks=42, width=4096, vocabulary=129280))
    assert facts.known is None


@pytest.mark.parametrize(
    ("gate", "label"), [(Q4_K, 4), (Q2_K, 2), (IQ2_XXS, 2), (Q8_0, 2), (MXFP4, 2)]
)
def test_quant_label(gate: int, label: int) -> None:
    w = model("glm-dsa", blocks=79, width=6144, vocabulary=154880, gate_type=gate,
              first_routed=3)  # fmt: skip
    facts = _facts(w)
    assert ds4d_hello_identity(facts, 0, 77).quant_bits == label
    # A slice of dense layers alone has no label, and coordinators refuse it.
    assert ds4d_hello_identity(facts, 0, 2).quant_bits == 0
    assert ds4t_identity(facts).quant_bits == label


def test_quant_label_is_that_of_the_first_routed_layer_of_the_slice() -> None:
    w = (
        Writer()
        .add("general.architecture", "string", "x")
        .add("x.block_count", "u32", 3)
    )
    for n, gate in enumerate((Q2_K, Q4_K, Q2_K)):
        w.tensor(f"blk.{n}.ffn_gate_exps.weight", (256, 2), gate, 32)
    facts = _facts(w)
    assert [ds4d_hello_identity(facts, n, 2).quant_bits for n in range(3)] == [2, 4, 2]


def test_unmerged_and_fused_experts_count_as_routed() -> None:
    for name in ("ffn_gate.0.weight", "ffn_gate_up_exps.weight"):
        w = Writer().tensor(f"blk.0.{name}", (256, 2), Q4_K, 32)
        assert ds4d_hello_identity(_facts(w), 0, 0).quant_bits == 4
    w = Writer().tensor("blk.0.ffn_gate_shexp.weight", (256, 2), Q4_K, 32)
    assert ds4d_hello_identity(_facts(w), 0, 0).quant_bits == 0


def test_an_artifact_with_some_layers() -> None:
    w = model(
        "deepseek4", blocks=43, width=4096, vocabulary=129280, layers=range(20, 31)
    )
    facts = _facts(w)
    assert facts.layers_present == tuple(range(20, 31))
    assert not facts.has_output
    assert not facts.has_embedding
    assert facts.missing(18, 21) == (18, 19)
    hello = ds4d_hello_identity(facts, 18, 42)
    assert hello.notes == ("the file lacks layers 18..19, 31..42 of this slice",)
    assert ds4d_hello_identity(facts, 20, 30).notes == ()


@pytest.mark.parametrize("span", [(5, 4), (0, 43), (-1, 3)])
def test_impossible_slices_are_refused(span: tuple[int, int]) -> None:
    facts = _facts(model("deepseek4", blocks=43, width=4096, vocabulary=129280))
    with pytest.raises(ValueError, match=r"within 0:42.*Next"):
        ds4d_hello_identity(facts, *span)


def test_vocabulary_split_depends_on_the_backend_where_the_table_says_so() -> None:
    def split(known_id: int, backend: Backend | None = None) -> bool | None:
        arch, blocks, width, vocabulary, extra, *_ = next(
            f for f in FILES if f[5] == known_id
        )
        w = model(arch, blocks=blocks, width=width, vocabulary=vocabulary, extra=extra)
        return ds4t_identity(_facts(w), backend=backend).vocabulary_split

    assert split(0) is True
    assert split(2) is False
    assert split(4) is None
    assert split(4, backend="cuda") is True
    assert split(4, backend="metal") is False


def test_ds4t_fields_equal_the_golden_hello() -> None:
    # v14 leader, file of 0x123456789 bytes, V4 Flash, Q2: bytes 16..44 and 48..88.
    golden = bytes.fromhex(
        "8967452301000000 00000000 2b000000 00100000 00f90100 02000000".replace(" ", "")
    )
    w = model("deepseek4", blocks=43, width=4096, vocabulary=129280, gate_type=Q2_K)
    tp = ds4t_identity(model_facts(read_gguf(w.header(), file_size=0x123456789)))
    assert tp.gguf_bytes is not None
    assert tp.model_id is not None
    words = (tp.model_id, tp.n_layer, tp.n_embd, tp.n_vocab, tp.quant_bits)
    assert struct.pack("<Q5I", tp.gguf_bytes, *words) == golden
    schedule = (tp.gates.start, tp.gates.step, tp.gates.gates_per_token)
    assert struct.pack("<3I", *schedule) == bytes.fromhex("000000000100000056000000")


def test_one_kv_head_count_a_layer() -> None:
    w = Writer().add("general.architecture", "string", "x")
    w.add("x.attention.head_count_kv", "array", Arr("i32", [1, 0, 1]))
    assert _facts(w).kv_heads == (1, 0, 1)
