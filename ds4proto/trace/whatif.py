"""What a narrower width would have done to the hidden states of a 32-bit capture.

Every 32-bit payload goes through the codecs themselves, row by row as it comes: a
capture of any length takes constant memory. The capture holds values of one prompt; of
others it says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from typing import Any, Final

from ds4proto.codec import get
from ds4proto.errors import NothingRan
from ds4proto.link.schedule import Schedule
from ds4proto.pcap.types import CaptureError
from ds4proto.printable import counted
from ds4proto.schema.declare import FrameSpec
from ds4proto.schema.ds4d_result import HIDDEN_STATE
from ds4proto.schema.slab import VALUE
from ds4proto.trace.bounds import Bounded
from ds4proto.trace.decoder import CaptureDecoder
from ds4proto.trace.diagnosis.tp_gates import place_of, place_of_seq
from ds4proto.trace.narrowing import Narrowed, NarrowingLook, NarrowingSummary
from ds4proto.trace.payload import Summarizer, Width
from ds4proto.trace.rows import FrameRow

__all__ = ["DEFAULT_WIDTHS", "Narrowed", "Place", "WhatIf", "what_if"]

DEFAULT_WIDTHS: Final = ("f16", "bf16", "e4m3")


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
    left_out : int
        Payloads of hops and layers beyond those that are told apart.
    """

    places: list[Place] = field(default_factory=list)
    formats: tuple[str, ...] = ()
    narrow: dict[str, int] = field(default_factory=dict)
    partial: int = 0
    damage: str = ""
    left_out: int = 0

    def total(self, name: str) -> Narrowed:
        """Return what a format did over all places."""
        whole = Narrowed()
        for place in self.places:
            whole.add(place.by_format[name])
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
        Where the capture holds no 32-bit hidden state, or no finite value in them.
    OSError
    """
    codecs = {name: get(name) for name in formats}
    found = WhatIf(formats=tuple(codecs))
    places: Bounded[tuple[str, str], Place] = Bounded()

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
    except CaptureError as error:
        found.damage = str(error)
    found.places = list(places.values())
    if all(place.values == place.odd for place in found.places):
        raise NothingRan(_nothing(str(source), found))
    return found


def _take(
    found: WhatIf,
    places: Bounded[tuple[str, str], Place],
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
    place = places.offer((name, what), partial(Place, name, what))
    if place is None:
        found.left_out += 1
        return
    place.payloads += 1
    place.values += payload.values
    place.odd += payload.odd
    for value in (payload.low, payload.high):
        if value is not None:
            place.largest = max(place.largest, abs(value))
    for format_name, one in payload.narrowed.items():
        place.by_format.setdefault(format_name, Narrowed()).add(one, base)


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
    whole = tokens > 0 and size % (tokens * VALUE) == 0
    return size // tokens if whole else 0


def _where(row: FrameRow, decoder: CaptureDecoder) -> tuple[str, int]:
    """Return what a payload is, and the position of its first token.

    Gates carry no position: a row gate gets the token of its connection, from 1, and
    the rows of other gates count from 0.
    """
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


def _nothing(name: str, found: WhatIf) -> str:
    odd = sum(place.odd for place in found.places)
    if odd:
        return (
            f"{name}: all {counted(odd, 'value')} at 32 bits are infinite or NaN, so "
            "that no "
            "width can be judged. Next: see where they come from with ds4proto "
            f"diagnose {name}"
        )
    if found.narrow:
        seen = ", ".join(f"{count} at {width}" for width, count in found.narrow.items())
        why = f"its hidden states are narrow already ({seen}): what was lost is gone"
    elif found.partial:
        why = (
            f"of {counted(found.partial, 'payload')} it holds a part, or headers alone"
        )
    else:
        why = "it holds no hidden state at all"
    return (
        f"{name}: {why}; record a run at 32 bits (--dist-activation-bits 32) without a "
        "snap length"
        + (f"; reading ended early: {found.damage}" if found.damage else "")
    )
