"""DS4T control frames that a worker sends, and those that both send."""

from __future__ import annotations

from construct import Bytes, Float32l, Int8ul, Int16ul, Int32sl, Int32ul, Int64ul

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
    ANE,
    BEFORE_V7,
    ODINLINK,
    SINCE_V7,
    SINCE_V9_LATE,
    SINCE_V12,
    SINCE_V14,
    V9W,
    V15,
)
from ds4proto.schema.ds4t_common import BOTH, LEADER, WORKER, F, control, reserved
from ds4proto.schema.problem import Buf

HASH = control(
    6,
    Layout(
        "HASH",
        "Lockstep check for debugging.",
        (
            F("seq", Int64ul, "point of the comparison"),
            F("hash", Int64ul, "hash of the state"),
        ),
        short_clause="DS4T-HASH-01",
        trailing_clause="DS4T-HASH-01",
    ),
    BOTH,
    BOTH,
)

DECODE_MSG = (4096, 131072)
"""Bounds of decode_max_msg in v9w: less is refused, more is cut (DS4T-RDMA-45)."""

_OTHER_RDMA = ALL - V15
_RELIABLE = SINCE_V14 - V15
_FILLER = _OTHER_RDMA - _RELIABLE


def _routed(gid: Buf) -> bool:
    """Tell whether a GID leads anywhere: not all zero, not fe80::/10."""
    return any(gid) and not (gid[0] == 0xFE and gid[1] & 0xC0 == 0x80)


RDMA_INFO = control(
    7,
    Layout(
        "RDMA_INFO",
        "What the other side needs to bring its queue pair up.",
        (
            F("slab_base", Int64ul, "virtual address, unused"),
            F("rkey", Int32ul, "remote key, unused"),
            F("qpn", Int32ul, "queue pair number"),
            F(
                "psn",
                Int32ul,
                "first packet sequence number",
                limit=Limit(0, 0xFFFFFF),
                clause="DS4T-RDMA-22",
            ),
            F("qpn2", Int32ul, "second queue pair", dialects=ODINLINK),
            F("psn2", Int32ul, "its sequence number", dialects=ODINLINK),
            F("qpn3", Int32ul, "third queue pair", dialects=ODINLINK),
            F("psn3", Int32ul, "its sequence number", dialects=ODINLINK),
            F(
                "mtu",
                Int32ul,
                "active MTU of the port",
                enum=(
                    Name(1, "256"),
                    Name(2, "512"),
                    Name(3, "1024"),
                    Name(4, "2048"),
                    Name(5, "4096"),
                ),
            ),
            F("lid", Int16ul, "local identifier, 0 on Ethernet"),
            F("gid", Bytes(16), "global identifier"),
            F(
                "link_layer",
                Int8ul,
                "kind of link",
                enum=(Name(1, "INFINIBAND"), Name(2, "ETHERNET")),
            ),
            F(
                "reliable",
                Int8ul,
                "1 RC, 0 UC",
                limit=Limit(0, 1),
                clause="DS4T-RDMA-40",
                dialects=_RELIABLE,
            ),
            F("filler", Int8ul, "padding", dialects=_FILLER, default=0),
            F(
                "decode_max_msg",
                Int32ul,
                "largest decode message, the smaller wins",
                unit="bytes",
                limit=Limit(DECODE_MSG[0]),
                clause="DS4T-RDMA-45",
                dialects=V9W,
            ),
            F(
                "tail_pad",
                Bytes(4),
                "padding",
                dialects=_OTHER_RDMA - V9W,
                default=bytes(4),
            ),
        ),
        (),
        (
            Rule(
                "DS4T-RDMA-44",
                "mtu",
                lambda v: v["reliable"] != 1 or 1 <= v["mtu"] <= 5,
                "1..5 on a reliable queue pair",
                dialects=_RELIABLE,
            ),
            Rule(
                "DS4T-RDMA-46",
                "gid",
                lambda v: _routed(v["gid"]),
                "an address that is neither zero nor link-local",
                "give the sender's interface an IPv4 address",
            ),
        ),
        short_clause="DS4T-RDMA-42",
        trailing_clause="DS4T-RDMA-42",
    ),
    BOTH,
    BOTH,
    _OTHER_RDMA,
)

SYNC_ACK = control(
    8,
    Layout(
        "SYNC_ACK",
        "A sync is done.",
        short_clause="DS4T-SYNC-15",
        trailing_clause="DS4T-SYNC-15",
    ),
    WORKER,
    LEADER,
    BEFORE_V7,
)

RDMA_READY = control(
    9,
    Layout(
        "RDMA_READY",
        "The queue pair is ready to send.",
        short_clause="DS4T-RDMA-51",
        trailing_clause="DS4T-RDMA-51",
    ),
    BOTH,
    BOTH,
)

LOGITS = control(
    10,
    Layout(
        "LOGITS",
        "The worker's upper half of the logits.",
        (),
        (
            Payload(
                "logits",
                REST,
                "logits of the upper half of the vocabulary",
                "DS4T-LOGITS-01",
                shape="n_vocab / 2",
            ),
        ),
        short_clause="DS4T-LOGITS-01",
    ),
    WORKER,
    LEADER,
)

