"""MXFP4 between our order of nibbles and that of GGUF files."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ds4proto.codec import CodecError, get
from ds4proto.codec.elements import E2M1_VALUES
from ds4proto.codec.ggml_order import (
    from_ggml,
    halves_to_pairs,
    nibble_order,
    pairs_to_halves,
    to_ggml,
)

gguf: Any = pytest.importorskip("gguf", reason="extra `dev` is not installed")


def places() -> Any:
    """Return 32 elements whose places can be told apart."""
    return np.array([*range(16), *range(15, -1, -1)], dtype=np.uint8)


def test_each_place() -> None:
    codes = places()
    ours = codes[0::2] | codes[1::2] << 4
    theirs = codes[:16] | codes[16:] << 4
    assert pairs_to_halves(ours).tolist() == theirs.tolist()
    assert halves_to_pairs(theirs).tolist() == ours.tolist()
    values = E2M1_VALUES[codes].view(np.float32)
    assert nibble_order(ours, values) == "pairs"
    assert nibble_order(theirs.tobytes(), values) == "halves"
    assert nibble_order(ours[::-1].copy(), values) == "neither"
    assert nibble_order(bytes([0x11] * 16), np.full(32, 0.5, np.float32)) == "either"


def test_conversion_is_exact_both_ways() -> None:
    data = np.random.default_rng(3).integers(0, 256, 5 * 4 * 17, dtype=np.uint8)
    wire = from_ggml(data, values=5 * 128, rows=5)
    assert wire.size == data.size == get("mxfp4").wire_bytes(640, 5)
    assert np.array_equal(to_ggml(wire, values=640, rows=5), data)
    assert np.array_equal(from_ggml(to_ggml(wire, values=640), values=640), wire)


def test_values_are_those_that_gguf_reads() -> None:
    """The gguf package decodes its own blocks; our codec the converted ones."""
    rng = np.random.default_rng(4)
    data = rng.integers(0, 256, (6, 17), dtype=np.uint8)
    data[:, 0] = rng.integers(100, 150, 6)
    kind = gguf.GGMLQuantizationType.MXFP4
    wanted = gguf.quants.dequantize(data.reshape(1, -1), kind).reshape(-1)
    wire = from_ggml(data, values=192, rows=2)
    assert np.array_equal(get("mxfp4").decode(wire, values=192, rows=2), wanted)
    # In the other order the sizes are right and the values are not.
    packed = np.concatenate([data[:, 1:].reshape(-1), data[:, 0]])
    assert not np.array_equal(get("mxfp4").decode(packed, values=192), wanted)
    halves = get("mxfp4", nibbles="halves")
    assert np.array_equal(halves.decode(packed, values=192), wanted)


def test_blocks_that_gguf_writes() -> None:
    x = np.random.default_rng(5).standard_normal((4, 64)).astype(np.float32)
    data = gguf.quants.quantize(x, gguf.GGMLQuantizationType.MXFP4)
    codec = get("mxfp4", scale="floor", rounding="down")
    wire = codec.encode(x, rows=4)
    assert np.array_equal(from_ggml(data.reshape(-1), values=256, rows=4), wire)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: from_ggml(bytes(16), values=32), "wire size: expected 17 bytes"),
        (lambda: from_ggml(bytes(17), values=31), "a multiple of 32"),
        (lambda: to_ggml(bytes(18), values=32), "expected 17 bytes"),
        (lambda: to_ggml(bytes(17), values=32, rows=3), "number of rows"),
        (lambda: pairs_to_halves(bytes(15)), "whole blocks of 16 bytes"),
        (lambda: halves_to_pairs(bytes(16), 3), "an even number"),
        (lambda: nibble_order(bytes(16), np.zeros(8, np.float32)), "expected 32"),
    ],
)
def test_refusals(call: Any, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        call()
