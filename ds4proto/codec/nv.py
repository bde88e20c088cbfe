"""NVFP4 and E2M1 with E4M3 per 32: two levels of scales. The definition.

Encoding, every step one f32 operation rounded to nearest even; ``a`` is the largest
magnitude of a block, ``A`` that of the row, over its finite blocks (those without NaN
and infinity); 2688 = 6 * 448:

1. The scale of the row. ``global_scale=decode``: ``D = max(A / 2688, 2^-100)`` is
   stored and ``E = 1 / D``; ``global_scale=encode``: ``E = min(2688 / A, 2^100)`` is
   stored and ``D = 1 / E``. If ``A`` is 0, both are 1.
2. The scale of a block. ``global_scale=decode``: ``q = (a / 6) / D``; ``encode``:
   ``q = (a / 6) * E``. ``zero=floor``: ``q = max(q, 2^-6)``. Then ``s`` is the E4M3FN
   code nearest to ``q``, ties to even, clipped at 448. ``zero=zero`` leaves it so (a
   block of zeros has 0x00); ``zero=eighth`` puts 0x20, that is 0.125, for 0x00.
3. The elements. ``order=inverse-first``: ``r = E / s; y = x * r``;
   ``order=product-inverse``: ``r = 1 / (s * D); y = x * r``; ``order=divide``:
   ``y = x / (s * D)``. Where ``s`` is 0: ``y = x * (2 - 2^-23) * 2^127`` in any order,
   so that values other than 0 take the largest element, and decode to 0.
4. The E2M1 nibble nearest to ``y``, ties to even, clipped at 6; the sign of zero stays.

Known stacks: torchao is decode, inverse-first, floor (the default here);
TransformerEngine encode, product-inverse, zero. A block with NaN or infinity has the
scale byte 0x7f and elements 0; the rest of the row is as if it were not there.

Decoding: ``D`` is the stored number, or 1 / it; ``t = s * D``; ``value = element * t``.
All values of a block are NaN (0x7fc00000) if its ``t`` is not finite, which covers the
byte 0x7f and broken row scales. Bit 7 of a scale byte is the sign of ``s``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ds4proto.codec.definition import INFINITY, MAGNITUDE, U8, U32
from ds4proto.codec.elements import (
    E2M1_MAX,
    E2M1_VALUES,
    E4M3FN_NAN,
    E4M3FN_VALUES,
    NAN_BITS,
    e2m1_encode,
    e4m3fn_encode,
)
from ds4proto.codec.layout import F32, RowLayout, bytes_of_f32, widen

ORDERS: Final = ("inverse-first", "product-inverse", "divide")
GLOBAL_SCALES: Final = ("decode", "encode")
ZERO_SCALES: Final = ("floor", "zero", "eighth")
EIGHTH: Final = 0x20
FULL_RANGE: Final = np.float32(2688.0)
LEAST_DECODE: Final = np.float32(2.0**-100)
MOST_ENCODE: Final = np.float32(2.0**100)
SMALLEST_BLOCK_SCALE: Final = np.float32(2.0**-6)
LARGEST_F32: Final = np.float32(np.finfo(np.float32).max)
_ONE: Final = np.float32(1)


@dataclass(frozen=True)
class Nv:
    """One of the formats above.

    Attributes
    ----------
    name
        As in the registry.
    block
        16 or 32 values.
    order, global_scale, zero
        One of `ORDERS`, `GLOBAL_SCALES`, `ZERO_SCALES`.
    nibbles
        ``pairs`` or ``halves``.
    """

    name: str
    block: int
    order: str = "inverse-first"
    global_scale: str = "decode"
    zero: str = "floor"
    nibbles: str = "pairs"

    @property
    def layout(self) -> RowLayout:
        """Elements, then one E4M3 byte a block, then the f32 of the row."""
        return RowLayout(4, self.block, 1, 4, nibbles=self.nibbles)

    def row_scales(self, largest: F32) -> tuple[F32, F32]:
        """Give (D, E) of rows from their largest magnitude, shapes (rows, 1)."""
        empty = largest == 0
        a = np.where(empty, _ONE, largest)
        with np.errstate(over="ignore"):
            if self.global_scale == "decode":
                decode = np.maximum(a / FULL_RANGE, LEAST_DECODE)
                encode = _ONE / decode
            else:
                encode = np.minimum(FULL_RANGE / a, MOST_ENCODE)
                decode = _ONE / encode
        return np.where(empty, _ONE, decode), np.where(empty, _ONE, encode)

    def block_scales(self, largest: F32, decode: F32, encode: F32) -> U8:
        """Give the E4M3 byte of each block, from largest magnitude and row scales."""
        sixth = largest / E2M1_MAX
        q = sixth / decode if self.global_scale == "decode" else sixth * encode
        if self.zero == "floor":
            q = np.maximum(q, SMALLEST_BLOCK_SCALE)
        byte = e4m3fn_encode(q.view(np.uint32))
        if self.zero == "eighth":
            byte[byte == 0] = EIGHTH
        return byte

    def encode_rows(self, bits: U32) -> U8:
        """Encode patterns (rows, width) to wire bytes (rows, row_bytes)."""
        rows, width = bits.shape
        blocks = self.layout.split(bits)
        largest = (blocks & MAGNITUDE).max(axis=2)
        broken = largest >= INFINITY
        x = np.where(broken[:, :, None], np.uint32(0), blocks).view(np.float32)
        a = np.where(broken, np.uint32(0), largest).view(np.float32)
        decode, encode = self.row_scales(a.max(axis=1, keepdims=True))
        byte = self.block_scales(a, decode, encode)
        scale = E4M3FN_VALUES[byte].view(np.float32)
        y = self._scaled(x, scale[:, :, None], decode[:, :, None], encode[:, :, None])
        codes = e2m1_encode(y.view(np.uint32)).reshape(rows, -1)[:, :width]
        stored = decode if self.global_scale == "decode" else encode
        byte[broken] = E4M3FN_NAN
        return np.concatenate(
            [self.layout.pack(codes), byte, bytes_of_f32(stored)], axis=1
        )

    def _scaled(self, x: F32, scale: F32, decode: F32, encode: F32) -> F32:
        none = scale == 0
        s = np.where(none, _ONE, scale)
        with np.errstate(over="ignore", under="ignore"):
            if self.order == "divide":
                y = x / (s * decode)
            elif self.order == "inverse-first":
                y = x * (encode / s)
            else:
                y = x * (_ONE / (s * decode))
            return np.where(none, x * LARGEST_F32, y)

    def decode_rows(self, wire: U8, width: int) -> U32:
        """Decode wire bytes (rows, row_bytes) to patterns (rows, width)."""
        elements = E2M1_VALUES[self.layout.unpack(wire, width)].view(np.float32)
        scale = E4M3FN_VALUES[self.layout.scales(wire, width)].view(np.float32)
        row = self.layout.row_scales(wire)
        with np.errstate(all="ignore"):
            decode = row if self.global_scale == "decode" else _ONE / row
            total = scale * decode
            finite = np.isfinite(total)
            total = np.where(finite, total, np.float32(0))
            values = elements * widen(total, self.block, width)
        good = widen(finite, self.block, width)
        return np.where(good, values.view(np.uint32), NAN_BITS)

    def facts(self) -> dict[str, str]:
        """Return the choices in words."""
        stored = "D = A / 2688" if self.global_scale == "decode" else "E = 2688 / A"
        quotient = "/ D" if self.global_scale == "decode" else "* E"
        floors = {
            "floor": "at least 2^-6 (0x08)",
            "zero": "0x00 where it rounds to 0",
            "eighth": "0x20 where it would round to 0",
        }
        orders = {
            "inverse-first": "y = x * (E / s)",
            "product-inverse": "y = x * (1 / (s * D))",
            "divide": "y = x / (s * D)",
        }
        return {
            "element": "E2M1",
            "scale": f"E4M3FN, one per {self.block}; f32 a row",
            "scale_rule": f"{stored} stored; s = E4M3FN((a / 6) {quotient})",
            "block_scale": floors[self.zero],
            "order": orders[self.order],
            "largest": "6 * 448 * D",
            "clip": "at 6",
            "ties": "to even",
            "zero": "row scale 1",
            "nan": "scale byte 0x7f, elements 0: the block is NaN as a whole",
            "infinity": "as NaN",
            "decode": "element * (s * D)",
            "nibbles": self.nibbles,
            "variants": "order=inverse-first,product-inverse,divide; "
            "global_scale=decode,encode; zero=floor,zero,eighth; nibbles=pairs,halves",
        }
