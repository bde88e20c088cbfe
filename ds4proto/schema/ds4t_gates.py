"""Gate headers: DS4T rows, DS4B verify batches and bulk exchanges, and RDMA words.

A gate header carries no payload length in upstream; the lockstep state gives it.
"""

from __future__ import annotations

from construct import Bytes, Int8ul, Int16ul, Int32ul, Int64ul

from ds4proto.schema.declare import (
    REST,
    FieldSpec,
    FrameSpec,
    Layout,
    Limit,
    Name,
    Payload,
    Rule,
)
from ds4proto.schema.dialects_ds4t import (
    ALL,
    ODINLINK,
    SINCE_V6,
    SINCE_V9_LATE,
    V9W,
    V15,
)
from ds4proto.schema.ds4t_common import BOTH, DS4B_MAGIC, DS4T_MAGIC, F

BULK_TAG = 0x0B16
WAVE_TAG = 0x0B17
MAX_ROWS = 8
DECODE_BYTE, VERIFY_BYTE = 0xD1, 0xB5
"""Barrier bytes; those of bulk windows count from 1."""
LOGITS_LAYER = 65534
"""Layer number of v9w's exchange of logits over RDMA."""

ATTN, FFN = 0, 1
GATE_KINDS = (
    Name(ATTN, "ATTN", "partial of the attention block"),
    Name(FFN, "FFN", "partial of the feed-forward block"),
)

_PLAIN = ALL - V15
_BULK = SINCE_V6 - V15


def _length(
    dialects: frozenset[str] = ODINLINK, clause: str = "DS4T-GATE-15"
) -> FieldSpec:
    return F(
        "bytes",
        Int64ul,
        "payload length",
        unit="bytes",
        clause=clause,
        dialects=dialects,
        auto=lambda v: len(v["partial"]),
    )


def _partials(clause: str, shape: str) -> tuple[Payload]:
    return (Payload("partial", REST, "partial sums", clause, shape=shape),)


def _gate(
    protocol: str, name: str, body: Layout, dialects: frozenset[str]
) -> FrameSpec:
    return FrameSpec(protocol, name, None, body, BOTH, BOTH, None, dialects)


GATE_ROW = _gate(
    "DS4T",
    "GATE_ROW",
    Layout(
        "GATE_ROW",
        "One partial of one token at one gate.",
        (
            F("magic", Int32ul, "DS4T", const=DS4T_MAGIC, clause="DS4T-GATE-01"),
            F("layer", Int16ul, "layer", clause="DS4T-GATE-02"),
            F(
                "gate",
                Int16ul,
                "0 ATTN, 1 FFN",
                enum=GATE_KINDS,
                limit=Limit(0, 1),
                clause="DS4T-GATE-03",
            ),
            F("seq", Int64ul, "row sequence, from 1", clause="DS4T-GATE-04"),
            _length(),
        ),
        _partials("DS4T-GATE-05", "n_embd"),
        short_clause="DS4T-GATE-01",
    ),
    _PLAIN,
)

GATE_BATCH = _gate(
    "DS4B",
    "GATE_BATCH",
    Layout(
        "GATE_BATCH",
        "The partials of a verify block at one layer.",
        (
            F("magic", Int32ul, "DS4B", const=DS4B_MAGIC, clause="DS4B-BATCH-01"),
            F("layer", Int16ul, "layer", clause="DS4B-BATCH-02"),
            F(
                "rows",
                Int16ul,
                "rows of the block",
                unit="tokens",
                limit=Limit(1, MAX_ROWS),
                clause="DS4B-BATCH-03",
            ),
            F("seq", Int64ul, "batch sequence, from 1", clause="DS4B-BATCH-04"),
            _length(),
        ),
        _partials("DS4B-BATCH-05", "rows x n_embd"),
        short_clause="DS4B-BATCH-01",
    ),
    _PLAIN,
)

