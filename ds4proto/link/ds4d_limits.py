"""What one DS4D endpoint allows a peer: sizes, queues, times.

The wire has no general frame cap, no receive timeout and no keep-alive, so every
bound here is our own (DS4D-FRAME-13); each is an argument with a safe default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from ds4proto.schema.declare import FieldSpec, Limit
from ds4proto.schema.ds4d_hello import HELLO
from ds4proto.schema.ds4d_records import ROUTE

Policy = Literal["safe", "upstream"]
"""``safe`` is ours; ``upstream`` repeats known faults of real peers, for tests."""


def _limit(fields: tuple[FieldSpec, ...], path: str) -> Limit:
    found = next(field.limit for field in fields if field.path == path)
    if found is None:
        raise LookupError(f"{path} has no limit")
    return found


def high(fields: tuple[FieldSpec, ...], path: str) -> int:
    """Return the upper bound that a declaration gives a field."""
    found = _limit(fields, path).high
    if found is None:
        raise LookupError(f"{path} has no upper bound")
    return found


MAX_NAME: Final = high(HELLO.body.fields, "model_name_len")
MAX_HOST: Final = high(ROUTE.fields, "host_len")
MAX_PORT: Final = high(ROUTE.fields, "port")
U32: Final = 0xFFFFFFFF
MESSAGE_BYTES: Final = 255
"""Bytes of an error text that peers keep (RESULT, snapshot, refusal of a HELLO)."""
ERROR_BYTES: Final = 511
"""Bytes of an ERROR text that a worker keeps for its log."""


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """Caps and deadlines of one endpoint.

    Parameters
    ----------
    stall_s : float
        Longest pause inside a frame, in seconds.
    frame_s, min_rate : float
        A frame may take ``frame_s + size / min_rate`` seconds (``min_rate`` in
        bytes a second) from its first byte to its last.
    hello_s : float
        Time for a dialling peer to bring its HELLO (DS4D-HELLO-36).
    result_s : float or None
        Time for the RESULT of the oldest unanswered WORK (DS4D-RESULT-51); a
        snapshot answer has the same. None waits as upstream does.
    forward_s : float or None
        Time for the next worker's answer (DS4D-FWD-22).
    idle_s : float or None
        Time a data connection may stay without a frame (DS4D-WORKER-35).
    max_body : int
        Largest body that is ever stored, in bytes.
    max_message : int
        Largest error text that is stored, in bytes.
    max_telemetry : int
        Largest telemetry that is stored, in records.
    max_sessions : int
        Sessions that a worker keeps (DS4D-SESS-10).
    max_shard : int
        Largest shard of a snapshot, in bytes (DS4D-SNAP-71).
    max_empty_chunks : int
        Empty chunks in a row inside one transfer (DS4D-SNAP-71).
    queue_depth : int
        WORK frames read ahead of the evaluation, 1..8 (DS4D-WORKER-09).
    forward_window : int
        Unanswered forwarded requests, 1..64 (DS4D-FWD-06).
    """

    stall_s: float = 60.0
    frame_s: float = 120.0
    min_rate: float = 65536.0
    hello_s: float = 30.0
    result_s: float | None = 600.0
    forward_s: float | None = 600.0
    idle_s: float | None = None
    max_body: int = 1 << 30
    max_message: int = 4096
    max_telemetry: int = 4096
    max_sessions: int = 64
    max_shard: int = 1 << 40
    max_empty_chunks: int = 1024
    queue_depth: int = 2
    forward_window: int = 4

    def __post_init__(self) -> None:
        _inside("queue_depth", self.queue_depth, 1, 8)
        _inside("forward_window", self.forward_window, 1, 64)


def _inside(name: str, value: int, low: int, top: int) -> None:
    if not low <= value <= top:
        raise ValueError(f"{name}: expected {low} to {top}, found {value}")


DEFAULT: Final = LinkLimits()
