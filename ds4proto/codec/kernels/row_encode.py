"""Encoders of the formats with an f32 scale for each row, or each block of 32.

``shape`` holds rows, width, row bytes, element bytes and the block (the width itself
for a scale a row); the width is a multiple of the block, and even for nibbles.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np

from ds4proto.codec.kernels.compiler import (
    bits_of_f32,
    divide_f32,
    f32_of_bits,
    inlined,
    kernel,
)
from ds4proto.codec.kernels.lanes import e4m3fn
from ds4proto.codec.kernels.passes import pack_pairs, row_maximum

INT8, FP8, INT4 = range(3)
_W = np.uint32
_F = np.float32
_I = np.int64

# 1.5 * 2^23: the low bits of a sum with it are the integer, rounded to even.
_SHIFTER: Final = np.float32(12582912.0)


def _integers(
    part: Any, factor: Any, divide: Any, low: Any, high: Any, to: Any
) -> None:
    if divide:
        for i in range(part.shape[0]):
            y = divide_f32(f32_of_bits(part[i]), factor)
            to[i] = np.uint8(bits_of_f32(min(max(y, low), high) + _SHIFTER))
    else:
        for i in range(part.shape[0]):
            y = f32_of_bits(part[i]) * factor
            to[i] = np.uint8(bits_of_f32(min(max(y, low), high) + _SHIFTER))


def _floats(part: Any, factor: Any, divide: Any, to: Any) -> None:
    if divide:
        for i in range(part.shape[0]):
            b = part[i]
            y = divide_f32(f32_of_bits(_W(b & _W(0x7FFFFFFF))), factor)
            sign = _W(_W(b >> _W(24)) & _W(0x80))
            to[i] = np.uint8(_W(e4m3fn(bits_of_f32(y)) | sign))
    else:
        for i in range(part.shape[0]):
            b = part[i]
            y = f32_of_bits(_W(b & _W(0x7FFFFFFF))) * factor
            sign = _W(_W(b >> _W(24)) & _W(0x80))
            to[i] = np.uint8(_W(e4m3fn(bits_of_f32(y)) | sign))


def _nibbles_only(codes: Any, count: Any) -> None:
    for i in range(count):
        codes[i] = np.uint8(codes[i] & np.uint8(15))


integers: Callable[..., None] = inlined(_integers)
floats: Callable[..., None] = inlined(_floats)
nibbles_only: Callable[..., None] = inlined(_nibbles_only)


def _encode_rows(
    bits: Any,
    wire: Any,
    shape: Any,
    choice: Any,
    numbers: Any,
    codes: Any,
    pairs: Any,
) -> None:
    rows, width, row_bytes = _I(shape[0]), _I(shape[1]), _I(shape[2])
    element_bytes, block = _I(shape[3]), _I(shape[4])
    element, divide = choice[0], choice[1] != _W(0)
    divisor, low, high = numbers[0], numbers[1], numbers[2]
    for row in range(rows):
        for b in range(width // block):
            first = row * width + b * block
            largest = row_maximum(bits[first : first + block])
            fine = largest < _W(0x7F800000)
            quotient = divide_f32(f32_of_bits(largest), divisor)
            scale = max(quotient, f32_of_bits(_W(0x00800000)))
            stored = bits_of_f32(scale) if fine else _W(0x7FC00000)
            place = row * row_bytes + element_bytes + 4 * b
            for k in range(4):
                wire[place + k] = np.uint8(_W(stored >> _W(8 * k)))
            factor = scale if divide else divide_f32(_F(1), scale)
            for start in range(b * block, (b + 1) * block, codes.shape[0]):
                size = min(_I(codes.shape[0]), (b + 1) * block - start)
                part = bits[row * width + start : row * width + start + size]
                begin = row * row_bytes + (start // 2 if element == INT4 else start)
                if not fine:
                    end = begin + (size // 2 if element == INT4 else size)
                    wire[begin:end] = np.uint8(0)
                elif element == INT8:
                    integers(
                        part, factor, divide, low, high, wire[begin : begin + size]
                    )
                elif element == FP8:
                    floats(part, factor, divide, wire[begin : begin + size])
                else:
                    integers(part, factor, divide, low, high, codes)
                    nibbles_only(codes, size)
                    packed = wire[begin : begin + size // 2]
                    pack_pairs(pairs, packed, size // 2)


@cache
def row_encoder() -> Callable[..., None]:
    """Return the compiled encoder of the formats with f32 scales."""
    return kernel(
        _encode_rows,
        "in:u32",
        "out:u8",
        "in:u32",
        "in:u32",
        "in:f32",
        "out:u8",
        "in:u16",
    )
