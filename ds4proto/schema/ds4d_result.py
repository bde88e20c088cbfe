"""DS4D RESULT: the answer to one WORK."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from construct import Int32ub, this

from ds4proto.schema.declare import Layout, Name, Payload, Records, Rule
from ds4proto.schema.dialects_ds4d import ALL
from ds4proto.schema.ds4d_common import FODELF, HELLO_V3, F, frame, number64
from ds4proto.schema.ds4d_private import PRIVATE
from ds4proto.schema.ds4d_records import TELEMETRY
from ds4proto.schema.ds4d_work import PRIVATE_WIDTH_LIMIT, WIDTHS

ACK, HIDDEN_STATE, LOGITS = 0, 1, 2
RESULT_KINDS = (
    Name(ACK, "ACK", "nothing but the acknowledgement"),
    Name(HIDDEN_STATE, "HIDDEN_STATE", "hidden state of all tokens"),
    Name(LOGITS, "LOGITS", "logits of the last token"),
)


def _value_bytes(v: Mapping[str, Any]) -> int:
    bits = v["payload_bits"] or 32
    return bits // 8 if bits in WIDTHS else 1


RESULT = frame(
    4,
    Layout(
        "RESULT",
        "The answer to one WORK, with one telemetry record a hop.",
        (
            number64("request", "copied from WORK"),
            number64("result_hash", "copied from WORK; 0 in errors"),
            F("status", Int32ub, "0 ok, anything else an error"),
            F(
                "result_kind",
                Int32ub,
                "what the payload is",
                enum=RESULT_KINDS,
            ),
            F(
                "telemetry_count",
                Int32ub,
                "telemetry records",
                auto=lambda v: len(v["telemetry"]),
            ),
            F(
                "telemetry_bytes",
                Int32ub,
                "size of the telemetry",
                unit="bytes",
                auto=lambda v: (
                    len(v["telemetry"]) * sum(f.size for f in TELEMETRY.fields)
                ),
            ),
            F(
                "payload_bytes",
                Int32ub,
                "size of the payload",
                unit="bytes",
                auto=lambda v: len(v["payload"]),
            ),
            F(
                "payload_bits",
                Int32ub,
                "width of one payload value",
                unit="bits",
            ),
            F("draft_count", Int32ub, "draft tokens", dialects=FODELF, default=0),
        ),
        (
            Records(
                "telemetry",
                this.telemetry_bytes,
                "last hop first",
                "DS4D-RESULT-04",
                record=TELEMETRY,
                count=this.telemetry_count,
            ),
            Payload(
                "payload",
                this.payload_bytes,
                "hidden state, logits, or the text of an error",
                "DS4D-RESULT-04",
                shape="by result_kind",
                bits=this.payload_bits,
            ),
        ),
        (
            Rule(
                "DS4D-RESULT-09",
                "result_kind",
                lambda v: v["result_kind"] <= LOGITS,
                "0, 1 or 2",
                dialects=ALL - HELLO_V3,
            ),
            Rule(
                "DS4D-RESULT-07",
                "payload_bits",
                lambda v: (
                    v["status"] != 0
                    or v["result_kind"] != HIDDEN_STATE
                    or v["payload_bits"] in (0, *WIDTHS)
                ),
                "32, 16 or 8 for a hidden state",
                dialects=ALL - PRIVATE,
            ),
            Rule(
                "DS4D-OURS-04",
                "payload_bits",
                lambda v: (
                    v["status"] != 0
                    or v["result_kind"] != HIDDEN_STATE
                    or PRIVATE_WIDTH_LIMIT.holds(v["payload_bits"])
                ),
                "32, 16, 8 or a format for a hidden state",
                dialects=PRIVATE,
            ),
            Rule(
                "DS4D-RESULT-25",
                "payload_bits",
                lambda v: (
                    v["status"] != 0
                    or v["result_kind"] != HIDDEN_STATE
                    or v["payload_bits"] != 0
                ),
                "the width in figures, 32 where WORK said 0",
            ),
            Rule(
                "DS4D-RESULT-07",
                "payload_bytes",
                lambda v: (
                    v["status"] != 0
                    or v["result_kind"] != HIDDEN_STATE
                    or v["payload_bytes"] % _value_bytes(v) == 0
                ),
                "a whole number of values",
            ),
            Rule(
                "DS4D-RESULT-26",
                "payload_bytes",
                lambda v: (
                    v["status"] != 0
                    or v["result_kind"] != LOGITS
                    or v["payload_bytes"] % 4 == 0
                ),
                "a whole number of f32",
            ),
            Rule(
                "DS4D-RESULT-24",
                "payload_bytes",
                lambda v: (
                    v["status"] != 0
                    or v["result_kind"] != ACK
                    or v["payload_bytes"] == 0
                ),
                "no payload in an ACK",
            ),
            Rule(
                "DS4D-RESULT-09",
                "payload_bytes",
                lambda v: (
                    v["status"] != 0
                    or v["result_kind"] not in (HIDDEN_STATE, LOGITS)
                    or v["payload_bytes"] > 0
                ),
                "a payload that answers the request",
            ),
        ),
        short_clause="DS4D-RESULT-03",
        trailing_clause="DS4D-RESULT-04",
    ),
    ("worker",),
    ("coordinator", "worker"),
)
