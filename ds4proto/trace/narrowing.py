"""One 32-bit payload sent through narrower formats: what became of its values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, log10
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec.structs import asdict

from ds4proto.codec import Codec
from ds4proto.codec.definition import E4M3_CLIP
from ds4proto.printable import counted
from ds4proto.schema.problem import Buf
from ds4proto.schema.slab import VALUE
from ds4proto.trace.payload import PayloadSummary, Summarizer

__all__ = ["Narrowed", "NarrowingLook", "NarrowingSummary", "verdict"]

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
_BATCH: Final = 1 << 18
"""Values that go through a codec at once."""
_MOST_ROW: Final = 1 << 22
"""Bytes of a row; a longer one is cut, since its length is a peer's word."""
_CLIPS: Final = {"e4m3": float(E4M3_CLIP.view(np.float32))}
"""Magnitudes above these are clipped; other formats scale, or overflow to infinity."""
_TOKENS: Final = 64
"""Token positions that are counted one by one."""
_SHOWN: Final = 3


@dataclass(slots=True)
class Narrowed:
    """What one format did to the values of one place.

    Attributes
    ----------
    values : int
    clipped : int
        Finite values whose magnitude is above what the format reaches.
    non_finite : int
        Finite values that became infinite or NaN.
    flushed : int
        Values other than 0 that became 0.
    signal, noise : float
        Sums of squares over the values that stay finite.
    clipped_tokens, non_finite_tokens : dict
        Token position -> count, for the first few positions.
    worst : (float, int)
        Least SQNR of a token in dB, and its position; infinite without noise.
    """

    values: int = 0
    clipped: int = 0
    non_finite: int = 0
    flushed: int = 0
    signal: float = 0.0
    noise: float = 0.0
    clipped_tokens: dict[int, int] = field(default_factory=dict)
    non_finite_tokens: dict[int, int] = field(default_factory=dict)
    worst: tuple[float, int] = (inf, -1)

    @property
    def sqnr(self) -> float:
        """Signal to noise in dB; infinite without noise."""
        return decibel(self.signal, self.noise)

    @property
    def safe(self) -> bool:
        """Whether no value was clipped or stopped being a number."""
        return not self.clipped and not self.non_finite

    def add(self, other: Narrowed, base: int = 0) -> None:
        """Add what became of further values, whose tokens count from `base`."""
        for key in ("values", "clipped", "non_finite", "flushed", "signal", "noise"):
            setattr(self, key, getattr(self, key) + getattr(other, key))
        ratio, row = other.worst
        self.worst = min(self.worst, (ratio, base + row))
        for mine, theirs in (
            (self.clipped_tokens, other.clipped_tokens),
            (self.non_finite_tokens, other.non_finite_tokens),
        ):
            for token, count in theirs.items():
                if len(mine) < _TOKENS or base + token in mine:
                    mine[base + token] = mine.get(base + token, 0) + count


class NarrowingSummary(PayloadSummary):
    """A summary that carries what each format did; see `Narrowed`."""

    narrowed: Any = None
    odd: int = 0


