"""DS4T control frames of several sessions or of images: batches, multimodal sync."""

from __future__ import annotations

from construct import Bytes, Int32sl, Int32ul, Int64ul, this

from ds4proto.schema.declare import REST, Layout, Limit, Payload, Records, Rule
from ds4proto.schema.dialects_ds4t import (
    SINCE_V7,
    SINCE_V9,
)
from ds4proto.schema.ds4t_common import (
    LEADER,
    WORKER,
    F,
    control,
    count_of,
    reserved,
    session_id,
    tokens,
)

_ITEM = Layout(
    "ITEM",
    "One session's token of a batch.",
    (
        session_id(),
        F("token", Int32sl, "token to decode"),
        reserved(),
    ),
    short_clause="DS4T-BATCH-04",
)


EVAL_BATCH = control(
    15,
    Layout(
        "EVAL_BATCH",
        "Decode one token in each of several sessions.",
        (
            count_of(
                "count",
                "items",
                "items that follow",
                limit=Limit(1),
                clause="DS4T-BATCH-02",
            ),
            reserved(),
        ),
        (
            Records(
                "items",
                REST,
                "one session and token each",
                "DS4T-CTRL-03",
                record=_ITEM,
                count=this["count"],
            ),
        ),
        short_clause="DS4T-CTRL-03",
        trailing_clause="DS4T-CTRL-03",
    ),
    LEADER,
    WORKER,
    SINCE_V7,
)

MIXED_BATCH = control(
    16,
    Layout(
        "MIXED_BATCH",
        "Prefill one session and decode in others.",
        (
            F(
                "prefill_session_id",
                Int64ul,
                "session that prefills",
                limit=Limit(1),
                clause="DS4T-SESSION-07",
            ),
            count_of(
                "prompt_count",
                "tokens",
                "prompt tokens",
                limit=Limit(1),
                clause="DS4T-MIXED-02",
            ),
            count_of(
                "item_count",
                "items",
                "decode items",
                limit=Limit(1),
                clause="DS4T-MIXED-02",
            ),
        ),
        (
            tokens("DS4T-CTRL-03", this.prompt_count * 4),
            Records(
                "items",
                REST,
                "one session and token each",
                "DS4T-CTRL-03",
                record=_ITEM,
                count=this.item_count,
            ),
        ),
        short_clause="DS4T-CTRL-03",
        trailing_clause="DS4T-CTRL-03",
    ),
    LEADER,
    WORKER,
    SINCE_V7,
)

_IMAGE = Layout(
    "IMAGE",
    "One image's embedding rows.",
    (
        F("token_start", Int32ul, "first prompt position", unit="tokens"),
        F(
            "token_count",
            Int32ul,
            "rows",
            unit="tokens",
            limit=Limit(1),
            clause="DS4T-MM-04",
        ),
        F("data_width", Int32ul, "values a row, n_embd", unit="values"),
        F("width", Int32ul, "pixels", limit=Limit(1), clause="DS4T-MM-06"),
        F("height", Int32ul, "pixels"),
        F("content_width", Int32ul, "pixels without padding"),
        F("content_height", Int32ul, "pixels without padding"),
        F("fingerprint", Bytes(32), "identity of the picture", default=bytes(32)),
    ),
    (
        Payload(
            "rows",
            this.token_count * this.data_width * 4,
            "embedding rows",
            "DS4T-MM-02",
            shape="token_count x data_width",
        ),
    ),
    short_clause="DS4T-MM-02",
)

SYNC_MULTIMODAL = control(
    18,
    Layout(
        "SYNC_MULTIMODAL",
        "SYNC with the embeddings of images.",
        (
            session_id(),
            count_of(
                "token_count",
                "tokens",
                "prompt tokens",
                limit=Limit(1),
                clause="DS4T-SYNC-04",
            ),
            count_of("image_count", "images", "images"),
        ),
        (
            tokens("DS4T-CTRL-03", this.token_count * 4),
            Records(
                "images",
                REST,
                "one record an image",
                "DS4T-MM-03",
                record=_IMAGE,
                count=this.image_count,
            ),
        ),
        (
            Rule(
                "DS4T-MM-07",
                "images",
                lambda v: all(
                    a["token_start"] + a["token_count"] <= b["token_start"]
                    for a, b in zip(v["images"], v["images"][1:], strict=False)
                ),
                "spans in order that do not overlap",
            ),
            Rule(
                "DS4T-MM-07",
                "images",
                lambda v: all(
                    i["token_start"] + i["token_count"] <= v["token_count"]
                    for i in v["images"]
                ),
                lambda v: f"spans inside the prompt of {v['token_count']} tokens",
            ),
        ),
        short_clause="DS4T-CTRL-03",
        trailing_clause="DS4T-CTRL-03",
    ),
    LEADER,
    WORKER,
    SINCE_V9,
)
