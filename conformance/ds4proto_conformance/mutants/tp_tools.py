"""Tools to plant faults in small ranks with: frames and gates rewritten."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable
from typing import Any, Final

from ds4proto.link.ds4t_worker_rules import CommandJudge, Refusal
from ds4proto.schema.ds4t_common import DS4T_MAGIC
from ds4proto.schema.ds4t_gates import BULK_TAG
from ds4proto_conformance.peers.faults import Out, Received, patched

__all__ = [
    "ack_bytes",
    "control_in",
    "control_out",
    "drop",
    "frame_bytes",
    "gate_in",
    "gate_kind",
    "judged",
    "payload_in",
    "put",
    "word",
]

ACK: Final = 17
LOGITS: Final = 10
_HEAD: Final = struct.Struct("<III")
_UNKNOWN: Final = 99
Change = Callable[[Any, int, bytes], bytes | list[bytes] | None]
"""(connection, type, body) -> another body, whole frames, or None for no change."""


def frame_bytes(code: int, body: bytes = b"") -> bytes:
    """Return a control frame."""
    return _HEAD.pack(DS4T_MAGIC, code, len(body)) + body


def refused_frame() -> list[bytes]:
    """Return a frame that every worker refuses."""
    return [frame_bytes(_UNKNOWN)]


def ack_bytes(known: int, status: int = 0) -> bytes:
    """Return a COMMAND_ACK."""
    return frame_bytes(ACK, struct.pack("<QiI", known, status, 0))


def word(body: bytes, at: int, size: int = 4, *, signed: bool = False) -> int:
    """Return an integer of a body."""
    return int.from_bytes(body[at : at + size], "little", signed=signed)


def put(body: bytes, at: int, value: int, size: int = 4) -> bytes:
    """Return a body with one integer replaced."""
    kept = value & (1 << 8 * size) - 1
    return body[:at] + kept.to_bytes(size, "little") + body[at + size :]


def _changed(code: int, body: bytes, made: bytes | list[bytes] | None) -> list[bytes]:
    if made is None:
        return [frame_bytes(code, body)]
    return [frame_bytes(code, made)] if isinstance(made, bytes) else made


def drop() -> list[bytes]:
    """Return no frame at all."""
    return []


def control_out(change: Change, *codes: int) -> Out:
    """Return a hook that alters control frames that leave."""

    def out(spot: Any, frame: bytes) -> list[bytes]:
        if spot.kind != "control":
            return [frame]
        code = _HEAD.unpack_from(frame)[1]
        if codes and code not in codes:
            return [frame]
        return _changed(code, frame[12:], change(spot, code, frame[12:]))

    return out


def control_in(change: Change, *codes: int) -> Received:
    """Return a hook that alters control frames that come, whole ones only."""

    def received(spot: Any, data: bytes) -> bytes:
        if spot.kind != "control":
            return data
        held: bytearray = spot.memory.setdefault("held", bytearray())
        held += data
        made = b""
        while len(held) >= _HEAD.size:
            magic, code, size = _HEAD.unpack_from(held)
            if magic != DS4T_MAGIC or size > 1 << 20:
                made += bytes(held)
                held.clear()
                break
            if len(held) < _HEAD.size + size:
                break
            body = bytes(held[_HEAD.size : _HEAD.size + size])
            del held[: _HEAD.size + size]
            other = change(spot, code, body) if not codes or code in codes else None
            made += b"".join(_changed(code, body, other))
        return made

    return received


def gate_kind(spot: Any) -> str:
    """Return the kind of the gate that is open on a data connection."""
    due: bytes = spot.memory["due"]
    if due[:1] == b"T":
        return "row"
    return "bulk" if word(due, 6, 2) == BULK_TAG else "batch"


def gate_in(kind: str, first: int, last: int) -> Received:
    """Return a hook that takes some bytes of a gate header for the due ones."""

    def received(spot: Any, data: bytes) -> bytes:
        if spot.kind != "data" or spot.memory["part"] != "header":
            return data
        if gate_kind(spot) != kind:
            return data
        due: bytes = spot.memory["due"]
        return data[:first] + due[first:last] + data[last:]

    return received


def payload_in(kind: str, change: Callable[[Any, bytes], bytes]) -> Received:
    """Return a hook that alters the payload of gates of one kind."""

    def received(spot: Any, data: bytes) -> bytes:
        if spot.kind != "data" or spot.memory["part"] != "payload":
            return data
        return change(spot, data) if gate_kind(spot) == kind else data

    return received


def hang_up(spot: Any) -> bytes:
    """End a connection where a fault wants it."""
    with contextlib.suppress(OSError):
        spot.sock.shutdown(socket.SHUT_RDWR)
    return b""


Judge = Callable[[Any, str, dict[str, Any], Any], Any]
"""(judge, name of the frame, its words, outcome) -> another outcome."""


def judged(change: Judge) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Return a patch that alters what a worker makes of a command."""

    def patch() -> contextlib.AbstractContextManager[None]:
        own = CommandJudge.judge

        def judge(self: Any, spec: Any, reading: Any, size: int) -> Any:
            outcome = own(self, spec, reading, size)
            return change(self, spec.name, reading.values, outcome)

        return patched((CommandJudge, "judge", judge))

    return patch


def refused(outcome: Any, *clauses: str) -> bool:
    """Return whether a command was refused for one of these clauses."""
    return isinstance(outcome, Refusal) and outcome.clause in clauses
