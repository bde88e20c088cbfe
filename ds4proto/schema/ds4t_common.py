"""What DS4T and DS4B messages share. All integers are little-endian."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from construct import Int32sl, Int32ul, Int64ul

from ds4proto.schema.declare import (
    EVERY,
    REST,
    FieldSpec,
    FrameSpec,
    Ints,
    Layout,
    Length,
    Limit,
    Rule,
)

DS4T_MAGIC = 0x44533454
DS4B_MAGIC = 0x44533442
LEADER = ("tp-leader",)
WORKER = ("tp-worker",)
BOTH = LEADER + WORKER

F = FieldSpec

HEADER = Layout(
    "HEADER",
    "Twelve bytes in front of every control frame.",
    (
        F("magic", Int32ul, "DS4T", const=DS4T_MAGIC, clause="DS4T-CTRL-01"),
        F("type", Int32ul, "frame type", clause="DS4T-CTRL-02"),
        F("bytes", Int32ul, "payload length", unit="bytes", clause="DS4T-CTRL-03"),
    ),
    short_clause="DS4T-CTRL-03",
)


def control(
    code: int,
    body: Layout,
    sender: tuple[str, ...],
    receiver: tuple[str, ...],
    dialects: frozenset[str] = EVERY,
    *,
    raw_follows: Length | None = None,
) -> FrameSpec:
    """Declare one control frame; its name is that of its body."""
    return FrameSpec(
        "DS4T",
        body.name,
        code,
        body,
        sender,
        receiver,
        HEADER,
        dialects,
        raw_follows=raw_follows,
    )


def session_id(
    dialects: frozenset[str] = EVERY, clause: str = "DS4T-SESSION-07"
) -> FieldSpec:
    """Return the field that names a session; the leader counts from 1."""
    return F(
        "session_id",
        Int64ul,
        "session, chosen by the leader",
        limit=Limit(1),
        clause=clause,
        dialects=dialects,
    )


def reserved(
    path: str = "reserved", dialects: frozenset[str] = EVERY, clause: str = ""
) -> FieldSpec:
    """Return a word that senders leave 0; with a clause it must be."""
    limit = Limit(one_of=(0,)) if clause else None
    return F(
        path, Int32ul, "0", limit=limit, clause=clause, default=0, dialects=dialects
    )


def count_of(
    path: str,
    tail: str,
    doc: str,
    *,
    limit: Limit | None = None,
    clause: str = "",
    dialects: frozenset[str] = EVERY,
) -> FieldSpec:
    """Return a field that counts the items of ``tail``."""
    return F(
        path,
        Int32ul,
        doc,
        limit=limit,
        clause=clause,
        dialects=dialects,
        auto=lambda v: len(v[tail]),
    )


def tokens(clause: str, length: Callable[[Any], Any] | str = REST) -> Ints:
    """Return a tail of token ids."""
    return Ints("tokens", length, "token ids in order", clause, item=Int32sl)


def counts(clause: str, path: str, tail: str, dialects: frozenset[str] = EVERY) -> Rule:
    """Return the rule that a count equals the items that follow."""
    return Rule(
        clause,
        path,
        lambda v: v[path] == len(v[tail]),
        lambda v: f"{len(v[tail])}, the {tail} that follow",
        "payload size and count disagree",
        dialects,
    )
