"""How a row of a scaled format lies on the wire: elements, scales, row scale.

A payload is its rows one after the other, each laid out on its own, so that a row can
be decoded, sent or lost without the others:

1. the elements, packed: 8 bits each, or two nibbles a byte;
2. one scale for each block of the row, in block order (one f32 where the block is the
   whole row);
3. for two-level formats the f32 scale of the row.

f32 scales are little-endian and not aligned. A row of no values has no bytes. Where the
width is no multiple of the block, the last block is short: its scale comes from the
values that exist, and only their elements are sent. Source: clauses CODEC-ROW-01 ff.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ds4proto.codec.base import CodecError
from ds4proto.codec.definition import U8, U32
from ds4proto.codec.elements import (
    pack_halves,
    pack_pairs,
    unpack_halves,
    unpack_pairs,
)

F32 = NDArray[np.float32]


@dataclass(frozen=True)
class RowLayout:
    """Sizes and places in one encoded row.

    Attributes
    ----------
    element_bits
        8 or 4.
    block
        Values that share a scale; 0 for all values of the row.
    scale_bytes
        1 (E8M0, E4M3) or 4 (f32).
    row_scale_bytes
        4 for two-level formats, else 0.
    nibbles
        ``pairs`` or ``halves``; the latter needs whole blocks.
    """

    element_bits: int
    block: int
    scale_bytes: int
    row_scale_bytes: int = 0
    nibbles: str = "pairs"

    def element_bytes(self, width: int) -> int:
        """Return the bytes of the packed elements of ``width`` values."""
        return (width * self.element_bits + 7) // 8

    def blocks(self, width: int) -> int:
        """Return the number of scales in a row of ``width`` values, short one too."""
        if width == 0:
            return 0
        return -(-width // self.block) if self.block else 1

    def row_bytes(self, width: int) -> int:
        """Return the bytes of one row; 0 for a row of no values."""
        if width == 0:
            return 0
        scales = self.blocks(width) * self.scale_bytes
        return self.element_bytes(width) + scales + self.row_scale_bytes

    def check_width(self, codec: str, width: int) -> None:
        """Refuse widths that the nibble order cannot hold."""
        if self.nibbles == "halves" and width % self.block:
            raise CodecError(
                codec,
                "row width",
                expected=f"a multiple of {self.block} with nibbles=halves",
                found=str(width),
                next_step="use nibbles=pairs, which takes any width",
            )

    def split(self, bits: U32) -> U32:
        """Return rows of patterns as (rows, blocks, block), padded with zeros."""
        rows, width = bits.shape
        block = self.block or width
        pad = self.blocks(width) * block - width
        if pad:
            bits = np.pad(bits, ((0, 0), (0, pad)))
        return bits.reshape(rows, self.blocks(width), block)

    def pack(self, codes: U8) -> U8:
        """Pack codes of shape (rows, width), one a byte, as the elements of rows."""
        if self.element_bits == 8:
            return codes
        if self.nibbles == "halves":
            return pack_halves(codes, self.block)
        return pack_pairs(codes & np.uint8(15))

    def unpack(self, wire: U8, width: int) -> U8:
        """Return the codes of rows of wire bytes, one a byte, shape (rows, width)."""
        packed = wire[:, : self.element_bytes(width)]
        if self.element_bits == 8:
            return packed
        if self.nibbles == "halves":
            return unpack_halves(packed, self.block)
        return unpack_pairs(packed, width)

    def scales(self, wire: U8, width: int) -> U8:
        """Return the scale bytes of rows, shape (rows, blocks * scale_bytes)."""
        start = self.element_bytes(width)
        return wire[:, start : start + self.blocks(width) * self.scale_bytes]

    def row_scales(self, wire: U8) -> F32:
        """Return the f32 row scales, shape (rows, 1)."""
        return f32_of_bytes(wire[:, wire.shape[1] - 4 :])


def f32_of_bytes(data: U8) -> F32:
    """Read little-endian f32 along the last axis, wherever they lie."""
    return np.ascontiguousarray(data).view("<f4").astype(np.float32)


def bytes_of_f32(values: F32) -> U8:
    """Write f32 of shape (rows, n) as little-endian bytes of shape (rows, 4 * n)."""
    return np.ascontiguousarray(values, dtype="<f4").view(np.uint8)


class RowFormat(Protocol):
    """A scaled format: what the numpy definition and the kernels both implement."""

    @property
    def name(self) -> str:
        """Name in the registry."""
        ...

    @property
    def layout(self) -> RowLayout:
        """Sizes and places in a row."""
        ...

    def encode_rows(self, bits: U32) -> U8:
        """Encode patterns (rows, width >= 1) to wire bytes (rows, row_bytes)."""
        ...

    def decode_rows(self, wire: U8, width: int) -> U32:
        """Decode wire bytes (rows, row_bytes) to patterns (rows, width)."""
        ...

    def facts(self) -> dict[str, str]:
        """Return the choices of the format in words."""
        ...


def widen(per_block: NDArray[Any], block: int, width: int) -> NDArray[Any]:
    """Repeat values of shape (rows, blocks) for each element: (rows, width)."""
    if not block:
        return np.broadcast_to(per_block, (per_block.shape[0], width))
    return np.repeat(per_block, block, axis=1)[:, :width]
