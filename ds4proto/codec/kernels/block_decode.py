"""Decoders of all scaled formats: elements to values, once each.

``shape`` holds rows, width, row bytes, element bytes and the block, like for the
encoders; ``choice`` the scheme, the element, and whether the values go past the cache.
``factor`` has one place for each sub-block of a chunk, ``plain`` one for each value.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ds4proto.codec.kernels.compiler import (
    bits_of_f32,
    divide_f32,
    f32_of_bits,
    inlined,
    kernel,
    stream_fence,
)
from ds4proto.codec.kernels.lanes import e2m1_value, e4m3fn_value
from ds4proto.codec.kernels.passes import SUB, multiply, send

MX, NV_DECODE, NV_ENCODE = range(3)
FP8, PAIRS, HALVES = range(3)
INT8, ROW_FP8, INT4 = range(3)

_W = np.uint32
_F = np.float32
_I = np.int64
_NAN = np.uint32(0x7FC00000)


def _read_f32(wire: Any, place: Any) -> Any:
    pattern = _W(0)
    for k in range(4):
        pattern = _W(pattern | _W(_W(wire[place + k]) << _W(8 * k)))
    return f32_of_bits(pattern)


def _finite(value: Any) -> Any:
    return _W(bits_of_f32(value) & _W(0x7FFFFFFF)) < _W(0x7F800000)


read_f32: Callable[..., Any] = inlined(_read_f32)
finite: Callable[..., Any] = inlined(_finite)


def _block_scale(byte: Any, scheme: Any, decode: Any) -> Any:
    """Return the factor of a block; infinity if its values are NaN."""
    if scheme == MX:
        if byte == _W(0xFF):
            return f32_of_bits(_W(0x7F800000))
        return f32_of_bits(_W(0x00400000) if byte == _W(0) else _W(byte << _W(23)))
    return e4m3fn_value(byte) * decode


# First the elements of a whole chunk in one long loop, which vectorises; the factors
# follow, a line of 16 at a time.


def _pairs(packed: Any, bits: Any) -> None:
    for j in range(packed.shape[0]):
        c = _W(packed[j])
        bits[2 * j] = bits_of_f32(e2m1_value(_W(c & _W(15))))
        bits[2 * j + 1] = bits_of_f32(e2m1_value(_W(c >> _W(4))))


def _halves_of_16(packed: Any, bits: Any) -> None:
    for k in range(packed.shape[0] // (SUB // 2)):
        for j in range(SUB // 2):
            c = _W(packed[SUB // 2 * k + j])
            i = SUB * k + j
            bits[i] = bits_of_f32(e2m1_value(_W(c & _W(15))))
            bits[i + SUB // 2] = bits_of_f32(e2m1_value(_W(c >> _W(4))))


def _halves_of_32(packed: Any, bits: Any) -> None:
    for k in range(packed.shape[0] // SUB):
        for j in range(SUB):
            c = _W(packed[SUB * k + j])
            i = 2 * SUB * k + j
            bits[i] = bits_of_f32(e2m1_value(_W(c & _W(15))))
            bits[i + SUB] = bits_of_f32(e2m1_value(_W(c >> _W(4))))


def _bytes(codes: Any, bits: Any) -> None:
    for j in range(codes.shape[0]):
        bits[j] = bits_of_f32(e4m3fn_value(codes[j]))


def _row_bytes(codes: Any, scale: Any, bits: Any) -> None:
    for j in range(codes.shape[0]):
        bits[j] = bits_of_f32(e4m3fn_value(codes[j]) * scale)


block_scale: Callable[..., Any] = inlined(_block_scale)
pairs: Callable[..., None] = inlined(_pairs)
halves_of_16: Callable[..., None] = inlined(_halves_of_16)
halves_of_32: Callable[..., None] = inlined(_halves_of_32)
block_fp8: Callable[..., None] = inlined(_bytes)
row_fp8: Callable[..., None] = inlined(_row_bytes)


def _decode_blocks(
    wire: Any, bits: Any, shape: Any, choice: Any, factor: Any, plain: Any
) -> None:
    rows, width, row_bytes = _I(shape[0]), _I(shape[1]), _I(shape[2])
    element_bytes, block = _I(shape[3]), _I(shape[4])
    scheme, element = choice[0], choice[1]
    # A line store needs an address that is a multiple of 4.
    past_cache = choice[2] != _W(0) and bits.ctypes.data % 4 == 0
    per_block = block // SUB
    for row in range(rows):
        decode = _F(1)
        if scheme != MX:
            decode = read_f32(wire, (row + 1) * row_bytes - 4)
            if scheme == NV_ENCODE:
                decode = divide_f32(_F(1), decode)
        for start in range(0, width, plain.shape[0]):
            size = min(_I(plain.shape[0]), width - start)
            subs, blocks = size // SUB, size // block
            scales = row * row_bytes + element_bytes + start // block
            broken = False
            for b in range(blocks):
                scale = block_scale(_W(wire[scales + b]), scheme, decode)
                broken = broken or not finite(scale)
                for k in range(per_block):
                    factor[b * per_block + k] = scale
            first = row * width + start
            target = bits[first : first + size]
            if element == FP8:
                begin = row * row_bytes + start
                block_fp8(wire[begin : begin + size], plain)
            else:
                begin = row * row_bytes + start // 2
                packed = wire[begin : begin + size // 2]
                if element == PAIRS:
                    pairs(packed, plain)
                elif per_block == 1:
                    halves_of_16(packed, plain)
                else:
                    halves_of_32(packed, plain)
            if past_cache:
                multiply(plain, factor, plain, subs)
                send(plain, target, size)
            else:
                multiply(plain, factor, target, subs)
            if broken:
                for k in range(subs):
                    if not finite(factor[k]):
                        target[k * SUB : (k + 1) * SUB] = _NAN
    stream_fence()


def _decode_rows(wire: Any, bits: Any, shape: Any, choice: Any) -> None:
    rows, width, row_bytes = _I(shape[0]), _I(shape[1]), _I(shape[2])
    element_bytes, block = _I(shape[3]), _I(shape[4])
    element = choice[0]
    for row in range(rows):
        for b in range(width // block):
            scale = read_f32(wire, row * row_bytes + element_bytes + 4 * b)
            first = row * width + b * block
            target = bits[first : first + block]
            begin = row * row_bytes + b * block
            if not finite(scale):
                target[:] = _NAN
            elif element == INT8:
                codes = wire[begin : begin + block]
                for i in range(block):
                    target[i] = bits_of_f32(_F(np.int32(np.int8(codes[i]))) * scale)
            elif element == ROW_FP8:
                row_fp8(wire[begin : begin + block], scale, target)
            else:
                begin = row * row_bytes + b * block // 2
                packed = wire[begin : begin + block // 2]
                for i in range(block // 2):
                    c = np.int32(packed[i])
                    low = np.int32(np.int32(np.int32(c & 15) ^ 8) - 8)
                    high = np.int32(np.int32(np.int32(c >> 4) ^ 8) - 8)
                    target[2 * i] = bits_of_f32(_F(low) * scale)
                    target[2 * i + 1] = bits_of_f32(_F(high) * scale)


@cache
def block_decoder() -> Callable[..., None]:
    """Return the compiled decoder of the formats with scales of one byte."""
    return kernel(
        _decode_blocks, "in:u8", "out:u32", "in:u32", "in:u32", "out:f32", "out:u32"
    )


@cache
def row_decoder() -> Callable[..., None]:
    """Return the compiled decoder of the formats with f32 scales."""
    return kernel(_decode_rows, "in:u8", "out:u32", "in:u32", "in:u32")
