"""DS4D WORK: one span of tokens for one hop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from construct import Int32ub, this

from ds4proto.schema.declare import (
    REST,
    Blob,
    Ints,
    Layout,
    Limit,
    Name,
    One,
    Payload,
    Records,
    Rule,
)
from ds4proto.schema.dialects_ds4d import ALL
from ds4proto.schema.ds4d_common import (
    ANYEI,
    FODELF,
    F,
    frame,
    model_id,
    number64,
    text_size,
)
from ds4proto.schema.ds4d_private import PRIVATE, value_bytes, width_limit
from ds4proto.schema.ds4d_records import ROUTE, ROUTE_RETURN

WIDTHS = (32, 16, 8)
WIDTH_LIMIT = Limit(one_of=(0, *WIDTHS))
PRIVATE_WIDTH_LIMIT = width_limit(WIDTHS)

INPUT_HC = 1
OUTPUT_LOGITS = 2
RESET_SESSION = 4
ACK_ONLY = 8
INPUT_HC_IPC = 0x10
"""anyei: the hidden tail is a slot descriptor."""
KV_SPANS = 0x100
"""ds4proto: each hop sends KV_INCREMENT to the last hop (DS4D-OURS-10)."""
SLOT_DESCRIPTOR = 8
"""Bytes of a slot descriptor: slot and byte count, u32 each."""
WORK_FLAGS = (
    Name(INPUT_HC, "INPUT_HC", "a hidden tail is present"),
    Name(OUTPUT_LOGITS, "OUTPUT_LOGITS", "this hop ends with the output head"),
    Name(RESET_SESSION, "RESET_SESSION", "empty the session before the hash check"),
    Name(ACK_ONLY, "ACK_ONLY", "the last hop answers ACK"),
    Name(INPUT_HC_IPC, "INPUT_HC_IPC", "the hidden tail is a slot descriptor", ANYEI),
    Name(0x10, "DRAFT", "draft span", FODELF),
    Name(0x20, "VERIFY", "verify span", FODELF),
    Name(0x40, "VERIFY_CONT", "verify continues", FODELF),
    Name(KV_SPANS, "KV_SPANS", "each hop sends the span's KV to the last", PRIVATE),
)
_KNOWN_FLAGS = INPUT_HC | OUTPUT_LOGITS | RESET_SESSION | ACK_ONLY
_FORK_FLAGS = ANYEI | FODELF


def _own_record(v: Mapping[str, Any]) -> dict[str, int] | None:
    route = v.get("route")
    index = v["route_index"]
    if isinstance(route, list) and isinstance(index, int) and index < len(route):
        record: dict[str, int] = route[index]
        return record
    return None


def _route_size(v: Mapping[str, Any]) -> int:
    record = sum(f.size for f in ROUTE.fields)
    back = sum(f.size for f in ROUTE_RETURN.fields)
    fixed = record * len(v["route"]) + back
    hosts = sum(text_size(record["host"]) for record in v["route"])
    return fixed + hosts


def _whole_rows(v: Mapping[str, Any]) -> bool:
    size: int = v["input_hc_bytes"]
    flags: int = v["flags"]
    tokens: int = v["n_tokens"]
    value = value_bytes(v["input_hc_bits"])
    if size == 0:
        return tokens == 0 or not flags & INPUT_HC
    return size % (max(1, tokens) * value) == 0


def _is_descriptor(v: Mapping[str, Any]) -> bool:
    width = v["input_hc_bits"] or 32
    with_hidden = bool(v["flags"] & INPUT_HC)
    return with_hidden and width == 32 and v["input_hc_bytes"] == SLOT_DESCRIPTOR


WORK = frame(
    3,
    Layout(
        "WORK",
        "One span of tokens for one hop, with the whole route.",
        (
            model_id(),
            number64("session", "key of the KV session"),
            number64("request", "request number, echoed in RESULT"),
            number64("prefix_hash", "hash of the tokens before pos0"),
            number64("result_hash", "hash of the tokens up to the end of the span"),
            F("pos0", Int32ub, "position of the first token", unit="tokens"),
            F(
                "n_tokens",
                Int32ub,
                "tokens of the span",
                unit="tokens",
                limit=Limit(1),
                clause="DS4D-WORK-08",
                auto=lambda v: len(v["tokens"]),
            ),
            F("layer_start", Int32ub, "first layer of this hop", unit="layer"),
            F("layer_end", Int32ub, "last layer of this hop, inclusive", unit="layer"),
            F("flags", Int32ub, "what is asked of this hop", flags=WORK_FLAGS),
            F(
                "token_bytes",
                Int32ub,
                "size of the token tail",
                unit="bytes",
                auto=lambda v: 4 * len(v["tokens"]),
            ),
            F(
                "input_hc_bytes",
                Int32ub,
                "size of the hidden tail",
                unit="bytes",
                auto=lambda v: len(v["hidden"]),
            ),
            F(
                "input_hc_bits",
                Int32ub,
                "width of one hidden value, 0 means 32",
                unit="bits",
                limit=WIDTH_LIMIT,
                clause="DS4D-WORK-17",
                dialects=ALL - PRIVATE,
            ),
            F(
                "input_hc_bits",
                Int32ub,
                "width of one hidden value, 0 means 32; above 0x100 a format",
                unit="bits",
                limit=PRIVATE_WIDTH_LIMIT,
                clause="DS4D-OURS-04",
                dialects=PRIVATE,
            ),
            F(
                "route_count",
                Int32ub,
                "records of the route",
                limit=Limit(1),
                clause="DS4D-WORK-03",
                auto=lambda v: len(v["route"]),
            ),
            F("route_index", Int32ub, "this hop's record, counted from 0"),
            F(
                "route_bytes",
                Int32ub,
                "size of the route blob",
                unit="bytes",
                auto=_route_size,
            ),
            F("draft_cap", Int32ub, "draft tokens allowed", dialects=FODELF, default=0),
            F("accept_len", Int32ub, "accepted tokens", dialects=FODELF, default=0),
        ),
        (
            Ints(
                "tokens",
                this.token_bytes,
                "token ids in order",
                "DS4D-WORK-02",
                item=Int32ub,
            ),
            Payload(
                "hidden",
                this.input_hc_bytes,
                "hidden state of every token, row by row",
                "DS4D-WORK-02",
                shape="n_tokens x H",
                bits=this.input_hc_bits,
            ),
            Blob(
                "route_blob",
                this.route_bytes,
                "the whole route and its return record",
                "DS4D-WORK-02",
                empty_clause="DS4D-ROUTE-15",
                trailing_clause="DS4D-ROUTE-14",
                parts=(
                    Records(
                        "route",
                        REST,
                        "one record a hop",
                        "DS4D-ROUTE-01",
                        record=ROUTE,
                        count=this.route_count,
                    ),
                    One(
                        "route_return",
                        REST,
                        "where the answer goes",
                        "DS4D-ROUTE-09",
                        record=ROUTE_RETURN,
                    ),
                ),
            ),
        ),
        (
            Rule(
                "DS4D-WORK-02",
                "token_bytes",
                lambda v: v["token_bytes"] == 4 * v["n_tokens"],
                lambda v: (
                    f"{4 * v['n_tokens']}, 4 bytes for each of {v['n_tokens']} tokens"
                ),
                "make token_bytes and n_tokens agree",
            ),
            Rule(
                "DS4D-WORK-04",
                "route_index",
                lambda v: v["route_index"] < v["route_count"],
                lambda v: f"an index below route_count {v['route_count']}",
            ),
            Rule(
                "DS4D-WORK-07",
                "flags",
                lambda v: v["flags"] & ~_KNOWN_FLAGS == 0,
                "only the flags 1, 2, 4 and 8",
                "bit 0x10 is a known fork extension (anyei: slot descriptor;"
                " fodelf: draft)",
                dialects=ALL - _FORK_FLAGS - PRIVATE,
            ),
            Rule(
                "DS4D-OURS-10",
                "flags",
                lambda v: v["flags"] & ~(_KNOWN_FLAGS | KV_SPANS) == 0,
                "only the flags 1, 2, 4, 8 and 0x100",
                dialects=PRIVATE,
            ),
            Rule(
                "DS4D-WORK-10",
                "flags",
                lambda v: v["layer_start"] > 0 or not v["flags"] & INPUT_HC,
                "no INPUT_HC on a slice that starts at layer 0",
                "layer 0 embeds the tokens itself",
            ),
            Rule(
                "DS4D-WORK-11",
                "flags",
                lambda v: v["layer_start"] == 0 or bool(v["flags"] & INPUT_HC),
                "INPUT_HC on a slice that starts above layer 0",
                "send the hidden state of the layer before",
            ),
            Rule(
                "DS4D-WORK-19",
                "input_hc_bytes",
                lambda v: v["input_hc_bytes"] == 0 or bool(v["flags"] & INPUT_HC),
                "no hidden bytes without the INPUT_HC flag",
            ),
            Rule(
                "DS4D-WORK-18",
                "input_hc_bytes",
                _whole_rows,
                lambda v: (
                    f"a whole number of values for {v['n_tokens']} tokens at"
                    f" {v['input_hc_bits'] or 32} bits"
                ),
                dialects=ALL - ANYEI,
            ),
            Rule(
                "DS4D-WORK-18",
                "input_hc_bytes",
                lambda v: bool(v["flags"] & INPUT_HC_IPC) or _whole_rows(v),
                lambda v: (
                    f"a whole number of values for {v['n_tokens']} tokens at"
                    f" {v['input_hc_bits'] or 32} bits"
                ),
                dialects=ANYEI,
            ),
            Rule(
                "DS4D-DIALECT-31",
                "input_hc_bytes",
                lambda v: not v["flags"] & INPUT_HC_IPC or _is_descriptor(v),
                f"{SLOT_DESCRIPTOR} bytes of INPUT_HC at 32 bits",
                "the hidden tail names a slot and its byte count",
                dialects=ANYEI,
            ),
            Rule(
                "DS4D-WORK-21",
                "layer_start",
                lambda v: (
                    (r := _own_record(v)) is None
                    or (r["layer_start"], r["layer_end"])
                    == (v["layer_start"], v["layer_end"])
                ),
                "the range of the hop's own route record",
            ),
            Rule(
                "DS4D-WORK-22",
                "flags",
                lambda v: (
                    (r := _own_record(v)) is None
                    or bool(r["flags"] & 1) == bool(v["flags"] & OUTPUT_LOGITS)
                ),
                "OUTPUT_LOGITS as in the hop's own route record",
            ),
            Rule(
                "DS4D-WORK-23",
                "flags",
                lambda v: (
                    v["route_index"] + 1 >= v["route_count"]
                    or not v["flags"] & OUTPUT_LOGITS
                ),
                "OUTPUT_LOGITS on the last hop only",
            ),
            Rule(
                "DS4D-ROUTE-08",
                "route",
                lambda v: all(
                    b["layer_start"] == a["layer_end"] + 1
                    for a, b in zip(v["route"], v["route"][1:], strict=False)
                ),
                "each record to start where the one before ended",
                "the route has a gap or an overlap",
            ),
        ),
        short_clause="DS4D-WORK-01",
        trailing_clause="DS4D-WORK-02",
    ),
    ("coordinator", "worker"),
    ("worker",),
)
