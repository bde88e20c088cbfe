"""MXFP8, MXFP4 and E2M1 with E8M0 per 16: one power of two a block. The definition.

Encoding; ``a`` is the largest magnitude of the block, as an f32 pattern with exponent
field ``E(a)`` and 23 mantissa bits; ``emax`` is 2 for E2M1 and 8 for E4M3FN:

1. The scale byte ``b``, by the variant ``scale``:

   - ``floor``: ``b = E(a) - emax``;
   - ``even``: half a unit of the element's last mantissa bit is added to the pattern of
     ``a`` first (2^21 for E2M1, 2^19 for E4M3FN), then as ``floor``;
   - ``ceil``: ``b = E(a) - emax``, and one more if the mantissa of ``a`` is not 0;
   - ``rceil``: ``q = a / m`` by IEEE f32 division (m = 6 or 448), then ``b = E(q)``,
     and one more if the mantissa of ``q`` is not 0; 0 for ``q <= 2^-127``;

   clipped to 0 .. 254. ``b`` stands for 2^(b - 127).
2. ``y = x * 2^(127 - b)`` in f32, which is exact unless it falls below f32's normal
   range, where every element is 0 already.
3. The element nearest to ``y``, clipped at 6 or 448, ties by the variant ``rounding``:
   ``even``, ``away`` (from zero), or ``down`` (to the smaller magnitude, zero without
   sign; E2M1 only). MXFP8 always rounds ties to even. The sign of zero stays.

A block with a NaN has ``b = 0xff`` and elements 0. Infinity follows the steps as they
are: ``E = 255``, so that ``b`` is 253 (floor, even, ceil; 247 with E4M3FN) or 254
(rceil), infinity becomes the largest element, and decodes to infinity again; the other
values of its block become 0, or a few steps if they are next to f32's limit. A block of
zeros has ``b = 0``.

Decoding: ``value = element * 2^(b - 127)`` in f32; ``b = 0xff`` makes every value of
the block NaN (0x7fc00000), as does an E4M3FN element 0x7f or 0xff that value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ds4proto.codec.definition import INFINITY, MAGNITUDE, U8, U32
from ds4proto.codec.elements import (
    E2M1_EMAX,
    E2M1_MAX,
    E2M1_VALUES,
    E4M3FN_EMAX,
    E4M3FN_MAX,
    E4M3FN_VALUES,
    E8M0_NAN,
    NAN_BITS,
    e2m1_encode,
    e4m3fn_encode,
)
from ds4proto.codec.layout import RowLayout, widen

SCALE_RULES: Final = ("floor", "even", "rceil", "ceil")
_MANTISSA: Final = np.uint32(0x7FFFFF)


@dataclass(frozen=True)
class Mx:
    """One of the formats above.

    Attributes
    ----------
    name
        As in the registry.
    element
        ``e4m3fn`` or ``e2m1``.
    block
        32 or 16 values.
    scale
        One of `SCALE_RULES`.
    rounding
        One of `ds4proto.codec.elements.ROUNDINGS`.
    nibbles
        ``pairs`` or ``halves``.
    """

    name: str
    element: str
    block: int
    scale: str = "floor"
    rounding: str = "even"
    nibbles: str = "pairs"

    @property
    def layout(self) -> RowLayout:
        """Elements, then one E8M0 byte a block."""
        bits = 8 if self.element == "e4m3fn" else 4
        return RowLayout(bits, self.block, 1, nibbles=self.nibbles)

    @property
    def emax(self) -> int:
        """Exponent of the largest element."""
        return E4M3FN_EMAX if self.element == "e4m3fn" else E2M1_EMAX

    def scale_bytes(self, largest: U32) -> U8:
        """Give the E8M0 byte of each pattern of a block's largest magnitude."""
        nan = largest > INFINITY
        pattern = np.where(nan, np.uint32(0), largest)
        if self.scale == "rceil":
            limit = E4M3FN_MAX if self.element == "e4m3fn" else E2M1_MAX
            q = (pattern.view(np.float32) / limit).view(np.uint32)
            byte = (q >> 23) + ((q & _MANTISSA) > 0)
            byte = np.where(q <= 0x00400000, np.uint32(0), np.minimum(byte, 254))
        else:
            if self.scale == "even":
                step = 1 << (19 if self.element == "e4m3fn" else 21)
                pattern = pattern + np.uint32(step)
            exponent = pattern >> 23
            if self.scale == "ceil":
                exponent = exponent + ((pattern & _MANTISSA) > 0)
            emax = np.uint32(self.emax)
            byte = np.maximum(exponent, emax) - emax
        return np.where(nan, E8M0_NAN, byte).astype(np.uint8)

    def encode_rows(self, bits: U32) -> U8:
        """Encode patterns (rows, width) to wire bytes (rows, row_bytes)."""
        rows, width = bits.shape
        blocks = self.layout.split(bits)
        byte = self.scale_bytes((blocks & MAGNITUDE).max(axis=2))
        broken = (byte == E8M0_NAN)[:, :, None]
        x = np.where(broken, np.uint32(0), blocks).view(np.float32)
        with np.errstate(over="ignore", under="ignore"):
            y = (x * inverse_power(byte)[:, :, None]).view(np.uint32)
        if self.element == "e4m3fn":
            codes = e4m3fn_encode(y)
        else:
            codes = e2m1_encode(y, self.rounding)
        elements = self.layout.pack(codes.reshape(rows, -1)[:, :width])
        return np.concatenate([elements, byte], axis=1)

    def decode_rows(self, wire: U8, width: int) -> U32:
        """Decode wire bytes (rows, row_bytes) to patterns (rows, width)."""
        table = E4M3FN_VALUES if self.element == "e4m3fn" else E2M1_VALUES
        elements = table[self.layout.unpack(wire, width)].view(np.float32)
        byte = widen(self.layout.scales(wire, width), self.block, width)
        with np.errstate(over="ignore", under="ignore"):
            values = elements * power(byte)
        return np.where(byte == E8M0_NAN, NAN_BITS, values.view(np.uint32))

    def facts(self) -> dict[str, str]:
        """Return the choices in words."""
        rules = {
            "floor": f"floor(log2 a) - {self.emax}",
            "even": f"floor(log2 of a rounded like an element) - {self.emax}",
            "rceil": f"ceil(log2(a / {'448' if self.emax == E4M3FN_EMAX else '6'}))",
            "ceil": f"ceil(log2 a) - {self.emax}",
        }
        fp8 = self.element == "e4m3fn"
        variants = "scale=floor,even,rceil,ceil"
        if not fp8:
            variants += "; rounding=even,away,down; nibbles=pairs,halves"
        ties = {"even": "to even", "away": "away from zero", "down": "towards zero"}
        return {
            "element": "E4M3FN" if fp8 else "E2M1",
            "scale": f"E8M0, one per {self.block}",
            "scale_rule": f"{self.scale}: {rules[self.scale]}",
            "order": "y = x * 2^(127 - b)",
            "largest": "448 * 2^127" if fp8 else "6 * 2^127",
            "clip": "at 448" if fp8 else "at 6",
            "ties": ties[self.rounding],
            "zero": "scale byte 0x00",
            "nan": "scale byte 0xff, elements 0: the block is NaN as a whole",
            "infinity": "largest element; decodes to infinity",
            "decode": "element * 2^(b - 127)",
            "nibbles": "-" if fp8 else self.nibbles,
            "variants": variants,
        }


def power(byte: U8) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Give 2^(byte - 127) in f32, also for byte 0, a subnormal; 1 for 0xff."""
    wide = byte.astype(np.uint32)
    pattern = np.where(wide == 0, np.uint32(0x00400000), wide << 23)
    return np.where(wide == E8M0_NAN, np.uint32(0x3F800000), pattern).view(np.float32)


def inverse_power(byte: U8) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Give 2^(127 - byte) in f32, also for byte 254, a subnormal; 1 for 0xff."""
    return power(np.where(byte == E8M0_NAN, byte, np.uint8(254) - byte))
