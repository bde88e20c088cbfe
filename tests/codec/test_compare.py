"""Profiles are recognised and foreign casts reported with their first vector."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ds4proto.codec import PROFILES, CodecError, get
from ds4proto.codec.compare import (
    PROFILE_PROBE,
    first_difference,
    identify_profile,
    ocp_encode,
)

# Bytes measured for -0.0, NaN and -NaN on four builds of the same source.
MEASURED = {
    "strict": (0x80, 0x77, 0xF7),
    "gcc-linux": (0x00, 0x77, 0x77),
    "clang-fast": (0x80, 0x00, 0x80),
    "gcc-fast": (0x00, 0x00, 0x00),
}
PROBE = (0x80000000, 0x7FC00000, 0xFFC00000)
X = np.array([1, 1.0625, 448, 0.01513671875, np.nan, 500], dtype=np.float32)


@pytest.mark.parametrize("profile", PROFILES)
def test_profile_is_named(profile: str) -> None:
    match = identify_profile(dict(zip(PROBE, MEASURED[profile], strict=True)))
    assert match.names == (profile,)
    assert match.known
    assert str(match) == profile


def test_the_probe_tells_all_profiles_apart() -> None:
    x = np.array(PROFILE_PROBE, dtype=np.uint32).view(np.float32)
    answers = {get("e4m3", profile=p).encode(x).tobytes() for p in PROFILES}
    assert len(answers) == len(PROFILES)


def test_inputs_that_do_not_tell_leave_several() -> None:
    assert identify_profile({0x3F800000: 0x38}).names == PROFILES
    assert identify_profile({0x80000000: 0x00}).names == ("gcc-linux", "gcc-fast")


def test_unknown_profile_reports_bytes() -> None:
    match = identify_profile({0x80000000: 0x80, 0x7FC00000: 0x7F, 0xFFC00000: 0xF7})
    assert not match.known
    assert match.differing == ((0x7FC00000, 0x7F, {"strict": 0x77}),)
    assert "unknown numeric profile" in str(match)
    assert "f32 0x7fc00000 gave 0x7f, not strict 0x77" in str(match)


@pytest.mark.parametrize("observed", [{}, {1 << 32: 0}, {0: 256}, {-1: 0}])
def test_bad_observations(observed: dict[int, int]) -> None:
    with pytest.raises(CodecError, match="observation"):
        identify_profile(observed)


@pytest.mark.parametrize("profile", PROFILES)
def test_own_bytes_do_not_differ(profile: str) -> None:
    x = np.array([*PROFILE_PROBE, 0x3F800000], dtype=np.uint32).view(np.float32)
    wire = get("e4m3", profile=profile).encode(x)
    assert first_difference(x, wire) is None
    assert first_difference(x, wire, profile=profile) is None
    other = PROFILES[PROFILES.index(profile) - 1]
    difference = first_difference(x, wire, profile=other)
    assert difference is not None
    assert difference.looks_like == f"the {profile} profile"


@pytest.mark.parametrize(
    ("dtype", "byte", "name"),
    [
        (ml_dtypes.float8_e4m3fn, 0x7E, "OCP E4M3FN cast, NaN above 464"),
        (ml_dtypes.float8_e4m3, 0x78, "IEEE-style E4M3 cast, infinity from 248"),
    ],
)
def test_ocp_cast_is_reported(dtype: Any, byte: int, name: str) -> None:
    wire = X.astype(dtype).view(np.uint8)
    difference = first_difference(X, wire)
    assert difference is not None
    assert (difference.index, difference.bits) == (1, 0x3F880000)
    assert (difference.expected, difference.observed) == (0x39, 0x38)
    assert (difference.count, difference.total) == (5, 6)
    assert difference.looks_like == name
    assert "f32 0x3f880000 (1.0625) must give 0x39, got 0x38" in str(difference)
    difference = first_difference(X[2:], wire[2:])
    assert difference is not None
    assert (difference.value, difference.observed) == (448.0, byte)


def test_all_casts_that_fit_are_named() -> None:
    wire = X[:4].astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    assert str(first_difference(X[:4], wire)).endswith(
        "OCP E4M3FN cast, saturating at 448 or OCP E4M3FN cast, NaN above 464"
    )


@pytest.mark.parametrize(
    ("dtype", "overflow"),
    [(ml_dtypes.float8_e4m3fn, "nan"), (ml_dtypes.float8_e4m3, "infinity")],
)
def test_foreign_casts_equal_ml_dtypes(dtype: Any, overflow: str) -> None:
    rng = np.random.default_rng(8)
    bits = np.concatenate(
        [
            rng.integers(0, 1 << 32, 1 << 18, dtype=np.uint32),
            np.arange(0x3A000000, 0x44800000, 0x400, dtype=np.uint32),
        ]
    )
    with np.errstate(all="ignore"):
        wanted = bits.view(np.float32).astype(dtype).view(np.uint8)
    got = ocp_encode(bits, overflow=overflow)
    wrong = np.flatnonzero(got != wanted)
    assert wrong.size == 0, hex(bits[wrong[0]])


def test_saturating_cast_and_bad_rule() -> None:
    bits = np.array([464.1, 1e9, -1e9], dtype=np.float32).view(np.uint32)
    assert ocp_encode(bits, overflow="saturate").tolist() == [0x7E, 0x7E, 0xFE]
    assert ocp_encode(bits, overflow="clip240").tolist() == [0x77, 0x77, 0xF7]
    with pytest.raises(ValueError, match="unknown overflow rule"):
        ocp_encode(bits, overflow="wrap")


def test_sixteen_bit_mixups_are_named() -> None:
    x = np.linspace(-4, 4, 100, dtype=np.float32)
    f16, bf16 = get("f16").encode(x), get("bf16").encode(x)
    assert first_difference(x, f16, codec="f16") is None
    mixed = first_difference(x, bf16, codec="f16")
    assert mixed is not None
    assert mixed.looks_like == "BF16, the side branch's 16 bit"
    mixed = first_difference(x, f16, codec="bf16")
    assert mixed is not None
    assert mixed.looks_like == "IEEE half, the main line's 16 bit"
    swapped = f16.view(np.uint16).byteswap().view(np.uint8)
    mixed = first_difference(x, swapped, codec="f16")
    assert mixed is not None
    assert mixed.looks_like == "the right codes in big-endian order"


def test_comparison_refuses() -> None:
    with pytest.raises(CodecError, match="wire size"):
        first_difference(X, bytes(4))
    with pytest.raises(CodecError, match="e4m3, f16 or bf16"):
        first_difference(X, bytes(24), codec="f32")
    with pytest.raises(CodecError, match="unknown numeric profile"):
        first_difference(X, bytes(6), profile="msvc")
