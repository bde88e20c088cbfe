"""Numeric trouble: values that are no numbers, do not fit a width, or are lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from ds4proto.printable import counted
from ds4proto.schema.declare import FrameSpec
from ds4proto.schema.ds4d_result import LOGITS
from ds4proto.trace.bounds import Bounded
from ds4proto.trace.diagnosis.check import Scene
from ds4proto.trace.diagnosis.finding import Finding, proof
from ds4proto.trace.diagnosis.spread import share
from ds4proto.trace.diagnosis.tp_gates import place_of
from ds4proto.trace.payload import SWAPPED, PayloadSummary, Summarizer, Width
from ds4proto.trace.rows import FrameRow

__all__ = ["FlushLook", "ValuesCheck", "flush_look"]

LISTED: Final = 3
ENOUGH: Final = 64
FLUSHED: Final = 0.1
"""Share of zeros in a narrow payload from which a width costs visibly."""
_F16_FLUSH: Final = 0x33000000
"""2^-25 as f32: magnitudes up to it round to zero in f16 (the tie goes to even)."""
_E4M3_FLUSH: Final = 0x3A7FFFFF
"""The least f32 magnitude that the 8-bit code of ds4 does not turn into zero."""


class FlushSummary(PayloadSummary):
    """A summary that also counts what narrowing would turn into zero.

    Attributes
    ----------
    flush16, flush8 : int
        Non-zero 32-bit values that become 0 at 16 and at 8 bits.
    """

    flush16: int = 0
    flush8: int = 0


class FlushLook(Summarizer):
    """Describes a payload, and counts what a narrower width would flush."""

    flush16 = 0
    flush8 = 0

    def _look(self, codes: npt.NDArray[Any], form: Any) -> None:
        super()._look(codes, form)
        if self.width != "f32":
            return
        magnitude = codes & np.uint32(0x7FFFFFFF)
        small = magnitude[(magnitude < _E4M3_FLUSH) & (magnitude > 0)]
        self.flush8 += small.size
        if small.size:
            self.flush16 += int(np.count_nonzero(small <= _F16_FLUSH))

    def finish(
        self, *, shape: tuple[int, ...] = (), notes: tuple[str, ...] = ()
    ) -> PayloadSummary:
        """Return the summary of all bytes taken."""
        plain = msgspec.structs.asdict(super().finish(shape=shape, notes=notes))
        return FlushSummary(**plain, flush16=self.flush16, flush8=self.flush8)


def flush_look(
    _spec: FrameSpec, _fields: Mapping[str, Any], path: str, width: Width
) -> Summarizer:
    """Return what describes a payload for a diagnosis."""
    return FlushLook(path, width)


@dataclass(slots=True)
class Place:
    """The payloads of one hop, or of one gate of one rank."""

    name: str
    what: str
    width: str
    counts: Counter[str] = field(default_factory=Counter)
    rows: dict[str, list[FrameRow]] = field(default_factory=dict)
    largest: float = 0.0


class ValuesCheck:
    """Values of hidden states, partials and logits."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.places: Bounded[tuple[int, str, str, str], Place] = Bounded()
        self._notes: Bounded[tuple[int, str, str], FrameRow] = Bounded()
        self._counted = 0
        self._hollow = 0

    def add(self, row: FrameRow) -> None:
        """Take the next row."""
        payload = row.payload
        if payload is None or payload.width == "bytes":
            return
        self._counted += 1
        if payload.captured is not None:
            self._hollow += 1  # behind a hole the borders of values are not known
            return
        what = _what(row)
        key = (row.run, f"{row.src_role} -> {row.dst_role}", what, payload.width)
        place = self.places.offer(key, lambda: Place(key[1], what, payload.width))
        if place is None:
            return
        counts = place.counts
        counts["frames"] += 1
        counts["values"] += payload.values
        counts["zeros"] += payload.zeros
        for low in (payload.low, payload.high):
            if low is not None:
                place.largest = max(place.largest, abs(low))
        counts["flush16"] += getattr(payload, "flush16", 0)
        counts["flush8"] += getattr(payload, "flush8", 0)
        for name in ("nan", "inf", "ge240", "over_f16"):
            count = getattr(payload, name)
            if count:
                counts[name] += count
                held = place.rows.setdefault(name, [])
                if len(held) < LISTED:
                    held.append(row)
        for note in payload.notes:
            self._notes.offer((row.run, key[1], note), lambda: row)

    def findings(self) -> Iterator[Finding]:
        """Answer hop by hop, and layer by layer for gates."""
        if self._scene.redacted:
            yield Finding(
                "unknown.redacted", "note", "certain",
                "the file was redacted: its token ids and values are 0, and about the "
                "real ones it cannot tell", {"payloads": self._counted},
                next_step="run ds4proto diagnose on the original, where it was made",
                file=self._scene.file,
            )  # fmt: skip
            return
        for (run, _, _, _), place in self.places.items():
            yield from self._non_finite(run, place)
            if place.what != "logits":
                yield from self._range(run, place)
                yield from self._flushed(run, place)
        for (run, hop, note), row in self._notes.items():
            if note.startswith("16-bit unsafe"):
                continue
            bad = note == SWAPPED
            yield Finding(
                "numeric.layout", "severe" if bad else "note",
                "likely" if bad else "possible", f"{hop}: {note}", {},
                (proof(row, self._scene.file),),
                "16-bit values are in host order: a build that swaps them on one "
                "transport only" if bad else "", run, self._scene.file,
            )  # fmt: skip
        if self._hollow:
            yield Finding(
                "unknown.values", "note", "certain",
                f"of {self._hollow} of {counted(self._counted, 'payload')} the capture "
                "holds a "
                "part, or headers alone: about their values it cannot tell",
                {"partial": self._hollow, "payloads": self._counted},
                next_step="record without a snap length, and unredacted",
                file=self._scene.file,
            )  # fmt: skip

    def _non_finite(self, run: int, place: Place) -> Iterator[Finding]:
        nan, inf = place.counts["nan"], place.counts["inf"]
        narrow = place.width in ("f16", "bf16")
        rows = place.rows.get("nan") or place.rows.get("inf")
        if not rows or not nan + inf:
            return
        yield Finding(
            "numeric.non-finite", "severe", "certain",
            f"{place.name}, {place.what}: {nan} NaN and {inf} infinite values in "
            f"{counted(place.counts['frames'], 'frame')}, the first in "
            f"{where(rows[0])}",
            {"nan": nan, "inf": inf, "frames": place.counts["frames"],
             "first": where(rows[0])},
            tuple(proof(row, self._scene.file) for row in rows),
            "a 16-bit hop turns values above 65504 into infinity: run once at 32 bits, "
            "and ask ds4proto whatif" if narrow and not nan else
            "the sender computed them, or its memory was overwritten: look at the "
            "layers before this hop, and whether the same prompt repeats it",
            run, self._scene.file,
        )  # fmt: skip

    def _range(self, run: int, place: Place) -> Iterator[Finding]:
        over = place.counts["over_f16"] - place.counts["inf"]
        wide = place.counts["ge240"] - place.counts["inf"]
        values = place.counts["values"]
        if place.width == "f32" and over > 0:
            rows = place.rows.get("over_f16", [])
            yield Finding(
                "numeric.above-65504", "warning", "certain",
                f"16-bit unsafe: {place.name}, {place.what}: {over} of "
                f"{counted(values, 'value')} "
                f"above 65504, the largest {place.largest:.6g}, first in "
                f"{where(rows[0])}",
                {"values": over, "of": values, "largest": place.largest},
                tuple(proof(row, self._scene.file) for row in rows),
                "keep 32 bits on this hop", run, self._scene.file,
            )  # fmt: skip
        if wide <= 0:
            return
        rows = place.rows.get("ge240", [])
        clipped = place.width == "e4m3"
        yield Finding(
            "numeric.clipped" if clipped else "numeric.above-240",
            "warning" if clipped else "note", "certain",
            f"{place.name}, {place.what}: {wide} of {counted(values, 'value')} "
            + ("are at the limit of the 8-bit width (240): they were clipped, or just "
               "reach it" if clipped else
               f"at or above 240 (largest {place.largest:.6g}), which 8 bits clip")
            + f"; first in {where(rows[0])}",
            {"values": wide, "of": values, "largest": place.largest},
            tuple(proof(row, self._scene.file) for row in rows),
            "run once at 32 bits and ask ds4proto whatif what the width costs"
            if clipped else "", run, self._scene.file,
        )  # fmt: skip

    def _flushed(self, run: int, place: Place) -> Iterator[Finding]:
        counts = place.counts
        values, zeros = counts["values"], counts["zeros"]
        if values == zeros and values >= ENOUGH:
            yield Finding(
                "numeric.all-zero", "warning", "likely",
                f"{place.name}, {place.what}: all {counted(values, 'value', 'are')} 0: "
                "the sender's "
                "buffer was never written, or its result was not waited for",
                {"values": values}, next_step="look at that rank's computing of this "
                "layer; the other side adds nothing to its own result",
                run=run, file=self._scene.file,
            )  # fmt: skip
            return
        if place.width == "f32" and (counts["flush8"] or counts["flush16"]):
            yield Finding(
                "numeric.would-flush", "note", "certain",
                f"{place.name}, {place.what}: narrowing would turn "
                f"{share(counts['flush8'], values)} of the values into 0 at 8 bits "
                f"({counts['flush8']}), {share(counts['flush16'], values)} at 16 "
                f"({counts['flush16']})",
                {"at_8": counts["flush8"], "at_16": counts["flush16"], "of": values},
                run=run, file=self._scene.file,
            )  # fmt: skip
        elif place.width in ("e4m3", "f16") and zeros * 100 > values:
            heavy = zeros > FLUSHED * values and values > 1000
            yield Finding(
                "numeric.flushed", "warning" if heavy else "note",
                "possible", f"{place.name}, {place.what}: {share(zeros, values)} of "
                f"{counted(values, 'value', 'are')} 0 at {place.width}; how many were "
                "not before "
                "narrowing, this capture cannot tell",
                {"zeros": zeros, "of": values},
                next_step="run once at 32 bits and ask ds4proto whatif"
                if heavy else "", run=run, file=self._scene.file,
            )  # fmt: skip


def _what(row: FrameRow) -> str:
    """Return what a payload is, by layer for gates."""
    if row.type.startswith("GATE"):
        layer, kind = place_of(row)
        return f"partial of layer {layer} {kind}"
    if row.type == "WORK":
        return f"hidden state before layer {row.fields.get('layer_start')}"
    if row.type == "RESULT":
        logits = row.fields.get("result_kind") == LOGITS
        return "logits" if logits else "hidden state returned"
    return "logits" if row.type.startswith("LOGITS") else row.type.lower()


def where(row: FrameRow) -> str:
    """Return the place of a payload in the run."""
    f = row.fields
    if row.type == "WORK":
        return (
            f"request {f['request']}, position {f['pos0']}, "
            f"{counted(f['n_tokens'], 'token')}"
        )
    if row.type == "RESULT":
        return f"the answer to request {f['request']}"
    if row.type.startswith("GATE"):
        return f"gate seq {f.get('seq')}"
    return f"{row.type} at {row.time:.3f} s"
