"""Codec builds that know scaled formats: packaged vectors, clause by clause.

A build that does not know a format says so, and its cases are unsupported. Only the
default variant of each format is asked for; vectors of other variants are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from ds4proto_conformance.bench.codec import DECODE, CodecBench
from ds4proto_conformance.registry import case
from ds4proto_conformance.verdicts import Deviation

_DEFAULT: Final[dict[str, dict[str, str]]] = {
    "mxfp8": {"scale": "floor"},
    "mxfp4": {"scale": "floor"},
}
"""Variants that vector groups name although they are the default."""
REFUSED: Final = 2


def vectors(codec: str, kind: str, flags: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield the vectors of a format's default variant that bear one of some flags.

    Raises
    ------
    LookupError
        There are none: the case could not fail.
    """
    from ds4proto.codec.vectors import load

    found = 0
    for group in load(codec)["testGroups"]:
        if group["type"] != kind or group["variant"] not in ({}, _DEFAULT.get(codec)):
            continue
        for test in group["tests"]:
            if not flags or set(flags) & set(test["flags"]):
                found += 1
                yield test
    if not found:
        raise LookupError(f"no vectors of {codec} {kind} {flags}")


def encoding(
    codec: str,
    name: str,
    flags: tuple[str, ...],
    clauses: tuple[str, ...],
    about: str,
    *mutants: str,
) -> None:
    """Declare a case that compares wire bytes with those of the vectors."""

    def body(peer: CodecBench) -> None:
        import numpy as np

        for test in vectors(codec, "BlockEncode", flags):
            bits = np.frombuffer(bytes.fromhex(test["input"]), ">u4").astype("<u4")
            found = peer.encode(codec, bits.view("<f4"), test["rows"])
            other = test.get("acceptable", {}).values()
            if found.hex() in other:
                peer.note(f"{test['comment']}: bytes as another library gives them")
                continue
            what = f"{codec} of vector {test['tcId']}, {test['comment']}"
            peer.same(clauses[0], what, bytes.fromhex(test["expected"]), found)

    _declare(codec, name, clauses, about, body, mutants)


