"""Every way to compute a scaled format gives the bytes of the definition."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ds4proto.codec import CodecError, get, kernels
from ds4proto.codec.blocks import VARIANTS
from ds4proto.codec.elementwise import STREAM_FROM
from ds4proto.codec.registry import SCALED

CHOICES = [
    (name, dict(zip(choices, values, strict=True)))
    for name, choices in VARIANTS.items()
    for values in itertools.product(*choices.values())
]
IDS = [" ".join([name, *variant.values()]) for name, variant in CHOICES]
SHAPES = ((3, 64), (2, 37), (1, 1), (5, 17), (2, 4096 + 64))


def inputs(rows: int, width: int, seed: int = 7) -> Iterator[Any]:
    """Give any patterns, values of any size, and values on ties of any scale."""
    rng = np.random.default_rng([seed, rows, width])
    yield rng.integers(0, 1 << 32, (rows, width), dtype=np.uint32).view(np.float32)
    spread = np.exp(rng.standard_normal((rows, width)) * 4)
    yield (rng.standard_normal((rows, width)) * spread).astype(np.float32)
    ties = rng.integers(-28, 29, (rows, width)) / 4
    scaled = np.ldexp(ties, rng.integers(-140, 100, (rows, 1))).astype(np.float32)
    scaled[0] = 0
    yield scaled


def cases(variant: dict[str, str], shapes: Any = SHAPES) -> Iterator[tuple[Any, int]]:
    for rows, width in shapes:
        if variant.get("nibbles") == "halves" and width % 32:
            continue
        for x in inputs(rows, width):
            yield x, rows


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    if not kernels.available("mxfp4"):
        pytest.skip(f"compiled path: {kernels.reason('mxfp4')}")


@pytest.mark.parametrize(("name", "variant"), CHOICES, ids=IDS)
def test_compiled_loops_equal_the_definition(name: str, variant: Any) -> None:
    plain, fast = get(name, path="numpy", **variant), get(name, path="numba", **variant)
    rng = np.random.default_rng(8)
    for x, rows in cases(variant):
        wire = plain.encode(x, rows=rows)
        assert fast.encode(x, rows=rows).tobytes() == wire.tobytes()
        for sent in (wire, rng.integers(0, 256, wire.size, dtype=np.uint8)):
            wanted = plain.decode(sent, values=x.size, rows=rows)
            got = fast.decode(sent, values=x.size, rows=rows)
            assert got.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("name", SCALED)
def test_large_payloads_and_threads(name: str) -> None:
    width = 2048
    rows = STREAM_FROM // 4 // width + 2
    x = np.random.default_rng(9).standard_normal((rows, width)).astype(np.float32)
    x[5, 100] = np.nan
    plain = get(name, path="numpy")
    wire = plain.encode(x, rows=rows)
    values = plain.decode(wire, values=x.size, rows=rows)
    raw = np.zeros(x.nbytes + 128, dtype=np.uint8)
    for threads, shift in ((1, 0), (3, 4), (1, 60), (1, 1)):
        codec = get(name, threads=threads)
        assert codec.encode(x, rows=rows).tobytes() == wire.tobytes()
        begin = -raw.ctypes.data % 64 + shift
        out = raw[begin : begin + x.nbytes].view(np.float32)
        got = codec.decode(wire, out, values=x.size, rows=rows)
        assert got.tobytes() == values.tobytes()
        assert not raw[:begin].any()
        assert not raw[begin + x.nbytes :].any()
        raw[:] = 0


@pytest.mark.parametrize("name", SCALED)
def test_rows_stand_alone(name: str) -> None:
    codec: Any = get(name)
    x = np.random.default_rng(10).standard_normal((4, 40)).astype(np.float32)
    together = bytes(codec.encode(x, rows=4))
    assert together == b"".join(bytes(codec.encode(row)) for row in x)
    assert len(together) == 4 * codec.row_bytes(40)
    if codec.form.layout.row_scale_bytes or not codec.form.layout.block:
        assert bytes(codec.encode(x, rows=1)) != together


@pytest.mark.parametrize("name", SCALED)
def test_nothing_to_encode_and_wrong_calls(name: str) -> None:
    codec = get(name)
    assert codec.encode(np.empty((3, 0), np.float32), rows=3).size == 0
    assert codec.decode(b"", values=0, rows=3).size == 0
    size = codec.wire_bytes(64, 2)
    for wrong in (size - 1, size + 1, 0):
        with pytest.raises(CodecError, match=f"expected {size} bytes"):
            codec.decode(bytes(wrong), values=64, rows=2)
    with pytest.raises(CodecError, match="number of rows"):
        codec.encode(np.zeros(7, np.float32), rows=2)
    with pytest.raises(CodecError, match="input dtype"):
        codec.encode(np.zeros(8))
    with pytest.raises(CodecError, match="out size"):
        codec.encode(np.zeros(8, np.float32), bytearray(3))
    with pytest.raises(CodecError, match="at most 4294967295"):
        codec.wire_bytes(1 << 40, 1 << 20)


@pytest.mark.parametrize("name", SCALED)
def test_variants_are_named_and_checked(name: str) -> None:
    told = get(name).describe()["variants"]
    for choice, values in VARIANTS[name].items():
        assert f"{choice}={','.join(values)}" in told
        with pytest.raises(CodecError, match=f"unknown {choice}") as caught:
            get(name, **{choice: "other"})  # type: ignore[arg-type]
        assert ", ".join(values) in str(caught.value)
    with pytest.raises(CodecError, match="unknown variant: expected one of"):
        get(name, colour="red")


def test_halves_need_whole_blocks() -> None:
    for name, block in (("mxfp4", 32), ("nvfp4", 16)):
        codec = get(name, nibbles="halves")
        with pytest.raises(CodecError, match=f"a multiple of {block}"):
            codec.wire_bytes(block + 1)


def test_unaligned_input() -> None:
    raw = bytearray(4 * 96 + 1)
    x = np.frombuffer(raw, dtype=np.float32, offset=1)
    x[:] = np.random.default_rng(11).standard_normal(96)
    assert not x.flags.aligned
    for name in SCALED:
        wire = get(name).encode(x, rows=3)
        assert wire.tobytes() == get(name).encode(x.copy(), rows=3).tobytes()
        odd = memoryview(b"\0" + wire.tobytes())[1:]
        values = get(name).decode(odd, values=96, rows=3)
        assert values.tobytes() == get(name).decode(wire, values=96, rows=3).tobytes()
