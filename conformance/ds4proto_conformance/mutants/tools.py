"""Tools to plant faults with: frames rewritten, checks taken out of tables."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from typing import Any

from ds4proto.link import ds4d_work_checks as checks
from ds4proto.link.ds4d_frames import (
    CODE,
    FIXED,
    HEADER_SIZE,
    framed,
    unpack_header,
)
from ds4proto.schema.declare import FrameSpec
from ds4proto.schema.ds4d_common import MAGIC
from ds4proto.schema.ds4d_hello import ERROR
from ds4proto.schema.ds4d_result import RESULT
from ds4proto.schema.ds4d_work import WORK
from ds4proto_conformance.peers.faults import Out, patched

__all__ = ["Parts", "edit", "frames_in", "only", "result", "skip_check", "swap", "work"]

ERROR_CODE = CODE[ERROR]


class Parts:
    """A frame taken apart: words of the fixed part, and the bytes behind it.

    Attributes
    ----------
    memory : dict
        What the fault keeps for this connection.
    """

    def __init__(self, spec: FrameSpec, body: bytes, memory: dict[str, Any]) -> None:
        self.spec = spec
        self.words = FIXED[spec].read(body)
        self.rest = body[FIXED[spec].size :]
        self.memory = memory

    @property
    def tail(self) -> int:
        """Where the payload of a RESULT begins behind its telemetry."""
        return self.words.get("telemetry_bytes", 0)

    @property
    def telemetry(self) -> bytes:
        """Telemetry of a RESULT."""
        return self.rest[: self.tail]

    @property
    def payload(self) -> bytes:
        """Payload of a RESULT."""
        return self.rest[self.tail :]

    def put(self, telemetry: bytes | None = None, payload: bytes | None = None) -> None:
        """Replace telemetry or payload; lengths follow."""
        first = self.telemetry if telemetry is None else telemetry
        second = self.payload if payload is None else payload
        self.rest = first + second
        self.words["telemetry_bytes"] = len(first)
        self.words["telemetry_count"] = len(first) // 40
        self.words["payload_bytes"] = len(second)

    def frame(self) -> bytes:
        """Return the frame."""
        parts = (FIXED[self.spec].build(self.words), self.rest)
        return b"".join(map(bytes, framed(self.spec, parts)))


Change = Callable[[Parts], bool | None]
"""Alters a frame; False drops it."""


def edit(spec: FrameSpec, change: Change) -> Out:
    """Return a hook that alters the outgoing frames of one type."""
    code = CODE[spec]

    def out(connection: Any, frame: bytes) -> list[bytes]:
        _, kind, _ = unpack_header(frame)
        if kind != code:
            return [frame]
        parts = Parts(spec, frame[HEADER_SIZE:], connection.memory)
        return [] if change(parts) is False else [parts.frame()]

    return out


def result(change: Change, *, failed: bool | None = False) -> Out:
    """Return a hook that alters RESULT; `failed` picks errors, None takes both."""

    def some(parts: Parts) -> bool | None:
        if failed is not None and bool(parts.words["status"]) != failed:
            return None
        return change(parts)

    return edit(RESULT, some)


def work(change: Change) -> Out:
    """Return a hook that alters the WORK that leaves."""
    return edit(WORK, change)


def only(code: int, act: Callable[[bytes], list[bytes]]) -> Out:
    """Return a hook for whole frames of one type."""

    def out(_connection: Any, frame: bytes) -> list[bytes]:
        return act(frame) if unpack_header(frame)[1] == code else [frame]

    return out


def frames_in(
    change: Callable[[Any, int, bytes], bytes | None],
) -> Callable[[Any, bytes], bytes]:
    """Return a hook that alters incoming frames, whole ones only.

    ``change(connection, type, body)`` returns bytes to read instead, None for the
    frame as it came.
    """

    def received(connection: Any, data: bytes) -> bytes:
        held: bytearray = connection.memory.setdefault("held", bytearray())
        held += data
        out = b""
        while len(held) >= HEADER_SIZE:
            magic, code, size = unpack_header(held)
            if magic != MAGIC or size > 1 << 24:
                out += bytes(held)
                held.clear()
                break
            if len(held) < HEADER_SIZE + size:
                break
            frame = bytes(held[: HEADER_SIZE + size])
            del held[: HEADER_SIZE + size]
            changed = change(connection, code, frame[HEADER_SIZE:])
            out += frame if changed is None else changed
        return out

    return received


def frame_bytes(code: int, body: bytes) -> bytes:
    """Return a frame."""
    return struct.pack(">4sII", b"DS4D", code, len(body)) + body


_TABLES = ("HEAD_CHECKS", "SIZE_CHECKS", "TOKEN_CHECKS", "ROUTE_CHECKS")


def skip_check(clause: str) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Return a patch that takes one WORK check out of its table."""

    def patch() -> contextlib.AbstractContextManager[None]:
        for name in _TABLES:
            table = getattr(checks, name)
            kept = tuple(check for check in table if check.clause != clause)
            if len(kept) < len(table):
                return patched((checks, name, kept))
        raise LookupError(clause)

    return patch


def swap(
    first: str, second: str
) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Return a patch after which the second check is judged before the first."""

    def patch() -> contextlib.AbstractContextManager[None]:
        for name in _TABLES:
            table = list(getattr(checks, name))
            clauses = [check.clause for check in table]
            if first in clauses and second in clauses:
                moved = table.pop(clauses.index(second))
                table.insert(clauses.index(first), moved)
                return patched((checks, name, tuple(table)))
        raise LookupError(f"{first} {second}")

    return patch
