"""One prompt over pipeline and pair, over TCP and RDMA: which of them is wrong.

The first logits after the prompt are compared. A pair sends the upper half of its
vocabulary alone, so that the upper half is what all ways have in common.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from ds4proto.schema.declare import FrameSpec
from ds4proto.schema.ds4d_result import LOGITS
from ds4proto.schema.slab import VALUE
from ds4proto.trace.decoder import CaptureDecoder
from ds4proto.trace.diagnosis.check import is_whole, up_to_damage
from ds4proto.trace.diagnosis.finding import Evidence, Finding, proof
from ds4proto.trace.diagnosis.tp_gates import SYNCS
from ds4proto.trace.payload import Summarizer, Width
from ds4proto.trace.rows import FrameRow

if TYPE_CHECKING:
    from ds4proto.trace.diagnosis.front import Examiner

__all__ = ["transport_findings"]

FAR: Final = 0.05
"""Distance of two vectors of logits, as a part of their length, that is no rounding."""
_PIPELINE: Final = "pipeline"
_PAIR: Final = "tensor parallelism"
_MOST_BYTES: Final = 8 << 20
_ENDS: Final = ("tp.", "end.", "stall.", "rdma.", "rule.", "frame.")
Values = npt.NDArray[np.float32]


@dataclass(slots=True, eq=False)
class Way:
    """One recording: how the model was split, how its parts spoke, what came out."""

    file: str
    kind: str
    transport: str
    tokens: list[int] = field(default_factory=list)
    upper: Values | None = None
    row: FrameRow | None = None
    failed: str = ""
    distance: float = 0.0
    same_best: bool = True

    @property
    def name(self) -> str:
        """``tensor parallelism over RDMA``."""
        return f"{self.kind} over {self.transport}"

    @property
    def far(self) -> bool:
        """Whether the logits are others than those held against it."""
        return self.upper is not None and (self.distance > FAR or not self.same_best)

    @property
    def silent(self) -> bool:
        """Whether a fault kept it from its logits; else they were not recorded."""
        return self.upper is None and bool(self.failed)


class _Keep(Summarizer):
    """Describes a payload, and keeps the bytes of logits."""

    def __init__(self, path: str, width: Width, *, kept: bool) -> None:
        super().__init__(path, width)
        self._holds = kept
        self.pieces = bytearray()

    def update(self, piece: Any) -> None:
        """Take the next bytes."""
        super().update(piece)
        if self._holds and len(self.pieces) < _MOST_BYTES:
            self.pieces += piece


def transport_findings(captures: Sequence[Examiner]) -> Iterator[Finding]:
    """Answer where recordings of one prompt were made in different ways."""
    known = [way for way in map(_kind_of, captures) if way is not None]
    if len({(way.kind, way.transport) for way in known}) < 2:
        return
    for way in known:
        _first_logits(way)
    given = [way for way in known if way.upper is not None]
    if not given:
        return
    base = min(given, key=lambda way: (way.transport != "TCP", way.kind != _PIPELINE))
    same = [
        way for way in known
        if way.silent or (way.upper is not None and way.tokens == base.tokens)
    ]  # fmt: skip
    if len({(way.kind, way.transport) for way in same}) < 2:
        yield Finding(
            "compare.transports", "note", "possible",
            "the recordings are of different prompts, or hold no logits of them: to "
            "tell tensor parallelism from its transport, run one prompt in each way, "
            "and record until its first token has come",
        )  # fmt: skip
        return
    for way in same:
        if way.upper is not None and base.upper is not None:
            way.distance, way.same_best = _apart(base.upper, way.upper)
    yield _table(base, same)


def _kind_of(capture: Examiner) -> Way | None:
    pairs = [run for run in capture.pairs.runs.values() if run.handshake]
    if pairs:
        rdma = all(h.get("rdma_ok") for h in pairs[0].hello.values())
        over = "RDMA" if rdma and not pairs[0].row_pairs else "TCP"
        way = Way(capture.file, _PAIR, over)
    elif capture.pipelines.runs:
        way = Way(capture.file, _PIPELINE, "TCP")
    else:
        return None
    worst = (f for f in capture.findings() if f.severity == "severe")
    way.failed = next((f.code for f in worst if f.code.startswith(_ENDS)), "")
    return way


def _first_logits(way: Way) -> None:
    """Read a recording up to the first logits behind a prompt."""

    def look(
        spec: FrameSpec, fields: Mapping[str, Any], path: str, width: Width
    ) -> Summarizer:
        logits = spec.name == "LOGITS" or fields.get("result_kind") == LOGITS
        made = _Keep(path, width, kept=logits and width == "f32")
        held[:] = [made]
        return made

    held: list[_Keep] = []
    for row in up_to_damage(CaptureDecoder(way.file, payload=look)):
        if not row.is_frame or not is_whole(row):
            continue
        f = row.fields
        if row.type in ("WORK", *SYNCS) and not f.get("route_index"):
            if row.type != "WORK" or not f["pos0"]:
                way.tokens.clear()
            way.tokens += f.get("tokens") or ()
        elif row.type == "EVAL":
            way.tokens.append(int(f["token"]))
        elif row.type == "LOGITS" or f.get("result_kind") == LOGITS:
            if row.payload is None or row.payload.captured is not None:
                continue
            pieces = bytes(held[0].pieces) if held else b""
            values = np.frombuffer(pieces, "<f4", len(pieces) // VALUE)
            if values.size < 2:
                continue
            whole = row.type != "LOGITS"
            way.upper = values[values.size // 2 :] if whole else values
            way.row = row
            return


def _apart(one: Values, two: Values) -> tuple[float, bool]:
    """Return how far two vectors of logits are apart, and whether their best agrees."""
    size = min(one.size, two.size)
    mine, theirs = one[:size].astype("f8"), two[:size].astype("f8")
    if one.size != two.size or not np.isfinite(theirs).all():
        return float("inf"), False
    length = float(np.linalg.norm(mine)) or 1.0
    distance = float(np.linalg.norm(mine - theirs)) / length
    return distance, int(mine.argmax()) == int(theirs.argmax())


def _table(base: Way, ways: list[Way]) -> Finding:
    lines = []
    for way in ways:
        if way.upper is None:
            said = "no logits"
        elif way is base:
            said = "held against the others"
        else:
            best = "the same" if way.same_best else "another"
            said = f"{100 * way.distance:.3g} % away, {best} best token"
        ended = f", ended with {way.failed}" if way.failed else ""
        lines.append(f"{way.name} ({way.file}): {said}{ended}")
    bad = [way for way in ways if way.far or way.silent]
    verdict, step = _verdict(ways, bad)
    evidence = tuple(_proof(way) for way in ways if way.row is not None)
    return Finding(
        "compare.transports", "warning" if bad else "note", "likely",
        f"first logits of one prompt, upper half of the vocabulary: "
        f"{'; '.join(lines)}. {verdict}",
        {way.name: round(way.distance, 6) for way in ways if way.upper is not None},
        evidence, step,
    )  # fmt: skip


def _verdict(ways: list[Way], bad: list[Way]) -> tuple[str, str]:
    if not bad:
        return "All of them agree", ""
    good = [way for way in ways if way not in bad]
    kinds, over = {w.kind for w in bad}, {w.transport for w in bad}
    kind_works = any(w.kind in kinds for w in good)
    over_works = any(w.transport in over for w in good)
    if len(over) == 1 and kind_works and not over_works:
        only = next(iter(over))
        return (
            f"What goes over {only} is wrong, and the same split is right over another "
            "transport: the transport is at fault, or what only it uses (registered "
            "memory, windows, byte order)",
            "give ds4proto diagnose the RoCE capture too; compare the partials of both "
            "sides at the first gate",
        )
    if len(kinds) == 1 and over_works and not kind_works:
        only = next(iter(kinds))
        return (
            f"{only[0].upper()}{only[1:]} is wrong over every transport that was "
            "tried: what it computes is at fault, not what carries it",
            "compare weights, split and build of both ranks; ds4proto quality and the "
            "HASH frames of a debug run tell where they part",
        )
    return (
        "Which of both is at fault these recordings do not tell",
        "run the missing ways of pipeline and tensor parallelism, over TCP and RDMA, "
        "and give all recordings",
    )


def _proof(way: Way) -> Evidence:
    assert way.row is not None
    return proof(way.row, way.file, "first logits")