COMMAND_ACK = control(
    17,
    Layout(
        "COMMAND_ACK",
        "How a command ended.",
        (
            F("session_id", Int64ul, "the session, 0 for EVAL_BATCH"),
            F(
                "status",
                Int32sl,
                "0 ok, 2 interrupted, anything else a failure",
                enum=(Name(0, "OK"), Name(2, "INTERRUPTED")),
            ),
            reserved("reserved", SINCE_V14, "DS4T-ACK-08"),
            reserved("reserved0", SINCE_V7 - SINCE_V14),
        ),
        short_clause="DS4T-ACK-01",
        trailing_clause="DS4T-ACK-01",
    ),
    WORKER,
    LEADER,
    SINCE_V7,
)

LOGITS_TOP2 = control(
    18,
    Layout(
        "LOGITS_TOP2",
        "The two best logits of the worker's half, best first.",
        (
            F("id0", Int32sl, "token of the best logit"),
            F("id1", Int32sl, "token of the second"),
            F("value0", Float32l, "best logit"),
            F("value1", Float32l, "second logit"),
        ),
        short_clause="DS4T-TOP2-01",
        trailing_clause="DS4T-TOP2-01",
    ),
    WORKER,
    LEADER,
    V9W,
)


def _word(code: int, name: str, doc: str, word: FieldSpec) -> FrameSpec:
    return control(
        code,
        Layout(
            name,
            doc,
            (word,),
            short_clause=word.clause,
            trailing_clause=word.clause,
        ),
        BOTH,
        BOTH,
        SINCE_V9_LATE,
    )


WARM_UP_TAG = 0xFEED

RDMA_WARM = _word(
    19,
    "RDMA_WARM",
    "Outcome of one warm-up try.",
    F(
        "received",
        Int32ul,
        "1 if it arrived",
        limit=Limit(0, 1),
        clause="DS4T-RDMA-56",
    ),
)
RDMA_POSTED = _word(
    20,
    "RDMA_POSTED",
    "My receive is posted.",
    F(
        "tag",
        Int32ul,
        "0xFEED for the warm-up",
        limit=Limit(one_of=(WARM_UP_TAG,)),
        clause="DS4T-RDMA-54",
        default=WARM_UP_TAG,
    ),
)


def _checkpoint(code: int, dialects: frozenset[str]) -> FrameSpec:
    return control(
        code,
        Layout(
            "SYNC_CHECKPOINT",
            "Point at which both ranks agree on progress and cancel.",
            (
                F(
                    "seq",
                    Int64ul,
                    "counter of the connection, from 1",
                    limit=Limit(1),
                    clause="DS4T-CKPT-02",
                ),
                F(
                    "point",
                    Int32ul,
                    "where in the prefill",
                    enum=(
                        Name(0, "START"),
                        Name(1, "CHUNK"),
                        Name(2, "PROGRESS"),
                        Name(3, "END"),
                    ),
                    limit=Limit(0, 3),
                    clause="DS4T-CKPT-03",
                ),
                F("current", Int32sl, "progress; at END the return code"),
                F("total", Int32sl, "prompt length", unit="tokens"),
                F(
                    "cancelled",
                    Int32ul,
                    "1 asks to cancel",
                    limit=Limit(0, 1),
                    clause="DS4T-CKPT-05",
                ),
            ),
            short_clause="DS4T-CKPT-01",
            trailing_clause="DS4T-CKPT-01",
        ),
        BOTH,
        BOTH,
        dialects,
    )


SYNC_CHECKPOINT = _checkpoint(22, SINCE_V12 - ODINLINK - ANE)


def _opaque(code: int, name: str, doc: str, dialects: frozenset[str]) -> FrameSpec:
    body = Payload(
        "body", REST, "layout not known", "DS4T-DIALECT-06", shape="bytes", bits=8
    )
    return control(code, Layout(name, doc, (), (body,)), BOTH, BOTH, dialects)


ANSWERS: tuple[FrameSpec, ...] = (
    HASH,
    RDMA_INFO,
    SYNC_ACK,
    RDMA_READY,
    LOGITS,
    COMMAND_ACK,
    LOGITS_TOP2,
    RDMA_WARM,
    RDMA_POSTED,
    SYNC_CHECKPOINT,
    _checkpoint(23, ODINLINK),
    _opaque(22, "SYNC_GO", "Start of a sync in the OdinLink fork.", ODINLINK),
    _opaque(24, "ODL_READY", "OdinLink is ready.", ODINLINK),
    _opaque(25, "GLM_KDA_SYNC", "State sync of the OdinLink fork.", ODINLINK),
    _opaque(22, "CANCEL", "Cancel in the ANE fork.", ANE),
    _opaque(23, "ROLLBACK_CAPTURE", "Rollback in the ANE fork.", ANE),
)
