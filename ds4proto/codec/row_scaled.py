"""INT8, FP8 and INT4 with one f32 scale for each row, or each 32 values: definition.

Encoding, every step one f32 operation rounded to nearest even; ``a`` is the largest
magnitude of the row (or block of 32):

1. ``s = max(a / divisor, 2^-126)``: divisor 127 or 127.5 (int8), 7 or 7.5 (int4),
   448 (fp8); an IEEE division, not a product with the reciprocal;
2. ``order=divide``: ``y = x / s``; ``order=reciprocal``: ``r = 1 / s; y = x * r``;
3. int8, int4: the integer nearest to ``y``, ties to even, clipped to
   ``lowest`` .. 127 (or 7), two's complement; fp8: the E4M3FN code nearest to ``y``,
   ties to even, clipped at 448, with the sign of ``x`` on zero too.

If a value is NaN or infinite, ``s`` is NaN (0x7fc00000), and every element 0: the
receiver sees that the row is broken. A row of zeros has elements 0 (fp8: 0x00 and 0x80)
and ``s = 2^-126``.

Decoding: ``value = element * s`` in f32; if ``s`` is not finite, all values are NaN
(0x7fc00000). Codes that no encoder sends (-128, nibble 8) decode like any other; an fp8
element 0x7f or 0xff is NaN (0x7fc00000). Products may overflow to infinity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ds4proto.codec.definition import INFINITY, MAGNITUDE, U8, U32
from ds4proto.codec.elements import (
    E4M3FN_VALUES,
    NAN_BITS,
    e4m3fn_encode,
    int4_decode,
    integer_encode,
)
from ds4proto.codec.layout import RowLayout, bytes_of_f32, f32_of_bytes, widen

SMALLEST_SCALE: Final = np.float32(2.0**-126)


@dataclass(frozen=True)
class RowScaled:
    """One of the formats above.

    Attributes
    ----------
    name
        ``int8``, ``fp8`` or ``int4``.
    divisor
        What the largest magnitude is divided by.
    lowest, highest
        Clip of the integers; not used by fp8.
    order
        ``divide`` or ``reciprocal``.
    block
        0 for a scale a row, or 32.
    """

    name: str
    divisor: float
    lowest: int
    highest: int
    order: str = "divide"
    block: int = 0

    @property
    def layout(self) -> RowLayout:
        """Elements, then one f32 scale a row or block."""
        return RowLayout(4 if self.name == "int4" else 8, self.block, 4)

    def encode_rows(self, bits: U32) -> U8:
        """Encode patterns (rows, width) to wire bytes (rows, row_bytes)."""
        rows, width = bits.shape
        blocks = self.layout.split(bits)
        largest = (blocks & MAGNITUDE).max(axis=2, keepdims=True)
        broken = largest >= INFINITY
        x = np.where(broken, np.uint32(0), blocks).view(np.float32)
        a = np.where(broken, np.uint32(0), largest).view(np.float32)
        scale = np.maximum(a / np.float32(self.divisor), SMALLEST_SCALE)
        y = x / scale if self.order == "divide" else x * (np.float32(1) / scale)
        if self.name == "fp8":
            codes = e4m3fn_encode(y.view(np.uint32))
        else:
            codes = integer_encode(y, self.lowest, self.highest)
        stored = np.where(broken, NAN_BITS, scale.view(np.uint32))[:, :, 0]
        elements = self.layout.pack(codes.reshape(rows, -1)[:, :width])
        scales = bytes_of_f32(np.ascontiguousarray(stored).view(np.float32))
        return np.concatenate([elements, scales], axis=1)

    def decode_rows(self, wire: U8, width: int) -> U32:
        """Decode wire bytes (rows, row_bytes) to patterns (rows, width)."""
        codes = self.layout.unpack(wire, width)
        if self.name == "fp8":
            elements = E4M3FN_VALUES[codes].view(np.float32)
        elif self.name == "int4":
            elements = int4_decode(codes)
        else:
            elements = codes.view(np.int8).astype(np.float32)
        scales = widen(f32_of_bytes(self.layout.scales(wire, width)), self.block, width)
        finite = np.isfinite(scales)
        with np.errstate(over="ignore", invalid="ignore"):
            values = elements * np.where(finite, scales, np.float32(0))
        return np.where(finite, values.view(np.uint32), NAN_BITS)

    def facts(self) -> dict[str, str]:
        """Return the choices in words."""
        unit = "32 values" if self.block else "row"
        integer = self.name != "fp8"
        divide = self.order == "divide"
        return {
            "element": f"{self.name} two's complement" if integer else "E4M3FN",
            "scale": f"f32, little-endian, one a {unit}",
            "scale_rule": f"s = max(a / {self.divisor:g}, 2^-126), a the largest |x|",
            "order": "y = x / s" if divide else "r = 1 / s, y = x * r",
            "largest": f"{self.highest} s" if integer else "448 s",
            "clip": f"{self.lowest} .. {self.highest}" if integer else "at 448",
            "ties": "to even",
            "zero": "s = 2^-126, elements 0",
            "nan": f"the {unit} becomes NaN as a whole",
            "infinity": f"the {unit} becomes NaN as a whole",
            "decode": "element * s; all NaN if s is not finite",
            "variants": "order=divide,reciprocal"
            + ("" if not integer else "; divisor=" + (
                "127,127.5; lowest=-127,-128" if self.name == "int8"
                else "7,7.5; lowest=-7,-8; block=row,32")),
        }  # fmt: skip
