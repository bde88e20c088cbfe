"""Fit the compiled loops to the formats: numbers for choices, scratch, odd widths.

The loops want a width that is a multiple of the block (even, for nibbles). Any other
width goes through a copy with each row filled up with zeros, some rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ds4proto.codec.elementwise import STREAM_FROM
from ds4proto.codec.kernels import block_decode as decoders
from ds4proto.codec.kernels import block_encode as encoders
from ds4proto.codec.kernels import row_encode
from ds4proto.codec.kernels.passes import CHUNK, SUB
from ds4proto.codec.layout import RowFormat, RowLayout
from ds4proto.codec.mx import SCALE_RULES, Mx
from ds4proto.codec.nv import ORDERS, ZERO_SCALES, Nv
from ds4proto.codec.parallel import CHUNK as VALUES
from ds4proto.codec.row_scaled import RowScaled

Array = NDArray[Any]
Step = Callable[[Any, Any, int, int], None]


def steps(form: RowFormat) -> tuple[Step, Step]:
    """Return the compiled encoder and decoder of a format."""
    if isinstance(form, RowScaled):
        unit = form.block or (2 if form.layout.element_bits == 4 else 1)
        encode, decode = _row_scaled(form)
    elif isinstance(form, Mx):
        unit = form.block
        encode, decode = _mx(form)
    elif isinstance(form, Nv):
        unit = form.block
        encode, decode = _nv(form)
    else:
        raise TypeError(f"no kernels for {type(form).__name__}")
    return _any_width(encode, form.layout, unit, encodes=True), _any_width(
        decode, form.layout, unit, encodes=False
    )


def _shape(layout: RowLayout, rows: int, width: int) -> Array:
    return np.array(
        [
            rows,
            width,
            layout.row_bytes(width),
            layout.element_bytes(width),
            layout.block or width,
        ],
        dtype=np.uint32,
    )


def _choice(*numbers: int) -> Array:
    return np.array(numbers, dtype=np.uint32)


def _codes() -> tuple[Array, Array]:
    codes = np.zeros(CHUNK, dtype=np.uint8)
    return codes, codes.view(np.uint16)


def _row_scaled(form: RowScaled) -> tuple[Step, Step]:
    element = ("int8", "fp8", "int4").index(form.name)
    choice = _choice(element, form.order == "divide")
    numbers = np.array([form.divisor, form.lowest, form.highest], dtype=np.float32)
    layout = form.layout
    to_wire, to_values = row_encode.row_encoder(), decoders.row_decoder()

    def encode(bits: Array, wire: Array, rows: int, width: int) -> None:
        shape = _shape(layout, rows, width)
        to_wire(bits, wire, shape, choice, numbers, *_codes())

    def decode(wire: Array, bits: Array, rows: int, width: int) -> None:
        to_values(wire, bits, _shape(layout, rows, width), choice)

    return encode, decode


def _blocks(
    layout: RowLayout, kernel: Callable[..., None], to_wire: Array, to_values: Array
) -> tuple[Step, Step]:
    back = decoders.block_decoder()

    def encode(bits: Array, wire: Array, rows: int, width: int) -> None:
        subs = width // SUB
        largest = np.empty(subs, dtype=np.uint32)
        factor = np.empty(subs, dtype=np.float32)
        scaled = np.empty(min(width, CHUNK), dtype=np.uint32)
        shape = _shape(layout, rows, width)
        kernel(bits, wire, shape, to_wire, largest, factor, scaled, *_codes())

    def decode(wire: Array, bits: Array, rows: int, width: int) -> None:
        factor = np.empty(min(width, CHUNK) // SUB, dtype=np.float32)
        plain = np.empty(min(width, CHUNK), dtype=np.uint32)
        choice = np.append(to_values, np.uint32(bits.nbytes >= STREAM_FROM))
        shape = _shape(layout, rows, width)
        back(wire, bits, shape, choice, factor, plain)

    return encode, decode


def _mx(form: Mx) -> tuple[Step, Step]:
    fp4 = {"even": encoders.FP4_EVEN, "away": encoders.FP4_AWAY,
           "down": encoders.FP4_DOWN}  # fmt: skip
    fp8 = form.element == "e4m3fn"
    element = encoders.FP8 if fp8 else fp4[form.rounding]
    halves = form.nibbles == "halves"
    to_wire = _choice(SCALE_RULES.index(form.scale), element, halves)
    packing = decoders.HALVES if halves else decoders.PAIRS
    to_values = _choice(decoders.MX, decoders.FP8 if fp8 else packing)
    return _blocks(form.layout, encoders.mx_encoder(), to_wire, to_values)


def _nv(form: Nv) -> tuple[Step, Step]:
    halves, stored = form.nibbles == "halves", form.global_scale == "encode"
    to_wire = _choice(
        ORDERS.index(form.order), ZERO_SCALES.index(form.zero), halves, stored
    )
    to_values = _choice(
        decoders.NV_ENCODE if stored else decoders.NV_DECODE,
        decoders.HALVES if halves else decoders.PAIRS,
    )
    return _blocks(form.layout, encoders.nv_encoder(), to_wire, to_values)


def _any_width(step: Step, layout: RowLayout, unit: int, *, encodes: bool) -> Step:
    """Let ``step`` take every width, through zero-filled copies if need be."""

    def run(source: Array, target: Array, rows: int, width: int) -> None:
        if width % unit == 0:
            step(source, target, rows, width)
            return
        full = -(-width // unit) * unit
        a, b = source.reshape(rows, -1), target.reshape(rows, -1)
        some = max(1, VALUES // full)
        for start in range(0, rows, some):
            part = slice(start, min(start + some, rows))
            _padded(step, layout, (width, full), a[part], b[part], encodes)

    return run


def _padded(
    step: Step,
    layout: RowLayout,
    widths: tuple[int, int],
    source: Array,
    target: Array,
    encodes: bool,
) -> None:
    width, full = widths
    rows = source.shape[0]
    short, long = layout.element_bytes(width), layout.element_bytes(full)
    wire = np.zeros((rows, layout.row_bytes(full)), dtype=np.uint8)
    values = np.zeros((rows, full), dtype=np.uint32)
    if encodes:
        values[:, :width] = source
        step(values.reshape(-1), wire.reshape(-1), rows, full)
        target[:, :short] = wire[:, :short]
        target[:, short:] = wire[:, long:]
    else:
        wire[:, :short] = source[:, :short]
        wire[:, long:] = source[:, short:]
        step(wire.reshape(-1), values.reshape(-1), rows, full)
        target[:] = values[:, :width]
