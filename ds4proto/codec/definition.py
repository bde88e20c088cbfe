"""The element codecs in plain numpy: what the bytes mean, line by line.

Every function takes and gives bit patterns, so that no library cast decides a byte:
``bits`` are f32 patterns (``uint32``), codes are ``uint8`` or ``uint16``. These are the
reference; kernels and peers are measured against them. Source: spec chapter 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

U8 = NDArray[np.uint8]
U16 = NDArray[np.uint16]
U32 = NDArray[np.uint32]

MAGNITUDE: Final = np.uint32(0x7FFFFFFF)
INFINITY: Final = np.uint32(0x7F800000)
SMALLEST_NORMAL_F32: Final = np.uint32(0x00800000)

# --- 8 bit: E4M3-like byte, bias 7, unscaled (CODEC-E4M3) ------------------------

E4M3_SMALLEST_NORMAL: Final = np.uint32(0x3C800000)  # 2^-6
E4M3_CLIP: Final = np.uint32(0x43700000)  # 240.0
E4M3_LARGEST_CODE: Final = 0x77
E4M3_THRESHOLDS: Final = np.array(
    # 0.5, 1.5, ... 6.5 times 2^-9. The first one is the float just below 2^-10: the
    # encoder adds 0.5 in f32, and that one sum rounds up to 1. There is no eighth:
    # up to 2^-6 the count stays at 7.
    [0x3A7FFFFF, 0x3B400000, 0x3BA00000, 0x3BE00000,
     0x3C100000, 0x3C300000, 0x3C500000],
    dtype=np.uint32,
)  # fmt: skip


@dataclass(frozen=True)
class NumericProfile:
    """What a compiler made of the e4m3 encoder: the only bytes that builds differ in.

    Attributes
    ----------
    name
        One of `ds4proto.codec.PROFILES`.
    build
        The compiler and flags it was measured on (x86-64).
    signed_tiny
        Whether -0 and negative f32 denormals keep their sign (0x80) or lose it.
    positive_nan, negative_nan
        The byte of a NaN, by its sign bit.
    """

    name: str
    build: str
    signed_tiny: bool
    positive_nan: int
    negative_nan: int


E4M3_PROFILES: Final = MappingProxyType(
    {
        profile.name: profile
        for profile in (
            NumericProfile(
                "strict",
                "no fast-math, or clang 14 with the Linux flags",
                signed_tiny=True,
                positive_nan=0x77,
                negative_nan=0xF7,
            ),
            NumericProfile(
                "gcc-linux",
                "gcc 12, -O3 -ffast-math -fno-finite-math-only (stock Linux)",
                signed_tiny=False,
                positive_nan=0x77,
                negative_nan=0x77,
            ),
            NumericProfile(
                "clang-fast",
                "clang 14, -O3 -ffast-math (the macOS flags)",
                signed_tiny=True,
                positive_nan=0x00,
                negative_nan=0x80,
            ),
            NumericProfile(
                "gcc-fast",
                "gcc 12, -O3 -ffast-math",
                signed_tiny=False,
                positive_nan=0x00,
                negative_nan=0x00,
            ),
        )
    }
)
STRICT: Final = E4M3_PROFILES["strict"]


def e4m3_encode(bits: U32, profile: NumericProfile = STRICT) -> U8:
    """Give the byte of each f32 pattern: nearest, ties away from zero, clip at 240."""
    magnitude = bits & MAGNITUDE
    negative = bits > MAGNITUDE
    # Half a step is added to the pattern; the carry runs into the exponent by itself.
    clipped = np.minimum(magnitude, E4M3_CLIP)
    normal = ((clipped + np.uint32(0x00080000)) >> 20) - np.uint32(960)
    tiny = np.searchsorted(E4M3_THRESHOLDS, magnitude, side="right")
    code = np.where(magnitude >= E4M3_SMALLEST_NORMAL, normal, tiny).astype(np.uint8)
    signed = negative
    if not profile.signed_tiny:
        signed = negative & (magnitude >= SMALLEST_NORMAL_F32)
    code |= signed.astype(np.uint8) << np.uint8(7)
    nan = magnitude > INFINITY
    code[nan & ~negative] = profile.positive_nan
    code[nan & negative] = profile.negative_nan
    return code


def _e4m3_value(code: int) -> float:
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = code >> 3 & 0xF, code & 0x7
    if exponent == 0:
        return sign * mantissa / 512
    if exponent == 15:
        return sign * 240.0
    return float(sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7))


E4M3_VALUES: Final = np.array(
    [_e4m3_value(code) for code in range(256)], dtype=np.float32
).view(np.uint32)


def e4m3_decode(codes: U8) -> U32:
    """Give the f32 pattern of each byte; 0x78..0x7f are 240, nothing is not finite."""
    return E4M3_VALUES[codes]


# --- 16 bit, main line: IEEE binary16 (CODEC-F16) --------------------------------

F16_SMALLEST_NORMAL: Final = np.uint32(0x38800000)  # 2^-14
F16_OVERFLOW: Final = np.uint32(0x477FF000)  # 65,520: half way past the largest half


def f16_encode(bits: U32) -> U16:
    """Give the half of each f32 pattern: nearest even; a NaN keeps only its sign."""
    magnitude = bits & MAGNITUDE
    even = (magnitude >> 13) & np.uint32(1)
    normal = (magnitude - np.uint32(112 << 23) + np.uint32(0xFFF) + even) >> 13
    # Below 2^-14 a half counts steps of 2^-24; the product is exact, rint ties to even.
    small = np.minimum(magnitude, F16_SMALLEST_NORMAL).view(np.float32)
    subnormal = np.rint(small * np.float32(2.0**24)).astype(np.uint32)
    half = np.where(magnitude >= F16_SMALLEST_NORMAL, normal, subnormal)
    half[magnitude >= F16_OVERFLOW] = 0x7C00
    half[magnitude > INFINITY] = 0x7E00
    codes: U16 = (half | (bits >> 16 & np.uint32(0x8000))).astype(np.uint16)
    return codes


def f16_decode(codes: U16) -> U32:
    """Give the f32 pattern of each half, exactly; a NaN keeps payload and quiet bit."""
    half = codes.astype(np.uint32)
    sign = (half & np.uint32(0x8000)) << 16
    exponent = half >> 10 & np.uint32(31)
    mantissa = half & np.uint32(0x3FF)
    normal = (exponent + np.uint32(112)) << 23 | mantissa << 13
    subnormal = (mantissa.astype(np.float32) * np.float32(2.0**-24)).view(np.uint32)
    special = INFINITY | mantissa << 13
    value = np.where(exponent == 0, subnormal, normal)
    bits: U32 = np.where(exponent == 31, special, value) | sign
    return bits


# --- 16 bit, side branch: BF16 by an integer rule (CODEC-BF16) -------------------


def bf16_encode(bits: U32) -> U16:
    """Give the upper half after adding 0x7fff plus bit 16, wrapping; no NaN care."""
    even = (bits >> 16) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + even) >> 16).astype(np.uint16)


def bf16_decode(codes: U16) -> U32:
    """Give the f32 pattern whose upper half is the code."""
    return codes.astype(np.uint32) << np.uint32(16)
