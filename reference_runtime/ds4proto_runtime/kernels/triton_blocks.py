"""One fused Triton kernel a direction for the scaled formats: a program a row.

A program loads its row once, as a tile of blocks, finds maxima, scales and codes in
registers, and stores elements and scales. Rows wider than `WIDEST` are left to eager
torch. Bit-equal to the definition by construction; proven with Triton's interpreter.
"""

from __future__ import annotations

from typing import Any, Final

# Triton has no type hints, hence the ignores behind its decorators.
import triton
import triton.language as tl

from ds4proto.codec.layout import RowFormat
from ds4proto.codec.mx import SCALE_RULES, Mx
from ds4proto.codec.nv import ORDERS, ZERO_SCALES, Nv
from ds4proto.codec.row_scaled import RowScaled
from ds4proto.codec.torch_blocks import DeviceKernels, register_device
from ds4proto_runtime.kernels.triton_lanes import (
    FP4_AWAY,
    FP4_DOWN,
    FP4_EVEN,
    FP8,
    INT,
    MX,
    NV,
    ROW,
    as_bits,
    as_float,
    divide,
    e2m1,
    e2m1_value,
    e4m3fn,
    e4m3fn_value,
    load_f32,
    power,
    store_f32,
)

WIDEST: Final = 1 << 14
"""Values of the widest row that one program holds."""


@triton.jit  # type: ignore[untyped-decorator]
def _mx_byte(largest: Any, element: tl.constexpr, rule: tl.constexpr) -> Any:
    emax: tl.constexpr = 8 if element == 1 else 2
    if rule == 2:  # rceil
        limit = tl.full(largest.shape, 448.0 if element == 1 else 6.0, tl.float32)
        q = as_bits(divide(as_float(largest), limit))
        byte = (q >> 23) + tl.where((q & 0x7FFFFF) != 0, 1, 0)
        byte = tl.where(q <= 0x00400000, 0, tl.minimum(byte, 254))
    else:
        if rule == 1:  # even
            largest = largest + (524288 if element == 1 else 2097152)
        exponent = largest >> 23
        if rule == 3:  # ceil
            exponent += tl.where((largest & 0x7FFFFF) != 0, 1, 0)
        byte = tl.maximum(exponent - emax, 0)
    return byte


@triton.jit  # type: ignore[untyped-decorator]
def _nv_row(a: Any, one: Any, encode_stored: tl.constexpr) -> Any:
    top = tl.max(a, axis=0)
    empty = top == 0.0
    top = one * tl.where(empty, 1.0, top)
    if encode_stored:
        encode = tl.minimum(divide(one * 2688.0, top), 1.2676506002282294e30)
        encode = tl.where(empty, one, encode)
        decode = divide(one, encode)
    else:
        decode = tl.maximum(divide(top, one * 2688.0), 7.888609052210118e-31)
        decode = tl.where(empty, one, decode)
        encode = divide(one, decode)
    return decode, encode


@triton.jit  # type: ignore[untyped-decorator]
def _nv_byte(
    a: Any,
    one: Any,
    decode: Any,
    encode: Any,
    zero: tl.constexpr,
    encode_stored: tl.constexpr,
) -> Any:
    sixth = divide(a, one * 6.0)
    q = sixth * encode if encode_stored else divide(sixth, decode)
    if zero == 0:  # floor
        q = tl.maximum(q, 0.015625)
    byte = e4m3fn(as_bits(q))
    if zero == 2:  # eighth
        byte = tl.where(byte == 0, 0x20, byte)
    return byte


@triton.jit  # type: ignore[untyped-decorator]
def _codes(y: Any, element: tl.constexpr, lowest: Any, highest: Any) -> Any:
    if element == 0:
        y = tl.minimum(tl.maximum(y, lowest), highest)
        codes = as_bits(y + 12582912.0) & 0xFF
    elif element == 1:
        codes = e4m3fn(as_bits(y))
    else:
        codes = e2m1(as_bits(y), element)
    return codes


