"""DS4D HELLO and ERROR: registration and refusal."""

from __future__ import annotations

from construct import Int32ub

from ds4proto.schema.declare import REST, Layout, Limit, Name, Rule, Text
from ds4proto.schema.ds4d_common import (
    BOOLEAN,
    LOCAL_DECODE,
    F,
    frame,
    model_id,
    text_size,
)
from ds4proto.schema.ds4d_private import HELLO_WORDS

MAX_NAME = 127
"""Longest model name, in bytes."""

HELLO = frame(
    1,
    Layout(
        "HELLO",
        "A worker announces its model, its slice and its data port.",
        (
            model_id(),
            F(
                "quant_bits",
                Int32ub,
                "quantisation label of the routed experts",
                unit="bits",
                limit=Limit(one_of=(2, 4)),
                clause="DS4D-HELLO-09",
            ),
            F("layer_start", Int32ub, "first layer, counted from 0", unit="layer"),
            F("layer_end", Int32ub, "last layer, inclusive", unit="layer"),
            F(
                "has_output",
                Int32ub,
                "1 if the worker owns the output head",
                limit=BOOLEAN,
                clause="DS4D-HELLO-10",
            ),
            F(
                "has_hidden",
                Int32ub,
                "1 if the worker can return hidden state",
                limit=BOOLEAN,
                clause="DS4D-HELLO-11",
                default=1,
            ),
            F("ctx_size", Int32ub, "context of the worker, 0 if unset", unit="tokens"),
            F("n_layers", Int32ub, "executable layers of the model", unit="layers"),
            F(
                "listen_port",
                Int32ub,
                "port of the worker's data listener",
                limit=Limit(1, 65535),
                clause="DS4D-HELLO-15",
            ),
            F(
                "model_name_len",
                Int32ub,
                "length of the model name",
                unit="bytes",
                limit=Limit(0, MAX_NAME),
                clause="DS4D-HELLO-03",
                auto=lambda v: text_size(v["model_name"]),
            ),
            F(
                "hello_flags",
                Int32ub,
                "capabilities",
                flags=(Name(1, "LOCAL_DECODE", "can decode alone"),),
                dialects=LOCAL_DECODE,
                default=0,
            ),
            *HELLO_WORDS,
        ),
        (Text("model_name", REST, "name of the model", "DS4D-HELLO-04"),),
        (
            Rule(
                "DS4D-HELLO-03",
                "model_name",
                lambda v: text_size(v["model_name"]) <= MAX_NAME,
                f"a name of at most {MAX_NAME} bytes",
            ),
            Rule(
                "DS4D-HELLO-04",
                "model_name_len",
                lambda v: v["model_name_len"] == text_size(v["model_name"]),
                lambda v: f"{text_size(v['model_name'])}, the bytes that follow",
                "the worker counts the name and the body length differently",
            ),
            Rule(
                "DS4D-HELLO-05",
                "model_name",
                lambda v: "\0" not in v["model_name"],
                "no NUL byte in the name",
            ),
            Rule(
                "DS4D-HELLO-12",
                "layer_start",
                lambda v: v["layer_start"] < v["n_layers"],
                lambda v: f"a layer below n_layers {v['n_layers']}",
                "the worker announces a slice outside its model",
            ),
            Rule(
                "DS4D-HELLO-12",
                "layer_end",
                lambda v: v["layer_start"] <= v["layer_end"] < v["n_layers"],
                lambda v: (
                    f"layer_start {v['layer_start']} or later, and below"
                    f" n_layers {v['n_layers']}"
                ),
                "the worker announces a slice outside its model",
            ),
            Rule(
                "DS4D-HELLO-13",
                "has_output",
                lambda v: v["has_output"] != 1 or v["layer_end"] + 1 == v["n_layers"],
                "the head only with the final layer",
                "give the output head to the worker that owns the last layer",
            ),
        ),
        short_clause="DS4D-HELLO-03",
    ),
    ("worker",),
    ("coordinator",),
)

ERROR = frame(
    2,
    Layout(
        "ERROR",
        "A refusal in words; the sender closes right after it.",
        (),
        (Text("text", REST, "message text, no terminator", "DS4D-ERROR-01"),),
    ),
    ("coordinator", "worker"),
    ("worker", "coordinator"),
)
