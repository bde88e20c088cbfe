"""Workers that do not keep to their dialect."""

from __future__ import annotations

from typing import Any, Final

from ds4proto.link.ds4d_frames import unpack_header
from ds4proto_conformance.mutants.tools import Parts, frame_bytes, result
from ds4proto_conformance.peers.faults import Fault

_HELLO, _RESULT = 1, 4


def _behind(kind: int, more: bytes) -> Any:
    """Send another frame behind each of one type."""

    def out(_connection: Any, frame: bytes) -> list[bytes]:
        return [frame, more] if unpack_header(frame)[1] == kind else [frame]

    return out


def _padded(parts: Parts) -> None:
    """Put four bytes between telemetry and payload."""
    parts.put(payload=bytes(4) + parts.payload)


def _f(name: str, category: str, about: str, **hooks: Any) -> Fault:
    return Fault(name, "worker", category, about, **hooks)


MUTANTS: Final = (
    _f(
        "sends-inbox",
        "handshake",
        "advertises a shared inbox behind its HELLO",
        out=_behind(_HELLO, frame_bytes(10, bytes(12))),
    ),
    _f(
        "sends-keep-alive",
        "handshake",
        "sends a keep-alive frame behind each RESULT",
        out=_behind(_RESULT, frame_bytes(14, b"")),
    ),
    _f(
        "result-padded",
        "framing",
        "puts four bytes between telemetry and payload",
        out=result(_padded),
    ),
)
