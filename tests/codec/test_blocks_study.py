"""Errors of the 4-bit formats on synthetic values: the published findings."""

from __future__ import annotations

import numpy as np
import pytest

from ds4proto.codec import CodecError, get
from ds4proto.codec.study import (
    error_decomposition,
    relative_error,
    sqnr_db,
    squared_error,
    synthetic_activations,
)

WIDTHS = (512, 2048, 8192)
VALUES = 1 << 18


def ratios(severity: float) -> list[float]:
    return [
        error_decomposition(
            synthetic_activations(
                VALUES // width, width, severity=severity, seed=11, rarity=64
            )
        ).ratio
        for width in WIDTHS
    ]


def test_error_ratio_is_flat_in_width_and_rises_with_outliers() -> None:
    before = 1.0
    for severity in (1.0, 3.0, 10.0, 30.0, 100.0):
        found = ratios(severity)
        assert max(found) / min(found) < 1.25, (severity, found)
        assert min(found) > before, (severity, found)
        before = max(found)


def test_the_finer_scale_explains_most_of_the_distance() -> None:
    for severity in (10.0, 30.0, 100.0):
        x = synthetic_activations(128, 2048, severity=severity, seed=12, rarity=64)
        parts = error_decomposition(x)
        assert parts.mxfp4 > parts.finer_scale > parts.nvfp4
        assert parts.mxfp4 > parts.shorter_block > parts.nvfp4
        assert 0.65 < parts.scale_share < 0.95
        assert 0.0 < parts.block_share < 0.35
        assert parts.scale_share > 2 * parts.block_share


def test_shares_by_their_definition() -> None:
    x = synthetic_activations(8, 256, severity=10.0, seed=13)
    parts = error_decomposition(x, path="numpy")
    signal = float(np.sum(x.astype(np.float64) ** 2))
    assert parts.mxfp4 == squared_error(x, get("mxfp4")) / signal
    gap = parts.mxfp4 - parts.nvfp4
    assert parts.scale_share == (parts.mxfp4 - parts.finer_scale) / gap
    assert parts.block_share == (parts.mxfp4 - parts.shorter_block) / gap


def test_signal_to_noise() -> None:
    x = np.array([[127.0, 0.4, -3.0]], dtype=np.float32)  # int8 scale 1: only 0.4 moves
    noise = float(np.float32(0.4)) ** 2
    signal = 127.0**2 + noise + 9.0
    codec = get("int8")
    assert squared_error(x, codec) == noise
    assert sqnr_db(x, codec) == pytest.approx(10 * np.log10(signal / noise))
    assert relative_error(x, codec) == pytest.approx(np.sqrt(noise / signal))
    assert sqnr_db(x, get("f32")) == float("inf")
    zeros = np.zeros((2, 8), np.float32)
    assert relative_error(zeros, codec) == 0.0
    assert np.isnan(squared_error(np.array([[np.nan]], np.float32), codec))


def test_wider_formats_hear_better() -> None:
    x = synthetic_activations(32, 1024, severity=4.0, seed=14)
    ladder = ("f32", "f16", "bf16", "int8", "nvfp4", "mxfp4")
    heard = [sqnr_db(x, get(name)) for name in ladder]
    assert heard == sorted(heard, reverse=True)
    assert sqnr_db(x, get("mxfp8")) > sqnr_db(x, get("mxfp4")) + 8


def test_outliers_are_where_they_should_be() -> None:
    x = synthetic_activations(64, 512, severity=100.0, seed=15, rarity=128)
    assert int((np.abs(x).max(axis=0) > 30).sum()) == 4
    again = synthetic_activations(64, 512, severity=100.0, seed=15, rarity=128)
    assert np.array_equal(x, again)


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_nothing_to_study(value: float) -> None:
    with pytest.raises(CodecError, match="finite values, not all zero"):
        error_decomposition(np.full((2, 32), value, np.float32))
