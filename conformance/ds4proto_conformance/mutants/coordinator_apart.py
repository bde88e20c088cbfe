"""Coordinators that send WORK over a connection of their own, and do more."""

from __future__ import annotations

import contextlib
from typing import Any, Final

from ds4proto.link.ds4d_frames import unpack_header
from ds4proto.schema.ds4d_work import WORK
from ds4proto_conformance.peers.coordinator import APART
from ds4proto_conformance.peers.faults import Fault


def _twice(connection: Any, frame: bytes) -> list[bytes]:
    """Send each WORK on the connection of the registration as well."""
    control = connection.memory.get("control")
    if control is not None and unpack_header(frame)[1] == WORK.code:
        with contextlib.suppress(OSError):
            control.sendall(frame)
    return [frame]


MUTANTS: Final = (
    Fault(
        "apart-and-on-control",
        "coordinator",
        "state",
        "sends WORK on its own connection and on that of the registration",
        position=APART,
        out=_twice,
    ),
)
