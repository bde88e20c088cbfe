"""DS4D messages that only forks have: decoded, never sent."""

from __future__ import annotations

from collections.abc import Callable

from construct import Int32sb, Int32ub, this

from ds4proto.schema.declare import (
    REST,
    FieldSpec,
    FrameSpec,
    Ints,
    Layout,
    Limit,
    Payload,
    Rule,
    Text,
    Values,
)
from ds4proto.schema.ds4d_common import (
    ANYEI,
    FODELF,
    HELLO_V3,
    LOCAL_DECODE,
    F,
    frame,
    model_id,
    number64,
    text_size,
)

_BOTH = ("coordinator", "worker")
_LOCAL = "DS4D-DIALECT-34"
_INBOX = "DS4D-DIALECT-30"
_CAPABILITIES = "DS4D-DIALECT-19"


def _opaque(
    code: int, name: str, doc: str, dialects: frozenset[str], clause: str
) -> FrameSpec:
    body = Payload("body", REST, "layout not known", clause, shape="bytes", bits=8)
    return frame(code, Layout(name, doc, (), (body,)), _BOTH, _BOTH, dialects)


HANDLE = 64
"""Bytes of one memory or event handle."""


def _handles(slots: int) -> int:
    return HANDLE * (slots + 1) if slots else 0


IPC_INBOX = frame(
    10,
    Layout(
        "IPC_INBOX",
        "A worker with a GPU advertises a shared inbox.",
        (
            F(
                "slot_count",
                Int32ub,
                "slots, 0 for none or for a query",
                limit=Limit(0, 8),
                clause=_INBOX,
            ),
            number64("slot_bytes", "size of one slot"),
        ),
        (
            Payload(
                "handles",
                REST,
                "one memory handle and an event handle a slot, 64 bytes each",
                _INBOX,
                shape="(1 + slot_count) x 64",
                bits=8,
            ),
        ),
        (
            Rule(
                _INBOX,
                "handles",
                lambda v: len(v["handles"]) == _handles(v["slot_count"]),
                lambda v: f"{_handles(v['slot_count'])} bytes of handles",
            ),
        ),
        short_clause=_INBOX,
    ),
    _BOTH,
    _BOTH,
    ANYEI,
)


def _size(path: str, doc: str, auto: Callable[[Values], int]) -> FieldSpec:
    return F(path, Int32ub, doc, unit="bytes", auto=auto)


def _local_head() -> tuple[FieldSpec, ...]:
    return (
        model_id(),
        number64("session", "key of the KV session"),
        number64("request", "request number"),
        number64("token_hash", "hash of the tokens held"),
    )


LOCAL_GENERATE_REQ = frame(
    10,
    Layout(
        "LOCAL_GENERATE_REQ",
        "Asks the last worker to decode alone.",
        (
            *_local_head(),
            F("n_predict", Int32ub, "tokens to generate", unit="tokens"),
            F("flags", Int32ub, "1 asks for a trace of the logits"),
            number64("seed", "seed of the sampler"),
            F("temperature", Int32ub, "f32 bit pattern"),
            F("top_p", Int32ub, "f32 bit pattern"),
            F("min_p", Int32ub, "f32 bit pattern"),
            _size("logits_bytes", "size of the logits", lambda v: len(v["logits"])),
        ),
        (
            Payload(
                "logits", this.logits_bytes, "logits to start from", _LOCAL, shape="V"
            ),
        ),
        short_clause=_LOCAL,
    ),
    ("coordinator",),
    ("worker",),
    LOCAL_DECODE,
)

LOCAL_GENERATE_RES = frame(
    11,
    Layout(
        "LOCAL_GENERATE_RES",
        "What the last worker generated.",
        (
            *_local_head(),
            F("generated_count", Int32ub, "tokens generated", unit="tokens"),
            F("decode_usec", Int32ub, "time taken", unit="microseconds"),
            F("status", Int32ub, "0 ok"),
            _size("token_bytes", "size of the tokens", lambda v: 4 * len(v["tokens"])),
            _size("logits_bytes", "size of the logits", lambda v: len(v["logits"])),
            _size(
                "message_bytes", "size of the text", lambda v: text_size(v["message"])
            ),
        ),
        (
            Ints("tokens", this.token_bytes, "token ids", _LOCAL, item=Int32sb),
            Payload("logits", this.logits_bytes, "last logits", _LOCAL, shape="V"),
            Text("message", this.message_bytes, "reason of a failure", _LOCAL),
        ),
        short_clause=_LOCAL,
    ),
    ("worker",),
    ("coordinator",),
    LOCAL_DECODE,
)

FORK_FRAMES = (
    IPC_INBOX,
    LOCAL_GENERATE_REQ,
    LOCAL_GENERATE_RES,
    _opaque(10, "ALLREDUCE", "Partial sums.", FODELF, "DS4D-DIALECT-18"),
    _opaque(11, "HELLO_V3", "Words of a worker.", HELLO_V3, _CAPABILITIES),
    _opaque(12, "HELLO_ACK", "Words of a coordinator.", HELLO_V3, _CAPABILITIES),
    _opaque(13, "HELLO_READY", "End of the exchange.", HELLO_V3, _CAPABILITIES),
)
