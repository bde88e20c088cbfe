"""Codec builds: every rule of the widths, by vectors that the clauses name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ds4proto_conformance.bench.codec import CodecBench
from ds4proto_conformance.registry import case
from ds4proto_conformance.verdicts import Deviation


def f32(*bits: int) -> Any:
    """Return f32 values of bit patterns."""
    import numpy as np

    return np.asarray(bits, np.uint32).view(np.float32)


def ours(name: str, profile: str = "strict") -> Any:
    """Return the definition of a codec."""
    from ds4proto.codec import get

    return get(name, profile=profile, path="numpy")


def encoding(
    name: str,
    clause: str,
    about: str,
    codec: str,
    values: Callable[[], Any],
    *mutants: str,
) -> None:
    """Declare a case that compares the bytes of some values with the definition's."""

    def body(peer: CodecBench) -> None:
        given = values()
        due = bytes(ours(codec).encode(given))
        peer.same(
            clause, f"{codec} of {given.size} values", due, peer.encode(codec, given)
        )

    body.__doc__ = about
    body.__qualname__ = f"encode_{name}"
    case(
        f"codec/{codec}/{name}",
        clauses=(clause,),
        role="codec",
        category="codec",
        mutants=mutants,
        smoke=name.startswith("ties"),
    )(body)


def decoding(
    name: str,
    clause: str,
    about: str,
    codec: str,
    codes: Callable[[], Any],
    *mutants: str,
) -> None:
    """Declare a case that compares the values of some codes with the definition's."""

    def body(peer: CodecBench) -> None:
        import numpy as np

        given = codes()
        count = given.nbytes // (1 if codec == "e4m3" else 2)
        wire = given.view(np.uint8)
        due = np.asarray(ours(codec).decode(wire, values=count), "<f4").tobytes()
        peer.same(
            clause,
            f"values of {count} codes",
            due,
            peer.decode(codec, wire.tobytes(), count).tobytes(),
        )

    body.__doc__ = about
    body.__qualname__ = f"decode_{name}"
    case(
        f"codec/{codec}/{name}",
        clauses=(clause,),
        role="codec",
        category="codec",
        mutants=mutants,
    )(body)


def _range(low: int, high: int, step: int = 1) -> Any:
    import numpy as np

    both = np.arange(low, high, step, dtype=np.uint32)
    return np.concatenate([both, both | np.uint32(0x80000000)]).view(np.float32)


def _codes(low: int, high: int, kind: str) -> Any:
    import numpy as np

    return np.arange(low, high, dtype=kind)


def _e4m3_ties() -> Any:
    import numpy as np

    table = ours("e4m3").decode(np.arange(0x08, 0x78, dtype=np.uint8), values=0x70)
    mid = ((table[:-1] + table[1:]) / 2).astype(np.float32)
    return np.concatenate([mid, -mid])


def _e4m3_thresholds() -> Any:
    import numpy as np

    exact = (np.arange(7, dtype=np.float32) + np.float32(0.5)) / np.float32(512)
    near = [np.nextafter(exact, np.float32(side), dtype=np.float32) for side in (1, 0)]
    # The one just below 2^-10 has a clause of its own.
    return np.concatenate([exact, near[0], near[1][1:]])


def _f16_ties() -> Any:
    import numpy as np

    codes = np.arange(0, 0x7BFF, 7, dtype=np.uint16)
    low = codes.view(np.float16).astype(np.float32)
    high = (codes + np.uint16(1)).view(np.float16).astype(np.float32)
    mid = ((low + high) / 2).astype(np.float32)
    return np.concatenate([mid, -mid])


