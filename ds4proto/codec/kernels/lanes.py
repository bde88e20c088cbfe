"""Element codes in 32-bit lanes: small functions that become part of a loop.

Each takes and gives one lane, without a branch on the data, so that the loop around it
vectorises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ds4proto.codec.kernels.compiler import bits_of_f32, f32_of_bits, inlined

_W = np.uint32
_F = np.float32


def _e2m1_even(magnitude: Any) -> Any:
    m = min(magnitude, _W(0x40C00000))
    up = _W(_W(m >> _W(22)) & _W(1))
    normal = _W(_W(_W(_W(m + _W(0x1FFFFF)) + up) >> _W(22)) - _W(252))
    # Adding 1.5 * 2^22 rounds to halves in one step: those are units of its last bit.
    small = f32_of_bits(min(m, _W(0x3F800000))) + _F(6291456.0)
    return normal if m >= _W(0x3F800000) else _W(bits_of_f32(small) - _W(0x4AC00000))


def _e2m1_away(magnitude: Any) -> Any:
    m = min(magnitude, _W(0x40C00000))
    normal = _W(_W(_W(m + _W(0x200000)) >> _W(22)) - _W(252))
    half = _W(1) if m >= _W(0x3E800000) else _W(0)
    small = _W(half + (_W(1) if m >= _W(0x3F400000) else _W(0)))
    return normal if m >= _W(0x3F800000) else small


def _e2m1_down(magnitude: Any) -> Any:
    m = min(magnitude, _W(0x40C00000))
    normal = _W(_W(_W(m + _W(0x1FFFFF)) >> _W(22)) - _W(252))
    half = _W(1) if m > _W(0x3E800000) else _W(0)
    small = _W(half + (_W(1) if m > _W(0x3F400000) else _W(0)))
    return normal if m >= _W(0x3F800000) else small


def _e4m3fn(magnitude: Any) -> Any:
    m = min(magnitude, _W(0x43E00000))
    up = _W(_W(m >> _W(20)) & _W(1))
    normal = _W(_W(_W(_W(m + _W(0x7FFFF)) + up) >> _W(20)) - _W(960))
    # The same trick for steps of 2^-9.
    small = f32_of_bits(min(m, _W(0x3C800000))) + _F(24576.0)
    return normal if m >= _W(0x3C800000) else _W(bits_of_f32(small) - _W(0x46C00000))


def _e2m1_value(nibble: Any) -> Any:
    n = _W(nibble)
    fields = _W(_W(n & _W(7)) << _W(22))
    # m/2 = (1 + m/2) - 1 for the two codes without a leading one.
    small = bits_of_f32(f32_of_bits(_W(fields + _W(0x3F800000))) - _F(1))
    value = _W(fields + _W(0x3F000000)) if fields >= _W(0x00800000) else small
    return f32_of_bits(_W(value | _W(_W(n >> _W(3)) << _W(31))))


def _e4m3fn_value(code: Any) -> Any:
    c = _W(code)
    fields = _W(c & _W(0x7F))
    moved = _W(fields << _W(20))
    small = bits_of_f32(f32_of_bits(_W(moved + _W(0x3C800000))) - _F(0.015625))
    value = _W(moved + _W(0x3C000000)) if fields >= _W(8) else small
    signed = _W(value | _W(_W(c >> _W(7)) << _W(31)))
    return f32_of_bits(_W(0x7FC00000) if fields == _W(0x7F) else signed)


e2m1_even: Callable[[Any], Any] = inlined(_e2m1_even)
e2m1_away: Callable[[Any], Any] = inlined(_e2m1_away)
e2m1_down: Callable[[Any], Any] = inlined(_e2m1_down)
e4m3fn: Callable[[Any], Any] = inlined(_e4m3fn)
e2m1_value: Callable[[Any], Any] = inlined(_e2m1_value)
e4m3fn_value: Callable[[Any], Any] = inlined(_e4m3fn_value)