GATE_BULK = _gate(
    "DS4B",
    "GATE_BULK",
    Layout(
        "GATE_BULK",
        "Many rows of a prefill chunk at one layer.",
        (
            F("magic", Int32ul, "DS4B", const=DS4B_MAGIC, clause="DS4B-BULK-01"),
            F("layer", Int16ul, "layer", clause="DS4B-BULK-02"),
            F(
                "tag",
                Int16ul,
                "kind of bulk exchange",
                enum=(
                    Name(BULK_TAG, "BULK", "rows in one exchange"),
                    Name(WAVE_TAG, "WAVE", "rows in waves over RDMA", V9W),
                ),
            ),
            F("seq", Int64ul, "batch sequence, from 1", clause="DS4B-BULK-04"),
            _length(),
        ),
        _partials("DS4B-BULK-05", "rows x n_embd"),
        (
            Rule(
                "DS4B-BULK-03",
                "tag",
                lambda v: v["tag"] == BULK_TAG,
                f"{BULK_TAG:#06x}",
                dialects=_BULK - V9W,
            ),
            Rule(
                "DS4B-BULK-03",
                "tag",
                lambda v: v["tag"] in (BULK_TAG, WAVE_TAG),
                f"{BULK_TAG:#06x} or {WAVE_TAG:#06x}",
                dialects=V9W,
            ),
        ),
        short_clause="DS4B-BULK-01",
    ),
    _BULK,
)


def _v15(protocol: str, name: str, kind: int, doc: str, third: str) -> FrameSpec:
    return _gate(
        protocol,
        name,
        Layout(
            name,
            doc,
            (
                F("magic", Int32ul, "DS4T", const=DS4T_MAGIC, clause="DS4T-GATE-12"),
                F(
                    "kind",
                    Int32ul,
                    "1 row, 2 batch, 3 bulk",
                    const=kind,
                    clause="DS4T-GATE-12",
                ),
                F("layer", Int32ul, "layer", clause="DS4T-GATE-13"),
                F(third, Int32ul, "gate kind, rows, or 0"),
                F("epoch", Int64ul, "exclusive or of both nonces"),
                F("seq", Int64ul, "sequence", clause="DS4T-GATE-13"),
                _length(V15, "DS4T-GATE-12"),
            ),
            _partials("DS4T-GATE-12", "bytes / 4"),
            short_clause="DS4T-GATE-12",
        ),
        V15,
    )


V15_KINDS = {1: "DS4T.GATE_ROW", 2: "DS4B.GATE_BATCH", 3: "DS4B.GATE_BULK"}

BARRIER = _gate(
    "DS4T",
    "BARRIER",
    Layout(
        "BARRIER",
        "One byte on the data socket: receives are posted.",
        (
            F(
                "value",
                Int8ul,
                f"0x{DECODE_BYTE:X} decode, 0x{VERIFY_BYTE:X} verify, 1, 2, 3 ... bulk "
                "windows",
            ),
        ),
        short_clause="DS4T-RDMA-61",
    ),
    SINCE_V9_LATE - V15,
)

RDMA_INFO_RAW = _gate(
    "DS4T",
    "RDMA_INFO_RAW",
    Layout(
        "RDMA_INFO_RAW",
        "Version 15: queue pair data on the data socket.",
        (
            F("epoch", Int64ul, "exclusive or of both nonces"),
            F("qpn", Int32ul, "queue pair number"),
            F("psn", Int32ul, "first packet sequence number"),
            F("mtu", Int32ul, "active MTU of the port"),
            F("gid", Bytes(16), "global identifier"),
            F("reserved", Int32ul, "0", default=0),
        ),
        short_clause="DS4T-RDMA-96",
    ),
    V15,
)

RDMA_WINDOW = _gate(
    "DS4T",
    "RDMA_WINDOW",
    Layout(
        "RDMA_WINDOW",
        "Version 15: between two windows of a bulk exchange.",
        (
            F("window", Int64ul, "window number"),
            F("offset", Int64ul, "bytes exchanged so far", unit="bytes"),
        ),
        short_clause="DS4T-RDMA-97",
    ),
    V15,
)

ODL_MESSAGE = _gate(
    "DS4T",
    "ODL_MESSAGE",
    Layout(
        "ODL_MESSAGE",
        "OdinLink fork: head of its own messages.",
        (
            F("magic", Int32ul, "DS4O", const=0x4453344F, clause="DS4T-DIALECT-26"),
            F("kind", Int16ul, "1 data, 2 nack"),
            F("index", Int16ul, "message of the vector"),
            F("seq", Int64ul, "gate sequence"),
        ),
        short_clause="DS4T-DIALECT-26",
    ),
    ODINLINK,
)

GATES: tuple[FrameSpec, ...] = (
    GATE_ROW,
    GATE_BATCH,
    GATE_BULK,
    _v15("DS4T", "GATE_ROW", 1, "One partial of one token at one gate.", "gate"),
    _v15("DS4B", "GATE_BATCH", 2, "The partials of a verify block.", "rows"),
    _v15("DS4B", "GATE_BULK", 3, "Many rows of a prefill chunk.", "zero"),
    BARRIER,
    RDMA_INFO_RAW,
    RDMA_WINDOW,
    ODL_MESSAGE,
)
