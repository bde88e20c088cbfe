"""What is wrong with a gate header, measured by what was due."""

from __future__ import annotations

from collections.abc import Iterator

from ds4proto.link.gate_form import Due, Header
from ds4proto.link.pair import TpPair
from ds4proto.schema.declare import FrameSpec, offsets_of
from ds4proto.schema.ds4t_gates import GATE_KINDS, LOGITS_LAYER, WAVE_TAG
from ds4proto.schema.problem import Problem

_FAMILIES = {
    "DS4T.GATE_ROW": "DS4T-GATE",
    "DS4B.GATE_BATCH": "DS4B-BATCH",
    "DS4B.GATE_BULK": "DS4B-BULK",
}
_LAYER, _WORD, _SEQ = 2, 3, 4
_NAMES = {entry.value: entry.name for entry in GATE_KINDS}


def clause_of(header: Header, number: int) -> str:
    """Return a clause of the header's kind: 2 layer, 3 kind, 4 seq, 5 payload."""
    return f"{_FAMILIES[header.name]}-{number:02}"


def judge(
    header: Header,
    due: Due,
    pair: TpPair,
    spec: FrameSpec,
    dialect: str,
    stream_offset: int,
) -> Iterator[Problem]:
    """Yield what differs between a header and the gate that is due.

    After a loss nothing is known to be due, and nothing is judged.
    """
    if not due.anchored or header.layer == LOGITS_LAYER:
        return

    def problem(number: int, path: str, expected: object, found: object) -> Problem:
        at = offsets_of(spec.body, dialect.rstrip("?")).get(path)
        where = None if at is None else stream_offset + at
        return Problem(
            clause_of(header, number),
            f"{spec.name}.{path}",
            at,
            where,
            str(expected),
            str(found),
            "both ranks have to issue the same gates in the same order",
        )

    if header.name == "DS4T.GATE_ROW":
        if header.seq != due.row:
            yield problem(_SEQ, "seq", due.row, header.seq)
        slot = None if pair.schedule is None else pair.schedule.slot_of(due.row)
        if slot is None:
            return
        if header.layer != slot // 2:
            yield problem(_LAYER, "layer", slot // 2, header.layer)
        if header.word != slot % 2 and header.word in _NAMES:
            yield problem(_WORD, "gate", _NAMES[slot % 2], _NAMES[header.word])
        return
    jumps = pair.bulk_on_rdma or header.word == WAVE_TAG
    if header.seq != due.batch and not (jumps and header.seq > due.batch):
        yield problem(_SEQ, "seq", due.batch, header.seq)
    planned = None
    if pair.lockstep is not None and not jumps:
        planned = pair.lockstep.planned(due.batch)
    if planned is not None and planned.layer != header.layer:
        yield problem(_LAYER, "layer", planned.layer, header.layer)
