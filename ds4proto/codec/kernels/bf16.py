"""BF16 both ways, integers only."""

from __future__ import annotations

from typing import Any

import numpy as np

from ds4proto.codec.elementwise import BLOCK
from ds4proto.codec.kernels.compiler import kernel, stream_fence
from ds4proto.codec.kernels.stream import send_block

_W = np.uint32


def _encode(bits: Any, codes: Any) -> None:
    for i in range(bits.shape[0]):
        b = bits[i]
        even = _W(_W(b >> _W(16)) & _W(1))
        codes[i] = np.uint16(_W(_W(b + _W(0x7FFF)) + even) >> _W(16))


def _decode(codes: Any, bits: Any) -> None:
    for i in range(codes.shape[0]):
        bits[i] = _W(_W(codes[i]) << _W(16))


def _decode_past_cache(codes: Any, bits: Any, block: Any) -> None:
    for start in range(0, codes.shape[0] - BLOCK + 1, BLOCK):
        part = codes[start : start + BLOCK]
        for i in range(BLOCK):
            block[i] = _W(_W(part[i]) << _W(16))
        send_block(block, bits, start)
    stream_fence()


encode = kernel(_encode, "in:u32", "out:u16")
decode = kernel(_decode, "in:u16", "out:u32")
decode_past_cache = kernel(_decode_past_cache, "in:u16", "out:u32", "out:u32")
