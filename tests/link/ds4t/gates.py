"""One gate link, and bytes in and out of it."""

from __future__ import annotations

from typing import Any

from ds4proto.link.ds4t_gates import GateLink
from tests.link.ds4t.pair import SMALL, settings

VEC = 4 * SMALL.n_embd


def views(size: int = VEC) -> tuple[memoryview, memoryview]:
    return memoryview(bytearray(b"\x11" * size)), memoryview(bytearray(size))


def link(role: str = "tp-leader", dialect: str = "v14", **more: Any) -> GateLink:
    return GateLink(settings(role, dialect), **more)


def take(machine: GateLink) -> bytes:
    """Write all of the own gate."""
    data = b"".join(map(bytes, machine.send_views))
    assert machine.sent(len(data), 0.0)
    return data


def give(machine: GateLink, data: bytes, now: float = 0.0) -> None:
    while data and machine.receiving:
        room = machine.receive_view
        count = min(len(room), len(data))
        room[:count] = data[:count]
        data = data[count:]
        machine.received(count, now)


def opened(shape: str, machine: GateLink, size: int = VEC) -> memoryview:
    own, peer = views(3 * size if shape == "batch" else size)
    if shape == "row":
        machine.begin_row(0, 0, own, peer, 0.0)
    elif shape == "batch":
        machine.begin_batch(0, 3, own, peer, 0.0)
    else:
        machine.begin_bulk(0, own, peer, 0.0)
    return peer
