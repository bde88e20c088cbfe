"""DSV4 and DSVL files: layout, tensors, and every way to be cut or stretched."""

from pathlib import Path
from typing import Any

import pytest

from ds4proto.schema import SchemaError, to_bytes
from ds4proto.schema.container import Container, read_container, zero_tail
from ds4proto.schema.dsv4 import DSV4_FILE, DSVL_FILE, layer_tensors
from tests.schema.forms import both_forms, digest, plain

DATA = Path(__file__).parents[1] / "data"
SESSION = (DATA / "sessions" / "toy_8_layers.dsv4").read_bytes()
SHARD = (DATA / "ds4d_probes" / "toy_shard_5_7.dsvl").read_bytes()
RATIOS = (0, 0, 4, 128, 4, 128, 4, 128)
HEADER = {
    "version": 2, "ctx": 256, "prefill_cap": 16, "raw_cap": 16, "raw_window": 8,
    "comp_cap": 66, "token_count": 62, "n_layers": 8, "head_dim": 16,
    "indexer_head_dim": 8, "vocab": 256, "raw_live": 8,
}  # fmt: skip
# Where its parts start, behind 13 words: 62 tokens, 256 logits, 2 x 8 row counts.
TOKENS, LOGITS, ROWS, INDEX_ROWS, TENSORS, END = 52, 300, 1324, 1356, 1388, 68172


def opened(data: bytes, **other: Any) -> Container:
    return read_container(data, ratios=RATIOS, **other)


def changed(data: bytes, word: int, value: int) -> bytes:
    at = 4 * word
    return data[:at] + value.to_bytes(4, "little") + data[at + 4 :]


def clauses(container: Container) -> set[tuple[str, str]]:
    return {(p.path, p.clause) for p in container.problems}


def test_the_files_are_the_recorded_ones() -> None:
    assert digest(SESSION) == (
        "1c544febb92bdaded59366e468a97c37c1a831dd6bad422c39d2590358400178"
    )
    assert (len(SESSION), len(SHARD)) == (END, 36304)


def test_saved_session() -> None:
    session = opened(SESSION)
    assert session.problems == ()
    values = session.values
    assert {name: values[name] for name in HEADER} == HEADER
    assert values["tokens"] == (*range(10, 71), 42)
    assert values["n_comp"] == values["n_index_comp"] == (0, 0, 15, 0, 15, 0, 15, 0)
    assert len(values["logits"]) == 4 * 256
    assert len(values["tensors"]) == END - TENSORS
    assert to_bytes(DSV4_FILE, values, dialect="upstream") == SESSION
    assert both_forms(DSV4_FILE, SESSION, "upstream").problems == ()


def test_tensors_of_a_saved_session() -> None:
    """Sizes by hand: r = 4 has c = 2, so its states are 4 x r x width values."""
    raw, plain4, index4, plain128 = 8 * 16, 4 * 4 * 16, 4 * 4 * 8, 128 * 16
    layers = {
        0: [("raw", raw)],
        4: [
            ("raw", raw),
            ("compressed", 15 * 16),
            ("compressor_values", plain4),
            ("compressor_scores", plain4),
            ("indexer", 15 * 8),
            ("indexer_values", index4),
            ("indexer_scores", index4),
        ],
        128: [
            ("raw", raw),
            ("compressed", 0),
            ("compressor_values", plain128),
            ("compressor_scores", plain128),
        ],
    }
    expected, at = [], 0
    for layer, ratio in enumerate(RATIOS):
        for name, count in layers[ratio]:
            expected.append((layer, name, count, at))
            at += 4 * count
    tensors = opened(SESSION).tensors
    found = [(t.layer, t.name, t.rows * t.width, t.offset) for t in tensors]
    assert found == expected
    assert at == END - TENSORS


def test_shard_of_one_slice() -> None:
    shard = opened(SHARD)
    assert shard.problems == ()
    assert shard.spec is DSVL_FILE
    values = shard.values
    assert (values["layer_start"], values["layer_end"], values["raw_live"]) == (5, 7, 2)
    assert (values["version"], values["token_count"]) == (1, 2)
    assert values["n_comp"] == values["n_index_comp"] == (0, 0, 0)
    assert {t.layer for t in shard.tensors} == {5, 6, 7}
    assert shard.tensors[-1].offset + shard.tensors[-1].nbytes == len(SHARD) - 80
    assert to_bytes(DSVL_FILE, values, dialect="upstream") == SHARD


