"""Messages of the private dialect: KV by spans, its check, decoding at one worker."""

from __future__ import annotations

from typing import Final

from construct import Int32ub, this

from ds4proto.schema.declare import (
    REST,
    FieldSpec,
    Ints,
    Layout,
    Limit,
    Name,
    Payload,
    Rule,
    Text,
)
from ds4proto.schema.ds4d_common import F, frame, model_id, number64, text_size
from ds4proto.schema.ds4d_private import PRIVATE

_ROWS = "DS4D-OURS-11"
_CHECK = "DS4D-OURS-13"
_TOKENS = "DS4D-OURS-15"
_BACK = "DS4D-OURS-16"

NO_TOKEN: Final = 0xFFFFFFFF
"""``eos`` of a model without one."""
EXACT, COLD = 1, 2
"""Flags of KV_CHECK."""
LAST = 1
"""Flag of LOCAL_TOKENS."""


def _key() -> tuple[FieldSpec, ...]:
    return (
        model_id(),
        number64("session", "key of the KV session"),
        number64("request", "request number, echoed in the answer"),
    )


def _layers() -> tuple[FieldSpec, ...]:
    return (
        F("layer_start", Int32ub, "first layer", unit="layer"),
        F("layer_end", Int32ub, "last layer, inclusive", unit="layer"),
        F("pos0", Int32ub, "position of the first token", unit="tokens"),
        F(
            "n_tokens",
            Int32ub,
            "tokens of the span",
            unit="tokens",
            limit=Limit(1),
            clause=_ROWS,
        ),
    )


def _token_bytes() -> FieldSpec:
    return F(
        "token_bytes",
        Int32ub,
        "size of the token tail",
        unit="bytes",
        auto=lambda v: 4 * len(v["tokens"]),
    )


def _message_bytes() -> FieldSpec:
    return F(
        "message_bytes",
        Int32ub,
        "size of the text",
        unit="bytes",
        auto=lambda v: text_size(v["message"]),
    )


def _span(name: str, doc: str, clause: str) -> Layout:
    """Declare KV rows of a span of tokens, or the tokens that go with them."""
    return Layout(
        name,
        doc,
        (
            *_key(),
            number64("prefix_hash", "hash of the tokens before pos0"),
            number64("result_hash", "hash of the tokens up to the end of the span"),
            *_layers(),
            _token_bytes(),
            F(
                "payload_bytes",
                Int32ub,
                "size of the rows",
                unit="bytes",
                auto=lambda v: len(v["payload"]),
            ),
        ),
        (
            Ints("tokens", this.token_bytes, "token ids", clause, item=Int32ub),
            Payload(
                "payload",
                this.payload_bytes,
                "rows of every layer in order: raw, compressed, indexer",
                clause,
                shape="f32 rows",
            ),
        ),
        short_clause=clause,
        trailing_clause=clause,
    )


KV_INCREMENT = frame(
    32,
    _span("KV_INCREMENT", "What one WORK added to the KV of a slice.", _ROWS),
    ("coordinator", "worker"),
    ("worker",),
    PRIVATE,
)
KV_RETURN = frame(
    33,
    _span("KV_RETURN", "What local decode added to the KV of a slice.", _BACK),
    ("coordinator", "worker"),
    ("coordinator", "worker"),
    PRIVATE,
)
KV_FETCH = frame(
    34,
    Layout(
        "KV_FETCH",
        "Asks the decoding worker for a KV_RETURN.",
        (*_key(), *_layers()),
        short_clause=_BACK,
        trailing_clause=_BACK,
    ),
    ("coordinator",),
    ("worker",),
    PRIVATE,
)
KV_CHECK = frame(
    35,
    Layout(
        "KV_CHECK",
        "Asks the last worker whether it can go on alone.",
        (
            *_key(),
            number64("token_hash", "hash of the whole transcript"),
            number64("logits_hash", "hash of the next-token logits over the route"),
            F("next_token", Int32ub, "greatest of these logits"),
            F(
                "flags",
                Int32ub,
                "how to judge",
                flags=(
                    Name(EXACT, "EXACT", "the logits have to agree bit by bit"),
                    Name(COLD, "COLD", "throw the KV away and prefill alone"),
                ),
            ),
            F(
                "wait_msec",
                Int32ub,
                "longest wait for KV",
                unit="milliseconds",
                limit=Limit(0, 600_000),
                clause=_CHECK,
            ),
            _token_bytes(),
        ),
        (Ints("tokens", this.token_bytes, "the transcript", _CHECK, item=Int32ub),),
        short_clause=_CHECK,
        trailing_clause=_CHECK,
    ),
    ("coordinator",),
    ("worker",),
    PRIVATE,
)
LOCAL_GENERATE = frame(
    36,
    Layout(
        "LOCAL_GENERATE",
        "Asks for tokens after a check.",
        (
            *_key(),
            number64("token_hash", "hash of the tokens held"),
            number64("seed", "seed of the sampler"),
            F("n_predict", Int32ub, "tokens to generate", unit="tokens"),
            F("eos", Int32ub, "token that ends the text, all ones for none"),
            F("temperature", Int32ub, "f32 bit pattern"),
        ),
        short_clause=_TOKENS,
        trailing_clause=_TOKENS,
    ),
    ("coordinator",),
    ("worker",),
    PRIVATE,
)
LOCAL_TOKENS = frame(
    37,
    Layout(
        "LOCAL_TOKENS",
        "Tokens as they are generated.",
        (
            number64("request", "copied from LOCAL_GENERATE"),
            F("flags", Int32ub, "end", flags=(Name(LAST, "LAST", "no more follow"),)),
            F("decode_usec", Int32ub, "time since the request", unit="microseconds"),
            _token_bytes(),
        ),
        (Ints("tokens", this.token_bytes, "token ids", _TOKENS, item=Int32ub),),
        short_clause=_TOKENS,
        trailing_clause=_TOKENS,
    ),
    ("worker",),
    ("coordinator",),
    PRIVATE,
)
LOCAL_ANSWER = frame(
    38,
    Layout(
        "LOCAL_ANSWER",
        "What came of a request, in words where it failed.",
        (
            number64("request", "copied from the request"),
            F("status", Int32ub, "0 ok, anything else a refusal"),
            number64("kv_bytes", "KV received since position 0 or the last check"),
            F("wait_usec", Int32ub, "time waited for KV", unit="microseconds"),
            _message_bytes(),
        ),
        (Text("message", REST, "reason of a refusal", _CHECK),),
        (
            Rule(
                _CHECK,
                "message_bytes",
                lambda v: v["message_bytes"] == text_size(v["message"]),
                lambda v: f"{text_size(v['message'])}, the bytes that follow",
            ),
        ),
        short_clause=_CHECK,
    ),
    ("worker",),
    ("coordinator",),
    PRIVATE,
)
PRIVATE_FRAMES: Final = (
    KV_INCREMENT,
    KV_RETURN,
    KV_FETCH,
    KV_CHECK,
    LOCAL_GENERATE,
    LOCAL_TOKENS,
    LOCAL_ANSWER,
)