def decoding(
    codec: str, clauses: tuple[str, ...], about: str, *mutants: str, name: str = "codes"
) -> None:
    """Declare a case that compares decoded values, bit for bit."""

    def body(peer: CodecBench) -> None:
        for test in vectors(codec, "BlockDecode", ()):
            due = bytes.fromhex(test["expected"])
            wire = bytes.fromhex(test["input"])
            found = peer.decode(codec, wire, len(due) // 4, test["rows"])
            what = f"values of {codec} vector {test['tcId']}, {test['comment']}"
            peer.same(clauses[0], what, due, found.astype(">f4").tobytes())

    _declare(codec, name, clauses, about, body, mutants)


def _declare(
    codec: str,
    name: str,
    clauses: tuple[str, ...],
    about: str,
    body: Callable[[CodecBench], None],
    mutants: tuple[str, ...],
) -> None:
    body.__doc__ = about
    body.__qualname__ = f"{codec}_{name}"
    case(
        f"codec/{codec}/{name}",
        clauses=clauses,
        role="codec",
        category="codec",
        mutants=tuple(f"codec-{mutant}" for mutant in mutants),
    )(body)


encoding("mxfp8", "scale", ("ScaleEdge", "TinyBlock"), ("CODEC-MX-01", "CODEC-MX-05"),
         "The scale byte is the exponent of the largest magnitude less 8.",
         "mxfp8-scale-even", "mxfp8-scale-up")  # fmt: skip
encoding("mxfp8", "elements", ("ElementTie",), ("CODEC-ELEM-01",),
         "Elements are E4M3FN, ties to even.", "mxfp8-away")  # fmt: skip
encoding("mxfp8", "nan", ("NaNBlock",), ("CODEC-MX-07",),
         "A block with NaN has the scale byte ff.", "mxfp8-nan-scale")  # fmt: skip
decoding("mxfp8", ("CODEC-MX-09", "CODEC-ELEM-04"),
         "Every code and odd scale byte decodes as written.",
         "mxfp8-scale-0-is-0", "mxfp8-bias-off")  # fmt: skip
encoding("mxfp4", "scale", ("ScaleEdge", "TinyBlock"), ("CODEC-MX-01", "CODEC-MX-05"),
         "The scale byte is the exponent of the largest magnitude less 2.",
         "mxfp4-scale-ceil")  # fmt: skip
encoding("mxfp4", "elements", ("ElementTie",), ("CODEC-ELEM-02",),
         "Elements are E2M1, ties to even.", "mxfp4-away", "mxfp4-down")  # fmt: skip
encoding("mxfp4", "zeros", ("ZeroBlock", "SignedZero"),
         ("CODEC-MX-06", "CODEC-ELEM-02"),
         "A block of zeros has the scale byte 0, and signs are kept.",
         "mxfp4-zero-scale", "mxfp4-signless")  # fmt: skip
encoding("mxfp4", "infinity", ("InfBlock",), ("CODEC-MX-08",),
         "Infinity takes the largest element.", "mxfp4-inf-is-nan")  # fmt: skip
encoding("mxfp4", "nibbles", ("NibbleOrder",), ("CODEC-ROW-04",),
         "The even element is in the low half of its byte.", "mxfp4-halves-swapped",
         )  # fmt: skip
encoding("mxfp4", "short-block", ("ShortBlock",), ("CODEC-ROW-06",),
         "The last block is as long as the values that exist.", "mxfp4-padded",
         )  # fmt: skip
decoding("mxfp4", ("CODEC-MX-09", "CODEC-ROW-04"),
         "Elements times powers of two, the smallest scale included.",
         "mxfp4-decode-swapped")  # fmt: skip
encoding("nvfp4", "row-scale", ("TinyBlock", "HugeBlock", "ZeroBlock"),
         ("CODEC-NVFP4-01", "CODEC-NVFP4-06"), "The row's scale is A / 2688.",
         "nvfp4-row-scale-inverse")  # fmt: skip
encoding("nvfp4", "block-scale", ("TinyBlock",), ("CODEC-NVFP4-04", "CODEC-NVFP4-03"),
         "A block scale is at least 2^-6.",
         "nvfp4-zero-scales", "nvfp4-eighth")  # fmt: skip
encoding("nvfp4", "not-finite", ("NaNBlock", "InfBlock"), ("CODEC-NVFP4-07",),
         "A block with NaN or infinity is NaN, and the rest of its row is not touched.",
         "nvfp4-nan-scale")  # fmt: skip
decoding("nvfp4", ("CODEC-NVFP4-08",), "Element times the product of both scales.",
         "nvfp4-row-scale-ignored")  # fmt: skip
for _name, _prefix, _tie, _scale in (
    ("int8", "CODEC-INT8", "int8-truncates", "int8-127.5"),
    ("int4", "CODEC-INT4", "int4-truncates", "int4-7.5"),
    ("fp8", "CODEC-FP8", "fp8-away", "fp8-240"),
):
    encoding(_name, "scale", ("TinyBlock", "HugeBlock", "ZeroBlock"),
             (f"{_prefix}-01",), "A row's scale comes from its largest magnitude.",
             _scale)  # fmt: skip
    encoding(_name, "elements", ("ElementTie",), (f"{_prefix}-02",),
             "Elements are the nearest, ties to even.", _tie)  # fmt: skip
    encoding(_name, "not-finite", ("NaNBlock", "InfBlock"), (f"{_prefix}-03",),
             "A row with NaN or infinity is NaN as a whole.",
             f"{_name}-nan-kept")  # fmt: skip
    decoding(_name, (f"{_prefix}-04",), "Every code decodes, with odd scales too.",
             f"{_name}-scale-unchecked")  # fmt: skip


@case(
    "codec/rows/layout",
    clauses=("CODEC-ROW-01", "CODEC-ROW-02", "CODEC-ROW-03"),
    role="codec",
    category="codec",
    params={"codec": ("mxfp8", "mxfp4", "nvfp4", "int8", "int4", "fp8")},
    mutants=("codec-scales-behind-all-rows", "codec-scale-in-front"),
)
def layout(peer: CodecBench, p: dict[str, Any]) -> None:
    """Each row is sent whole, its elements first and then its own scales."""
    import numpy as np

    from ds4proto.codec import get

    values = np.random.default_rng(11).normal(size=3 * 40).astype(np.float32)
    due = b"".join(
        bytes(get(p["codec"], path="numpy").encode(row))
        for row in values.reshape(3, 40)
    )
    what = f"{p['codec']} of three rows of 40 values"
    peer.same("CODEC-ROW-01", what, due, peer.encode(p["codec"], values, 3))


@case(
    "codec/rows/wrong-size",
    clauses=("CODEC-ROW-08",),
    role="codec",
    category="limits",
    params={"codec": ("mxfp8", "mxfp4", "nvfp4", "int8"), "off": (-1, 1)},
    mutants=("codec-any-size",),
)
def wrong_size(peer: CodecBench, p: dict[str, Any]) -> None:
    """A payload that is a byte too short or too long is refused, not decoded."""
    import numpy as np

    wire = peer.encode(p["codec"], np.ones(64, np.float32), 2)
    wrong = wire[:-1] if p["off"] < 0 else wire + b"\0"
    status, data = peer.ask(DECODE, p["codec"], 64, 2, wrong)
    if status != REFUSED:
        found = f"status {status}, {len(data)} bytes"
        raise Deviation("CODEC-ROW-08", "a refusal", found)
