"""DS4D messages that only forks have: decoded, never sent."""

from __future__ import annotations

from construct import Int32sb, Int32ub, this

from ds4proto.schema.declare import (
    REST,
    FieldSpec,
    FrameSpec,
    Ints,
    Layout,
    Payload,
    Text,
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
)

_BOTH = ("coordinator", "worker")
_RULE = "DS4D-DIALECT-01"


def _opaque(code: int, name: str, doc: str, dialects: frozenset[str]) -> FrameSpec:
    body = Payload("body", REST, "layout not known", _RULE, shape="bytes", bits=8)
    return frame(code, Layout(name, doc, (), (body,)), _BOTH, _BOTH, dialects)


IPC_INBOX = frame(
    10,
    Layout(
        "IPC_INBOX",
        "A worker with a GPU advertises a shared inbox.",
        (
            F("slot_count", Int32ub, "slots, 0 for none or for a query"),
            number64("slot_bytes", "size of one slot"),
        ),
        (
            Payload(
                "handles",
                REST,
                "one memory handle and an event handle a slot, 64 bytes each",
                _RULE,
                shape="(1 + slot_count) x 64",
                bits=8,
            ),
        ),
        short_clause=_RULE,
    ),
    _BOTH,
    _BOTH,
    ANYEI,
)


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
            F("logits_bytes", Int32ub, "size of the logits", unit="bytes"),
        ),
        (
            Payload(
                "logits", this.logits_bytes, "logits to start from", _RULE, shape="V"
            ),
        ),
        short_clause=_RULE,
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
            F("token_bytes", Int32ub, "size of the tokens", unit="bytes"),
            F("logits_bytes", Int32ub, "size of the logits", unit="bytes"),
            F("message_bytes", Int32ub, "size of the message", unit="bytes"),
        ),
        (
            Ints("tokens", this.token_bytes, "token ids", _RULE, item=Int32sb),
            Payload("logits", this.logits_bytes, "last logits", _RULE, shape="V"),
            Text("message", this.message_bytes, "reason of a failure", _RULE),
        ),
        short_clause=_RULE,
    ),
    ("worker",),
    ("coordinator",),
    LOCAL_DECODE,
)

FORK_FRAMES = (
    IPC_INBOX,
    LOCAL_GENERATE_REQ,
    LOCAL_GENERATE_RES,
    _opaque(10, "ALLREDUCE", "Partial sums of the fodelf fork.", FODELF),
    _opaque(11, "HELLO_V3", "Capability words of a worker.", HELLO_V3),
    _opaque(12, "HELLO_ACK", "Capability words of a coordinator.", HELLO_V3),
    _opaque(13, "HELLO_READY", "End of the capability exchange.", HELLO_V3),
)
