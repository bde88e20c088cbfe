"""DS4T control frames that a leader sends: commands."""

from __future__ import annotations

from construct import Bytes, Int32sl, Int32ul, Int64ul, this

from ds4proto.schema.declare import Layout, Limit, Name, Rule
from ds4proto.schema.dialects_ds4t import (
    ANE,
    BEFORE_V7,
    SINCE_V7,
    SINCE_V9_LATE,
    SINCE_V10,
    V9W,
    V15,
)
from ds4proto.schema.ds4t_batches import EVAL_BATCH, MIXED_BATCH, SYNC_MULTIMODAL
from ds4proto.schema.ds4t_common import (
    LEADER,
    WORKER,
    F,
    control,
    count_of,
    counts,
    reserved,
    session_id,
    tokens,
)

MAX_DRAFTS = 16
"""Largest verify block, in tokens."""
MAX_PREFIX = 4
"""Most drafts that a prefix verdict keeps."""
KEEP_PREFIX = 2
"""Mode of VERIFY_COMMIT that keeps a prefix."""

_PREFIX = SINCE_V9_LATE | V9W
"""Dialects whose VERIFY_COMMIT has a mode; before them field 0 is a yes or no."""


def _token_command(name: str, doc: str, clause: str, limit: Limit) -> Layout:
    return Layout(
        name,
        doc,
        (
            session_id(SINCE_V7),
            count_of(
                "count",
                "tokens",
                "tokens that follow",
                limit=limit,
                clause=clause,
                dialects=SINCE_V7,
            ),
            reserved(dialects=SINCE_V7),
        ),
        (tokens("DS4T-CTRL-03"),),
        (counts("DS4T-CTRL-03", "count", "tokens", SINCE_V7),),
        short_clause="DS4T-CTRL-03",
        trailing_clause="DS4T-CTRL-03",
    )


SYNC = control(
    1,
    _token_command(
        "SYNC", "Bring a session to this whole prefix.", "DS4T-SYNC-04", Limit(1)
    ),
    LEADER,
    WORKER,
)

EVAL = control(
    2,
    Layout(
        "EVAL",
        "Decode one token.",
        (
            session_id(SINCE_V7),
            F("seq", Int64ul, "eval counter of the leader, from 1"),
            F("token", Int32sl, "token to decode"),
            reserved("reserved", SINCE_V10, "DS4T-CTRL-18"),
            reserved("reserved0", SINCE_V7 - SINCE_V10),
            F("pad", Bytes(4), "padding", dialects=BEFORE_V7, default=bytes(4)),
        ),
        short_clause="DS4T-CTRL-03",
        trailing_clause="DS4T-CTRL-03",
    ),
    LEADER,
    WORKER,
)

REWIND = control(
    3,
    Layout(
        "REWIND",
        "Shorten a session; no answer.",
        (
            session_id(SINCE_V7),
            F("position", Int32sl, "new length", unit="tokens"),
            reserved(dialects=SINCE_V7 - ANE),
            F("mode", Int32ul, "kind of rewind", dialects=ANE, default=0),
        ),
        short_clause="DS4T-CTRL-03",
        trailing_clause="DS4T-CTRL-03",
    ),
    LEADER,
    WORKER,
)

INVALIDATE = control(
    4,
    Layout(
        "INVALIDATE",
        "Drop the state of a session; no answer.",
        (session_id(SINCE_V7),),
        short_clause="DS4T-CTRL-03",
        trailing_clause="DS4T-CTRL-03",
    ),
    LEADER,
    WORKER,
)

STOP = control(
    5,
    Layout(
        "STOP",
        "The end; no answer.",
        short_clause="DS4T-CTRL-03",
        trailing_clause="DS4T-STOP-01",
    ),
    LEADER,
    WORKER,
)

VERIFY = control(
    11,
    _token_command(
        "VERIFY", "Run a block of draft tokens.", "DS4T-VERIFY-02", Limit(1, MAX_DRAFTS)
    ),
    LEADER,
    WORKER,
)

VERIFY_COMMIT = control(
    12,
    Layout(
        "VERIFY_COMMIT",
        "The verdict on a draft block.",
        (
            F(
                "mode",
                Int32sl,
                "0 roll back and replay, 1 keep all, 2 keep a prefix",
                enum=(
                    Name(0, "REPLAY", "roll back, then decode token_count drafts"),
                    Name(1, "KEEP_ALL", "keep the whole block"),
                    Name(KEEP_PREFIX, "KEEP_PREFIX", "keep token_count", _PREFIX),
                ),
            ),
            F("token_count", Int32sl, "tokens replayed or kept", unit="tokens"),
        ),
        (),
        (
            Rule(
                "DS4T-VERIFY-11",
                "mode",
                lambda v: 0 <= v["mode"] <= KEEP_PREFIX,
                "0, 1 or 2",
                dialects=_PREFIX,
            ),
            Rule(
                "DS4T-VERIFY-10",
                "token_count",
                lambda v: (
                    v["mode"] != KEEP_PREFIX or 1 <= v["token_count"] <= MAX_PREFIX
                ),
                f"1..{MAX_PREFIX} tokens of a prefix",
                dialects=_PREFIX,
            ),
        ),
        short_clause="DS4T-CTRL-03",
        trailing_clause="DS4T-CTRL-03",
    ),
    LEADER,
    WORKER,
)

SESSION_CREATE = control(
    13,
    Layout(
        "SESSION_CREATE",
        "Open a session with a context.",
        (
            session_id(),
            F(
                "ctx_size",
                Int32sl,
                "context of the session",
                unit="tokens",
                limit=Limit(1),
                clause="DS4T-SESSION-05",
            ),
            reserved(),
        ),
        short_clause="DS4T-CTRL-03",
        trailing_clause="DS4T-CTRL-03",
    ),
    LEADER,
    WORKER,
    SINCE_V7,
)

SESSION_DESTROY = control(
    14,
    Layout(
        "SESSION_DESTROY",
        "Close a session.",
        (session_id(),),
        short_clause="DS4T-CTRL-03",
        trailing_clause="DS4T-CTRL-03",
    ),
    LEADER,
    WORKER,
    SINCE_V7,
)

GLM_MTP = control(
    21,
    Layout(
        "GLM_MTP",
        "One GLM speculative cycle.",
        (
            session_id(),
            F("seq", Int64ul, "eval counter of the leader, from 1"),
            F("token", Int32sl, "token to decode"),
            F(
                "limit",
                Int32ul,
                "tokens that may be accepted",
                limit=Limit(1, 2),
                clause="DS4T-MTP-02",
            ),
        ),
        short_clause="DS4T-CTRL-03",
        trailing_clause="DS4T-CTRL-03",
    ),
    LEADER,
    WORKER,
    SINCE_V10,
)

RESTORE_PAYLOAD = control(
    23,
    Layout(
        "RESTORE_PAYLOAD",
        "A saved session follows as a raw stream.",
        (
            session_id(),
            F("payload_bytes", Int64ul, "raw bytes that follow", unit="bytes"),
        ),
        short_clause="DS4T-RESTORE-01",
        trailing_clause="DS4T-RESTORE-01",
    ),
    LEADER,
    WORKER,
    V15,
    raw_follows=this.payload_bytes,
)

COMMANDS = (
    SYNC,
    EVAL,
    REWIND,
    INVALIDATE,
    STOP,
    VERIFY,
    VERIFY_COMMIT,
    SESSION_CREATE,
    SESSION_DESTROY,
    EVAL_BATCH,
    MIXED_BATCH,
    SYNC_MULTIMODAL,
    GLM_MTP,
    RESTORE_PAYLOAD,
)