@triton.jit  # type: ignore[untyped-decorator]
def _nibbles(
    codes: Any, halves: tl.constexpr, block: tl.constexpr, tile: tl.constexpr
) -> Any:
    if halves:
        split = tl.reshape(codes, (tile // block, 2, block // 2))
        codes = tl.permute(split, (0, 2, 1))
    return tl.split(tl.reshape(codes, (tile // 2, 2)))


@triton.jit  # type: ignore[untyped-decorator]
def _encode(
    x: Any,
    wire: Any,
    width: Any,
    row_bytes: Any,
    element_bytes: Any,
    blocks: Any,
    divisor: Any,
    lowest: Any,
    highest: Any,
    form: tl.constexpr,
    element: tl.constexpr,
    four_bits: tl.constexpr,
    halves: tl.constexpr,
    rule: tl.constexpr,
    zero: tl.constexpr,
    encode_stored: tl.constexpr,
    block: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    wire += row * row_bytes
    b = tl.arange(0, tile // block)
    at = b[:, None] * block + tl.arange(0, block)[None, :]
    # A short last block may share its tile with nothing: the rest reads as zero.
    bits = tl.load(x + row * width + at, mask=at < width, other=0)
    largest = tl.max(bits & 0x7FFFFFFF, axis=1)
    real = b < blocks
    one = tl.full(largest.shape, 1.0, tl.float32)
    scales = wire + element_bytes
    if form == 1:  # MX
        broken = largest > 0x7F800000
        byte = _mx_byte(tl.where(broken, 0, largest), element, rule)
        factor = power(254 - byte)
        stored = tl.where(broken, 0xFF, byte)
        tl.store(scales + b, stored.to(tl.uint8), mask=real)
    else:
        broken = largest >= 0x7F800000
        a = as_float(tl.where(broken, 0, largest))
        if form == 0:  # ROW
            least = as_float(tl.full(largest.shape, 0x00800000, tl.int32))
            scale = tl.maximum(divide(a, one * divisor), least)
            factor = scale if rule == 0 else divide(one, scale)
            stored = tl.where(broken, 0x7FC00000, as_bits(scale))
            store_f32(scales + 4 * b, stored, real)
        else:  # NV
            decode, encode = _nv_row(a, one, encode_stored)
            byte = _nv_byte(a, one, decode, encode, zero, encode_stored)
            none = byte == 0
            s = tl.where(none, one, e4m3fn_value(byte))
            factor = divide(encode, s) if rule == 0 else s * decode
            if rule == 1:
                factor = divide(one, factor)
            stored = tl.where(broken, 0x7F, byte)
            tl.store(scales + b, stored.to(tl.uint8), mask=real)
            number = as_bits(encode if encode_stored else decode)
            store_f32(scales + blocks + 0 * b, number, b == 0)
    kept = as_float(tl.where(broken[:, None], 0, bits))
    divides: tl.constexpr = (form == 0 and rule == 0) or (form == 2 and rule == 2)
    # A tile is divided, or multiplied: the choice is made when the kernel is compiled.
    y = divide(kept, factor[:, None]) if divides else kept * factor[:, None]
    if form == 2:
        y = tl.where(none[:, None], kept * 3.4028234663852886e38, y)
    codes = _codes(y, element, lowest, highest)
    if four_bits:
        low, high = _nibbles(codes, halves, block, tile)
        place = tl.arange(0, tile // 2)
        packed = (low & 15) | ((high & 15) << 4)
        tl.store(wire + place, packed.to(tl.uint8), mask=place < element_bytes)
    else:
        tl.store(wire + at, codes.to(tl.uint8), mask=at < width)


@triton.jit  # type: ignore[untyped-decorator]
def _decode(
    wire: Any,
    x: Any,
    width: Any,
    row_bytes: Any,
    element_bytes: Any,
    blocks: Any,
    form: tl.constexpr,
    element: tl.constexpr,
    four_bits: tl.constexpr,
    halves: tl.constexpr,
    encode_stored: tl.constexpr,
    block: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    wire += row * row_bytes
    b = tl.arange(0, tile // block)
    at = b[:, None] * block + tl.arange(0, block)[None, :]
    real = b < blocks
    scales = wire + element_bytes
    if form == 0:  # ROW
        scale = load_f32(scales + 4 * b, real)
    else:
        byte = tl.load(scales + b, mask=real, other=0).to(tl.int32)
        if form == 1:  # MX
            infinity = as_float(tl.full(byte.shape, 0x7F800000, tl.int32))
            scale = tl.where(byte == 0xFF, infinity, power(byte))
        else:
            stored = load_f32(wire + row_bytes - 4 + 0 * b, b >= 0)
            if encode_stored:
                stored = divide(tl.full(byte.shape, 1.0, tl.float32), stored)
            scale = e4m3fn_value(byte) * stored
    finite = (as_bits(scale) & 0x7FFFFFFF) < 0x7F800000
    scale = tl.where(finite, scale, 0.0)
    if four_bits:
        place = tl.arange(0, tile // 2)
        packed = tl.load(wire + place, mask=place < element_bytes, other=0).to(tl.int32)
        both = tl.join(packed & 15, packed >> 4)
        if halves:
            split = tl.reshape(both, (tile // block, block // 2, 2))
            both = tl.permute(split, (0, 2, 1))
        codes = tl.reshape(both, (tile // block, block))
    else:
        codes = tl.load(wire + at, mask=at < width, other=0).to(tl.int32)
    if element == 0:
        half: tl.constexpr = 8 if four_bits else 128
        value = ((codes ^ half) - half).to(tl.float32)
    elif element == 1:
        value = e4m3fn_value(codes)
    else:
        value = e2m1_value(codes)
    result = as_bits(value * scale[:, None])
    result = tl.where(finite[:, None], result, 0x7FC00000)
    tl.store(x + row * width + at, result, mask=at < width)


def _tile(form: RowFormat, width: int) -> tuple[int, int]:
    """Return block and tile, powers of two; a row-scaled row is one block."""
    block = form.layout.block
    tile = max(triton.next_power_of_2(width), block, 2)
    return block or tile, tile


def _kind(form: RowFormat) -> tuple[int, int] | None:
    fp4 = {"even": FP4_EVEN, "away": FP4_AWAY, "down": FP4_DOWN}
    if isinstance(form, RowScaled):
        return ROW, FP8 if form.name == "fp8" else INT
    if isinstance(form, Mx):
        return MX, FP8 if form.element == "e4m3fn" else fp4[form.rounding]
    return (NV, FP4_EVEN) if isinstance(form, Nv) else None


def encode(form: RowFormat, x: Any, wire: Any) -> bool:
    """Encode f32 (rows, width) to bytes (rows, row bytes); False if not for us."""
    import torch

    rows, width = x.shape
    kind = _kind(form)
    if kind is None or width > WIDEST:
        return False
    block, tile = _tile(form, width)
    layout = form.layout
    rule = zero = stored = 0
    numbers = (1.0, 0.0, 0.0)
    if isinstance(form, RowScaled):
        rule = ("divide", "reciprocal").index(form.order)
        numbers = (form.divisor, float(form.lowest), float(form.highest))
    elif isinstance(form, Mx):
        rule = SCALE_RULES.index(form.scale)
    elif isinstance(form, Nv):
        rule, zero = ORDERS.index(form.order), ZERO_SCALES.index(form.zero)
        stored = int(form.global_scale == "encode")
    _encode[(rows,)](
        x.view(torch.int32),
        wire,
        width,
        layout.row_bytes(width),
        layout.element_bytes(width),
        layout.blocks(width),
        *numbers,
        form=kind[0],
        element=kind[1],
        four_bits=layout.element_bits == 4,
        halves=layout.nibbles == "halves",
        rule=rule,
        zero=zero,
        encode_stored=stored,
        block=block,
        tile=tile,
        enable_fp_fusion=False,
    )
    return True


def decode(form: RowFormat, wire: Any, x: Any) -> bool:
    """Decode bytes (rows, row bytes) to f32 (rows, width); False if not for us."""
    import torch

    rows, width = x.shape
    kind = _kind(form)
    if kind is None or width > WIDEST:
        return False
    block, tile = _tile(form, width)
    layout = form.layout
    _decode[(rows,)](
        wire,
        x.view(torch.int32),
        width,
        layout.row_bytes(width),
        layout.element_bytes(width),
        layout.blocks(width),
        form=kind[0],
        element=kind[1],
        four_bits=layout.element_bits == 4,
        halves=layout.nibbles == "halves",
        encode_stored=int(isinstance(form, Nv) and form.global_scale == "encode"),
        block=block,
        tile=tile,
        enable_fp_fusion=False,
    )
    return True


def register() -> None:
    """Let the codecs use these kernels for CUDA tensors."""
    register_device("cuda", DeviceKernels(encode, decode))
