"""What the private dialect ``ds4proto`` adds to DS4D: its mark, its wire formats.

Ours alone: no build of ds4 speaks it. The fixed part of its HELLO is 48 bytes, so that
a stock coordinator finds a name length that does not fit the body and closes
(DS4D-HELLO-04), and a coordinator of the dialect finds a stock HELLO the same way.
"""

from __future__ import annotations

from typing import Final

from construct import Int32ub

from ds4proto.schema.declare import FieldSpec, Limit, Name
from ds4proto.schema.ds4d_common import F

DIALECT: Final = "ds4proto"
PRIVATE: Final = frozenset({DIALECT})
MARK: Final = 0x64347078
"""ASCII ``d4px``: first word behind the stock fields of HELLO."""
FORMAT_BASE: Final = 0x100
"""Width words from here on name a format instead of bits; stock peers refuse them."""
_NAMES: Final = ("int8", "fp8", "int4", "mxfp8", "mxfp4", "nvfp4", "bf16")
FORMATS: Final = {FORMAT_BASE + n: name for n, name in enumerate(_NAMES, start=1)}
"""Width word to codec name (``ds4proto.codec.get``), DS4D-OURS-04."""
FORMAT_IDS: Final = {name: word for word, name in FORMATS.items()}


def ability(word: int) -> int:
    """Return the bit of a format in the abilities of HELLO; 0 for a stock width."""
    return 1 << (word - FORMAT_BASE - 1) if word in FORMATS else 0


LOCAL_DECODE: Final = 0x10000
"""Ability of a worker that holds the whole model and can decode alone."""
ABILITIES: Final = (
    *(
        Name(ability(word), name.upper(), f"takes and sends {name}")
        for word, name in FORMATS.items()
    ),
    Name(LOCAL_DECODE, "LOCAL_DECODE", "holds the whole model, can decode alone"),
)
ALL_FORMATS: Final = sum(map(ability, FORMATS))
HELLO_WORDS: Final[tuple[FieldSpec, ...]] = (
    F(
        "private_mark",
        Int32ub,
        "ASCII d4px",
        const=MARK,
        clause="DS4D-OURS-01",
        dialects=PRIVATE,
    ),
    F(
        "abilities",
        Int32ub,
        "wire formats that the worker takes and sends, and what else it can do",
        flags=ABILITIES,
        dialects=PRIVATE,
        default=ALL_FORMATS,
    ),
)


def width_limit(widths: tuple[int, ...]) -> Limit:
    """Return the width words of the dialect: the stock ones, 0 and the formats."""
    return Limit(one_of=(0, *widths, *FORMATS))


def value_bytes(word: int) -> int:
    """Return the bytes that a payload is a multiple of; 1 for a format with scales."""
    return 1 if word in FORMATS else max(1, (word or 32) // 8)


def width_text(word: int) -> str:
    """Return a width word as people read it: ``16 bits``, ``mxfp4``."""
    return FORMATS.get(word) or f"{word or 32} bits"
