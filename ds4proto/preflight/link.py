"""Measuring a link through the very connection that two preflights share.

Sizes are those of the run: one hidden state, one prefill chunk, one gate. Every
measurement is bounded in time and in bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from ds4proto.peer import SYSTEM_CLOCK, SocketChannel
from ds4proto.preflight.case import Case
from ds4proto.preflight.facts import LinkFacts
from ds4proto.preflight.protocol import receive, send

__all__ = ["LinkReport", "Order", "Sizes", "measure", "serve", "sizes_of"]

Order = Callable[[Mapping[str, Any]], None]

_PING: Final = 64
_ROUNDS: Final = 200
_ROUND_S: Final = 2.0
_FIRST: Final = 4 << 20
_LONGEST: Final = 64 << 20
_WANTED_S: Final = 0.5
_STEP_S: Final = 60.0
_MOST_ECHO: Final = 16 << 20
_PIECE: Final = 1 << 20


class Sizes(msgspec.Struct, frozen=True):
    """Message sizes of a run in bytes; 0 where the run has none of the kind."""

    hidden: int = 0
    chunk: int = 0
    gate: int = 0


class LinkReport(msgspec.Struct):
    """What was measured.

    Attributes
    ----------
    rtt_ms : dict
        Name of a message -> (bytes, p50, p99) of a round trip that carries it both
        ways, milliseconds.
    to_gbit, from_gbit, both_gbit : float
        Throughput to the joiner, back, and of both directions at once in sum.
    local, remote : str
        Addresses of the connection.
    between : tuple of str
        Names of the machines; empty where the host measured to the next joiner.
    """

    rtt_ms: dict[str, tuple[int, float, float]]
    to_gbit: float
    from_gbit: float
    both_gbit: float
    local: str
    remote: str
    between: tuple[str, str] = ("", "")

    def facts(self, names: tuple[str, str], mtu: int | None) -> LinkFacts:
        """Return the figures for the rules and the prediction."""
        _, p50, p99 = self.rtt_ms["ping"]
        return LinkFacts(
            names, p50, self.to_gbit, mtu, p99, self.from_gbit, self.both_gbit,
            self.local,
        )  # fmt: skip


def sizes_of(case: Case) -> Sizes:
    """Return the message sizes of a run."""
    leader = case.leader
    if leader is None or leader.model is None:
        return Sizes()
    if case.mode == "tensor-parallel":
        shape = leader.identity()
        return Sizes(gate=0 if shape is None else shape.vector_bytes)
    hidden = leader.model.facts.hidden_values * leader.command.bits // 8
    chunk = hidden * (leader.command.prefill_chunk or 512)
    return Sizes(hidden, min(chunk, _LONGEST))


def measure(channel: SocketChannel, sizes: Sizes) -> LinkReport:
    """Give the orders of all measurements, and return the figures.

    Raises
    ------
    PeerLost, JoinError
    """
    wanted = {"ping": _PING, "hidden state": sizes.hidden, "gate": sizes.gate}
    rtt = {
        name: (size, *_echo(channel, min(size, _MOST_ECHO)))
        for name, size in wanted.items()
        if size
    }
    piece = min(max(sizes.chunk, sizes.hidden, _PIECE), _LONGEST)
    to = _rate(channel, "take", piece)
    back = _rate(channel, "give", piece)
    both = _rate(channel, "both", piece)
    return LinkReport(rtt, to, back, both, _text(channel.local), _text(channel.remote))


def _text(address: tuple[str, int]) -> str:
    return address[0]


def _echo(channel: SocketChannel, size: int) -> tuple[float, float]:
    send(channel, "echo", bytes=size, rounds=_ROUNDS)
    data, back = bytes(size), bytearray(size)
    times = []
    stop = SYSTEM_CLOCK.now() + _ROUND_S
    for done in range(_ROUNDS):
        start = SYSTEM_CLOCK.now()
        # the last round is marked by its first byte, so that a slow link stops early
        last = done == _ROUNDS - 1 or (start > stop and done >= 3)
        mark = b"\1" if last else b"\0"
        deadline = start + _STEP_S
        channel.exchange([mark, data[1:]], back, deadline=deadline)
        times.append(SYSTEM_CLOCK.now() - start)
        if last:
            break
    times = sorted(times[1:] or times)  # the first finds cold caches
    p99 = times[min(len(times) - 1, int(0.99 * len(times)))]
    return 1e3 * times[len(times) // 2], 1e3 * p99


def _rate(channel: SocketChannel, kind: str, piece: int) -> float:
    """Return Gbit/s: a short try, then one sized to take about half a second."""
    seconds = _move(channel, kind, _FIRST)
    size = int(_FIRST / max(seconds, 1e-6) * _WANTED_S)
    size = min(max(size, _FIRST), _LONGEST)
    size = max(piece, size // piece * piece) if piece <= size else size
    seconds = min(_move(channel, kind, size) for _ in range(2))
    total = size * (2 if kind == "both" else 1)
    return total * 8 / 1e9 / max(seconds, 1e-9)


def _move(channel: SocketChannel, kind: str, size: int) -> float:
    send(channel, kind, bytes=size)
    receive(channel, "ready")
    start = SYSTEM_CLOCK.now()
    deadline = start + _STEP_S
    if kind == "take":
        channel.send(_pieces(size), deadline=deadline)
    elif kind == "give":
        channel.send([b"\0"], deadline=deadline)
        channel.recv_exact(bytearray(size), deadline=deadline)
    else:
        channel.exchange(_pieces(size), bytearray(size), deadline=deadline)
    receive(channel, "done", wait=_STEP_S)
    return SYSTEM_CLOCK.now() - start


def _pieces(size: int) -> list[bytes | memoryview]:
    block = memoryview(bytes(min(size, _PIECE)))
    whole, rest = divmod(size, _PIECE)
    pieces: list[bytes | memoryview] = [block] * whole
    if rest:
        pieces.append(block[:rest])
    return pieces


def serve(
    channel: SocketChannel, others: Mapping[str, Order] = MappingProxyType({})
) -> dict[str, object]:
    """Follow the host's orders until its report, and return that.

    Parameters
    ----------
    others : mapping
        Further orders, and what is done on each.

    Raises
    ------
    PeerLost, JoinError
    """
    known = ("echo", "take", "give", "both", "report", *others)
    while True:
        order = receive(channel, *known, wait=600.0)
        kind = order["type"]
        if kind == "report":
            return order
        if kind in others:
            others[kind](order)
            continue
        size = int(order.get("bytes", 0))
        if not 0 < size <= _LONGEST:
            continue
        if kind == "echo":
            _answer_echo(channel, size)
            continue
        send(channel, "ready")
        deadline = SYSTEM_CLOCK.now() + _STEP_S
        if kind == "take":
            channel.recv_exact(bytearray(size), deadline=deadline)
        elif kind == "give":
            channel.recv_exact(bytearray(1), deadline=deadline)
            channel.send(_pieces(size), deadline=deadline)
        else:
            channel.exchange(_pieces(size), bytearray(size), deadline=deadline)
        send(channel, "done")


def _answer_echo(channel: SocketChannel, size: int) -> None:
    data = bytearray(size)
    for _ in range(_ROUNDS):
        deadline = SYSTEM_CLOCK.now() + _STEP_S
        channel.recv_exact(data, deadline=deadline)
        channel.send([data], deadline=deadline)
        if data[0]:
            return
