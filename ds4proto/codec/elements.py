"""Elements of the scaled formats: E4M3FN, E2M1, integers, E8M0, and nibbles in bytes.

Plain numpy, patterns in and out, so that no library cast decides a byte. Source: the
OCP formats (E4M3FN, E2M1, E8M0); clauses CODEC-ELEM-01 ff.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ds4proto.codec.definition import INFINITY, MAGNITUDE, U8, U32

F32 = NDArray[np.float32]

NAN_BITS: Final = np.uint32(0x7FC00000)
"""The one NaN that decoders of scaled formats give."""

E4M3FN_MAX: Final = np.float32(448.0)
E4M3FN_NAN: Final = 0x7F
E4M3FN_EMAX: Final = 8
E2M1_MAX: Final = np.float32(6.0)
E2M1_EMAX: Final = 2
E8M0_NAN: Final = 0xFF

ROUNDINGS: Final = ("even", "away", "down")
"""E2M1 ties: to the even code, away from zero, or to the smaller magnitude."""

_E4M3FN_SMALLEST_NORMAL: Final = np.uint32(0x3C800000)  # 2^-6
_E4M3FN_CLIP: Final = np.uint32(0x43E00000)  # 448


def e4m3fn_encode(bits: U32) -> U8:
    """Give the E4M3FN byte of each f32 pattern: nearest even, clip at 448, NaN 0x7f.

    The sign stays, that of zero too; NaN becomes 0x7f whatever its sign.
    """
    magnitude = bits & MAGNITUDE
    clipped = np.minimum(magnitude, _E4M3FN_CLIP)
    even = (clipped >> 20) & np.uint32(1)
    normal = ((clipped + np.uint32(0x7FFFF) + even) >> 20) - np.uint32(960)
    # Below 2^-6 a code counts steps of 2^-9; the product is exact, rint ties to even.
    small = np.minimum(magnitude, _E4M3FN_SMALLEST_NORMAL).view(np.float32)
    subnormal = np.rint(small * np.float32(512)).astype(np.uint32)
    code = np.where(magnitude >= _E4M3FN_SMALLEST_NORMAL, normal, subnormal)
    code |= bits >> 31 << 7
    code[magnitude > INFINITY] = E4M3FN_NAN
    encoded: U8 = code.astype(np.uint8)
    return encoded


def _e4m3fn_value(code: int) -> float:
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = code >> 3 & 0xF, code & 0x7
    if exponent == 0:
        return sign * mantissa / 512
    return float(sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7))


E4M3FN_VALUES: Final = np.array(
    [_e4m3fn_value(code) for code in range(256)], dtype=np.float32
).view(np.uint32)
E4M3FN_VALUES[[0x7F, 0xFF]] = NAN_BITS
"""f32 pattern of each E4M3FN byte; 0x7f and 0xff are NaN, there is no infinity."""

E2M1_MAGNITUDES: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1_VALUES: Final = np.array(
    [*E2M1_MAGNITUDES, *(-m for m in E2M1_MAGNITUDES)], dtype=np.float32
).view(np.uint32)
"""f32 pattern of each E2M1 nibble; 8 is -0, nothing is NaN or infinite."""

_MIDPOINTS: Final = np.array(
    [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], dtype=np.float32
).view(np.uint32)

E2M1_THRESHOLDS: Final[dict[str, U32]] = {
    # The smallest pattern that gives code 1, 2, ... 7. A midpoint goes up where the
    # upper code is even, always, or never.
    "even": _MIDPOINTS + np.array([1, 0, 1, 0, 1, 0, 1], dtype=np.uint32),
    "away": _MIDPOINTS,
    "down": _MIDPOINTS + np.uint32(1),
}


def e2m1_encode(bits: U32, rounding: str = "even") -> U8:
    """Give the E2M1 nibble (0..15) of each f32 pattern: nearest, clip at 6.

    ``rounding`` is one of `ROUNDINGS`. ``even`` and ``away`` keep the sign of values
    that become zero (nibble 8); ``down`` gives nibble 0 for them, like a search for
    the first nearest code.
    """
    magnitude = bits & MAGNITUDE
    code = np.searchsorted(E2M1_THRESHOLDS[rounding], magnitude, side="right")
    sign = (bits >> 28).astype(np.uint8) & np.uint8(8)
    if rounding == "down":
        sign[code == 0] = 0
    return code.astype(np.uint8) | sign


def integer_encode(y: F32, lowest: int, highest: int) -> U8:
    """Round f32 values to the nearest integer, ties to even, clip; two's complement."""
    clipped = np.clip(np.rint(y), np.float32(lowest), np.float32(highest))
    return clipped.astype(np.int8).view(np.uint8)


def int4_decode(nibbles: U8) -> F32:
    """Give the value -8..7 of each two's complement nibble."""
    signed = nibbles.astype(np.int8)
    return np.where(signed > 7, signed - 16, signed).astype(np.float32)


def pack_pairs(nibbles: U8) -> U8:
    """Put element 2i into the low and 2i+1 into the high half of byte i.

    Works along the last axis; with an odd count the last high half is 0.
    """
    if nibbles.shape[-1] % 2:
        pad = [(0, 0)] * (nibbles.ndim - 1) + [(0, 1)]
        nibbles = np.pad(nibbles, pad)
    packed: U8 = nibbles[..., 0::2] | nibbles[..., 1::2] << np.uint8(4)
    return packed


def unpack_pairs(packed: U8, count: int) -> U8:
    """Undo `pack_pairs`: ``count`` nibbles along the last axis."""
    both = np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=-1)
    return both.reshape(*packed.shape[:-1], -1)[..., :count]


def pack_halves(nibbles: U8, block: int) -> U8:
    """Put element i of a block low and i + block/2 high into byte i (ggml's order)."""
    split = nibbles.reshape(*nibbles.shape[:-1], -1, 2, block // 2)
    packed: U8 = split[..., 0, :] | split[..., 1, :] << np.uint8(4)
    return packed.reshape(*nibbles.shape[:-1], -1)


def unpack_halves(packed: U8, block: int) -> U8:
    """Undo `pack_halves`."""
    split = packed.reshape(*packed.shape[:-1], -1, 1, block // 2)
    both = np.concatenate([split & np.uint8(15), split >> np.uint8(4)], axis=-2)
    return both.reshape(*packed.shape[:-1], -1)
