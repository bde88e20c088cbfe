"""The GGUF header reader: a real file, round trips, every refusal."""

from __future__ import annotations

import hashlib
import io
import mmap
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4proto.model import GGML_TYPES, GgufArray, GgufError, GgufLimits, read_gguf
from tests.model.gguf_writer import CODES, Arr, Writer

TINY = Path(__file__).parents[1] / "data" / "tiny-moe-3m-q8_0.gguf"
TINY_SHA256 = "6928aa5c41ae138fd97eda89dcbeabfc1da05668df342c981c19673f79e0c31e"


def test_real_file_header() -> None:
    assert hashlib.sha256(TINY.read_bytes()).hexdigest() == TINY_SHA256
    header = read_gguf(TINY)
    assert header.version == 3
    assert header.byte_order == "little"
    assert header.alignment == 32
    assert header.file_size == 3_573_760
    # The last tensor ends exactly at the end of the file.
    assert header.data_end == header.file_size
    assert header.metadata["general.license"] == "cc0-1.0"
    assert header.metadata["llama.rope.freq_base"] == 10000.0
    assert header.metadata["tokenizer.ggml.add_bos_token"] is False
    assert header.metadata["tokenizer.ggml.tokens"] == GgufArray("string", 2048, None)
    # 3.28 M parameters: the README's figure.
    assert round(sum(t.values for t in header.tensors.values()) / 1e6, 2) == 3.28
    assert {t.type.name for t in header.tensors.values()} == {"F32", "Q8_0"}


def test_tokens_are_kept_on_request() -> None:
    header = read_gguf(TINY, want_tokens=True)
    tokens = header.metadata["tokenizer.ggml.tokens"]
    assert tokens.items is not None
    assert tokens.items[:2] == ("<|bos|>", "<|eos|>")
    assert len(tokens.items) == 2048


@pytest.mark.parametrize("source", ["path", "file", "bytes", "mmap", "pipe", "head"])
def test_every_kind_of_source_gives_the_same_facts(source: str) -> None:
    want = read_gguf(TINY)
    raw = TINY.read_bytes()
    if source == "path":
        got = read_gguf(str(TINY))
    elif source == "file":
        with TINY.open("rb") as file:
            got = read_gguf(file)
    elif source == "bytes":
        got = read_gguf(bytearray(raw))
    elif source == "mmap":
        with TINY.open("rb") as file:
            area = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            view = memoryview(area)
            got = read_gguf(view)
            view.release()
            area.close()
    elif source == "pipe":
        got = read_gguf(_Unseekable(raw))
        assert got.file_size is None
    else:
        got = read_gguf(raw[: want.data_offset], file_size=len(raw))
    assert got.metadata == want.metadata
    assert got.tensors == want.tensors
    assert got.data_offset == want.data_offset


class _Unseekable(io.BytesIO):
    def seek(self, *_: Any) -> int:
        raise OSError("not seekable")


def test_cross_check_with_the_format_owners_package() -> None:
    gguf = pytest.importorskip(
        "gguf", reason="the owners' package is in the runtime extra, not in dev"
    )
    reader = gguf.GGUFReader(TINY)
    header = read_gguf(TINY, want_tokens=True)
    assert reader.data_offset == header.data_offset
    for theirs in reader.tensors:
        ours = header.tensors[theirs.name]
        assert ours.dims == tuple(int(d) for d in theirs.shape)
        assert ours.nbytes == theirs.n_bytes
        assert ours.type.code == int(theirs.tensor_type)
        assert header.data_offset + ours.offset == theirs.data_offset
    for name, entry in reader.fields.items():
        if name.startswith("GGUF."):
            continue
        value = header.metadata[name]
        want = entry.contents()
        if isinstance(value, GgufArray):
            assert value.items is not None
            value = list(value.items)
        assert value == want


