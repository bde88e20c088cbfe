"""Machines judged together: gather on each, measure between them, one verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from ds4proto.peer import SYSTEM_CLOCK, Listener, PeerLost, SocketChannel, dial
from ds4proto.preflight.case import Case, make_case
from ds4proto.preflight.facts import LinkFacts, Machine, ModelFile, Plan, RunFacts
from ds4proto.preflight.finding import SEVERITIES, Finding
from ds4proto.preflight.gather import Gathered
from ds4proto.preflight.hops import between_joiners, measure_hops, orders
from ds4proto.preflight.link import LinkReport, measure, serve, sizes_of
from ds4proto.preflight.protocol import (
    JoinError,
    answer_challenge,
    challenge,
    receive,
    send,
)
from ds4proto.preflight.report import document
from ds4proto.preflight.rules import judge

__all__ = ["Outcome", "host", "join"]

_TRIES: Final = 5
"""Wrong codes before the host gives up: the code is short."""
_MOST_JOINERS: Final = 63
Say = Callable[[str], None]


class Outcome(msgspec.Struct):
    """What a live preflight found.

    Attributes
    ----------
    plan : Plan
    findings : list of Finding
    links : list of LinkReport
    gathered : list of Gathered
        Of the host first.
    """

    plan: Plan
    findings: list[Finding]
    links: list[LinkReport]
    gathered: list[Gathered]

    @property
    def case(self) -> Case:
        """The plan, made ready."""
        return make_case(self.plan)

    def document(self) -> dict[str, Any]:
        """Return everything as JSON can hold it."""
        found = document(self.case, self.findings)
        found["measured"] = [msgspec.to_builtins(link) for link in self.links]
        found["rdma"] = {
            one.machine.name: msgspec.to_builtins(one.rdma) for one in self.gathered
        }
        found["not_found_out"] = {
            one.machine.name: list(one.missing) for one in self.gathered if one.missing
        }
        return found


def host(
    listener: Listener,
    mine: Gathered,
    code: str,
    *,
    joiners: int,
    run: RunFacts,
    wait: float,
    say: Say,
) -> Outcome:
    """Wait for the other machines, measure, judge, and send everybody the outcome.

    Parameters
    ----------
    listener : Listener
    mine : Gathered
    code : str
        What joiners must know.
    joiners : int
        How many to wait for, 1 to 63.
    run : RunFacts
    wait : float
        Seconds for all of them to come.

    Raises
    ------
    PeerLost
        Nobody came in time, or somebody left.
    JoinError
        Too many wrong codes.
    """
    deadline = SYSTEM_CLOCK.now() + wait
    channels: list[SocketChannel] = []
    gathered = [mine]
    try:
        for number in range(min(joiners, _MOST_JOINERS)):
            channel, theirs = _admit(listener, code, deadline, say)
            channels.append(channel)
            theirs.machine.name = _unique(theirs.machine.name, gathered, number)
            gathered.append(theirs)
        links, facts, notes = _measure_all(mine, gathered, channels, run, say)
        plan = _plan(gathered, facts, run)
        findings = judge(plan) + _more(gathered, links) + notes
        findings.sort(key=lambda one: SEVERITIES.index(one.severity))
        outcome = Outcome(plan, findings, links, gathered)
        text = msgspec.json.encode(outcome).decode()
        for channel in channels:
            send(channel, "report", outcome=text)
        return outcome
    finally:
        for channel in channels:
            channel.close()


def _admit(
    listener: Listener, code: str, deadline: float, say: Say
) -> tuple[SocketChannel, Gathered]:
    for _ in range(_TRIES):
        channel = listener.accept(
            deadline=deadline, phase="waiting for another machine to join"
        )
        try:
            if challenge(channel, code):
                sent = time.time()
                message = receive(channel, "facts")
                theirs = facts_of(message)
                theirs.machine.clock = theirs.time - (sent + time.time()) / 2
                say(f"{theirs.machine.name} joined from {channel.remote[0]}")
                return channel, theirs
            say(f"{channel.remote[0]} gave a wrong code")
        except (PeerLost, JoinError) as error:
            say(f"{channel.remote[0]}: {error}")
        channel.close()
    raise JoinError(
        f"{_TRIES} connections came without the right code. Next: start again, the "
        "code will be another"
    )


def facts_of(message: dict[str, Any]) -> Gathered:
    """Return what a joiner sent in a ``facts`` message.

    Raises
    ------
    JoinError
        It cannot be read.
    """
    try:
        return msgspec.json.decode(str(message.get("gathered", "")), type=Gathered)
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        raise JoinError(
            f"the facts of the other machine cannot be read ({error}). Next: install "
            "one release of ds4proto on both machines"
        ) from None


def _unique(name: str, gathered: Sequence[Gathered], number: int) -> str:
    taken = {one.machine.name for one in gathered}
    return name if name not in taken else f"{name}-{number + 2}"


def _plan(
    gathered: Sequence[Gathered], links: Sequence[LinkFacts], run: RunFacts
) -> Plan:
    models: dict[str, ModelFile] = {}
    machines: list[Machine] = []
    for one in gathered:
        machine = one.machine
        if one.model is not None:
            key = f"{Path(one.model.path).name} on {machine.name}"
            models[key] = one.model
            machine.model = key
        machines.append(machine)
    # A machine without a file of its own is judged by the others' model for shapes.
    return Plan(tuple(machines), models, tuple(links), run)


def _measure_all(
    mine: Gathered,
    gathered: Sequence[Gathered],
    channels: Sequence[SocketChannel],
    run: RunFacts,
    say: Say,
) -> tuple[list[LinkReport], list[LinkFacts], list[Finding]]:
    case = make_case(_plan(gathered, (), run))
    sizes = sizes_of(case)
    links, facts = [], []
    for channel, theirs in zip(channels, gathered[1:], strict=True):
        say(f"measuring the link to {theirs.machine.name}")
        link = measure(channel, sizes)
        links.append(link)
        names = (mine.machine.name, theirs.machine.name)
        facts.append(link.facts(names, _mtu(mine, link.local)))
    ends = {
        one.machine.name: channel
        for one, channel in zip(gathered[1:], channels, strict=True)
    }
    hops, notes = measure_hops(between_joiners(case, tuple(ends)), ends, sizes, say)
    for link in hops:
        near = next(one for one in gathered if one.machine.name == link.between[0])
        facts.append(link.facts(link.between, _mtu(near, link.local)))
    return links + hops, facts, notes


def _mtu(one: Gathered, address: str) -> int | None:
    for interface in one.machine.interfaces:
        if any(text.partition("/")[0] == address for text in interface.addresses):
            return interface.mtu or None
    return None


def _more(gathered: Sequence[Gathered], links: Sequence[LinkReport]) -> list[Finding]:
    """Return what only a live check knows."""
    found = []
    for one in gathered:
        command = one.machine.parsed()
        wanted = command.tensor_parallel and command.transport != "tcp"
        if wanted and one.rdma.verdict != "ready":
            found.append(
                Finding(
                    "error" if command.transport == "rdma" else "note",
                    "rdma.verdict",
                    one.machine.name,
                    f"RDMA cannot be used here: {one.rdma.verdict}",
                    expected="a device with an active port and a usable GID",
                    found="; ".join(one.rdma.table) or one.rdma.verdict,
                    next_step=one.rdma.next_step,
                    prints=one.rdma.prints,
                )
            )
        found += [
            Finding("warning", "rdma.advice", one.machine.name, text,
                    found=one.rdma.gid, next_step="see the text")
            for text in one.rdma.advice
            if wanted
        ]  # fmt: skip
        for text in one.missing:
            area, _, reason = text.partition(": ")
            found.append(
                Finding(
                    "note",
                    f"{area}.not-found-out",
                    one.machine.name,
                    f"could not be found out: {reason}",
                    next_step="what depends on it was not checked",
                )
            )
    # the host's own come first, one for each that joined
    for link, theirs in zip(links, gathered[1:], strict=False):
        found += _other_address(link, gathered[0], theirs)
    return found


def _other_address(link: LinkReport, mine: Gathered, theirs: Gathered) -> list[Finding]:
    """Say where the run will not use the address that was measured."""
    for one in (mine, theirs):
        command = one.machine.parsed()
        if command.role != "worker" or command.coordinator is None:
            continue
        called = command.coordinator[0]
        measured = {link.local, link.remote}
        if called not in measured and called not in ("localhost",):
            return [
                Finding(
                    "warning",
                    "link.other-address",
                    one.machine.name,
                    "the link was measured over another address than the run will use",
                    expected=called,
                    found=", ".join(sorted(measured)),
                    next_step=f"start the first preflight with --listen {called}:PORT",
                )
            ]
    return []


def join(
    address: tuple[str, int],
    mine: Gathered,
    code: str,
    *,
    wait: float,
    allow_remote: bool = False,
) -> Outcome:
    """Join a host, follow its measurements, and return its outcome.

    Parameters
    ----------
    allow_remote : bool
        Another joiner may be let in for a measurement beyond loopback.

    Raises
    ------
    JoinError
        For a wrong code, another version, or something that is no preflight.
    PeerLost
        Where the host cannot be reached or leaves.
    """
    deadline = SYSTEM_CLOCK.now() + wait
    channel = dial(*address, deadline=deadline, phase="dialling the first machine")
    try:
        answer_challenge(channel, code)
        mine.time = time.time()
        send(channel, "facts", gathered=msgspec.json.encode(mine).decode())
        report = serve(channel, orders(channel, allow_remote=allow_remote))
    finally:
        channel.close()
    return outcome_of(report)


def outcome_of(report: dict[str, Any]) -> Outcome:
    """Return the outcome that a host sent in its ``report`` message.

    Raises
    ------
    JoinError
        It cannot be read.
    """
    try:
        return msgspec.json.decode(str(report.get("outcome", "")), type=Outcome)
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        raise JoinError(
            f"the report of the first machine cannot be read: {error}"
        ) from None
