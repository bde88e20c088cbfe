"""Passes over one chunk that stays in the first-level cache: maxima, codes, nibbles.

A chunk is at most `CHUNK` values of one row; blocks of 32 are two sub-blocks of 16, so
that every inner loop has a fixed length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ds4proto.codec.kernels.compiler import inlined, stream_line
from ds4proto.codec.kernels.lanes import e2m1_away, e2m1_down, e2m1_even, e4m3fn
from ds4proto.codec.kernels.lines import (
    LINE,
    divide_line,
    largest_of_line,
    multiply_line,
)

CHUNK: Final = 2048
SUB: Final = LINE

_W = np.uint32
_H = np.uint16


def _maxima(part: Any, largest: Any, subs: Any) -> None:
    address = np.uintp(part.ctypes.data)
    for k in range(subs):
        largest[k] = largest_of_line(np.uintp(address + np.uintp(64 * k)))


def _pair_maxima(largest: Any, subs: Any) -> None:
    for k in range(subs // 2):
        largest[k] = max(largest[2 * k], largest[2 * k + 1])


def _row_maximum(part: Any) -> Any:
    m = _W(0)
    for i in range(part.shape[0]):
        m = max(m, _W(part[i] & _W(0x7FFFFFFF)))
    return m


def _multiply(part: Any, factor: Any, to: Any, subs: Any) -> None:
    source, target = np.uintp(part.ctypes.data), np.uintp(to.ctypes.data)
    for k in range(subs):
        step = np.uintp(64 * k)
        multiply_line(np.uintp(source + step), factor[k], np.uintp(target + step))


def _divide(part: Any, factor: Any, to: Any, subs: Any) -> None:
    source, target = np.uintp(part.ctypes.data), np.uintp(to.ctypes.data)
    for k in range(subs):
        step = np.uintp(64 * k)
        divide_line(np.uintp(source + step), factor[k], np.uintp(target + step))


def _send(values: Any, target: Any, count: Any) -> None:
    """Copy a chunk past the cache; whole lines of 64 bytes, the edges plainly."""
    source, address = np.uintp(values.ctypes.data), np.uintp(target.ctypes.data)
    offset = np.int64(address % np.uintp(64))
    lead = min((np.int64(64) - offset) % np.int64(64) // 4, count)
    lines = (count - lead) // LINE
    for i in range(lead):
        target[i] = values[i]
    for k in range(lines):
        step = np.uintp(4 * lead + 64 * k)
        stream_line(np.uintp(source + step), np.uintp(address + step))
    for i in range(lead + LINE * lines, count):
        target[i] = values[i]


def _codes_even(scaled: Any, codes: Any, count: Any) -> None:
    for i in range(count):
        b = scaled[i]
        sign = _W(_W(b >> _W(28)) & _W(8))
        codes[i] = np.uint8(_W(e2m1_even(_W(b & _W(0x7FFFFFFF))) | sign))


def _codes_away(scaled: Any, codes: Any, count: Any) -> None:
    for i in range(count):
        b = scaled[i]
        sign = _W(_W(b >> _W(28)) & _W(8))
        codes[i] = np.uint8(_W(e2m1_away(_W(b & _W(0x7FFFFFFF))) | sign))


def _codes_down(scaled: Any, codes: Any, count: Any) -> None:
    for i in range(count):
        b = scaled[i]
        code = e2m1_down(_W(b & _W(0x7FFFFFFF)))
        sign = _W(_W(b >> _W(28)) & _W(8))
        codes[i] = np.uint8(_W(code | sign) if code != _W(0) else code)


def _codes_fp8(scaled: Any, codes: Any, count: Any) -> None:
    for i in range(count):
        b = scaled[i]
        sign = _W(_W(b >> _W(24)) & _W(0x80))
        codes[i] = np.uint8(_W(e4m3fn(_W(b & _W(0x7FFFFFFF))) | sign))


def _pack_pairs(codes: Any, packed: Any, count: Any) -> None:
    # Two codes as one 16-bit number, low first.
    for i in range(count):
        v = codes[i]
        packed[i] = np.uint8(_H(v | _H(v >> _H(4))))


def _pack_halves_of_32(codes: Any, packed: Any, blocks: Any) -> None:
    for b in range(blocks):
        for j in range(SUB):
            high = np.uint8(codes[2 * SUB * b + SUB + j] << np.uint8(4))
            packed[SUB * b + j] = np.uint8(codes[2 * SUB * b + j] | high)


def _pack_halves_of_16(codes: Any, packed: Any, blocks: Any) -> None:
    for b in range(blocks):
        for j in range(SUB // 2):
            high = np.uint8(codes[SUB * b + SUB // 2 + j] << np.uint8(4))
            packed[SUB // 2 * b + j] = np.uint8(codes[SUB * b + j] | high)


maxima: Callable[..., None] = inlined(_maxima)
pair_maxima: Callable[..., None] = inlined(_pair_maxima)
row_maximum: Callable[..., Any] = inlined(_row_maximum)
multiply: Callable[..., None] = inlined(_multiply)
divide: Callable[..., None] = inlined(_divide)
send: Callable[..., None] = inlined(_send)
codes_even: Callable[..., None] = inlined(_codes_even)
codes_away: Callable[..., None] = inlined(_codes_away)
codes_down: Callable[..., None] = inlined(_codes_down)
codes_fp8: Callable[..., None] = inlined(_codes_fp8)
pack_pairs: Callable[..., None] = inlined(_pack_pairs)
pack_halves_of_32: Callable[..., None] = inlined(_pack_halves_of_32)
pack_halves_of_16: Callable[..., None] = inlined(_pack_halves_of_16)