def test_type_table_against_the_format_owners_package() -> None:
    constants = pytest.importorskip(
        "gguf.constants", reason="the owners' package is in the runtime extra"
    )
    sizes = {int(t): s for t, s in constants.GGML_QUANT_SIZES.items()}
    ours = {c: (t.block, t.size) for c, t in GGML_TYPES.items() if t.known}
    assert ours == sizes
    names = {int(t): t.name for t in constants.GGMLQuantizationType}
    assert {c: t.name for c, t in GGML_TYPES.items() if t.known} == names


_INTS = {
    kind: st.integers(
        -(1 << (8 * struct.calcsize(code) - 1)) if code.islower() else 0,
        (1 << (8 * struct.calcsize(code) - (1 if code.islower() else 0))) - 1,
    )
    for kind, (_, code) in CODES.items()
    if kind not in ("f32", "f64", "bool")
}
_LEAVES: dict[str, st.SearchStrategy[Any]] = {
    **_INTS,
    "f32": st.floats(width=32, allow_nan=False),
    "f64": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "string": st.text(st.characters(codec="utf-8"), max_size=20),
}


@st.composite
def _values(draw: st.DrawFn) -> tuple[str, Any]:
    kind = draw(st.sampled_from([*_LEAVES, "array", "nested"]))
    if kind in _LEAVES:
        return kind, draw(_LEAVES[kind])
    item = draw(st.sampled_from(list(_LEAVES)))
    if kind == "array":
        return "array", Arr(item, draw(st.lists(_LEAVES[item], max_size=8)))
    inner = st.lists(_LEAVES[item], max_size=4).map(lambda v: Arr(item, v))
    return "array", Arr("array", draw(st.lists(inner, max_size=3)))


def _plain(value: Any) -> Any:
    if isinstance(value, Arr):
        return (value.item, [_plain(v) for v in value.values])
    if isinstance(value, GgufArray):
        assert value.items is not None
        return (value.item_type, [_plain(v) for v in value.items])
    return value


@settings(deadline=None)
@given(
    entries=st.dictionaries(
        st.text(st.characters(codec="utf-8"), min_size=1, max_size=30).filter(
            lambda k: k != "general.alignment"
        ),
        _values(),
        max_size=8,
    ),
    layout=st.sampled_from([(2, "<"), (3, "<"), (3, ">")]),
    dims=st.lists(st.integers(1, 9), max_size=4),
)
def test_round_trip(
    entries: dict[str, tuple[str, Any]], layout: tuple[int, str], dims: list[int]
) -> None:
    version, order = layout
    w = Writer(version=version, order=order)
    for key, (kind, value) in entries.items():
        w.add(key, kind, value)
    count = 1
    for d in dims:
        count *= d
    w.tensor("a", dims, 0, count * 4).tensor("b", [64], 8, 68)
    header = read_gguf(w.bytes())
    assert header.version == version
    assert header.byte_order == ("big" if order == ">" else "little")
    got = {k: _plain(v) for k, v in header.metadata.items()}
    assert got == {k: _plain(v) for k, (_, v) in entries.items()}
    assert header.tensors["a"].dims == tuple(dims)
    assert header.tensors["a"].nbytes == count * 4
    assert header.tensors["b"].nbytes == 68
    assert header.tensor_bytes == count * 4 + 68


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_any_damage_is_read_or_refused_never_a_crash(data: st.DataObject) -> None:
    w = Writer().add("general.architecture", "string", "llama")
    w.add("x", "array", Arr("string", ["a", "b"])).add("y", "u32", 3)
    w.tensor("t", [32, 2], 8, 68)
    raw = bytearray(w.bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    error: GgufError | None = None
    try:
        read_gguf(raw[:cut])
    except GgufError as caught:
        error = caught
    assert error is None or (0 <= error.offset <= len(raw) and "Next:" in str(error))


def _kv(key: str, kind: int, payload: bytes) -> bytes:
    return (
        struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", kind) + payload
    )


def _head(n_tensors: int, n_kv: int) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_kv)


_HUGE = 1 << 62
_U64 = struct.Struct("<Q").pack
_TENSOR = _U64(1) + b"t"

