"""MXFP4 as GGUF files hold it: blocks of 17 bytes, nibbles in half-block order.

A ggml block of 32 values is one E8M0 byte and 16 bytes, byte ``j`` with element ``j``
low and element ``j + 16`` high. Our wire keeps a row's elements together, element
``2i`` low and ``2i + 1`` high (``nibbles=pairs``), and its scales behind them. Values
and scale bytes mean the same, so that a conversion only moves bits, and is exact both
ways. Reading one order as the other gives right sizes, right scales and wrong places.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ds4proto.codec import arrays
from ds4proto.codec.base import CodecError, check_count
from ds4proto.codec.definition import U8
from ds4proto.codec.elements import (
    E2M1_VALUES,
    pack_halves,
    pack_pairs,
    unpack_halves,
    unpack_pairs,
)

BLOCK: Final = 32
GGML_BLOCK_BYTES: Final = 17
_WIRE_BLOCK_BYTES: Final = 17
_NAME: Final = "mxfp4"


def pairs_to_halves(packed: Any, block: int = BLOCK) -> U8:
    """Reorder packed nibbles of whole blocks from our order to ggml's."""
    flat = _nibble_bytes(packed, block)
    return pack_halves(unpack_pairs(flat, 2 * flat.size), block)


def halves_to_pairs(packed: Any, block: int = BLOCK) -> U8:
    """Reorder packed nibbles of whole blocks from ggml's order to ours."""
    return pack_pairs(unpack_halves(_nibble_bytes(packed, block), block))


def from_ggml(data: Any, *, values: int, rows: int = 1) -> U8:
    """Turn ggml MXFP4 blocks into a payload of the codec ``mxfp4``, bit by bit.

    Parameters
    ----------
    data
        ``values / 32 * 17`` bytes.
    values, rows
        As for `ds4proto.codec.base.Codec.decode`; a row is whole blocks.

    Raises
    ------
    CodecError
        Wrong size, or rows that are not whole blocks.
    """
    blocks = _blocks(values, rows)
    source = arrays.wire_in(_NAME, data, rows * blocks * GGML_BLOCK_BYTES)
    split = source.reshape(rows, blocks, GGML_BLOCK_BYTES)
    packed = halves_to_pairs(split[:, :, 1:].reshape(-1)).reshape(rows, -1)
    return np.concatenate([packed, split[:, :, 0]], axis=1).reshape(-1)


def to_ggml(wire: Any, *, values: int, rows: int = 1) -> U8:
    """Turn a payload of the codec ``mxfp4`` into ggml MXFP4 blocks, bit by bit.

    Parameters and errors as for `from_ggml`.
    """
    blocks = _blocks(values, rows)
    source = arrays.wire_in(_NAME, wire, rows * blocks * _WIRE_BLOCK_BYTES)
    split = source.reshape(rows, -1)
    elements = blocks * BLOCK // 2
    packed = pairs_to_halves(np.ascontiguousarray(split[:, :elements]).reshape(-1))
    halves = packed.reshape(rows, blocks, -1)
    scales = split[:, elements:, None]
    return np.concatenate([scales, halves], axis=2).reshape(-1)


def nibble_order(packed: Any, expected: Any, block: int = BLOCK) -> str:
    """Tell in which order packed E2M1 nibbles hold known values.

    Parameters
    ----------
    packed
        Bytes of whole blocks, without scales.
    expected
        float32, the values that the elements stand for before any scale.

    Returns
    -------
    ``pairs`` (ours), ``halves`` (ggml's), ``either`` if the values do not tell them
    apart, or ``neither``.

    Raises
    ------
    CodecError
        Sizes that do not fit.
    """
    flat = _nibble_bytes(packed, block)
    wanted = arrays.f32_bits(_NAME, expected)
    if wanted.size != 2 * flat.size:
        raise CodecError(
            _NAME,
            "number of values",
            expected=f"{2 * flat.size}, two a byte",
            found=str(wanted.size),
            next_step="pass the values of the same blocks",
        )
    fits = {
        "pairs": np.array_equal(E2M1_VALUES[unpack_pairs(flat, wanted.size)], wanted),
        "halves": np.array_equal(E2M1_VALUES[unpack_halves(flat, block)], wanted),
    }
    found = [order for order, fit in fits.items() if fit]
    return "either" if len(found) == 2 else found[0] if found else "neither"


def _nibble_bytes(packed: Any, block: int) -> U8:
    if block < 2 or block % 2:
        raise CodecError(
            _NAME,
            "block",
            expected="an even number of values",
            found=str(block),
            next_step="MXFP4 has 32, NVFP4 has 16",
        )
    flat = (
        packed.reshape(-1)
        if isinstance(packed, np.ndarray) and packed.dtype == np.uint8
        else np.frombuffer(packed, dtype=np.uint8)
    )
    if flat.size % (block // 2):
        raise CodecError(
            _NAME,
            "nibbles",
            expected=f"whole blocks of {block // 2} bytes",
            found=f"{flat.size} bytes",
            next_step="leave scale bytes out, and pass whole blocks",
        )
    return flat


def _blocks(values: int, rows: int) -> int:
    check_count(_NAME, values, rows)
    if values // rows % BLOCK:
        raise CodecError(
            _NAME,
            "row width",
            expected=f"a multiple of {BLOCK}",
            found=str(values // rows),
            next_step="ggml has no short blocks",
        )
    return values // rows // BLOCK
