"""The 8-bit byte both ways, without branches or tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ds4proto.codec.definition import STRICT, NumericProfile
from ds4proto.codec.elementwise import BLOCK
from ds4proto.codec.kernels.compiler import (
    bits_of_f32,
    f32_of_bits,
    inlined,
    kernel,
    stream_fence,
)
from ds4proto.codec.kernels.stream import send_block

_W = np.uint32
_F = np.float32


def _magnitude_code(magnitude: Any) -> Any:
    clipped = min(magnitude, _W(0x43700000))
    normal = _W(_W(_W(clipped + _W(0x80000)) >> _W(20)) - _W(960))
    # The encoder's own sum, in f32: it makes the one double rounding as well. The
    # bound, just below 7.5 * 2^-9, keeps the count at 7.
    small = f32_of_bits(min(magnitude, _W(0x3C6FFFFF)))
    count = _W(np.int32(small * _F(512) + _F(0.5)))
    return normal if magnitude >= _W(0x3C800000) else count


_code: Callable[[Any], Any] = inlined(_magnitude_code)


def _encode_strict(bits: Any, codes: Any) -> None:
    # The clip takes NaN along with infinity, and the sign bit always stays.
    for i in range(bits.shape[0]):
        b = bits[i]
        sign = _W(_W(b >> _W(24)) & _W(0x80))
        codes[i] = np.uint8(_code(_W(b & _W(0x7FFFFFFF))) | sign)


def _encode(
    bits: Any, codes: Any, tiny_sign: Any, positive_nan: Any, negative_nan: Any
) -> None:
    for i in range(bits.shape[0]):
        b = bits[i]
        magnitude = _W(b & _W(0x7FFFFFFF))
        sign = _W(_W(b >> _W(24)) & _W(0x80))
        code = _code(magnitude)
        signed = sign if magnitude >= _W(0x00800000) else _W(sign & tiny_sign)
        nan = negative_nan if sign != _W(0) else positive_nan
        codes[i] = np.uint8(nan if magnitude > _W(0x7F800000) else _W(code | signed))


def _value_of(code: Any) -> Any:
    c = _W(code)
    sign = _W(_W(c >> _W(7)) << _W(31))
    fields = min(_W(c & _W(0x7F)), _W(0x77))
    moved = _W(fields << _W(20))
    normal = _W(moved + _W(0x3C000000))
    # m/512 = (1 + m/8) * 2^-6 - 2^-6, exactly, with no denormal operand.
    small = f32_of_bits(_W(moved + _W(0x3C800000))) - _F(0.015625)
    value = normal if fields >= _W(8) else bits_of_f32(small)
    return _W(value | sign)


_value: Callable[[Any], Any] = inlined(_value_of)


def _decode(codes: Any, bits: Any) -> None:
    for i in range(codes.shape[0]):
        bits[i] = _value(codes[i])


def _decode_past_cache(codes: Any, bits: Any, block: Any) -> None:
    for start in range(0, codes.shape[0] - BLOCK + 1, BLOCK):
        part = codes[start : start + BLOCK]
        for i in range(BLOCK):
            block[i] = _value(part[i])
        send_block(block, bits, start)
    stream_fence()


_strict = kernel(_encode_strict, "in:u32", "out:u8")
_encode_profile = kernel(_encode, "in:u32", "out:u8", "u32", "u32", "u32")
decode = kernel(_decode, "in:u8", "out:u32")
decode_past_cache = kernel(_decode_past_cache, "in:u8", "out:u32", "out:u32")


def encoder(profile: NumericProfile) -> Callable[[Any, Any], None]:
    """Return the encoder of one numeric profile."""
    if profile == STRICT:
        return _strict
    tiny_sign = _W(0x80 if profile.signed_tiny else 0)
    positive, negative = _W(profile.positive_nan), _W(profile.negative_nan)

    def encode(bits: Any, codes: Any) -> None:
        _encode_profile(bits, codes, tiny_sign, positive, negative)

    return encode