HOSTILE: dict[str, tuple[bytes, str, int, str]] = {
    # name: (bytes, field, offset, found)
    "empty": (b"", "magic", 0, "0 bytes"),
    "not gguf": (b"GGML" + bytes(20), "magic", 0, "GGML"),
    "version 1": (
        b"GGUF" + struct.pack("<I", 1) + bytes(16),
        "version",
        4,
        "1 (little",
    ),
    "version 4": (
        b"GGUF" + struct.pack("<I", 4) + bytes(16),
        "version",
        4,
        "4 (little",
    ),
    "big-endian 2": (
        b"GGUF" + struct.pack(">I", 2) + bytes(16),
        "version",
        4,
        "2 (big",
    ),
    "cut in counts": (
        b"GGUF" + struct.pack("<IQ", 3, 0),
        "metadata count",
        16,
        "0 bytes",
    ),
    "tensor count": (_head(_HUGE, 0), "tensor count", 8, str(_HUGE)),
    "kv count": (_head(0, _HUGE), "metadata count", 16, str(_HUGE)),
    "key length": (_head(0, 1) + _U64(_HUGE), "kv[0].key length", 24, str(_HUGE)),
    "key past end": (
        _head(0, 1) + _U64(60_000),
        "kv[0].key",
        32,
        "0 bytes up to the end",
    ),
    "value type": (_head(0, 1) + _kv("k", 99, b""), "type of 'k'", 33, "99"),
    "bool of 7": (_head(0, 1) + _kv("k", 7, b"\x07"), "value of 'k'", 37, "7"),
    "string length": (
        _head(0, 1) + _kv("k", 8, _U64(_HUGE)),
        "value of 'k' length",
        37,
        str(_HUGE),
    ),
    "array length": (
        _head(0, 1) + _kv("k", 9, struct.pack("<IQ", 4, _HUGE)),
        "length of 'k'",
        41,
        str(_HUGE),
    ),
    "array past end": (
        _head(0, 1) + _kv("k", 9, struct.pack("<IQ", 10, 1_000_000)),
        "value of 'k'",
        49,
        "0 bytes up to the end",
    ),
    "string array past end": (
        _head(0, 1) + _kv("k", 9, struct.pack("<IQ", 8, 1_000_000)),
        "value of 'k'",
        49,
        "0 bytes up to the end",
    ),
    "array item type": (
        _head(0, 1) + _kv("k", 9, struct.pack("<IQ", 77, 1)),
        "item type of 'k'",
        37,
        "77",
    ),
    "array depth": (
        _head(0, 1) + _kv("k", 9, struct.pack("<IQ", 9, 1) * 5),
        "value of 'k'",
        85,
        "depth 5",
    ),
    "inner arrays": (
        _head(0, 1) + _kv("k", 9, struct.pack("<IQ", 9, 70_000)),
        "value of 'k'",
        49,
        "70000",
    ),
    "duplicate key": (
        _head(0, 2) + _kv("k", 0, b"\1") * 2,
        "kv[1].key",
        38,
        "'k'",
    ),
    "alignment": (
        _head(0, 1) + _kv("general.alignment", 4, struct.pack("<I", 33)),
        "general.alignment",
        57,
        "33",
    ),
    "alignment 0": (
        _head(0, 1) + _kv("general.alignment", 4, struct.pack("<I", 0)),
        "general.alignment",
        57,
        "0",
    ),
    "alignment text": (
        _head(0, 1) + _kv("general.alignment", 8, _U64(0)),
        "general.alignment",
        61,
        "''",
    ),
    "tensor name": (_head(1, 0) + _U64(5000), "tensor[0].name length", 24, "5000"),
    "dimension count": (
        _head(1, 0) + _TENSOR + struct.pack("<I", 1 << 31),
        "dimension count of tensor 't'",
        33,
        str(1 << 31),
    ),
    "dims overflow": (
        _head(1, 0) + _TENSOR + struct.pack("<IQQ", 2, 1 << 40, 1 << 40),
        "dims[1] of tensor 't'",
        45,
        str(1 << 40),
    ),
    "rows not whole blocks": (
        _head(1, 0) + _TENSOR + struct.pack("<IQIQ", 1, 100, 12, 0),
        "type of tensor 't'",
        45,
        "rows of 100",
    ),
    "offset unaligned": (
        _head(1, 0) + _TENSOR + struct.pack("<IQIQ", 1, 1, 0, 7),
        "offset of tensor 't'",
        49,
        "7",
    ),
    "offset out of file": (
        _head(1, 0) + _TENSOR + struct.pack("<IQIQ", 1, 1, 0, _HUGE),
        "extent of tensor 't'",
        24,
        "57 bytes",
    ),
    "duplicate tensor": (
        _head(2, 0) + (_TENSOR + struct.pack("<IQIQ", 1, 1, 0, 0)) * 2 + bytes(64),
        "tensor[1].name",
        57,
        "'t'",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers_are_refused_before_allocation(name: str) -> None:
    raw, field, offset, found = HOSTILE[name]
    tracemalloc.start()
    try:
        with pytest.raises(GgufError) as caught:
            read_gguf(raw)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    error = caught.value
    assert (error.field, error.offset) == (field, offset)
    assert found in error.found
    assert error.expected
    assert error.next_step
    assert str(error).startswith(f"<bytes>: {field} at byte {offset}: expected")
    assert peak < 1 << 20


def test_a_stream_of_unknown_length_is_bounded_too() -> None:
    raw = _head(0, 1) + _kv("k", 8, _U64(1000)) + bytes(10)
    with pytest.raises(GgufError, match="end of data after 10"):
        read_gguf(_Unseekable(raw))


def test_header_cap() -> None:
    w = Writer().add("k", "string", "x" * 5000)
    with pytest.raises(GgufError, match="header of at most 4096 bytes"):
        read_gguf(w.bytes(), limits=GgufLimits(header=4096))


def test_kept_elements_have_one_budget() -> None:
    w = Writer()
    for n in range(4):
        w.add(f"k{n}", "array", Arr("u8", [7] * 1000))
    header = read_gguf(w.bytes(), limits=GgufLimits(kept=2500))
    kept = [header.metadata[f"k{n}"].items is not None for n in range(4)]
    assert kept == [True, True, False, False]
    assert header.metadata["k3"].count == 1000


def test_truncated_file_names_its_tensors() -> None:
    raw = TINY.read_bytes()
    cut = raw[:3_000_000]
    with pytest.raises(GgufError) as caught:
        read_gguf(cut)
    assert "blk.6." in caught.value.field
    assert "more tensors" in caught.value.field
    assert caught.value.expected == "a file of at least 3573760 bytes"
    with pytest.raises(GgufError, match=r"extent of tensor 'blk.7.ffn_down_exps"):
        read_gguf(raw[:-1])
    header = read_gguf(cut, partial=True)
    assert "blk.7.ffn_down_exps.weight" in header.missing
    assert "blk.0.attn_norm.weight" not in header.missing


def test_unknown_tensor_type_is_named_not_guessed() -> None:
    w = Writer().tensor("new", [32], 42, 10).tensor("old", [32], 4, 10)
    header = read_gguf(w.bytes())
    assert header.tensors["new"].type.name == "type 42"
    assert header.tensors["new"].nbytes is None
    assert header.tensors["old"].type.name == "Q4_2 (removed)"


def test_split_set_is_recognised() -> None:
    w = Writer().add("split.no", "u16", 1).add("split.count", "u16", 7)
    assert read_gguf(w.bytes()).split == (1, 7)
    assert read_gguf(Writer().add("split.count", "u16", 1).bytes()).split is None
    assert read_gguf(TINY).split is None


def test_text_outside_utf8_is_shown_escaped() -> None:
    w = Writer().add("k", "string", b"a\xffb")
    assert read_gguf(w.bytes()).metadata["k"] == "a\\xffb"


def test_alignment_of_the_file_is_used() -> None:
    w = Writer().add("general.alignment", "u32", 4096)
    w.tensor("t", [4], 0, 16, align=4096)
    header = read_gguf(w.bytes(4096))
    assert (header.alignment, header.data_offset) == (4096, 4096)
