"""Element codes in Triton: the functions of one lane that the row kernels share.

Integers and single f32 operations only. The kernels are compiled without contraction
to fused multiply-add (``enable_fp_fusion=False``), else sums here would round once
where the format rounds twice.
"""

from __future__ import annotations

from typing import Any

# Triton has no type hints, hence the ignores behind its decorators.
import triton
import triton.language as tl

# Formats, elements and choices, as numbers that the kernels are specialised for.
ROW, MX, NV = 0, 1, 2
INT, FP8, FP4_EVEN, FP4_AWAY, FP4_DOWN = 0, 1, 2, 3, 4


@triton.jit  # type: ignore[untyped-decorator]
def as_float(bits: Any) -> Any:
    """Read int32 patterns as f32."""
    return bits.to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def as_bits(x: Any) -> Any:
    """Read f32 as int32 patterns."""
    return x.to(tl.int32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def divide(x: Any, y: Any) -> Any:
    """Divide as IEEE rounds; the plain operator is an approximation on CUDA."""
    x, y = tl.broadcast(x, y)
    return tl.div_rn(x, y)


@triton.jit  # type: ignore[untyped-decorator]
def e4m3fn(bits: Any) -> Any:
    """Give the E4M3FN byte of f32 patterns that are not NaN, with sign."""
    m = tl.minimum(bits & 0x7FFFFFFF, 0x43E00000)
    normal = ((m + 0x7FFFF + ((m >> 20) & 1)) >> 20) - 960
    small = as_bits(as_float(tl.minimum(m, 0x3C800000)) + 24576.0) - 0x46C00000
    return tl.where(m >= 0x3C800000, normal, small) | ((bits >> 24) & 0x80)


@triton.jit  # type: ignore[untyped-decorator]
def e2m1(bits: Any, element: tl.constexpr) -> Any:
    """Give the E2M1 nibble of f32 patterns that are not NaN, with sign."""
    m = tl.minimum(bits & 0x7FFFFFFF, 0x40C00000)
    sign = (bits >> 28) & 8
    if element == 2:  # FP4_EVEN
        normal = ((m + 0x1FFFFF + ((m >> 22) & 1)) >> 22) - 252
        small = as_bits(as_float(tl.minimum(m, 0x3F800000)) + 6291456.0) - 0x4AC00000
        code = tl.where(m >= 0x3F800000, normal, small)
    else:
        # One more for a midpoint that goes up: FP4_AWAY.
        up: tl.constexpr = 1 if element == 3 else 0
        normal = ((m + 0x1FFFFF + up) >> 22) - 252
        half = tl.where(m >= 0x3E800001 - up, 1, 0)
        small = half + tl.where(m >= 0x3F400001 - up, 1, 0)
        code = tl.where(m >= 0x3F800000, normal, small)
        if element == 4:  # FP4_DOWN
            sign = tl.where(code == 0, 0, sign)
    return code | sign


@triton.jit  # type: ignore[untyped-decorator]
def e2m1_value(nibble: Any) -> Any:
    """Give the f32 value of E2M1 nibbles."""
    fields = (nibble & 7) << 22
    small = as_bits(as_float(fields + 0x3F800000) - 1.0)
    value = tl.where(fields >= 0x00800000, fields + 0x3F000000, small)
    return as_float(value | ((nibble >> 3) << 31))


@triton.jit  # type: ignore[untyped-decorator]
def e4m3fn_value(code: Any) -> Any:
    """Give the f32 value of E4M3FN bytes, NaN for 0x7f and 0xff."""
    fields = code & 0x7F
    moved = fields << 20
    small = as_bits(as_float(moved + 0x3C800000) - 0.015625)
    value = tl.where(fields >= 8, moved + 0x3C000000, small) | ((code >> 7) << 31)
    return as_float(tl.where(fields == 0x7F, 0x7FC00000, value))


@triton.jit  # type: ignore[untyped-decorator]
def power(byte: Any) -> Any:
    """Give 2^(byte - 127) for bytes 0 .. 254."""
    return as_float(tl.where(byte == 0, 0x00400000, byte << 23))


@triton.jit  # type: ignore[untyped-decorator]
def store_f32(place: Any, bits: Any, mask: Any) -> None:
    """Write patterns as four bytes each, least significant first, anywhere."""
    for k in tl.static_range(4):
        tl.store(place + k, ((bits >> (8 * k)) & 0xFF).to(tl.uint8), mask=mask)


@triton.jit  # type: ignore[untyped-decorator]
def load_f32(place: Any, mask: Any) -> Any:
    """Read what `store_f32` wrote, as f32."""
    bits = tl.load(place, mask=mask, other=0).to(tl.int32)
    for k in tl.static_range(1, 4):
        byte = tl.load(place + k, mask=mask, other=0).to(tl.int32)
        bits = bits | (byte << (8 * k))
    return as_float(bits)
