"""Coordinators that judge HELLO wrongly."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

from ds4proto.link import ds4d_registration as registration
from ds4proto.link.ds4d_events import Close, HelloAccepted, HelloRefused
from ds4proto_conformance.mutants.tools import frame_bytes
from ds4proto_conformance.peers.faults import Fault, patched

Patch = Callable[[], contextlib.AbstractContextManager[None]]


def _table(change: Callable[[list[Any]], list[Any]]) -> Patch:
    def patch() -> contextlib.AbstractContextManager[None]:
        table = tuple(change(list(registration.CHECKS)))
        return patched((registration, "CHECKS", table))

    return patch


def _without(number: str) -> Patch:
    clause = f"DS4D-HELLO-{number}"
    return _table(lambda table: [check for check in table if check.clause != clause])


def _swap(first: str, second: str) -> Patch:
    def change(table: list[Any]) -> list[Any]:
        names = [check.clause for check in table]
        moved = table.pop(names.index(f"DS4D-HELLO-{second}"))
        table.insert(names.index(f"DS4D-HELLO-{first}"), moved)
        return table

    return _table(change)


def _talks(clause: str) -> Any:
    """Answer what is not worth an answer."""

    def event(_peer: Any, connection: Any, event: Any) -> bool:
        if isinstance(event, HelloRefused) and event.fault.clause == clause:
            connection.sock.sendall(frame_bytes(2, event.fault.text.encode()))
        return False

    return event


def _answers(_peer: Any, connection: Any, event: Any) -> bool:
    if isinstance(event, HelloAccepted):
        connection.sock.sendall(frame_bytes(1, bytes(40)))
    return False


def _strict(clause: str, broken: Callable[[Any, Any], bool]) -> Patch:
    """Add a check of its own."""

    def change(table: list[Any]) -> list[Any]:
        return [*table, registration.Check(clause, broken, lambda _h, _e: (1, 2, 3))]

    return _table(change)


def _cut(_peer: Any, connection: Any, event: Any) -> bool:
    if isinstance(event, Close) and event.reason == "end of stream":
        connection.sock.sendall(frame_bytes(2, b"HELLO cut short"))
    return False


def _whole(connection: Any, data: bytes) -> bytes:
    """Want a HELLO in one piece."""
    if (
        connection.kind == "new"
        and len(data) < 52
        and not connection.memory.get("seen")
    ):
        return b""
    connection.memory["seen"] = True
    return data


def _keep(peer: Any, _connection: Any, event: Any) -> bool:
    if isinstance(event, HelloAccepted):
        peer.memory["keeps replaced"] = True
    return False


def _f(name: str, about: str, **hooks: Any) -> Fault:
    return Fault(name, "coordinator", "handshake", about, **hooks)


_PAIRS = (
    ("06", "07"),
    ("07", "08"),
    ("08", "09"),
    ("09", "10"),
    ("10", "11"),
    ("11", "12"),
    ("12", "15"),
    ("13", "15"),
)
_SILENT = {
    "magic": "01",
    "other-type": "02",
    "length": "03",
    "name-length": "04",
    "name-nul": "05",
}

MUTANTS: Final = (
    *[
        _f(f"skip-HELLO-{n}", f"leaves out HELLO check {n}", patch=_without(n))
        for n in ("06", "07", "08", "09", "10", "11", "12", "13", "14", "15")
    ],
    *[
        _f(
            f"hello-order-{a}-{b}",
            f"judges HELLO check {b} before {a}",
            patch=_swap(a, b),
        )
        for a, b in _PAIRS
    ],
    *[
        _f(
            f"answers-{name}",
            f"answers a HELLO that breaks check {n}",
            event=_talks(f"DS4D-HELLO-{n}"),
        )
        for name, n in _SILENT.items()
    ],
    _f("hello-answered", "answers a sound HELLO", event=_answers),
    _f(
        "wants-hidden",
        "wants has_hidden of every worker",
        patch=_strict("DS4D-HELLO-12", lambda h, _e: not h["has_hidden"]),
    ),
    _f(
        "refuses-overlap",
        "refuses ranges that overlap its own",
        patch=_strict("DS4D-HELLO-12", lambda h, _e: h["layer_start"] < 2),
    ),
    _f("keeps-replaced", "leaves replaced connections open", event=_keep),
    _f("hello-in-one-piece", "wants a HELLO in one piece", received=_whole),
    _f("hello-cut-answered", "answers a HELLO that was cut short", event=_cut),
)