def part_at(size: int) -> tuple[str, int]:
    """Return the part in which a session file of ``size`` bytes ends, and its start."""
    words = ["magic", "version", *list(HEADER)[1:]]
    if size < TOKENS:
        return words[size // 4], 4 * (size // 4)
    starts = {"tokens": TOKENS, "logits": LOGITS, "n_comp": ROWS}
    starts |= {"n_index_comp": INDEX_ROWS}
    ends = [*list(starts.values())[1:], TENSORS]
    for (name, start), end in zip(starts.items(), ends, strict=True):
        if size < end:
            return name, start
    return "tensors", size


def test_every_truncation_is_refused_where_it_ends() -> None:
    sizes = [*range(TENSORS + 64), *range(TENSORS + 64, END, 997), END - 1]
    for size in sizes:
        (problem,) = opened(SESSION[:size], spec=DSV4_FILE).problems
        name, offset = part_at(size)
        assert problem.fatal
        assert problem.path == f"DSV4.{name}", size
        assert (problem.frame_offset, problem.stream_offset) == (offset, offset)
        assert problem.clause in {"FILE-DSV4-03", "FILE-DSV4-11"}


def test_every_truncation_of_a_shard_is_refused() -> None:
    for size in [*range(200), *range(200, len(SHARD), 997), len(SHARD) - 1]:
        (problem,) = opened(SHARD[:size], spec=DSVL_FILE).problems
        assert problem.fatal
        assert problem.frame_offset is not None
        assert problem.frame_offset <= size
        assert problem.clause in {"FILE-DSVL-03", "FILE-DSVL-19"}


@pytest.mark.parametrize("extra", [b"\0", bytes(4), b"DSV4", bytes(4096)])
def test_trailing_bytes_are_refused(extra: bytes) -> None:
    (problem,) = opened(SESSION + extra).problems
    assert (problem.path, problem.clause) == ("DSV4.tensors", "FILE-DSV4-12")
    assert problem.frame_offset == END
    assert str(END - TENSORS) in problem.expected
    (problem,) = opened(SHARD + extra).problems
    assert (problem.clause, problem.frame_offset) == ("FILE-DSVL-20", len(SHARD))


def test_a_tail_of_zeros_is_counted_where_no_rule_can_see_it() -> None:
    whole = opened(SESSION)
    assert whole.zero_tail == 2 * 128 * 16 * 4  # states of the last layer, ratio 128
    for kept in (TENSORS, TENSORS + 1000, END - 20000):
        laid_out = opened(SESSION[:kept] + bytes(END - kept))
        assert laid_out.problems == ()
        assert laid_out.zero_tail >= END - kept > whole.zero_tail
    # In front of the tensors zeros break the sizes that follow from them.
    for kept in (0, 4, 8, 28, 32, 48):
        assert opened(SESSION[:kept] + bytes(END - kept), spec=DSV4_FILE).problems


@pytest.mark.parametrize(
    ("area", "zeros"),
    [
        (b"", 0),
        (b"\1", 0),
        (b"\1\0\0", 2),
        (bytes(5), 5),
        (b"\1" + bytes(3 << 20), 3 << 20),
    ],
    ids=["empty", "none", "two", "all", "three MiB"],
)
def test_zero_tail(area: bytes, zeros: int) -> None:
    assert zero_tail(area) == zeros


@pytest.mark.parametrize(
    ("word", "value", "path", "clause"),
    [
        (0, 0x34565345, "DSV4.magic", "FILE-DSV4-01"),
        (1, 1, "DSV4.version", "FILE-DSV4-06"),
        (1, 4, "DSV4.version", "FILE-DSV4-06"),
        (12, 9, "DSV4.raw_live", "FILE-DSV4-05"),
        (6, 14, "DSV4.n_comp", "FILE-DSV4-09"),
        (6, 14, "DSV4.n_index_comp", "FILE-DSV4-10"),
        (13, 256, "DSV4.tokens", "FILE-DSV4-08"),
    ],
)
def test_a_header_that_breaks_one_rule(
    word: int, value: int, path: str, clause: str
) -> None:
    data = changed(SESSION, word, value)
    assert (path, clause) in clauses(opened(data, spec=DSV4_FILE))


def test_huge_counts_are_refused_before_anything_is_read() -> None:
    for word in (7, 8, 11):
        (problem, *_) = opened(changed(SESSION, word, 0xFFFFFFFF)).problems
        assert problem.fatal
        assert problem.path.startswith("DSV4.")


def test_raw_rows_are_all_live_rows_but_for_glm() -> None:
    shorter = changed(SHARD, 13, 1)
    assert ("DSVL.raw_live", "FILE-DSVL-15") in clauses(opened(shorter))
    glm = opened(shorter, family="glm").problems
    assert "DSVL.raw_live" not in {p.path for p in glm}


def test_a_fork_writes_other_versions() -> None:
    newer = changed(SHARD, 1, 2)
    assert ("DSVL.version", "FILE-DSVL-10") in clauses(opened(newer))
    assert opened(newer, dialect="xangel82").problems == ()
    assert ("DSV4.version", "FILE-DSV4-06") in clauses(
        opened(SESSION, dialect="xangel82")
    )
    for version in (3, 4):
        assert opened(changed(SESSION, 1, version), dialect="xangel82").problems == ()


def test_glm_layers() -> None:
    """A GLM layer: rows of 64 x 256 twice, 512 and 64 when compressed, 128 indexed."""
    values = {"raw_live": 3, "n_comp": (2, 0), "n_index_comp": (2, 0), "layer_start": 1}
    found = layer_tensors(values, (0, 0, 0), "glm")
    assert [(t.layer, t.rows, t.width) for t in found] == [
        (1, 3, 16384), (1, 3, 16384), (1, 2, 512), (1, 2, 64), (1, 2, 128),
        (2, 3, 16384), (2, 3, 16384),
    ]  # fmt: skip
    assert [t.offset for t in found][1] == 3 * 65536


def test_real_models_have_the_stated_fixed_cost() -> None:
    values = {
        "raw_live": 0, "head_dim": 512, "indexer_head_dim": 128,
        "n_comp": (0, 0), "n_index_comp": (0, 0),
    }  # fmt: skip
    by_layer: dict[int, int] = {}
    for tensor in layer_tensors(values, (4, 128)):
        by_layer[tensor.layer] = by_layer.get(tensor.layer, 0) + tensor.nbytes
    assert by_layer == {0: 2 * 32768 + 2 * 8192, 1: 2 * 262144}


def test_too_few_ratios_are_an_error() -> None:
    with pytest.raises(SchemaError, match="a ratio for each of 8 layers, found 7"):
        read_container(SESSION, ratios=RATIOS[:7])


def test_reading_does_not_copy_the_tensors() -> None:
    data = bytearray(SESSION)
    area = opened(bytes(data)).values["tensors"]
    assert isinstance(area, memoryview)
    assert plain(area[:4]) == SESSION[TENSORS : TENSORS + 4]
