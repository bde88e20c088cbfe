"""Inputs worth a vector, by rule: code values, midpoints, ranges, special values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from ds4proto.codec.definition import (
    E4M3_CLIP,
    E4M3_LARGEST_CODE,
    E4M3_SMALLEST_NORMAL,
    E4M3_VALUES,
    f16_decode,
)

SIGN = 0x80000000


@dataclass
class Row:
    """One input of a vector file.

    Attributes
    ----------
    bits
        f32 pattern (encoding) or code (decoding).
    comment
        Where the input lies.
    flags
        Names of notes.
    measured
        The code that a build of ds4 gave, if one was asked.
    """

    bits: int
    comment: str
    flags: list[str] = field(default_factory=list)
    measured: int | None = None


def _around(
    bits: int, comment: str, near: str, exact: str, reach: int
) -> Iterator[Row]:
    for step in range(-reach, reach + 1):
        if bits + step < 0:
            continue
        text = comment if step == 0 else f"{comment} {step:+d} ulp"
        yield Row(bits + step, text, [near if step else exact])


def _midpoint(low: int, high: int) -> int:
    """Return the pattern half way between two neighbouring f32 patterns' values."""
    pair = np.array([low, high], dtype=np.uint32).view(np.float32).astype(np.float64)
    return int(np.float32(pair.mean()).view(np.uint32))


def specials() -> Iterator[Row]:
    """Give zero, denormals, extremes, infinity and NaN payloads, positive."""
    yield Row(0, "zero", ["Zero"])
    for bits in (0x1, 0x2, 0x400000, 0x7FFFFF):
        yield Row(bits, "f32 denormal", ["Denormal"])
    for bits in (0x800000, 0x800001):
        yield Row(bits, "smallest normal f32", ["Tiny"])
    yield Row(0x7F7FFFFF, "largest f32", ["Large"])
    yield Row(0x7F800000, "infinity", ["Infinity"])
    for bits in (0x7F800001, 0x7FA00000, 0x7FBFFFFF, 0x7FC00000, 0x7FC00001,
                 0x7FDEADBE, 0x7FFFFFFF):  # fmt: skip
        yield Row(bits, "NaN", ["NaN"])


def with_negatives(rows: Iterator[Row]) -> Iterator[Row]:
    """Give each row and its mirror image."""
    for row in rows:
        yield row
        flags = ["NegativeZero" if flag == "Zero" else flag for flag in row.flags]
        yield Row(row.bits | SIGN, "minus " + row.comment, flags)


def e4m3_rows() -> Iterator[Row]:
    """Give every code value and midpoint, the clamp below 2^-6 and the clip."""
    values = [int(bits) for bits in E4M3_VALUES[: E4M3_LARGEST_CODE + 1]]
    for code, bits in enumerate(values):
        if code:
            yield from _around(
                bits, f"value of code 0x{code:02x}", "NearCodeValue", "CodeValue", 2
            )
    for code in range(E4M3_LARGEST_CODE):
        if code == 0x07:  # below 2^-6 there is no step to round up to
            continue
        middle = _midpoint(values[code], values[code + 1])
        comment = f"midpoint of 0x{code:02x} and 0x{code + 1:02x}"
        yield from _around(middle, comment, "NearTie", "Tie", 2)
    yield Row(0x3A7FFFFF, "just below 2^-10", ["DoubleRounding"])
    # The three places where the rule changes, at close range.
    yield from _around(0x3A800000, "around 2^-10", "NearTie", "Tie", 16)
    yield from _around(values[8], "around 2^-6", "NearCodeValue", "CodeValue", 16)
    for step in range(-16, 17):
        bits = _midpoint(values[7], values[8]) + step
        yield Row(bits, "around 7.5 * 2^-9", ["SubnormalClamp"])
    first = _midpoint(values[7], values[8])
    last = int(E4M3_SMALLEST_NORMAL) - 1
    for bits in np.linspace(first, last, 65).astype(np.uint32):
        yield Row(int(bits), "from 7.5 * 2^-9 to 2^-6", ["SubnormalClamp"])
    clip = int(E4M3_CLIP)
    for value in (232.0, 239.9, 247.9, 248.0, 256.0, 448.0, 464.0, 65504.0, 1e30):
        bits = int(np.float32(value).view(np.uint32))
        yield Row(bits, f"value {value:g}", ["Clip"])
    yield from (Row(clip + step, "240 and above", ["Clip"]) for step in range(3))


def f16_rows() -> Iterator[Row]:
    """Give code values and midpoints of every exponent, and the overflow."""
    mantissas = (0, 1, 2, 511, 512, 1022, 1023)
    codes = [e << 10 | m for e in range(31) for m in mantissas]
    values = f16_decode(np.arange(0x7C01, dtype=np.uint16))
    for code in codes:
        bits = int(values[code])
        if code:
            name = f"value of code 0x{code:04x}"
            yield from _around(bits, name, "NearCodeValue", "CodeValue", 1)
        if code < 0x7BFF:
            comment = f"midpoint of 0x{code:04x} and 0x{code + 1:04x}"
            middle = _midpoint(bits, int(values[code + 1]))
            yield from _around(middle, comment, "NearTie", "Tie", 1)
    yield from _around(0x477FF000, "overflow at 65520", "NearTie", "Tie", 2)
    yield Row(int(np.float32(70000.0).view(np.uint32)), "value 70000", ["Overflow"])


def bf16_rows() -> Iterator[Row]:
    """Give code values and midpoints of the exponents at both ends and around 1."""
    exponents = (0, 1, 2, 64, 112, 126, 127, 128, 142, 200, 253, 254)
    for exponent in exponents:
        for mantissa in (0, 1, 63, 64, 126, 127):
            code = exponent << 7 | mantissa
            bits = code << 16
            if code:
                name = f"value of code 0x{code:04x}"
                yield from _around(bits, name, "NearCodeValue", "CodeValue", 1)
            comment = f"midpoint above code 0x{code:04x}"
            yield from _around(bits + 0x8000, comment, "NearTie", "Tie", 1)
    for bits in (0x7F800001, 0x7F807FFF, 0x7F808000, 0x7FFF7FFF, 0x7FFF8000):
        yield Row(bits, "NaN that rounding changes", ["NaN"])


def f32_rows() -> Iterator[Row]:
    """Give a few ordinary values; the special ones come by themselves."""
    for value in (1.0, 0.1, 240.0, 65504.0, 3.0e38):
        bits = int(np.float32(value).view(np.uint32))
        yield Row(bits, f"value {value:g}", ["CodeValue"])


def code_rows(width: int) -> Iterator[Row]:
    """Give the codes to decode: all bytes, or the corners of each exponent."""
    if width == 8:
        for code in range(256):
            never = code & 0x7F > E4M3_LARGEST_CODE
            yield Row(code, "", ["NeverEncoded" if never else "CodeValue"])
        return
    for sign in (0, 0x8000):
        for exponent in range(32):
            for mantissa in (0, 1, 2, 511, 512, 513, 1023):
                yield Row(sign | exponent << 10 | mantissa, "", ["CodeValue"])