encoding(
    "ties-away",
    "CODEC-E4M3-04",
    "Ties of the normal range round away from zero.",
    "e4m3",
    _e4m3_ties,
    "codec-e4m3-even",
    "codec-e4m3-truncates",
)
encoding(
    "saturates",
    "CODEC-E4M3-05",
    "240 and above, infinity too, give 0x77.",
    "e4m3",
    lambda: _range(0x43700000, 0x7F800001, 0x0040_0000),
    "codec-e4m3-448",
)
encoding(
    "thresholds",
    "CODEC-E4M3-06",
    "Below 2^-6 thresholds are counted.",
    "e4m3",
    _e4m3_thresholds,
    "codec-e4m3-flush",
    "codec-e4m3-threshold-down",
)
encoding(
    "no-carry",
    "CODEC-E4M3-07",
    "From 7.5 x 2^-9 to 2^-6 the code is 0x07.",
    "e4m3",
    lambda: _range(0x3C700000, 0x3C800000, 0x1001),
    "codec-e4m3-carry",
)
encoding(
    "one-below",
    "CODEC-E4M3-08",
    "The float just below 2^-10 gives 0x01.",
    "e4m3",
    lambda: f32(0x3A7FFFFF, 0xBA7FFFFF, 0x3A7FFFFE),
    "codec-e4m3-exact",
)
encoding(
    "ties-even",
    "CODEC-F16-01",
    "Ties round to even, subnormals included.",
    "f16",
    _f16_ties,
    "codec-f16-away",
    "codec-f16-flush",
)
encoding(
    "overflow",
    "CODEC-F16-02",
    "65,520 and above give infinity.",
    "f16",
    lambda: _range(0x477FE000, 0x47800800, 0x100),
    "codec-f16-saturates",
)
encoding(
    "underflow",
    "CODEC-F16-03",
    "Up to 2^-25 the code is zero with the sign.",
    "f16",
    lambda: _range(0x32FFFF00, 0x33000100),
    "codec-f16-signless",
)
encoding(
    "nan",
    "CODEC-F16-04",
    "Every NaN gives 0x7e00 with its sign.",
    "f16",
    lambda: f32(0x7F800001, 0x7FC12345, 0xFFFFFFFF, 0xFF800001),
    "codec-f16-nan-payload",
)
encoding(
    "rounds",
    "CODEC-BF16-01",
    "0x7fff plus bit 16 is added, the upper half kept.",
    "bf16",
    lambda: _range(0x3F7F7F00, 0x3F808200, 0x11),
    "codec-bf16-cuts",
)
encoding(
    "nan-not-apart",
    "CODEC-BF16-02",
    "NaN and infinity are not treated apart.",
    "bf16",
    lambda: f32(0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800000),
    "codec-bf16-quiet",
)
encoding(
    "unchanged",
    "CODEC-F32-02",
    "NaN payloads, infinities and -0 pass unchanged.",
    "f32",
    lambda: f32(0x7F800001, 0x7FC12345, 0xFF800000, 0x80000000, 1),
    "codec-f32-quiets",
)
encoding(
    "little-endian",
    "CODEC-F32-01",
    "binary32, low byte first.",
    "f32",
    lambda: f32(0x3F800001, 0x01020304),
    "codec-f32-turned",
)
decoding(
    "all-codes",
    "CODEC-F16-05",
    "All 65,536 codes decode exactly.",
    "f16",
    lambda: _codes(0, 65536, "<u2"),
    "codec-f16-decode-flush",
)
decoding(
    "shifts",
    "CODEC-BF16-03",
    "The 16 bits are shifted left by 16.",
    "bf16",
    lambda: _codes(0, 65536, "<u2"),
    "codec-bf16-decode-turned",
)
decoding(
    "subnormal-codes",
    "CODEC-E4M3-01",
    "Exponent field 0 gives m / 512.",
    "e4m3",
    lambda: _codes(0, 8, "u1"),
    "codec-e4m3-decode-subnormal",
)
decoding(
    "normal-codes",
    "CODEC-E4M3-02",
    "Exponent fields 1 to 14.",
    "e4m3",
    lambda: _codes(8, 120, "u1"),
    "codec-e4m3-decode-bias",
)
decoding(
    "top-codes",
    "CODEC-E4M3-03",
    "Exponent field 15 gives 240.",
    "e4m3",
    lambda: _codes(120, 128, "u1"),
    "codec-e4m3-decode-nan",
)


@case(
    "codec/e4m3/numeric-profile",
    clauses=("CODEC-E4M3-09", "CODEC-E4M3-10"),
    role="codec",
    category="codec",
    mutants=("codec-e4m3-no-profile",),
)
def profile(peer: CodecBench) -> None:
    """-0, negative denormals and NaN follow one of the four known profiles."""
    from ds4proto.codec.base import PROFILES

    values = f32(0x80000000, 0x80000001, 0x807FFFFF, 0x7FC00000, 0xFFC00000, 0x7F800001)
    found = peer.encode("e4m3", values)
    for name in PROFILES:
        if bytes(ours("e4m3", name).encode(values)) == found:
            peer.profile = name
            peer.note(f"numeric profile: {name}")
            return
    raise Deviation(
        "CODEC-E4M3-09", f"the bytes of one of {', '.join(PROFILES)}", found.hex()
    )


@case(
    "codec/e4m3/second-hop-adds-nothing",
    clauses=("CODEC-E4M3-11", "CODEC-SIZE-04"),
    role="codec",
    category="determinism",
    mutants=("codec-e4m3-drifts",),
)
def stable(peer: CodecBench) -> None:
    """Encoding what was decoded returns the same byte."""
    codes = bytes(range(0x78)) + bytes(range(0x80, 0xF8))
    values = peer.decode("e4m3", codes, len(codes))
    again = peer.encode("e4m3", values)
    due = bytearray(codes)
    if again[0x78] == 0:  # -0 in profiles that drop its sign
        due[0x78] = 0
    peer.same("CODEC-E4M3-11", "the codes, decoded and encoded", bytes(due), again)


@case(
    "codec/size/no-header",
    clauses=("CODEC-E4M3-12", "CODEC-SIZE-01"),
    role="codec",
    category="codec",
    params={"codec": ("f32", "f16", "e4m3"), "count": (1, 7, 4096)},
    mutants=("codec-with-header",),
)
def no_header(peer: CodecBench, p: dict[str, Any]) -> None:
    """N values are n x bits / 8 bytes, nothing beside them."""
    import numpy as np

    bits = {"f32": 32, "f16": 16, "e4m3": 8}[p["codec"]]
    found = peer.encode(p["codec"], np.ones(p["count"], np.float32))
    if len(found) != p["count"] * bits // 8:
        raise Deviation(
            "CODEC-SIZE-01", f"{p['count'] * bits // 8} bytes", str(len(found))
        )
