"""Rules over command lines: what ds4 prints, who plays which part, who calls whom."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterator

from ds4proto.preflight.case import Case, Member
from ds4proto.preflight.command import PROGRAMS
from ds4proto.preflight.finding import Finding

__all__ = ["CHECKS"]

_ANY = ("0.0.0.0", "::", "*")


def refused(case: Case) -> Iterator[Finding]:
    """Everything that ds4 refuses in a command; it prints the first and ends."""
    for member in case.members:
        for place, refusal in enumerate(member.command.refusals):
            later = "" if place == 0 else " (once the one before is corrected)"
            yield Finding(
                "error", "command.refused", member.name,
                f"ds4 refuses this command line{later}",
                expected="a command line that ds4 starts with",
                found=" ".join(member.machine.command),
                next_step="correct the option that the text names",
                prints=refusal.text, clause=refusal.clause,
            )  # fmt: skip


def programs(case: Case) -> Iterator[Finding]:
    """Which program of the family may play which part."""
    for member in case.members:
        name = member.command.program
        if not name:
            yield Finding(
                "error", "command.missing", member.name,
                "no command line is given for this machine",
                expected=f"one of {', '.join(PROGRAMS)} with its options",
                found="nothing", next_step="add command = \"./ds4 --role ...\"",
            )  # fmt: skip
        elif name not in PROGRAMS:
            yield Finding(
                "warning", "command.program", member.name,
                f"{name} is no program of the family; its options are read as ds4's",
                expected=", ".join(PROGRAMS), found=name,
                next_step="check the path of the command",
            )  # fmt: skip
        elif member.command.role == "worker" and name != "ds4":
            tp = member.command.tensor_parallel
            kind = "a tensor-parallel" if tp else "a pipeline"
            yield Finding(
                "error" if tp else "warning", "command.worker-program", member.name,
                f"{kind} worker is started with {name}",
                expected="ds4: workers are a role of that program alone",
                found=name, next_step="start the worker with ./ds4 --role worker ...",
            )  # fmt: skip
        if member.command.unknown:
            yield Finding(
                "note", "command.unknown", member.name,
                "words that preflight does not know were set aside",
                found=" ".join(member.command.unknown),
                next_step="ds4 itself judges them",
            )  # fmt: skip
        build = member.machine.dialect
        if member.command.local_decode and build != "local-decode":
            yield Finding(
                "error" if build else "note", "command.local-decode", member.name,
                "only builds of the dialect local-decode know --local-decode",
                expected='dialect = "local-decode"', found=build or "not stated",
                next_step="leave the option out, or run such a build on all machines",
                clause="DS4D-OPT-32",
            )  # fmt: skip


def roles(case: Case) -> Iterator[Finding]:
    """One coordinator, at least one worker, one mode."""
    if case.mode == "mixed":
        yield Finding(
            "error", "roles.mixed", "all machines",
            "some processes run tensor parallel and some as a pipeline",
            expected="--tensor-parallel on both ranks, or on none",
            found=", ".join(
                f"{m.name}: {'TP' if m.command.tensor_parallel else 'pipeline'}"
                for m in case.members
            ),
            next_step="choose one mode for the whole run",
        )  # fmt: skip
    count = len(case.coordinators)
    if count != 1:
        yield Finding(
            "error", "roles.coordinator", "all machines",
            "a run has exactly one coordinator", expected="1",
            found=f"{count}: {', '.join(m.name for m in case.coordinators) or 'none'}",
            next_step="give --role coordinator to one machine, worker to the others",
        )  # fmt: skip
    for member in case.members:
        idle = member.command.program and member.command.role == "none"
        if idle and not member.command.refusals:
            yield Finding(
                "error", "roles.none", member.name,
                "this process takes no part in the run",
                expected="--role coordinator or --role worker", found="no --role",
                next_step="give it a role, or leave it out of the plan",
            )  # fmt: skip
    if case.mode == "tensor-parallel" and len(case.members) != 2:
        yield Finding(
            "error", "roles.ranks", "all machines",
            "a tensor-parallel run has exactly two ranks", expected="2",
            found=str(len(case.members)),
            next_step="leave one leader and one worker; a pipeline takes more machines",
        )  # fmt: skip


def _numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _loopback(host: str) -> bool:
    return host == "localhost" or (
        _numeric(host) and ipaddress.ip_address(host).is_loopback
    )


def dialling(case: Case) -> Iterator[Finding]:
    """Every worker dials what the coordinator listens on."""
    leader = case.leader
    if leader is None or leader.command.listen is None:
        return
    host, port = leader.command.listen
    own = leader.machine.addresses
    known = _numeric(host) and host not in _ANY and not _loopback(host)
    if own and known and host not in own:
        yield Finding(
            "error", "dial.listen-address", leader.name,
            "the coordinator listens on an address that this machine does not have",
            expected=f"one of {', '.join(own)}, or 0.0.0.0", found=host,
            next_step="correct --listen, or give the interface that address",
        )  # fmt: skip
    for worker in case.workers:
        if worker.command.coordinator is None:
            continue
        called, called_port = worker.command.coordinator
        if called_port != port:
            yield Finding(
                "error", "dial.port", worker.name,
                "the worker dials a port on which the coordinator does not listen",
                expected=str(port), found=str(called_port),
                next_step=f"give the worker --coordinator {called} {port}",
            )  # fmt: skip
        yield from _called(leader, worker, host, called, port)


def _called(
    leader: Member, worker: Member, host: str, called: str, port: int
) -> Iterator[Finding]:
    apart = worker.machine is not leader.machine and not _same_machine(worker, leader)
    if _loopback(called) and apart:
        yield Finding(
            "error", "dial.loopback", worker.name,
            "the worker dials its own machine and not the coordinator's",
            expected=f"an address of {leader.name}", found=called,
            next_step=f"give the worker --coordinator ADDRESS-OF-{leader.name} {port}",
        )  # fmt: skip
        return
    if _loopback(host) and apart:
        yield Finding(
            "error", "dial.listens-on-loopback", leader.name,
            f"the coordinator listens on loopback, where {worker.name} cannot reach it",
            expected="an address of the link, or 0.0.0.0", found=host,
            next_step=f"start the coordinator with --listen {called} {port}",
        )  # fmt: skip
        return
    reachable = set(leader.machine.addresses) | {host}
    if not _numeric(called) or (host in _ANY and not leader.machine.addresses):
        return
    if called not in reachable:
        yield Finding(
            "error", "dial.address", worker.name,
            "the worker dials an address that the coordinator's machine does not have",
            expected=", ".join(sorted(reachable - set(_ANY))), found=called,
            next_step="correct --coordinator",
        )  # fmt: skip
    elif host not in _ANY and _numeric(host) and called != host:
        yield Finding(
            "error", "dial.other-address", worker.name,
            "the worker dials another address than the one the coordinator listens on",
            expected=host, found=called,
            next_step=f"dial {host}, or let the coordinator listen on 0.0.0.0",
        )  # fmt: skip


def _same_machine(a: Member, b: Member) -> bool:
    return bool(set(a.machine.addresses) & set(b.machine.addresses))


def ports(case: Case) -> Iterator[Finding]:
    """Two processes of one machine cannot listen on one port."""
    places: Counter[tuple[str, int]] = Counter()
    names: dict[tuple[str, int], list[str]] = {}
    for member in case.members:
        if member.command.listen is not None:
            host, port = member.command.listen
            key = member.machine.addresses[:1]
            place = (key[0] if key else host, port)
            places[place] += 1
            names.setdefault(place, []).append(member.name)
    for place, count in places.items():
        if count > 1:
            yield Finding(
                "error", "dial.port-taken", ", ".join(names[place]),
                "two processes listen on one port of one machine; the second ends "
                "with \"Address already in use\"",
                expected="a port for each", found=f"{place[0]} {place[1]} twice",
                next_step="give the second process another --listen port",
            )  # fmt: skip


CHECKS = (refused, programs, roles, dialling, ports)