class NarrowingLook(Summarizer):
    """Describes a 32-bit payload, and sends its rows through codecs.

    Parameters
    ----------
    path : str
    codecs : mapping
        Name -> codec.
    row_bytes : int
        Of one token; 0 where it is not known: then values go in pieces.
    """

    def __init__(self, path: str, codecs: Mapping[str, Codec], row_bytes: int) -> None:
        super().__init__(path, "f32")
        self._codecs = codecs
        self._row = min(row_bytes, _MOST_ROW) or _BATCH
        self._held = bytearray()
        self._done = 0
        self.narrowed = {name: Narrowed() for name in codecs}
        self.odd = 0

    def update(self, piece: Buf) -> None:
        """Take the next bytes."""
        super().update(piece)
        self._held += piece
        rows = len(self._held) // self._row
        if rows * self._row >= _BATCH * VALUE:
            self._send(rows)

    def finish(
        self, *, shape: tuple[int, ...] = (), notes: tuple[str, ...] = ()
    ) -> PayloadSummary:
        """Return the summary of all bytes taken."""
        self._send(len(self._held) // self._row)
        if len(self._held) >= VALUE:
            self._row = len(self._held) // VALUE * VALUE
            self._send(1)
        plain = asdict(super().finish(shape=shape, notes=notes))
        return NarrowingSummary(**plain, narrowed=self.narrowed, odd=self.odd)

    def _send(self, rows: int) -> None:
        if not rows:
            return
        size = rows * self._row
        x = np.frombuffer(bytes(self._held[:size]), "<f4").reshape(rows, -1)
        del self._held[:size]
        finite = np.isfinite(x)
        self.odd += int(x.size - np.count_nonzero(finite))
        for name, codec in self._codecs.items():
            _through(
                self.narrowed[name], codec, _CLIPS.get(name), x, finite, self._done
            )
        self._done += rows


def _through(
    found: Narrowed,
    codec: Codec,
    limit: float | None,
    x: F32,
    finite: npt.NDArray[np.bool_],
    first: int,
) -> None:
    """Send rows through one codec and add up what became of them."""
    rows = x.shape[0]
    wire = codec.encode(x, rows=rows)
    back = codec.decode(wire, values=x.size, rows=rows).reshape(x.shape)
    lost = finite & ~np.isfinite(back)
    flushed = finite & (back == 0) & (x != 0)
    kept = finite & ~lost
    signal = np.where(kept, x, 0).astype(np.float64)
    noise = np.where(kept, back, 0).astype(np.float64) - signal
    signals: F64 = np.sum(signal * signal, axis=1)
    noises: F64 = np.sum(noise * noise, axis=1)
    found.values += x.size
    found.flushed += int(np.count_nonzero(flushed))
    found.signal += float(signals.sum())
    found.noise += float(noises.sum())
    _count(found.non_finite_tokens, lost, first)
    found.non_finite += int(np.count_nonzero(lost))
    if limit is not None:
        clipped = finite & (np.abs(x) > limit)
        found.clipped += int(np.count_nonzero(clipped))
        _count(found.clipped_tokens, clipped, first)
    for row in range(rows):
        ratio = decibel(float(signals[row]), float(noises[row]))
        found.worst = min(found.worst, (ratio, first + row))


def _count(table: dict[int, int], hit: npt.NDArray[np.bool_], first: int) -> None:
    for row in np.flatnonzero(hit.any(axis=1)).tolist():
        if len(table) < _TOKENS or first + row in table:
            count = int(np.count_nonzero(hit[row]))
            table[first + row] = table.get(first + row, 0) + count


def verdict(name: str, found: Narrowed) -> str:
    """Return what a format would have done, in one plain sentence."""
    label = {"f16": "16 bits", "bf16": "BF16", "e4m3": "8 bits"}.get(name, name)
    faults = []
    if found.clipped:
        faults.append(
            f"{counted(found.clipped, 'value')} above {_CLIPS[name]:g}, "
            f"{_tokens(found.clipped_tokens)}"
        )
    if found.non_finite:
        over = "above 65504" if name == "f16" else "that become infinite or NaN"
        faults.append(
            f"{counted(found.non_finite, 'value')} {over}, "
            f"{_tokens(found.non_finite_tokens)}"
        )
    rest = f"{_percent(found.flushed, found.values)} of the values become 0, "
    if found.worst[0] == inf:
        rest += "and all others cross exactly"
    else:
        rest += (
            f"SQNR {_db(found.sqnr)}, worst token {found.worst[1]} with "
            f"{_db(found.worst[0])}"
        )
    if faults:
        return f"{label} unsafe: {'; '.join(faults)} ({rest})"
    return f"{label} fit this run: no value clipped or infinite; {rest}"


def _tokens(table: Mapping[int, int]) -> str:
    if len(table) == 1:
        return f"all in token {next(iter(table))}"
    top = sorted(table.items(), key=lambda item: -item[1])
    shown = ", ".join(f"{token} ({count})" for token, count in top[:_SHOWN])
    more = " and more" if len(table) > _SHOWN else ""
    return f"in tokens {shown}{more}"


def _percent(part: int, whole: int) -> str:
    share = 100 * part / whole if whole else 0.0
    return f"{share:.2g} %" if part else "0 %"


def _db(value: float) -> str:
    return "without end" if value == inf else f"{value:.1f} dB"


def decibel(signal: float, noise: float) -> float:
    """Return a ratio of powers in dB; infinite without noise."""
    if noise <= 0:
        return inf
    return 10 * log10(signal / noise) if signal > 0 else -inf
