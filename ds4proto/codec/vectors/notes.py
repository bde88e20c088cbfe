"""What the flags of the vectors mean, and the words at the head of each file."""

from __future__ import annotations

from typing import Final

from ds4proto.codec.registry import SCALED

Note = dict[str, str]


def _note(bug_type: str, description: str, effect: str = "") -> Note:
    note = {"bugType": bug_type, "description": description}
    return note | {"effect": effect} if effect else note


NOTES: Final[dict[str, Note]] = {
    "CodeValue": _note("BASIC", "The input is exactly the value of one code."),
    "NearCodeValue": _note("BASIC", "The input is an ulp or two beside a code value."),
    "Tie": _note(
        "NUMERIC",
        "The input lies half way between two codes: e4m3 rounds it away from zero, "
        "the 16-bit formats to even.",
        "A cast with the other tie rule gives the neighbouring code.",
    ),
    "NearTie": _note("NUMERIC", "The input is an ulp or two beside a midpoint."),
    "Zero": _note("BASIC", "Positive zero."),
    "NegativeZero": _note(
        "BUILD_DEPENDENT",
        "Negative zero keeps its sign, except in e4m3 bytes of fast-math gcc builds.",
        "The byte names the peer's numeric profile; both decode to zero.",
    ),
    "Denormal": _note(
        "BUILD_DEPENDENT",
        "An f32 denormal is far below every code; its sign depends on the build like "
        "that of negative zero.",
    ),
    "Tiny": _note("EDGE_CASE", "The smallest normal f32 values."),
    "Large": _note("EDGE_CASE", "The largest finite f32."),
    "Infinity": _note(
        "EDGE_CASE",
        "Infinity passes at 32 and 16 bit and becomes 240 at 8 bit.",
        "An OCP cast gives NaN, infinity or 448 in place of 240.",
    ),
    "NaN": _note(
        "BUILD_DEPENDENT",
        "NaN keeps its payload at 32 bit, only its sign in a half, gets no care in "
        "BF16, and turns into a number at 8 bit, which one depends on the build.",
        "A NaN that left one stage arrives at the next as a number.",
    ),
    "SubnormalClamp": _note(
        "NUMERIC",
        "Magnitudes from 7.5 * 2^-9 up to 2^-6 give 0x07 although 0x08 is nearer.",
        "A rounding cast carries into the normal range and gives 0x08.",
    ),
    "DoubleRounding": _note(
        "NUMERIC",
        "The f32 just below 2^-10 gives 0x01: the encoder's sum in f32 rounds up.",
        "Comparing with the threshold 2^-10 gives 0x00.",
    ),
    "Clip": _note(
        "NUMERIC",
        "Magnitudes above 240 become 240, the largest code 0x77.",
        "An OCP cast goes on to 448, to NaN or to infinity.",
    ),
    "Overflow": _note(
        "NUMERIC",
        "A finite f32 beyond the largest half becomes infinity.",
        "Hidden states with such values are not safe at 16 bit.",
    ),
    "NeverEncoded": _note(
        "EDGE_CASE",
        "No encoder emits 0x78..0x7f or 0xf8..0xff; decoders read them as 240.",
        "An OCP decoder reads larger values, infinity or NaN.",
    ),
    "Measured": _note("BASIC", "A build of ds4 was run on this input."),
    "Random": _note("BASIC", "An input without any special place."),
    "ExactSize": _note("BASIC", "The payload is as long as its values need."),
    "WrongSize": _note(
        "WRONG_SIZE",
        "The payload is not as long as its values need and must be refused.",
        "Reading it anyway shifts or invents values.",
    ),
    "ForeignScale": _note(
        "WRONG_FORMAT",
        "Four bytes too many: the absmax INT8 format of another dialect carries a "
        "scale.",
        "The same width number names two formats.",
    ),
    "Prefix": _note("BASIC", "Tokens hashed from the start value or a prefix hash."),
    "BadToken": _note("EDGE_CASE", "A token id that does not fit 32 unsigned bits."),
}

SCALED_NOTES: Final[dict[str, Note]] = {
    "ElementTie": _note(
        "NUMERIC",
        "Values half way between two elements, and their neighbours.",
        "Another tie rule, or a second rounding, gives the neighbouring element.",
    ),
    "ScaleEdge": _note(
        "NUMERIC",
        "The largest magnitude lies where a rule for the scale steps.",
        "FLOOR, EVEN, RCEIL and CEIL part here, and so does an inexact logarithm.",
    ),
    "OperationOrder": _note(
        "NUMERIC",
        "The same formula in another order of f32 operations gives other bytes.",
        "A formula is no wire format; only the order of operations is.",
    ),
    "ZeroBlock": _note(
        "EDGE_CASE",
        "Nothing but zeros: what the scale is then differs between stacks.",
        "A division by the scale without care gives NaN.",
    ),
    "SignedZero": _note("EDGE_CASE", "Zeros of both signs beside other values."),
    "TinyBlock": _note(
        "EDGE_CASE",
        "So small that the scale meets its floor, or f32 its denormals.",
        "torchao divides by 2^-126 where the scale byte 0 stands for 2^-127.",
    ),
    "HugeBlock": _note("EDGE_CASE", "Next to the largest f32."),
    "NaNBlock": _note(
        "EDGE_CASE",
        "A NaN among the values: its block, or row, arrives as NaN.",
        "A maximum that skips NaN sends a number in its place.",
    ),
    "InfBlock": _note("EDGE_CASE", "Infinity among the values."),
    "ShortBlock": _note(
        "EDGE_CASE",
        "A width that is no multiple of the block, or odd.",
        "Padding that is sent makes the row longer than it is.",
    ),
    "NibbleOrder": _note(
        "WRONG_FORMAT",
        "Every place of a block can be told apart.",
        "Adjacent pairs and half blocks have the same size and other places.",
    ),
    "EveryCode": _note("BASIC", "All codes of the element, also those never sent."),
    "OddScale": _note("EDGE_CASE", "Scales at the ends of their range, or broken."),
}
NOTES.update(SCALED_NOTES)

_COMMON: Final = (
    "Written by `python -m ds4proto.codec.vectors`; do not edit.",
    "Patterns and codes are numbers in hex, highest digit first, not wire order.",
)
HEADERS: Final[dict[str, tuple[str, ...]]] = {
    "f32": (*_COMMON, "32-bit activations: the bytes of the f32; clauses CODEC-F32."),
    "f16": (*_COMMON, "16-bit activations, main line: IEEE half; clauses CODEC-F16."),
    "bf16": (*_COMMON, "16-bit activations, side branch: BF16; clauses CODEC-BF16."),
    "e4m3": (
        *_COMMON,
        "8-bit activations: unscaled E4M3-like byte; clauses CODEC-E4M3.",
    ),
    "token_hash": (*_COMMON, "Token prefix hash; clauses CODEC-HASH."),
    **{
        name: (
            "Written by `python -m ds4proto.codec.vectors`; do not edit.",
            "f32 values are patterns in hex, highest digit first, one after the other; "
            "wires are in wire order.",
            f"Codec {name}: rows of elements, then scales. Ours, no dialect has it.",
        )
        for name in SCALED
    },
}
