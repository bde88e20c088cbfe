"""What is wrong with a gate header, measured by what was due."""

from __future__ import annotations

from collections.abc import Iterator

from ds4proto.link.gate_form import MAGICS, Due, Header
from ds4proto.link.gate_payload import PATH, Gate
from ds4proto.link.pair import TpPair
from ds4proto.schema.declare import FrameSpec, offsets_of
from ds4proto.schema.ds4t_gates import (
    GATE_BATCH,
    GATE_KINDS,
    LOGITS_LAYER,
    MAX_ROWS,
    WAVE_TAG,
)
from ds4proto.schema.problem import Problem

_FAMILIES = {
    "DS4T.GATE_ROW": "DS4T-GATE",
    "DS4B.GATE_BATCH": "DS4B-BATCH",
    "DS4B.GATE_BULK": "DS4B-BULK",
}
_LAYER, _WORD, _SEQ, _PAYLOAD = 2, 3, 4, 5
_MAGIC = 4
_WORD_AT = offsets_of(GATE_BATCH.body, "v14")["rows"]
_NAMES = {entry.value: entry.name for entry in GATE_KINDS}


def clause_of(header: Header, number: int) -> str:
    """Return a clause of the header's kind: 2 layer, 3 kind, 4 seq, 5 payload."""
    return f"{_FAMILIES[header.name]}-{number:02}"


def no_header(head: bytes, offset: int) -> Problem:
    """Say what stands where a gate header is due."""
    step = "a payload before it had another length, or the header is damaged"
    if head[:_MAGIC] in MAGICS:
        word = head[_WORD_AT : _WORD_AT + 2]
        return Problem(
            "DS4B-BATCH-03",
            "GATE.rows",
            _WORD_AT,
            offset + _WORD_AT,
            f"1 to {MAX_ROWS} rows, or a bulk tag",
            f"{int.from_bytes(word, 'little')}",
            step,
            fatal=True,
        )
    return Problem(
        "DS4T-GATE-01",
        "GATE.magic",
        0,
        offset,
        " or ".join(magic.hex() for magic in MAGICS),
        f"bytes that begin with {head[:_MAGIC].hex()}",
        step,
        fatal=True,
    )


def too_long(
    header: Header, spec: FrameSpec, start: int, size: int, cap: int, found: int
) -> Problem:
    """Say that a payload is longer than the limit."""
    return Problem(
        clause_of(header, _PAYLOAD),
        f"{spec.name}.{PATH}",
        size,
        start + size,
        f"at most {cap} bytes, then a header",
        f"{found}",
        "raise the limit if the gate is real",
        fatal=True,
    )


def unequal(gate: Gate, other: int, rows: int) -> Problem:
    """Say that the two ranks sent payloads of different length."""
    return Problem(
        clause_of(gate.header, _PAYLOAD),
        f"{gate.spec.name}.{PATH}",
        gate.size,
        gate.start + gate.size,
        f"{other} rows, as the other rank sent for seq {gate.due}",
        f"{rows} rows",
        "compare prefill chunk, split threshold and context of both ranks",
    )


def cut_short(
    gate: Gate | None,
    start: int,
    end: int,
    held: int,
    header_size: int,
    last: tuple[str, int] | None,
) -> Problem:
    """Say what the stream broke off in."""
    before = "no gate came before it"
    if last is not None:
        before = f"the last complete gate is {last[0]} at {last[1]}"
    if gate is None:
        name, came = "GATE", held
        expected = f"a header of {header_size} bytes"
    else:
        name, came = gate.spec.name, gate.got + held
        due = gate.want if gate.want is not None else gate.prefer
        expected = "a payload" if due is None else f"{due} bytes of payload"
    return Problem(
        "DS4T-GATE-06",
        name,
        end - start,
        end,
        expected,
        f"{came}, then the end of the stream",
        before,
        fatal=True,
    )


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
    if not due.sure(header) or header.layer == LOGITS_LAYER:
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
