"""What a narrower width would have done to the hidden states of a 32-bit capture.

Every 32-bit payload goes through the codecs themselves, row by row as it comes: a
capture of any length takes constant memory. The capture holds values of one prompt; of
others it says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, log10
from os import PathLike
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ds4proto.codec import Codec, get
from ds4proto.codec.definition import E4M3_CLIP
from ds4proto.errors import NothingRan
from ds4proto.link.schedule import Schedule
from ds4proto.schema.declare import FrameSpec
from ds4proto.schema.ds4d_result import HIDDEN_STATE
from ds4proto.schema.problem import Buf
from ds4proto.trace.decoder import CaptureDecoder
from ds4proto.trace.payload import PayloadSummary, Summarizer, Width
from ds4proto.trace.rows import FrameRow

__all__ = ["DEFAULT_WIDTHS", "Narrowed", "Place", "WhatIf", "verdict", "what_if"]

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
DEFAULT_WIDTHS: Final = ("f16", "bf16", "e4m3")
_BATCH: Final = 1 << 18
"""Values that go through a codec at once."""
_MOST_ROW: Final = 1 << 22
"""Bytes of a row; a longer one is cut, since its length is a peer's word."""
_VALUE: Final = 4
_CLIPS: Final = {"e4m3": float(E4M3_CLIP.view(np.float32))}
"""Magnitudes above these are clipped; other formats scale, or overflow to infinity."""
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
        Least SQNR of a token in dB, and its position.
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


@dataclass(slots=True)
class Place:
    """The 32-bit payloads that crossed one hop at one layer.

    Attributes
    ----------
    name : str
        ``coordinator -> worker 3:5``.
    what : str
        ``hidden state before layer 3``.
    largest : float
        Largest finite magnitude.
    odd : int
        Values that were infinite or NaN before any narrowing.
    by_format : dict
        Name of a format -> `Narrowed`.
    """

    name: str
    what: str
    payloads: int = 0
    values: int = 0
    largest: float = 0.0
    odd: int = 0
    by_format: dict[str, Narrowed] = field(default_factory=dict)


@dataclass(slots=True)
class WhatIf:
    """Everything found in one capture.

    Attributes
    ----------
    places : list of Place
    formats : tuple of str
    narrow : dict
        Width -> payloads that were narrow already, and tell nothing.
    partial : int
        Payloads of which the capture holds a part.
    """

    places: list[Place] = field(default_factory=list)
    formats: tuple[str, ...] = ()
    narrow: dict[str, int] = field(default_factory=dict)
    partial: int = 0
    damage: str = ""

    def total(self, name: str) -> Narrowed:
        """Return what a format did over all places."""
        whole = Narrowed()
        for place in self.places:
            one = place.by_format[name]
            for key in ("values", "clipped", "non_finite", "flushed"):
                setattr(whole, key, getattr(whole, key) + getattr(one, key))
            whole.signal += one.signal
            whole.noise += one.noise
            whole.worst = min(whole.worst, one.worst)
            for mine, theirs in (
                (whole.clipped_tokens, one.clipped_tokens),
                (whole.non_finite_tokens, one.non_finite_tokens),
            ):
                for token, count in theirs.items():
                    mine[token] = mine.get(token, 0) + count
        return whole

    @property
    def unsafe(self) -> list[str]:
        """Formats that clip values or turn them into infinity or NaN."""
        return [name for name in self.formats if not self.total(name).safe]


