"""Links between two machines that joined: measured by them, on the host's order.

The host tells one machine to listen on the address that the run will dial, and the
other one to dial it, with a secret of their own; the dialling one measures and reports.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from ds4proto.errors import Ds4ProtoError
from ds4proto.peer import SYSTEM_CLOCK, SocketChannel, dial, listen
from ds4proto.preflight.case import Case, Member
from ds4proto.preflight.finding import Finding
from ds4proto.preflight.link import LinkReport, Order, Sizes, measure, serve
from ds4proto.preflight.protocol import (
    JoinError,
    answer_challenge,
    challenge,
    receive,
    send,
)

__all__ = ["Hop", "between_joiners", "measure_hops", "orders"]

_MEET_S: Final = 20.0
_MEASURE_S: Final = 300.0
_MOST_PORT: Final = 65535
_ANYWHERE: Final = ("", "0.0.0.0", "::")
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Hop:
    """Two machines that will talk, neither of them the host.

    Attributes
    ----------
    dialler, listener : str
        Names; the run dials in this direction.
    host : str
        Address that the listener's command names; empty where it names none.
    """

    dialler: str
    listener: str
    host: str


def between_joiners(case: Case, joined: Sequence[str]) -> list[Hop]:
    """Return the hops of a route that leave the host out, in route order."""
    if case.mode != "pipeline" or case.leader is None:
        return []
    workers = sorted(
        (m for m in case.members if m.command.role == "worker" and m.layers),
        key=lambda m: m.layers or (0, 0),
    )
    found = []
    before: Member = case.leader
    for worker in workers:
        if before.name in joined and worker.name in joined:
            # a worker dials its coordinator; work is dialled from stage to stage
            first = before is case.leader
            ends = (worker, before) if first else (before, worker)
            found.append(Hop(ends[0].name, ends[1].name, _listens(ends[1])))
        before = worker
    return found


def _listens(member: Member) -> str:
    address = member.command.listen
    return "" if address is None or address[0] in _ANYWHERE else address[0]


def measure_hops(
    hops: Sequence[Hop],
    channels: Mapping[str, SocketChannel],
    sizes: Sizes,
    say: Say,
) -> tuple[list[LinkReport], list[Finding]]:
    """Have the hops measured, one after the other.

    Parameters
    ----------
    channels : mapping
        Name -> channel to that machine.

    Returns
    -------
    list of LinkReport, list of Finding
        What was measured, and a note for each that could not be.
    """
    links, notes = [], []
    for hop in hops:
        say(f"having the link from {hop.dialler} to {hop.listener} measured")
        try:
            links.append(_order(hop, channels, sizes))
        except JoinError as error:
            notes.append(
                Finding(
                    "note",
                    "link.not-measured",
                    f"{hop.dialler}, {hop.listener}",
                    f"the link between them could not be measured: {error}",
                    next_step="join with --allow-remote on both, and let them reach"
                    " each other",
                )
            )
    return links, notes


def _order(hop: Hop, channels: Mapping[str, SocketChannel], sizes: Sizes) -> LinkReport:
    near, far = channels[hop.dialler], channels[hop.listener]
    address, code = hop.host or far.remote[0], secrets.token_hex(16)
    send(far, "open", host=address, code=code)
    opened = receive(far, "opened", "failed")
    if opened["type"] == "failed":
        raise JoinError(f"{hop.listener}: {opened.get('reason')}")
    port = opened.get("port")
    if not isinstance(port, int) or not 0 < port <= _MOST_PORT:
        raise JoinError(f"{hop.listener}: expected the port it opened, found {port!r}")
    send(
        near, "meet", host=address, port=port, code=code,
        sizes=msgspec.to_builtins(sizes),
    )  # fmt: skip
    met = receive(near, "met", "failed", wait=_MEASURE_S)
    ended = receive(far, "met", "failed", wait=_MEASURE_S)
    for name, one in ((hop.dialler, met), (hop.listener, ended)):
        if one["type"] == "failed":
            raise JoinError(f"{name}: {one.get('reason')}")
    try:
        link = msgspec.convert(met.get("link"), LinkReport)
    except msgspec.ValidationError as error:
        raise JoinError(f"{hop.dialler} sent figures that cannot be read") from error
    link.between = (hop.dialler, hop.listener)
    return link


def orders(channel: SocketChannel, *, allow_remote: bool) -> dict[str, Order]:
    """Return what a joiner does on the orders to listen and to dial.

    A failure is told to the host and is not the end of the preflight.
    """

    def told(work: Order) -> Order:
        def act(order: Mapping[str, Any]) -> None:
            try:
                work(order)
            except (Ds4ProtoError, OSError, TypeError, ValueError) as error:
                send(channel, "failed", reason=str(error))

        return act

    def listening(order: Mapping[str, Any]) -> None:
        host = str(order.get("host", ""))
        with listen(host, 0, allow_remote=allow_remote) as listener:
            send(channel, "opened", port=listener.address[1])
            deadline = SYSTEM_CLOCK.now() + _MEET_S
            peer = listener.accept(
                deadline=deadline, phase="waiting for the other machine"
            )
        try:
            if not challenge(peer, str(order.get("code", ""))):
                raise JoinError("something else than the other machine came")
            serve(peer)
        finally:
            peer.close()
        send(channel, "met")

    def dialling(order: Mapping[str, Any]) -> None:
        sizes = msgspec.convert(order.get("sizes"), Sizes)
        peer = dial(
            str(order.get("host", "")), int(order.get("port", 0)),
            deadline=SYSTEM_CLOCK.now() + _MEET_S, phase="dialling the other machine",
        )  # fmt: skip
        try:
            answer_challenge(peer, str(order.get("code", "")))
            link = measure(peer, sizes)
            send(peer, "report")
        finally:
            peer.close()
        send(channel, "met", link=msgspec.to_builtins(link))

    return {"open": told(listening), "meet": told(dialling)}
