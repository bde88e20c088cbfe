"""Encoders of the formats with blocks, row after row, chunk after chunk.

``shape`` holds rows, width, row bytes, element bytes and the block; the width is a
multiple of the block. ``largest`` and ``factor`` have one place for each sub-block of
16 of a row, ``scaled`` and ``codes`` one for each value of a chunk (at
most, a row may be shorter); ``pairs`` is ``codes`` seen as 16-bit numbers.
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
from ds4proto.codec.kernels.lanes import e2m1_even, e4m3fn, e4m3fn_value
from ds4proto.codec.kernels.passes import (
    SUB,
    codes_away,
    codes_down,
    codes_even,
    codes_fp8,
    divide,
    maxima,
    multiply,
    pack_halves_of_16,
    pack_halves_of_32,
    pack_pairs,
    pair_maxima,
)

FLOOR, EVEN, RCEIL, CEIL = range(4)
FP8, FP4_EVEN, FP4_AWAY, FP4_DOWN = range(4)
INVERSE_FIRST, PRODUCT_INVERSE, DIVIDE = range(3)
FLOORED, ZERO, EIGHTH = range(3)

LARGEST_F32: Final = np.float32(np.finfo(np.float32).max)
_W = np.uint32
_F = np.float32
_I = np.int64


def _mx_scale(largest: Any, rule: Any, emax: Any, limit: Any) -> Any:
    if largest > _W(0x7F800000):
        return _W(0xFF)
    if rule == RCEIL:
        q = bits_of_f32(divide_f32(f32_of_bits(largest), limit))
        up = _W(1) if _W(q & _W(0x7FFFFF)) != _W(0) else _W(0)
        byte = min(_W(_W(q >> _W(23)) + up), _W(254))
        return _W(0) if q <= _W(0x00400000) else byte
    pattern = largest
    if rule == EVEN:
        step = _W(1 << 21) if emax == _W(2) else _W(1 << 19)
        pattern = _W(pattern + step)
    exponent = _W(pattern >> _W(23))
    if rule == CEIL and _W(pattern & _W(0x7FFFFF)) != _W(0):
        exponent = _W(exponent + _W(1))
    return _W(max(exponent, emax) - emax)


def _mx_factor(byte: Any) -> Any:
    if byte == _W(0xFF):
        return _F(0)
    if byte == _W(254):
        return f32_of_bits(_W(0x00400000))
    return f32_of_bits(_W(_W(_W(254) - byte) << _W(23)))


def _pack(codes: Any, pairs: Any, packed: Any, half_order: Any) -> None:
    count = packed.shape[0]
    if half_order == 0:
        pack_pairs(pairs, packed, count)
    elif half_order == 1:
        pack_halves_of_16(codes, packed, count // (SUB // 2))
    else:
        pack_halves_of_32(codes, packed, count // SUB)


pack: Callable[..., None] = inlined(_pack)
mx_scale: Callable[..., Any] = inlined(_mx_scale)
mx_factor: Callable[..., Any] = inlined(_mx_factor)


def _encode_mx(
    bits: Any,
    wire: Any,
    shape: Any,
    choice: Any,
    largest: Any,
    factor: Any,
    scaled: Any,
    codes: Any,
    pairs: Any,
) -> None:
    rows, width, row_bytes = _I(shape[0]), _I(shape[1]), _I(shape[2])
    element_bytes, block = _I(shape[3]), _I(shape[4])
    rule, element, halves = choice[0], choice[1], choice[2]
    emax = _W(8) if element == FP8 else _W(2)
    limit = _F(448) if element == FP8 else _F(6)
    per_block = block // SUB
    for row in range(rows):
        for start in range(0, width, codes.shape[0]):
            size = min(_I(codes.shape[0]), width - start)
            subs, blocks = size // SUB, size // block
            part = bits[row * width + start : row * width + start + size]
            maxima(part, largest, subs)
            if per_block == 2:
                pair_maxima(largest, subs)
            scales = row * row_bytes + element_bytes + start // block
            broken = False
            for b in range(blocks):
                byte = mx_scale(largest[b], rule, emax, limit)
                wire[scales + b] = np.uint8(byte)
                broken = broken or byte == _W(0xFF)
                f = mx_factor(byte)
                for k in range(per_block):
                    factor[b * per_block + k] = f
            multiply(part, factor, scaled, subs)
            if element == FP8:
                codes_fp8(scaled, codes, size)
            elif element == FP4_EVEN:
                codes_even(scaled, codes, size)
            elif element == FP4_AWAY:
                codes_away(scaled, codes, size)
            else:
                codes_down(scaled, codes, size)
            if broken:
                for b in range(blocks):
                    if wire[scales + b] == np.uint8(0xFF):
                        codes[b * block : (b + 1) * block] = np.uint8(0)
            if element == FP8:
                begin = row * row_bytes + start
                wire[begin : begin + size] = codes[:size]
            else:
                begin = row * row_bytes + start // 2
                packed = wire[begin : begin + size // 2]
                pack(codes, pairs, packed, per_block if halves != _W(0) else 0)


def _row_scales(largest: Any, encode_stored: Any) -> Any:
    if largest == _F(0):
        return _F(1), _F(1)
    if encode_stored:
        encode = min(divide_f32(_F(2688), largest), f32_of_bits(_W(0x71800000)))
        return divide_f32(_F(1), encode), encode
    decode = max(divide_f32(largest, _F(2688)), f32_of_bits(_W(0x0D800000)))
    return decode, divide_f32(_F(1), decode)


row_scales: Callable[..., Any] = inlined(_row_scales)


def _nv_scales(
    largest: Any, factor: Any, scales: Any, per_block: Any, choice: Any
) -> Any:
    """Fill factors and scale bytes; return the stored row scale and what is odd."""
    order, zero, encode_stored = choice[0], choice[1], choice[3] != _W(0)
    blocks = scales.shape[0]
    top = _W(0)
    odd = False
    for b in range(blocks):
        if largest[b] >= _W(0x7F800000):
            odd = True
        else:
            top = max(top, largest[b])
    decode, encode = row_scales(f32_of_bits(top), encode_stored)
    for b in range(blocks):
        fine = largest[b] < _W(0x7F800000)
        sixth = divide_f32(f32_of_bits(largest[b] if fine else _W(0)), _F(6))
        q = sixth * encode if encode_stored else divide_f32(sixth, decode)
        if zero == FLOORED:
            q = max(q, _F(0.015625))
        byte = e4m3fn(bits_of_f32(q))
        if zero == EIGHTH and byte == _W(0):
            byte = _W(0x20)
        scales[b] = np.uint8(byte if fine else _W(0x7F))
        odd = odd or byte == _W(0)
        s = e4m3fn_value(byte)
        if order == INVERSE_FIRST:
            f = divide_f32(encode, s)
        else:
            f = s * decode
            if order == PRODUCT_INVERSE:
                f = divide_f32(_F(1), f)
        for k in range(per_block):
            factor[b * per_block + k] = f
    return bits_of_f32(encode if encode_stored else decode), odd


def _odd_codes(part: Any, scales: Any, codes: Any, block: Any) -> None:
    """Write the codes of blocks without a usable scale."""
    for b in range(scales.shape[0]):
        byte = _W(scales[b])
        if byte == _W(0x7F):
            codes[b * block : (b + 1) * block] = np.uint8(0)
        elif byte == _W(0):
            for k in range(b * block, (b + 1) * block):
                m = _W(part[k] & _W(0x7FFFFFFF))
                code = e2m1_even(bits_of_f32(f32_of_bits(m) * LARGEST_F32))
                sign = _W(_W(part[k] >> _W(28)) & _W(8))
                codes[k] = np.uint8(_W(code | sign))


nv_scales: Callable[..., Any] = inlined(_nv_scales)
odd_codes: Callable[..., None] = inlined(_odd_codes)


def _encode_nv(
    bits: Any,
    wire: Any,
    shape: Any,
    choice: Any,
    largest: Any,
    factor: Any,
    scaled: Any,
    codes: Any,
    pairs: Any,
) -> None:
    rows, width, row_bytes = _I(shape[0]), _I(shape[1]), _I(shape[2])
    element_bytes, block = _I(shape[3]), _I(shape[4])
    per_block = block // SUB
    half_order = per_block if choice[2] != _W(0) else 0
    for row in range(rows):
        line = bits[row * width : (row + 1) * width]
        elements = wire[row * row_bytes : row * row_bytes + element_bytes]
        first = row * row_bytes + element_bytes
        scales = wire[first : first + width // block]
        maxima(line, largest, width // SUB)
        if per_block == 2:
            pair_maxima(largest, width // SUB)
        stored, odd = nv_scales(largest, factor, scales, per_block, choice)
        for start in range(0, width, codes.shape[0]):
            size = min(_I(codes.shape[0]), width - start)
            part = line[start : start + size]
            some = factor[start // SUB : (start + size) // SUB]
            if choice[0] == DIVIDE:
                divide(part, some, scaled, size // SUB)
            else:
                multiply(part, some, scaled, size // SUB)
            codes_even(scaled, codes, size)
            if odd:
                here = scales[start // block : (start + size) // block]
                odd_codes(part, here, codes, block)
            packed = elements[start // 2 : (start + size) // 2]
            pack(codes, pairs, packed, half_order)
        for k in range(4):
            wire[(row + 1) * row_bytes - 4 + k] = np.uint8(_W(stored >> _W(8 * k)))


_ARGUMENTS: Final = (
    "in:u32",
    "out:u8",
    "in:u32",
    "in:u32",
    "out:u32",
    "out:f32",
    "out:u32",
    "out:u8",
    "in:u16",
)


# Compiling takes seconds the first time, so that each is left until it is asked for.
@cache
def mx_encoder() -> Callable[..., None]:
    """Return the compiled encoder of the formats with E8M0 scales."""
    return kernel(_encode_mx, *_ARGUMENTS)


@cache
def nv_encoder() -> Callable[..., None]:
    """Return the compiled encoder of the formats with two levels of scales."""
    return kernel(_encode_nv, *_ARGUMENTS)
