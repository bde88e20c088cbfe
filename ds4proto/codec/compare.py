"""Name what a peer's encoder does: its numeric profile, or the cast it used instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ds4proto.codec import arrays
from ds4proto.codec.base import CodecError
from ds4proto.codec.definition import (
    E4M3_PROFILES,
    INFINITY,
    MAGNITUDE,
    U8,
    U32,
    bf16_encode,
    e4m3_encode,
    f16_encode,
)

PROFILE_PROBE: Final = (0x80000000, 0x80000001, 0x807FFFFF, 0x7FC00000, 0xFFC00000)
"""f32 patterns whose e4m3 bytes tell the profiles apart: -0, -denormals, NaN, -NaN."""

ANY_PROFILE: Final = "any"


@dataclass(frozen=True)
class ProfileMatch:
    """Which numeric profiles fit the observed bytes.

    Attributes
    ----------
    names
        Profiles that give every observed byte; several if the inputs do not tell
        them apart, none if the build is unknown.
    differing
        For an unknown build: (f32 pattern, observed byte, expected byte of each
        profile) of every input on which at least one of the nearest profiles fails.
    """

    names: tuple[str, ...]
    differing: tuple[tuple[int, int, Mapping[str, int]], ...] = ()

    @property
    def known(self) -> bool:
        """Whether at least one profile fits."""
        return bool(self.names)

    def __str__(self) -> str:
        if self.known:
            return " or ".join(self.names)
        lines = ["unknown numeric profile (builds on other processors are unmeasured)"]
        for bits, observed, expected in self.differing:
            wanted = ", ".join(f"{name} 0x{b:02x}" for name, b in expected.items())
            lines.append(f"f32 0x{bits:08x} gave 0x{observed:02x}, not {wanted}")
        return "; ".join(lines)


def identify_profile(observed: Mapping[int, int]) -> ProfileMatch:
    """Find the numeric profiles of a peer from bytes that its e4m3 encoder gave.

    Parameters
    ----------
    observed
        f32 bit pattern -> byte. `PROFILE_PROBE` lists the inputs worth sending.

    Raises
    ------
    CodecError
        Nothing observed, or a key or byte out of range.
    """
    for bits, byte in observed.items():
        if not (0 <= bits < 1 << 32 and 0 <= byte < 1 << 8):
            raise CodecError(
                "e4m3",
                "observation",
                expected="f32 pattern of 32 bits -> byte",
                found=f"{bits:#x} -> {byte:#x}",
                next_step="pass bit patterns, not values",
            )
    if not observed:
        raise CodecError(
            "e4m3",
            "observations",
            expected="at least one",
            found="none",
            next_step="send the patterns of PROFILE_PROBE at 8 bit",
        )
    inputs = np.fromiter(observed, dtype=np.uint32, count=len(observed))
    seen = np.fromiter(observed.values(), dtype=np.uint8, count=len(observed))
    expected = {n: e4m3_encode(inputs, p) for n, p in E4M3_PROFILES.items()}
    wrong = {name: int((byte != seen).sum()) for name, byte in expected.items()}
    fitting = tuple(name for name, count in wrong.items() if not count)
    if fitting:
        return ProfileMatch(fitting)
    nearest = [name for name in wrong if wrong[name] == min(wrong.values())]
    rows = []
    for i in range(inputs.size):
        bytes_here = {name: int(expected[name][i]) for name in nearest}
        if any(byte != seen[i] for byte in bytes_here.values()):
            rows.append((int(inputs[i]), int(seen[i]), bytes_here))
    return ProfileMatch((), tuple(rows))


def ocp_encode(bits: U32, *, overflow: str) -> U8:
    """Give the byte of a textbook E4M3 cast: nearest even, carry out of subnormals.

    ``overflow`` is ``saturate`` (FN, clip at 448), ``nan`` (FN, NaN above 464),
    ``infinity`` (IEEE style, infinity from 248) or ``clip240`` (clipped to 240 first).
    Not a wire format of ds4: it exists to recognise peers that use it.
    """
    magnitude = bits & MAGNITUDE
    if overflow == "clip240":
        magnitude = np.minimum(magnitude, np.uint32(0x43700000))
    finite = np.minimum(magnitude, np.uint32(0x44000000))  # 512, past every code
    even = (finite >> 20) & np.uint32(1)
    normal = ((finite + np.uint32(0x7FFFF) + even) >> 20) - np.uint32(960)
    small = np.minimum(magnitude, np.uint32(0x3C800000)).view(np.float32)
    tiny = np.rint(small * np.float32(512)).astype(np.uint32)
    code = np.where(magnitude >= 0x3C800000, normal, tiny)
    if overflow == "infinity":
        code = np.minimum(code, np.uint32(0x78))
        code[magnitude > INFINITY] = 0x7C
    elif overflow in ("saturate", "nan"):
        code[code > 0x7E] = 0x7E if overflow == "saturate" else 0x7F
        code[magnitude > INFINITY] = 0x7F
    elif overflow != "clip240":
        raise ValueError(f"unknown overflow rule {overflow!r}")
    signed: U8 = (code | (bits >> 31 << 7)).astype(np.uint8)
    return signed


_FOREIGN: Final = {
    "OCP E4M3FN cast, saturating at 448": "saturate",
    "OCP E4M3FN cast, NaN above 464": "nan",
    "IEEE-style E4M3 cast, infinity from 248": "infinity",
    "ties-to-even E4M3 cast after clipping to 240": "clip240",
}


@dataclass(frozen=True)
class Difference:
    """The first vector on which a peer's code differs, and how many do.

    Attributes
    ----------
    index, bits, value
        Position, f32 pattern and value of the first input that came out wrong.
    expected, observed
        The codec's code and the peer's.
    count, total
        Inputs that differ, inputs compared.
    looks_like
        Other casts that give all observed codes, if any is known.
    """

    codec: str
    index: int
    bits: int
    value: float
    expected: int
    observed: int
    count: int
    total: int
    looks_like: str | None

    def __str__(self) -> str:
        width = 2 if self.codec == "e4m3" else 4
        text = (
            f"{self.codec}: {self.count} of {self.total} codes differ; first at index "
            f"{self.index}: f32 0x{self.bits:08x} ({self.value!r}) must give "
            f"0x{self.expected:0{width}x}, got 0x{self.observed:0{width}x}"
        )
        if self.looks_like:
            text += f"; all codes equal those of: {self.looks_like}"
        return text


def first_difference(
    x: Any, wire: Any, *, codec: str = "e4m3", profile: str = ANY_PROFILE
) -> Difference | None:
    """Compare a peer's codes with the definition and report the first wrong one.

    Parameters
    ----------
    x
        The float32 values that were encoded, numpy, any shape.
    wire
        What the peer made of them: buffer or ``uint8`` array.
    codec
        ``e4m3``, ``f16`` or ``bf16``.
    profile
        Numeric profile of the e4m3 encoder, or ``any``: a code passes if one
        profile gives it.

    Returns
    -------
    None if no code differs.

    Raises
    ------
    CodecError
        Unknown codec or profile, or sizes that do not fit.
    """
    bits = arrays.f32_bits(codec, x)
    observed, accepted = _candidates(bits, wire, codec, profile)
    wrong = ~np.logical_or.reduce([observed == codes for codes in accepted])
    if not wrong.any():
        return None
    index = int(wrong.argmax())
    return Difference(
        codec,
        index,
        int(bits[index]),
        float(bits[index : index + 1].view(np.float32)[0]),
        int(accepted[0][index]),
        int(observed[index]),
        int(wrong.sum()),
        bits.size,
        _recognise(bits, observed, codec),
    )


def _candidates(
    bits: U32, wire: Any, codec: str, profile: str
) -> tuple[Any, list[Any]]:
    if codec in ("f16", "bf16"):
        halves = arrays.wire_in(codec, wire, bits.size * 2).view(np.uint16)
        encode = f16_encode if codec == "f16" else bf16_encode
        return halves, [encode(bits)]
    if codec != "e4m3":
        raise CodecError(
            codec,
            "comparison",
            expected="e4m3, f16 or bf16",
            found=repr(codec),
            next_step="compare the bytes themselves",
        )
    if profile != ANY_PROFILE and profile not in E4M3_PROFILES:
        raise CodecError(
            codec,
            "unknown numeric profile",
            expected="any, " + ", ".join(E4M3_PROFILES),
            found=repr(profile),
            next_step="use any unless the peer's build is known",
        )
    names = tuple(E4M3_PROFILES) if profile == ANY_PROFILE else (profile,)
    observed = arrays.wire_in(codec, wire, bits.size)
    return observed, [e4m3_encode(bits, E4M3_PROFILES[name]) for name in names]


def _recognise(bits: U32, observed: Any, codec: str) -> str | None:
    if codec == "f16":
        if np.array_equal(observed, bf16_encode(bits)):
            return "BF16, the side branch's 16 bit"
        return _swapped(observed, f16_encode(bits))
    if codec == "bf16":
        if np.array_equal(observed, f16_encode(bits)):
            return "IEEE half, the main line's 16 bit"
        return _swapped(observed, bf16_encode(bits))
    fitting = [
        f"the {name} profile"
        for name, profile in E4M3_PROFILES.items()
        if np.array_equal(observed, e4m3_encode(bits, profile))
    ] or [
        name
        for name, overflow in _FOREIGN.items()
        if np.array_equal(observed, ocp_encode(bits, overflow=overflow))
    ]
    return " or ".join(fitting) or None


def _swapped(observed: Any, expected: Any) -> str | None:
    if np.array_equal(observed.byteswap(), expected):
        return "the right codes in big-endian order"
    return None
