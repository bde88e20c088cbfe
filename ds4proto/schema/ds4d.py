"""DS4D: every message of the pipeline protocol."""

from __future__ import annotations

from ds4proto.schema.declare import FrameSpec
from ds4proto.schema.ds4d_common import HEADER, MAGIC, MODEL_IDS
from ds4proto.schema.ds4d_forks import FORK_FRAMES
from ds4proto.schema.ds4d_hello import ERROR, HELLO
from ds4proto.schema.ds4d_private_frames import PRIVATE_FRAMES
from ds4proto.schema.ds4d_records import ROUTE, ROUTE_RETURN, TELEMETRY
from ds4proto.schema.ds4d_result import ACK, HIDDEN_STATE, LOGITS, RESULT
from ds4proto.schema.ds4d_snapshot import (
    MAX_CHUNK,
    SNAPSHOT_BEGIN,
    SNAPSHOT_CHUNK,
    SNAPSHOT_DONE,
    SNAPSHOT_LOAD_BEGIN,
    SNAPSHOT_SAVE_REQ,
)
from ds4proto.schema.ds4d_work import (
    ACK_ONLY,
    INPUT_HC,
    OUTPUT_LOGITS,
    RESET_SESSION,
    WIDTHS,
    WORK,
)

FRAMES: tuple[FrameSpec, ...] = (
    HELLO,
    ERROR,
    WORK,
    RESULT,
    SNAPSHOT_SAVE_REQ,
    SNAPSHOT_BEGIN,
    SNAPSHOT_CHUNK,
    SNAPSHOT_DONE,
    SNAPSHOT_LOAD_BEGIN,
    *FORK_FRAMES,
    *PRIVATE_FRAMES,
)

__all__ = [
    "ACK",
    "ACK_ONLY",
    "ERROR",
    "FRAMES",
    "HEADER",
    "HELLO",
    "HIDDEN_STATE",
    "INPUT_HC",
    "LOGITS",
    "MAGIC",
    "MAX_CHUNK",
    "MODEL_IDS",
    "OUTPUT_LOGITS",
    "RESET_SESSION",
    "RESULT",
    "ROUTE",
    "ROUTE_RETURN",
    "SNAPSHOT_BEGIN",
    "SNAPSHOT_CHUNK",
    "SNAPSHOT_DONE",
    "SNAPSHOT_LOAD_BEGIN",
    "SNAPSHOT_SAVE_REQ",
    "TELEMETRY",
    "WIDTHS",
    "WORK",
]
