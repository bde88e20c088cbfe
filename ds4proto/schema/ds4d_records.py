"""Records inside DS4D messages: route, return record, telemetry."""

from __future__ import annotations

from construct import Int32ub, this

from ds4proto.schema.declare import Layout, Limit, Name, Rule, Text
from ds4proto.schema.dialects_ds4d import ALL
from ds4proto.schema.ds4d_common import LOCAL_DECODE, F, text_size

PORT = Limit(1, 65535)

ROUTE = Layout(
    "ROUTE",
    "One hop of the route.",
    (
        F(
            "host_len",
            Int32ub,
            "length of the host text",
            unit="bytes",
            limit=Limit(1, 1024),
            clause="DS4D-ROUTE-02",
            auto=lambda v: text_size(v["host"]),
        ),
        F(
            "port",
            Int32ub,
            "data port of the hop",
            limit=PORT,
            clause="DS4D-ROUTE-04",
        ),
        F("layer_start", Int32ub, "first layer of the hop", unit="layer"),
        F("layer_end", Int32ub, "last layer of the hop, inclusive", unit="layer"),
        F(
            "flags",
            Int32ub,
            "what the hop ends with",
            flags=(
                Name(1, "OUTPUT_LOGITS", "the hop ends with the output head"),
                Name(2, "LOCAL_DECODE", "the hop decodes alone", LOCAL_DECODE),
            ),
        ),
    ),
    (
        Text(
            "host",
            this.host_len,
            "numeric address or name that the worker before dials",
            "DS4D-ROUTE-01",
        ),
    ),
    (
        Rule(
            "DS4D-ROUTE-03",
            "host",
            lambda v: "\0" not in v["host"],
            "no NUL byte in the host",
        ),
        Rule(
            "DS4D-ROUTE-05",
            "layer_end",
            lambda v: v["layer_end"] >= v["layer_start"],
            lambda v: f"layer_start {v['layer_start']} or later",
        ),
        Rule(
            "DS4D-ROUTE-06",
            "flags",
            lambda v: v["flags"] & ~1 == 0,
            "0 or 1",
            dialects=ALL - LOCAL_DECODE,
        ),
    ),
    short_clause="DS4D-ROUTE-01",
)

ROUTE_RETURN = Layout(
    "ROUTE_RETURN",
    "The record behind the last hop: where the answer goes.",
    (
        F(
            "kind",
            Int32ub,
            "where the answer goes; UPSTREAM is back over the connection it came from",
            enum=(Name(1, "UPSTREAM", "back over the same connection"),),
            limit=Limit(one_of=(1,)),
            clause="DS4D-ROUTE-12",
            default=1,
        ),
        F(
            "host_len",
            Int32ub,
            "length of a host text, 0",
            unit="bytes",
            limit=Limit(one_of=(0,)),
            clause="DS4D-ROUTE-13",
            default=0,
        ),
        F(
            "port",
            Int32ub,
            "port, 0",
            limit=Limit(one_of=(0,)),
            clause="DS4D-ROUTE-13",
            default=0,
        ),
    ),
    (Text("host", this.host_len, "empty for UPSTREAM", "DS4D-ROUTE-10"),),
    (
        Rule(
            "DS4D-ROUTE-11",
            "host",
            lambda v: "\0" not in v["host"],
            "no NUL byte in the host",
        ),
    ),
    short_clause="DS4D-ROUTE-09",
)

TELEMETRY = Layout(
    "TELEMETRY",
    "What one hop did and how long it took.",
    (
        F("layer_start", Int32ub, "first layer of the hop", unit="layer"),
        F("layer_end", Int32ub, "last layer of the hop", unit="layer"),
        F("route_index", Int32ub, "the hop, counted from 0"),
        F("pos0", Int32ub, "from WORK", unit="tokens"),
        F("n_tokens", Int32ub, "from WORK", unit="tokens"),
        F("eval_usec", Int32ub, "time in the evaluation", unit="microseconds"),
        F(
            "downstream_wait_usec",
            Int32ub,
            "wait for the next hop's answer, 0 on the last hop",
            unit="microseconds",
        ),
        F(
            "forward_send_usec",
            Int32ub,
            "time writing the forwarded WORK, 0 on the last hop",
            unit="microseconds",
        ),
        F("input_bytes", Int32ub, "tokens and hidden bytes received", unit="bytes"),
        F("output_bytes", Int32ub, "bytes that the hop produced", unit="bytes"),
    ),
    short_clause="DS4D-TELEM-01",
)
