"""Coordinators whose spans do not follow each other as they have to."""

from __future__ import annotations

from typing import Any, Final

from ds4proto.link.ds4d_frames import HEADER_SIZE, unpack_header
from ds4proto.schema.ds4d_work import RESET_SESSION, WORK
from ds4proto_conformance.mutants.tools import Parts, work
from ds4proto_conformance.peers.faults import Fault


def _later(parts: Parts) -> bool:
    return parts.words["pos0"] == 0 and parts.words["request"] > 1


def _without_reset(parts: Parts) -> None:
    if _later(parts):
        parts.words["flags"] &= ~RESET_SESSION


def _rewinds(parts: Parts) -> None:
    """Say that the first tokens are those that the worker has."""
    if _later(parts) and parts.words["n_tokens"] > 1:
        parts.words["pos0"] = 1
        parts.words["flags"] &= ~RESET_SESSION


def _ahead(connection: Any, frame: bytes) -> list[bytes]:
    """Send the next decode step before this one is answered."""
    if unpack_header(frame)[1] != WORK.code:
        return [frame]
    parts = Parts(WORK, frame[HEADER_SIZE:], connection.memory)
    if parts.words["n_tokens"] != 1 or parts.words["flags"] & RESET_SESSION:
        return [frame]
    parts.words["request"] += 1
    parts.words["pos0"] += 1
    return [frame, parts.frame()]


def _f(name: str, about: str, **hooks: Any) -> Fault:
    return Fault(name, "coordinator", "state", about, **hooks)


MUTANTS: Final = (
    _f(
        "other-without-reset",
        "sends another transcript without RESET",
        out=work(_without_reset),
    ),
    _f("rewinds", "goes on where another transcript parts", out=work(_rewinds)),
    _f("runs-ahead", "sends a decode step before the last is answered", out=_ahead),
)
