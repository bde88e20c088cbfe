"""Inputs worth encoding in the scaled formats, and wires worth decoding.

Short rows where one value decides, so that a failing test names its cause; a row's
first value usually fixes the scale.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

NAN: Final = 0x7FC00000
INF: Final = 0x7F800000
MAX: Final = 0x7F7FFFFF
NEGATIVE: Final = 0x80000000


@dataclass(frozen=True)
class BlockRow:
    """One input: a comment, flags, and equal rows of f32 patterns."""

    comment: str
    flags: tuple[str, ...]
    rows: tuple[tuple[int, ...], ...]


def pattern(value: float) -> int:
    """Return the f32 pattern of a value."""
    return int(np.float32(value).view(np.uint32))


def _row(comment: str, flag: str, *patterns: int) -> BlockRow:
    return BlockRow(comment, (flag,), (tuple(patterns),))


def _around(bits: int) -> tuple[int, int, int]:
    return bits - 1, bits, bits + 1


def e2m1_ties() -> Iterator[BlockRow]:
    """Give each midpoint of E2M1 and its neighbours, at a block scale of 1."""
    for middle in (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0):
        near = _around(pattern(middle))
        yield _row(f"midpoint {middle}", "ElementTie", pattern(6), *near)
        negative = [bits | NEGATIVE for bits in near]
        yield _row(f"midpoint -{middle}", "ElementTie", pattern(6), *negative)


def e4m3fn_ties() -> Iterator[BlockRow]:
    """Give midpoints of E4M3FN, also around its subnormals, at a scale of 1."""
    for steps in (0.5, 1.5, 6.5, 7.5, 8.5, 9.5):
        near = _around(pattern(steps / 512))
        yield _row(f"midpoint {steps} * 2^-9", "ElementTie", pattern(448), *near)
    for middle in (1.0625, 1.1875, 15.5, 432.0, 440.0):
        near = _around(pattern(middle))
        negative = [bits | NEGATIVE for bits in near]
        yield _row(f"midpoint -{middle}", "ElementTie", pattern(448), *negative)


def scale_edges(largest: float, mantissas: tuple[float, ...]) -> Iterator[BlockRow]:
    """Give block maxima around every place where a rule for E8M0 scales steps."""
    for exponent in (0, 1, -20, 30):
        for mantissa in (1.0, *mantissas):
            for bits in _around(pattern(mantissa * 2.0**exponent)):
                third = pattern(float(np.uint32(bits).view(np.float32)) / 3)
                comment = f"block maximum 0x{bits:08x}"
                yield _row(comment, "ScaleEdge", bits, third | NEGATIVE)
    for bits in _around(pattern(largest)):
        yield _row(f"maximum 0x{bits:08x}", "ScaleEdge", pattern(1), bits)


def specials() -> Iterator[BlockRow]:
    """Give zeros, tiny and huge values, and what is not finite."""
    one = pattern(1)
    yield _row("zeros", "ZeroBlock", 0, 0, 0, 0)
    yield _row("zeros of both signs", "ZeroBlock", NEGATIVE, 0, NEGATIVE, 0)
    yield _row("zeros beside a value", "SignedZero", one, NEGATIVE, 0, one | NEGATIVE)
    for bits in (1, 0x00400000, 0x007FFFFF, 0x00800000, 0x01000000, 0x01800000):
        yield _row(f"maximum 0x{bits:08x}", "TinyBlock", bits, bits | NEGATIVE, 1, 0)
    for power in (-120, -105, -101, -100, -99, -93, -88):
        bits = pattern(3 * 2.0**power)
        yield _row(f"maximum 3 * 2^{power}", "TinyBlock", bits, bits - 1, bits >> 1, 0)
    yield _row("largest finite", "HugeBlock", MAX, MAX | NEGATIVE, one, 0x7F000000)
    yield _row("NaN", "NaNBlock", one, NAN, pattern(-2), pattern(0.5))
    yield _row("negative NaN with payload", "NaNBlock", 0xFF812345, one, one, one)
    yield _row("infinity", "InfBlock", INF, one, pattern(-2), pattern(0.5))
    yield _row("infinities", "InfBlock", one, INF | NEGATIVE, INF, one)
    yield _row("NaN and infinity", "NaNBlock", INF, NAN, one, 0)
    yield BlockRow(
        "a broken row between good ones",
        ("NaNBlock",),
        ((one, pattern(2)), (NAN, one), (pattern(3), one)),
    )


def shapes() -> Iterator[BlockRow]:
    """Give random rows of widths around blocks and nibble pairs."""
    rng = np.random.default_rng(20260603)
    for width, rows in ((1, 1), (1, 3), (3, 2), (15, 1), (17, 1), (31, 1), (33, 2)):
        x = rng.standard_normal((rows, width)).astype(np.float32)
        bits = x.view(np.uint32)
        yield BlockRow(
            f"{rows} rows of {width}",
            ("ShortBlock",),
            tuple(tuple(int(b) for b in row) for row in bits),
        )


def whole_blocks() -> Iterator[BlockRow]:
    """Give rows of 32 whose places can be told apart, and random ones."""
    codes = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    values = [*codes, *(-c for c in codes), *codes[::-1], *(-c for c in codes[::-1])]
    yield _row("every code twice", "NibbleOrder", *(pattern(v) for v in values))
    ramp = [6.0] * 16 + [-0.5] * 16
    yield _row("two halves", "NibbleOrder", *(pattern(v) for v in ramp))
    alternating = [6.0, -0.5] * 16
    yield _row("alternating", "NibbleOrder", *(pattern(v) for v in alternating))
    rng = np.random.default_rng(20260604)
    for scale in (1.0, 1e-3, 3e4):
        x = (rng.standard_normal(32) * scale).astype(np.float32).view(np.uint32)
        yield _row(f"normal values * {scale:g}", "Random", *(int(b) for b in x))


def differing(first: Any, second: Any, comment: str, count: int) -> Iterator[BlockRow]:
    """Give BF16-valued rows of 32 that two formats encode with other bytes."""
    rng = np.random.default_rng(20260605)
    found = 0
    while found < count:
        x = rng.standard_normal((512, 32)).astype(np.float32).view(np.uint32)
        x &= np.uint32(0xFFFF0000)
        wrong = (first.encode_rows(x) != second.encode_rows(x)).any(axis=1)
        for row in x[wrong][: count - found]:
            found += 1
            yield _row(comment, "OperationOrder", *(int(b) for b in row))


def uneven_blocks() -> Iterator[BlockRow]:
    """Give rows of blocks of very different size, for formats with two levels."""
    big = [pattern(v) for v in (2688.0, -1000.0, 3.0, 0.1)] * 4
    small = {
        "a block of zeros": 0.0,
        "block scale of 2^-6": 6 * 2.0**-6,
        "block scale just below 2^-6": 6 * 2.0**-6 * (1 - 2**-20),
        "block scale of 2^-9": 6 * 2.0**-9,
        "block scale of half a step": 6 * 2.0**-10,
        "block scale just past half a step": 6 * 2.0**-10 * (1 + 2**-20),
        "block scale of a hundredth step": 6 * 2.0**-16,
        "a block too small for any scale": 2.0**-128,
    }
    for comment, value in small.items():
        bits = pattern(value)
        yield _row(comment, "TinyBlock", *big, *([bits, bits | NEGATIVE] * 8))
    for comment, bits in (("NaN", NAN), ("infinity", INF)):
        broken = [bits, *[pattern(5.0)] * 15]
        flag = "NaNBlock" if bits == NAN else "InfBlock"
        yield _row(f"{comment} in the second block", flag, *big, *broken)
        yield _row(f"{comment} in the first block", flag, *broken, *big)
