"""Payload summaries: the numbers, whatever the split, and what looks odd."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4proto.codec import get
from ds4proto.trace.payload import (
    SWAPPED,
    PayloadSummary,
    Summarizer,
    Width,
    look_of_16_bits,
    value_of,
)


def summed(data: bytes, width: Width, *cuts: int, keep: bool = False) -> PayloadSummary:
    look = Summarizer("hidden", width, keep=keep)
    for start, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
        look.update(memoryview(data)[start:end])
    return look.finish()


def test_f32_numbers() -> None:
    values = [
        1.0,
        -2.5,
        0.0,
        -0.0,
        math.nan,
        math.inf,
        -math.inf,
        240.0,
        65504.0,
        -70000.0,
    ]
    data = np.array(values, "<f4").tobytes()
    found = summed(data, "f32")
    assert (found.values, found.length, found.captured) == (10, 40, None)
    assert (found.low, found.high) == (-70000.0, 65504.0)
    assert (found.nan, found.inf, found.zeros) == (1, 2, 2)
    assert (found.ge240, found.over_f16) == (5, 3)
    assert found.hash == hashlib.sha256(data).hexdigest()[:16]


def test_f16_numbers() -> None:
    data = np.array(
        [1.0, -2.5, -0.0, math.nan, -math.inf, 240.0, 239.875], "<f2"
    ).tobytes()
    found = summed(data, "f16")
    assert (found.low, found.high) == (-2.5, 240.0)
    assert (found.nan, found.inf, found.zeros, found.ge240) == (1, 1, 1, 2)
    assert found.over_f16 == 1


def test_e4m3_numbers_follow_the_codes_of_ds4() -> None:
    # 0x77 and 0x78..0x7f all mean 240; 0x01 is 2^-9; the sign is the top bit
    found = summed(bytes([0x01, 0x76, 0x77, 0x7F, 0xF8, 0x80, 0x00]), "e4m3")
    assert (found.low, found.high) == (-240.0, 240.0)
    assert (found.ge240, found.zeros, found.nan, found.inf) == (3, 2, 0, 0)
    assert summed(bytes([0x01, 0x02]), "e4m3").low == 2.0**-9
    assert summed(bytes([0x81, 0x82]), "e4m3").high == -(2.0**-9)


def test_e4m3_values_are_those_of_the_codec() -> None:
    codes = np.arange(256, dtype=np.uint8)
    decoded = get("e4m3", path="numpy").decode(codes, values=256)
    assert [value_of(code, "e4m3") for code in range(256)] == decoded.tolist()
    assert value_of(0x38, "e4m3") == 1.0
    assert value_of(0xF8, "e4m3") == -240.0


def test_bf16_numbers() -> None:
    codes = (np.array([1.0, -3.0, 300.0, math.nan], "<f4").view("<u4") >> 16).astype(
        "<u2"
    )
    found = summed(codes.tobytes(), "bf16")
    assert (found.low, found.high, found.nan, found.ge240) == (-3.0, 300.0, 1, 1)


def test_one_sign_only() -> None:
    minus = summed(np.array([-1.0, -4.0, -2.0], "<f4").tobytes(), "f32")
    assert (minus.low, minus.high) == (-4.0, -1.0)
    plus = summed(np.array([3.0, 9.0, 5.0], "<f4").tobytes(), "f32")
    assert (plus.low, plus.high) == (3.0, 9.0)


def test_nothing_finite_and_nothing_at_all() -> None:
    odd = summed(np.array([math.nan, math.inf], "<f4").tobytes(), "f32")
    assert (odd.low, odd.high, odd.nan, odd.inf) == (None, None, 1, 1)
    none = summed(b"", "f32")
    assert (none.low, none.values, none.length) == (None, 0, 0)


@given(
    st.lists(st.integers(0, 2**32 - 1), max_size=40),
    st.sampled_from(["f32", "f16", "bf16", "e4m3", "bytes"]),
    st.lists(st.integers(0, 160), max_size=6),
)
def test_the_split_does_not_matter(
    words: list[int], width: Width, cuts: list[int]
) -> None:
    data = np.array(words, "<u4").tobytes()
    inside = sorted(min(cut, len(data)) for cut in cuts)
    assert summed(data, width, *inside) == summed(data, width)


@given(st.lists(st.floats(width=32), min_size=1, max_size=50))
def test_f32_against_numpy(values: list[float]) -> None:
    array = np.array(values, "<f4")
    found = summed(array.tobytes(), "f32")
    finite = array[np.isfinite(array)]
    assert found.nan == np.isnan(array).sum()
    assert found.inf == np.isinf(array).sum()
    assert found.zeros == (array == 0).sum()
    assert found.ge240 == (np.abs(array) >= 240).sum()
    assert found.over_f16 == (np.abs(array) > 65504).sum()
    if finite.size:
        assert (found.low, found.high) == (finite.min(), finite.max())


def test_bytes_that_were_not_captured() -> None:
    look = Summarizer("hidden", "f32")
    look.update(np.array([1.0, 2.0], "<f4").tobytes()[:6])
    look.missing(6)
    look.update(np.array([5.0], "<f4").tobytes())
    found = look.finish()
    assert (found.length, found.captured) == (16, 10)
    assert (found.low, found.high) == (1.0, 5.0)


def test_the_rest_of_a_value_is_told() -> None:
    assert summed(b"\0" * 7, "f32").notes == ("3 bytes behind the last whole value",)


def test_kept_bytes_are_bounded() -> None:
    found = summed(bytes(3 << 20), "bytes", 1 << 20, 2 << 20, keep=True)
    assert found.data is not None
    assert len(found.data) == 1 << 20
    assert found.length == 3 << 20


def test_swapped_halves_are_noticed_even_in_two_values() -> None:
    assert look_of_16_bits(bytes.fromhex("3C004000")) == SWAPPED
    assert look_of_16_bits(bytes.fromhex("003C0040")) == ""


def test_swapped_and_bf16_payloads_are_noticed() -> None:
    values = np.random.default_rng(7).standard_normal(4096).astype("<f4")
    halves = values.astype("<f2")
    assert look_of_16_bits(halves.tobytes()) == ""
    assert look_of_16_bits(halves.byteswap().tobytes()) == SWAPPED
    bf16 = (values.view("<u4") >> 16).astype("<u2")
    assert look_of_16_bits(bf16.tobytes()) == "looks like BF16, not f16"


@pytest.mark.parametrize("scale", [1e-3, 0.05, 1.0, 30.0, 5000.0])
def test_plain_f16_is_never_called_odd(scale: float) -> None:
    values = np.random.default_rng(3).standard_normal(4096) * scale
    assert look_of_16_bits(values.astype("<f2").tobytes()) == ""
