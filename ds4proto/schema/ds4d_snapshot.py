"""DS4D snapshot frames: save, load, chunks and their end."""

from __future__ import annotations

from construct import Int32ub, Int64ub, this

from ds4proto.schema.declare import (
    REST,
    FieldSpec,
    Ints,
    Layout,
    Limit,
    Payload,
    Rule,
    Text,
)
from ds4proto.schema.ds4d_common import F, frame, model_id, number64, text_size

MAX_CHUNK = 8 * 1024 * 1024
"""Largest data part of one chunk, in bytes."""


def _state(auto_count: bool) -> tuple[FieldSpec, ...]:
    return (
        model_id(),
        number64("session", "key of the KV session"),
        number64("request", "snapshot request, 2^63 and up in upstream"),
        number64("token_hash", "hash of all tokens of the session"),
        F(
            "token_count",
            Int32ub,
            "tokens in the session",
            unit="tokens",
            auto=(lambda v: len(v["tokens"])) if auto_count else None,
        ),
        F("layer_start", Int32ub, "first layer of the slice", unit="layer"),
        F("layer_end", Int32ub, "last layer of the slice", unit="layer"),
    )


def _shard(status: str) -> tuple[FieldSpec, ...]:
    return (
        F(
            "payload_size",
            Int64ub,
            "size of the shard that follows in chunks",
            unit="bytes",
            words="payload_hi, payload_lo",
        ),
        F("status", Int32ub, status, default=0),
        F(
            "token_bytes",
            Int32ub,
            "size of the token tail",
            unit="bytes",
            auto=lambda v: 4 * len(v["tokens"]),
        ),
    )


def _tokens() -> Ints:
    return Ints("tokens", this.token_bytes, "token ids", "DS4D-SNAP-12", item=Int32ub)


_TOKEN_BYTES = Rule(
    "DS4D-SNAP-12",
    "token_bytes",
    lambda v: v["token_bytes"] == 4 * v["token_count"],
    lambda v: f"{4 * v['token_count']}, 4 bytes for each of {v['token_count']} tokens",
)

SNAPSHOT_SAVE_REQ = frame(
    5,
    Layout(
        "SNAPSHOT_SAVE_REQ",
        "The coordinator asks for the KV shard of one slice.",
        _state(False),
        short_clause="DS4D-SNAP-01",
        trailing_clause="DS4D-SNAP-01",
    ),
    ("coordinator",),
    ("worker",),
)

SNAPSHOT_BEGIN = frame(
    6,
    Layout(
        "SNAPSHOT_BEGIN",
        "A worker's answer to a save request.",
        (
            *_state(True),
            *_shard("0 ok, 1 refused"),
            F(
                "message_bytes",
                Int32ub,
                "length of the message",
                unit="bytes",
                auto=lambda v: text_size(v["message"]),
            ),
        ),
        (
            _tokens(),
            Text("message", this.message_bytes, "reason of a refusal", "DS4D-SNAP-32"),
        ),
        (
            Rule(
                "DS4D-SNAP-32",
                "token_bytes",
                lambda v: v["token_bytes"] == 4 * v["token_count"],
                lambda v: f"{4 * v['token_count']}, 4 bytes a token",
            ),
        ),
        short_clause="DS4D-SNAP-31",
    ),
    ("worker",),
    ("coordinator",),
    trailing=True,
)

SNAPSHOT_CHUNK = frame(
    7,
    Layout(
        "SNAPSHOT_CHUNK",
        "One piece of a shard.",
        (
            number64("request", "snapshot request"),
            F(
                "chunk_bytes",
                Int32ub,
                "size of the data, body less 12",
                unit="bytes",
                limit=Limit(0, MAX_CHUNK),
                clause="DS4D-SNAP-20",
                auto=lambda v: len(v["data"]),
            ),
        ),
        (Payload("data", REST, "shard bytes", "DS4D-SNAP-20", shape="bytes", bits=8),),
        (
            Rule(
                "DS4D-SNAP-20",
                "chunk_bytes",
                lambda v: v["chunk_bytes"] == len(v["data"]),
                lambda v: f"{len(v['data'])}, the bytes that follow",
            ),
        ),
        short_clause="DS4D-SNAP-19",
    ),
    ("worker", "coordinator"),
    ("coordinator", "worker"),
)

SNAPSHOT_DONE = frame(
    8,
    Layout(
        "SNAPSHOT_DONE",
        "End of a save or a load.",
        (
            number64("request", "snapshot request"),
            F("status", Int32ub, "0 ok, anything else a failure"),
            F(
                "message_bytes",
                Int32ub,
                "length of the message",
                unit="bytes",
                auto=lambda v: text_size(v["message"]),
            ),
        ),
        (Text("message", this.message_bytes, "reason of a failure", "DS4D-SNAP-38"),),
        short_clause="DS4D-SNAP-37",
    ),
    ("worker",),
    ("coordinator",),
    trailing=True,
)

SNAPSHOT_LOAD_BEGIN = frame(
    9,
    Layout(
        "SNAPSHOT_LOAD_BEGIN",
        "The coordinator pushes a shard; chunks follow.",
        (
            *_state(True),
            *_shard("0; not judged (DS4D-SNAP-63)"),
            F(
                "message_bytes",
                Int32ub,
                "always 0",
                unit="bytes",
                limit=Limit(one_of=(0,)),
                clause="DS4D-SNAP-12",
                default=0,
            ),
        ),
        (_tokens(),),
        (_TOKEN_BYTES,),
        short_clause="DS4D-SNAP-11",
        trailing_clause="DS4D-SNAP-12",
    ),
    ("coordinator",),
    ("worker",),
)
