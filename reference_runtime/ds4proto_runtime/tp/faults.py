"""Faults to plant in a rank, for tests of the other one. Never on by default.

``--fault NAME[=GATE]`` strikes before the gate with that number (from 1).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any, Final

from ds4proto.errors import WrongUsage
from ds4proto.schema.ds4t_common import DS4T_MAGIC
from ds4proto_runtime.tp.rank import Rank

STALL_SECONDS: Final = 3.0


def _die(rank: Rank) -> None:
    del rank
    os.kill(os.getpid(), signal.SIGKILL)


def _freeze(rank: Rank) -> None:
    del rank
    os.kill(os.getpid(), signal.SIGSTOP)


def _stall(rank: Rank) -> None:
    del rank
    time.sleep(STALL_SECONDS)


def _cut(rank: Rank) -> None:
    rank.close()
    os._exit(1)


def _cut_data(rank: Rank) -> None:
    rank.transport.close()


def _skip_seq(rank: Rank) -> None:
    """Raise the number of this gate, and of every later one, by one."""
    link: Any = rank.transport.link
    pack = link._pack

    def wrong(place: bytearray, at: int, *words: int) -> None:
        pack(place, at, *words[:-1], words[-1] + 1)

    link._pack = wrong


def _half_header(rank: Rank) -> None:
    transport: Any = rank.transport
    transport._data.send(bytes(8))
    _freeze(rank)  # the other half never comes


def _garbage(rank: Rank) -> None:
    transport: Any = rank.transport
    transport._data.send(b"GET / HTTP/1.1\r\n")


def _half_payload(rank: Rank) -> None:
    """Send a sound header and part of the payload, then close."""
    transport: Any = rank.transport
    link = transport.link
    head = bytearray(16)
    first = rank.gates.schedule.slots[
        (link.row_seq - 1) % len(rank.gates.schedule.slots)
    ]

    link._pack(head, 0, DS4T_MAGIC, first // 2, first % 2, link.row_seq)
    transport._data.send(bytes(head) + bytes(12))
    os._exit(1)


FAULTS: Final[dict[str, Callable[[Rank], None]]] = {
    "die": _die,
    "freeze": _freeze,
    "stall": _stall,
    "cut": _cut,
    "cut-data": _cut_data,
    "skip-seq": _skip_seq,
    "half-header": _half_header,
    "half-payload": _half_payload,
    "garbage": _garbage,
}


def plant(rank: Rank, words: str) -> None:
    """Plant ``NAME[=GATE]`` in a rank.

    Raises
    ------
    WrongUsage
        For a fault that nobody knows.
    """
    name, _, number = words.partition("=")
    if name not in FAULTS or (number and not number.isdecimal()):
        raise WrongUsage(f"--fault {words}: expected one of {', '.join(FAULTS)}[=GATE]")
    at = int(number or 1)
    strike = FAULTS[name]

    def on_gate(count: int) -> None:
        if count == at:
            strike(rank)

    rank.gates.on_gate = on_gate