def what_if(
    source: str | PathLike[str], formats: Sequence[str] = DEFAULT_WIDTHS
) -> WhatIf:
    """Send the 32-bit hidden states and partials of a capture through other formats.

    Parameters
    ----------
    source : path
    formats : sequence of str
        Names of codecs, see ``ds4proto codec list``.

    Raises
    ------
    CodecError
        For an unknown format.
    NothingRan
        Where the capture holds no 32-bit hidden state.
    OSError
    """
    codecs = {name: get(name) for name in formats}
    found = WhatIf(formats=tuple(codecs))
    places: dict[tuple[str, str], Place] = {}

    def look(
        spec: FrameSpec, fields: Mapping[str, Any], path: str, width: Width
    ) -> Summarizer:
        wanted = width == "f32" and _is_hidden(spec, fields)
        if not wanted:
            return Summarizer(path, width)
        return NarrowingLook(path, codecs, _row_bytes(spec, fields))

    decoder = CaptureDecoder(source, payload=look)
    try:
        for row in decoder:
            _take(found, places, row, decoder)
    except ValueError as error:
        found.damage = str(error)
    found.places = list(places.values())
    if not found.places:
        raise NothingRan(_nothing(str(source), found))
    return found


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
        if rows * self._row >= _BATCH * _VALUE:
            self._send(rows)

    def finish(
        self, *, shape: tuple[int, ...] = (), notes: tuple[str, ...] = ()
    ) -> PayloadSummary:
        """Return the summary of all bytes taken."""
        from msgspec.structs import asdict

        self._send(len(self._held) // self._row)
        if len(self._held) >= _VALUE:
            self._row = len(self._held) // _VALUE * _VALUE
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
        if len(table) < 64 or first + row in table:
            count = int(np.count_nonzero(hit[row]))
            table[first + row] = table.get(first + row, 0) + count


def _take(
    found: WhatIf,
    places: dict[tuple[str, str], Place],
    row: FrameRow,
    decoder: CaptureDecoder,
) -> None:
    payload = row.payload
    if payload is None or not row.is_frame:
        return
    if not isinstance(payload, NarrowingSummary):
        if payload.width in ("f16", "bf16", "e4m3") and _carries_state(row):
            found.narrow[payload.width] = found.narrow.get(payload.width, 0) + 1
        return
    if payload.captured is not None:
        found.partial += 1
        return
    what, base = _where(row, decoder)
    name = f"{row.src_role} -> {row.dst_role}"
    place = places.setdefault((name, what), Place(name, what))
    place.payloads += 1
    place.values += payload.values
    place.odd += payload.odd
    for value in (payload.low, payload.high):
        if value is not None:
            place.largest = max(place.largest, abs(value))
    for format_name, one in payload.narrowed.items():
        _add(place.by_format.setdefault(format_name, Narrowed()), one, base)


def _add(whole: Narrowed, one: Narrowed, base: int) -> None:
    for key in ("values", "clipped", "non_finite", "flushed", "signal", "noise"):
        setattr(whole, key, getattr(whole, key) + getattr(one, key))
    ratio, row = one.worst
    whole.worst = min(whole.worst, (ratio, base + row))
    for mine, theirs in (
        (whole.clipped_tokens, one.clipped_tokens),
        (whole.non_finite_tokens, one.non_finite_tokens),
    ):
        for token, count in theirs.items():
            if len(mine) < 64 or base + token in mine:
                mine[base + token] = mine.get(base + token, 0) + count


def _is_hidden(spec: FrameSpec, fields: Mapping[str, Any]) -> bool:
    if spec.name == "RESULT":
        return bool(fields.get("result_kind") == HIDDEN_STATE)
    return spec.name == "WORK" or spec.name.startswith("GATE")


def _carries_state(row: FrameRow) -> bool:
    hidden = row.type == "RESULT" and row.fields.get("result_kind") == HIDDEN_STATE
    return row.type == "WORK" or hidden


def _row_bytes(spec: FrameSpec, fields: Mapping[str, Any]) -> int:
    if spec.name == "WORK":
        tokens, size = int(fields["n_tokens"]), int(fields["input_hc_bytes"])
    elif spec.name == "RESULT":
        hops = fields.get("telemetry") or []
        tokens = int(hops[0]["n_tokens"]) if hops else 1
        size = int(fields["payload_bytes"])
    else:
        return 0
    whole = tokens > 0 and size % (tokens * _VALUE) == 0
    return size // tokens if whole else 0


def _where(row: FrameRow, decoder: CaptureDecoder) -> tuple[str, int]:
    """Return what a payload is, and the position of its first token.

    Gates carry no position: a row gate gets the token of its connection, from 1, and
    the rows of other gates count from 0.
    """
    from ds4proto.trace.diagnosis.tp_gates import place_of, place_of_seq

    f = row.fields
    if row.type == "WORK":
        return f"hidden state before layer {f['layer_start']}", int(f["pos0"])
    if row.type == "RESULT":
        hops = f.get("telemetry") or []
        end = hops[0]["layer_end"] if hops else "?"
        base = int(hops[0]["pos0"]) if hops else 0
        return f"hidden state behind layer {end}", base
    layer, kind = place_of(row)
    hello = decoder.decoder.runs[row.run - 1].hello if row.run else {}
    schedule = Schedule.from_hello(hello) if "n_layer" in hello else None
    place = place_of_seq(int(f.get("seq", 0)), schedule)
    token = place.token if place is not None and row.type == "GATE_ROW" else 0
    return f"partial of layer {layer} {kind}", token


def decibel(signal: float, noise: float) -> float:
    """Return a ratio of powers in dB; infinite without noise."""
    if noise <= 0:
        return inf
    return 10 * log10(signal / noise) if signal > 0 else -inf


def _nothing(name: str, found: WhatIf) -> str:
    if found.narrow:
        seen = ", ".join(f"{count} at {width}" for width, count in found.narrow.items())
        why = f"its hidden states are narrow already ({seen}): what was lost is gone"
    elif found.partial:
        why = f"of {found.partial} payloads it holds a part, or headers alone"
    else:
        why = "it holds no hidden state at all"
    return (
        f"{name}: {why}; record a run at 32 bits (--dist-activation-bits 32) without a "
        "snap length"
        + (f"; reading ended early: {found.damage}" if found.damage else "")
    )


def verdict(name: str, found: Narrowed) -> str:
    """Return what a format would have done, in one plain sentence."""
    label = {"f16": "16 bits", "bf16": "BF16", "e4m3": "8 bits"}.get(name, name)
    faults = []
    if found.clipped:
        faults.append(
            f"{found.clipped} values above {_CLIPS[name]:g}, "
            f"{_tokens(found.clipped_tokens)}"
        )
    if found.non_finite:
        over = "above 65504" if name == "f16" else "that become infinite or NaN"
        faults.append(
            f"{found.non_finite} values {over}, {_tokens(found.non_finite_tokens)}"
        )
    rest = (
        f"{_percent(found.flushed, found.values)} of the values become 0, "
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
