"""What a payload looks like, found in one pass and without keeping it.

A payload of megabytes is described by its shape, its width, extremes, counts of odd
values and a hash. The pieces come in any size; all that is held between two of them
is the rest of one value.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from ds4proto.printable import counted
from ds4proto.schema.problem import Buf

__all__ = ["PayloadSummary", "Summarizer", "Width"]

Width = Literal["f32", "f16", "bf16", "e4m3", "bytes"]

HASH_BYTES: Final = 8
SAMPLE_BYTES: Final = 16_384
FULL_LIMIT: Final = 1 << 20
_STEP: Final = 1 << 18


class _Form(msgspec.Struct, frozen=True):
    """How magnitudes are ordered in the codes of one width (sign bit on top)."""

    size: int
    inf: int  # first magnitude that is no finite number
    nan: int  # first magnitude that is NaN
    e4m3_clip: int  # first magnitude that decodes to 240 or more
    over_f16: int  # first magnitude that f16 cannot hold
    note: str = ""


_NONE: Final = 1 << 40
_FORMS: Final[Mapping[str, _Form]] = {
    # 240.0 and 65504.0 as bit patterns; finite codes end below `inf`
    "f32": _Form(4, 0x7F800000, 0x7F800001, 0x43700000, 0x477FE001),
    "f16": _Form(2, 0x7C00, 0x7C01, 0x5B80, 0x7C00),
    "bf16": _Form(2, 0x7F80, 0x7F81, 0x4370, 0x4780),
    "e4m3": _Form(1, _NONE, _NONE, 0x77, _NONE),
}


class PayloadSummary(msgspec.Struct, omit_defaults=True):
    """One payload in a few numbers.

    Attributes
    ----------
    path : str
        Field that it is the value of.
    width : {"f32", "f16", "bf16", "e4m3", "bytes"}
    length : int
        Bytes on the wire (``bytes`` in JSON).
    captured : int or None
        Bytes that the capture holds, where it is not all of them; every number
        below is then about those alone.
    shape : tuple of int
        Rows and values a row, as far as it is known.
    values : int
    low, high : float or None
        Smallest and largest finite value.
    nan, inf, zeros : int
        Values of that kind; zeros of both signs.
    ge240 : int
        Finite or infinite values of magnitude 240 and more, which 8 bits clip.
    over_f16 : int
        Values of magnitude above 65504 (infinity included), which 16 bits lose.
    hash : str
        First 8 bytes of the SHA-256 of the captured bytes, in hex.
    notes : tuple of str
        What else is odd.
    data : bytes or None
        The bytes themselves, where they were asked for, at most 1 MiB of them.
    """

    path: str
    width: Width
    length: int = msgspec.field(name="bytes")
    captured: int | None = None
    shape: tuple[int, ...] = ()
    values: int = 0
    low: float | None = None
    high: float | None = None
    nan: int = 0
    inf: int = 0
    zeros: int = 0
    ge240: int = 0
    over_f16: int = 0
    hash: str = ""
    notes: tuple[str, ...] = ()
    data: bytes | None = None


class Summarizer:
    """Takes a payload in pieces; `finish` says what it was.

    Parameters
    ----------
    path : str
        Field that the payload is the value of.
    width : {"f32", "f16", "bf16", "e4m3", "bytes"}
        What its bytes hold.
    keep : bool
        Keep the first `FULL_LIMIT` bytes too.
    """

    def __init__(self, path: str, width: Width, *, keep: bool = False) -> None:
        self.path = path
        self.width = width
        self.bytes = 0
        self._form = _FORMS.get(width)
        self._digest = hashlib.sha256()
        self._rest = b""
        self._keep = keep
        self._kept = bytearray()
        self._sample = bytearray()
        self._low = self._high = -1  # codes; -1: nothing yet
        self._nan = self._inf = self._zeros = self._ge240 = self._over = 0
        self._missing = 0
        self._int8 = (0, 0)

    def update(self, piece: Buf) -> None:
        """Take the next bytes."""
        view = memoryview(piece)
        self.bytes += len(view)
        self._digest.update(view)
        if self._keep and len(self._kept) < FULL_LIMIT:
            self._kept += view[: FULL_LIMIT - len(self._kept)]
        form = self._form
        if form is None or not view:
            return
        if form.size == 2 and len(self._sample) < SAMPLE_BYTES:
            self._sample += view[: SAMPLE_BYTES - len(self._sample)]
        if self._rest:
            need = form.size - len(self._rest)
            self._rest += bytes(view[:need])
            view = view[need:]
            if len(self._rest) < form.size:
                return
            self._look(np.frombuffer(self._rest, f"<u{form.size}"), form)
            self._rest = b""
        whole = len(view) - len(view) % form.size
        if whole < len(view):
            self._rest = bytes(view[whole:])
        codes = np.frombuffer(view[:whole], f"<u{form.size}")
        step = _STEP // form.size
        for start in range(0, codes.size, step):
            self._look(codes[start : start + step], form)

    @property
    def absent(self) -> int:
        """Bytes that the capture does not hold."""
        return self._missing

    @property
    def over_f16(self) -> int:
        """Values so far that 16 bits cannot hold."""
        return self._over

    def as_int8(self) -> tuple[int, int]:
        """Return the least and the greatest byte so far, read as signed integers."""
        return self._int8

    def missing(self, length: int) -> None:
        """Note bytes that the capture does not hold; values start afresh behind."""
        self._missing += length
        self._rest = b""

    def _look(self, codes: npt.NDArray[Any], form: _Form) -> None:
        # Sign and magnitude: as unsigned numbers the largest code is the negative
        # value of largest magnitude, as signed ones the largest is the largest value
        # and the smallest the negative value of least magnitude.
        signed = codes.view(f"<i{form.size}")
        sign = 1 << (8 * form.size - 1)
        highest, lowest = int(signed.max()), int(codes.max())
        if form.size == 1:
            least = min(self._int8[0], int(signed.min()))
            self._int8 = (least, max(self._int8[1], highest))
        largest = max(highest, lowest & (sign - 1) if lowest >= sign else 0)
        self._zeros += codes.size - int(np.count_nonzero(codes))
        if int(signed.min()) == -sign:
            self._zeros += int(np.count_nonzero(codes == sign))
        if largest >= form.e4m3_clip:
            magnitude = codes & (sign - 1)
            nan = int(np.count_nonzero(magnitude >= form.nan))
            beyond = int(np.count_nonzero(magnitude >= form.inf))
            self._nan += nan
            self._inf += beyond - nan
            self._ge240 += int(np.count_nonzero(magnitude >= form.e4m3_clip)) - nan
            self._over += int(np.count_nonzero(magnitude >= form.over_f16)) - nan
            if beyond:
                codes = codes[magnitude < form.inf]
                if not codes.size:
                    return
                signed = codes.view(f"<i{form.size}")
                highest, lowest = int(signed.max()), int(codes.max())
        high = highest if highest >= 0 else int(signed.min()) & (2 * sign - 1)
        low = lowest if lowest >= sign else int(codes.min())
        if self._low < 0 or _order(low, sign) < _order(self._low, sign):
            self._low = low
        if self._high < 0 or _order(high, sign) > _order(self._high, sign):
            self._high = high

    def finish(
        self, *, shape: tuple[int, ...] = (), notes: tuple[str, ...] = ()
    ) -> PayloadSummary:
        """Return the summary of all bytes taken."""
        form = self._form
        found = list(notes)
        if form is not None and self._rest and not self._missing:
            found.append(
                f"{counted(len(self._rest), 'byte')} behind the last whole value"
            )
        guess = look_of_16_bits(bytes(self._sample)) if self.width == "f16" else ""
        if guess:
            found.append(guess)
        return PayloadSummary(
            self.path,
            self.width,
            self.bytes + self._missing,
            self.bytes if self._missing else None,
            shape,
            self.bytes // form.size if form is not None else 0,
            self._value(self._low),
            self._value(self._high),
            self._nan,
            self._inf,
            self._zeros,
            self._ge240,
            self._over,
            self._digest.digest()[:HASH_BYTES].hex(),
            tuple(found),
            bytes(self._kept) if self._keep else None,
        )

    def _value(self, code: int) -> float | None:
        return None if code < 0 else value_of(code, self.width)


def _order(code: int, sign: int) -> int:
    return code if code < sign else sign - 1 - code


def value_of(code: int, width: Width) -> float:
    """Return the value of one code (ds4's e4m3: no infinity, 240 from 0x77 on)."""
    if width == "f32":
        return float(np.array(code, "<u4").view("<f4"))
    if width == "f16":
        return float(np.array(code, "<u2").view("<f2"))
    if width == "bf16":
        return float(np.array(code << 16, "<u4").view("<f4"))
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = code >> 3 & 15, code & 7
    if exponent == 0:
        return sign * mantissa / 512
    if exponent == 15:
        return sign * 240.0
    return sign * float(np.ldexp(1 + mantissa / 8, exponent - 7))


SWAPPED: Final = "payload looks byte-swapped: exponents fit after swapping"
_LEAST_SAMPLE: Final = 512
_NARROW: Final = 0.6
_LIKELY: Final = (0.8, 4.0)
_WIDE: Final = 6.0


def look_of_16_bits(sample: bytes) -> str:
    """Say so where a 16-bit payload does not look like f16; else return ``""``.

    Judged by the spread of the binary logarithms of the magnitudes, in octaves.
    Values of a network spread over a few octaves. BF16 read as f16 squeezes eight
    octaves into one; f16 with its bytes swapped spreads over all exponents evenly.
    """
    codes = np.frombuffer(sample[: len(sample) & ~1], "<u2")
    codes = codes[(codes & 0x7FFF) != 0]
    if codes.size < 2:
        return ""
    if _odd_exponents(codes) * 2 > 1 and _odd_exponents(codes.byteswap()) == 0:
        return SWAPPED
    if codes.size < _LEAST_SAMPLE:
        return ""
    plain = _spread_f16(codes)
    if plain <= _NARROW:
        as_bf16 = _spread(codes.astype(np.uint32) << 16)
        if _LIKELY[0] <= as_bf16 <= _LIKELY[1]:
            return "looks like BF16, not f16"
    if plain >= _WIDE or not np.isfinite(plain):
        swapped = codes.byteswap()
        if _LIKELY[0] <= _spread_f16(swapped) <= _LIKELY[1]:
            return SWAPPED
    return ""


def _odd_exponents(codes: npt.NDArray[np.uint16]) -> float:
    """Return the share of values with the least or the greatest exponent."""
    exponent = codes & 0x7C00
    return float(np.mean((exponent == 0) | (exponent == 0x7C00)))


def _spread_f16(codes: npt.NDArray[np.uint16]) -> float:
    if np.count_nonzero((codes & 0x7C00) == 0x7C00) * 100 > codes.size:
        return float("inf")
    return _spread(codes.view("<f2").astype(np.float32).view(np.uint32))


def _spread(bits: npt.NDArray[np.uint32]) -> float:
    values = np.abs(bits.view(np.float32))
    values = values[np.isfinite(values) & (values > 0)]
    if values.size * 2 < bits.size:
        return float("nan")
    return float(np.log2(values.astype(np.float64)).std())
