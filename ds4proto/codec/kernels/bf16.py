"""BF16 both ways, integers only."""

from __future__ import annotations

from typing import Any

import numpy as np

from ds4proto.codec.kernels.compiler import kernel

_W = np.uint32


def _encode(bits: Any, codes: Any) -> None:
    for i in range(bits.shape[0]):
        b = bits[i]
        even = _W(_W(b >> _W(16)) & _W(1))
        codes[i] = np.uint16(_W(_W(b + _W(0x7FFF)) + even) >> _W(16))


def _decode(codes: Any, bits: Any) -> None:
    for i in range(codes.shape[0]):
        bits[i] = _W(_W(codes[i]) << _W(16))


encode = kernel(_encode, "in:u32", "out:u16")
decode = kernel(_decode, "in:u16", "out:u32")
