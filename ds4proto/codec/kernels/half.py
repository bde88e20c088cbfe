"""binary16 both ways through the processor's own conversion, NaN by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ds4proto.codec.elementwise import BLOCK
from ds4proto.codec.kernels.compiler import (
    bits_of_f32,
    f32_of_bits,
    f32_of_half,
    half_of_f32,
    inlined,
    kernel,
    stream_fence,
)
from ds4proto.codec.kernels.stream import send_block

_H = np.uint16
_W = np.uint32


def _encode(bits: Any, codes: Any) -> None:
    for i in range(bits.shape[0]):
        b = bits[i]
        half = half_of_f32(f32_of_bits(b))
        # The instruction keeps payload bits; the wire's NaN has none.
        nan = np.uint16(_W(_W(b >> _W(16)) & _W(0x8000)) | _W(0x7E00))
        codes[i] = nan if _W(b & _W(0x7FFFFFFF)) > _W(0x7F800000) else half


def _value_of(code: Any) -> Any:
    value = bits_of_f32(f32_of_half(code))
    # The instruction quiets a signalling NaN; the wire's decoder does not.
    signalling = _H(_H(code & _H(0x7FFF)) - _H(0x7C01)) < _H(0x1FF)
    return _W(value & _W(0xFFBFFFFF)) if signalling else value


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


encode = kernel(_encode, "in:u32", "out:u16")
decode = kernel(_decode, "in:u16", "out:u32")
decode_past_cache = kernel(_decode_past_cache, "in:u16", "out:u32", "out:u32")
