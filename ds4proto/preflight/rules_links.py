"""Rules of links, clocks and builds: what is known about the way between machines."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Final

from ds4proto.preflight.case import Case, Member
from ds4proto.preflight.facts import Interface, LinkFacts
from ds4proto.preflight.finding import Finding

__all__ = ["CHECKS"]

_SLOW_MS: Final = 5.0
_SLOW_GATE_MS: Final = 1.0
_SLOW_GBIT: Final = 1.0
_CLOCK_S: Final = 1.0


def _owner(member: Member, address: str) -> tuple[Interface, int] | None:
    """Return the interface that has an address, and the prefix length."""
    for interface in member.machine.interfaces:
        for text in interface.addresses:
            plain, _, prefix = text.partition("/")
            if plain == address:
                return interface, int(prefix) if prefix.isdecimal() else 0
    return None


def _calls(case: Case) -> Iterator[tuple[Member, Member, str]]:
    """Yield worker, coordinator, and the address that the worker dials."""
    leader = case.leader
    if leader is None:
        return
    for worker in case.workers:
        if worker.command.coordinator is not None:
            yield worker, leader, worker.command.coordinator[0]


def interfaces(case: Case) -> Iterator[Finding]:
    """Judge the interfaces that the addresses of the run lie on."""
    for worker, leader, address in _calls(case):
        found = _owner(leader, address)
        if found is None:
            continue
        interface, prefix = found
        if interface.kind == "bridge":
            parts = ", ".join(interface.members) or "its ports"
            yield Finding(
                "error" if leader.command.transport == "rdma" else "warning",
                "link.bridge", leader.name,
                f"{address} sits on the bridge {interface.name} alone: {parts} have "
                "no address of their own, so that RDMA finds no usable GID there, and "
                "traffic crosses the bridge",
                expected="an IPv4 address on the port itself", found=interface.name,
                next_step=f"take {parts} out of {interface.name} and give each an "
                "address of its own",
            )  # fmt: skip
        if interface.kind == "wifi":
            yield Finding(
                "warning", "link.wifi", leader.name,
                f"the run goes over the wireless interface {interface.name}",
                expected="a cable", found=f"{address} on {interface.name}",
                next_step=_better(leader, worker) or "connect the machines by cable",
            )  # fmt: skip
        if not interface.up:
            yield Finding(
                "error", "link.down", leader.name,
                f"the interface of {address} is down", expected="up",
                found=interface.name, next_step="bring it up, and check the cable",
            )  # fmt: skip
        yield from _subnet(worker, leader, address, prefix)
        yield from _others(worker, leader, interface)


def _others(worker: Member, leader: Member, used: Interface) -> Iterator[Finding]:
    """List the other ways between two machines, and say where one is better."""
    for other in leader.machine.interfaces:
        if other is used or not other.up or other.kind in ("loopback", "bridge"):
            continue
        for text in other.addresses:
            network = _network(text)
            if network is None or (network.is_link_local and network.version == 6):
                continue
            if network.is_loopback or not _shares(worker, text):
                continue
            better = other.kind == "thunderbolt" and used.kind != "thunderbolt"
            yield Finding(
                "warning" if better else "note",
                "link.better" if better else "link.other",
                leader.name,
                "there is another way between these machines"
                + (", and it is likely the faster one" if better else ""),
                expected=f"{text} on {other.name} ({other.kind or 'unknown kind'})"
                if better else "",
                found=f"{used.name} ({used.kind or 'unknown kind'}) is used; "
                f"{text} on {other.name} is shared as well",
                next_step=f"measure both; dial {text.partition('/')[0]} to use it",
            )  # fmt: skip


def _better(leader: Member, worker: Member) -> str:
    for mine in leader.machine.interfaces:
        if mine.kind not in ("ethernet", "thunderbolt") or not mine.up:
            continue
        for address in mine.addresses:
            if _shares(worker, address):
                return f"dial {address.partition('/')[0]} on {mine.name} instead"
    return ""


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_interface(text).network
    except ValueError:
        return None


def _shares(member: Member, text: str) -> bool:
    """Tell whether a machine has an address in the network of another."""
    network = _network(text)
    if network is None or "/" not in text:
        return False
    return any(
        _network(own) == network
        for interface in member.machine.interfaces
        if interface.up
        for own in interface.addresses
    )


def _subnet(
    worker: Member, leader: Member, address: str, prefix: int
) -> Iterator[Finding]:
    stated = any("/" in a for i in worker.machine.interfaces for a in i.addresses)
    if not prefix or not stated or ipaddress.ip_address(address).is_loopback:
        return
    if not _shares(worker, f"{address}/{prefix}"):
        yield Finding(
            "warning", "link.subnet", worker.name,
            f"no interface of this machine is in the network of {address}: traffic "
            "goes through a router, or nowhere",
            expected=f"an address in {_network(f'{address}/{prefix}')}",
            found=", ".join(a for i in worker.machine.interfaces for a in i.addresses),
            next_step=_better(leader, worker) or "put both ends into one network",
        )  # fmt: skip


def speeds(case: Case) -> Iterator[Finding]:
    """Judge what was measured or stated about the links."""
    parallel = case.mode == "tensor-parallel"
    slow = _SLOW_GATE_MS if parallel else _SLOW_MS
    for link in case.plan.links:
        where = " - ".join(link.between)
        if link.rtt_ms is not None and link.rtt_ms > slow:
            yield Finding(
                "warning", "link.slow", where,
                "slow link: "
                + (
                    "every gate waits for half a round trip"
                    if parallel
                    else "every token waits for a round trip"
                ),
                expected=f"a round trip below {slow:g} ms",
                found=f"{link.rtt_ms:.3g} ms",
                next_step="see the prediction; look for a faster interface",
            )  # fmt: skip
        if link.gbit is not None and link.gbit < _SLOW_GBIT:
            yield Finding(
                "warning", "link.thin", where, "thin link: prefill waits for it",
                expected=f"{_SLOW_GBIT:g} Gbit/s or more",
                found=f"{link.gbit:.3g} Gbit/s",
                next_step="use a narrower width or another interface",
            )  # fmt: skip
        yield from _packets(link, where)
    yield from _mtu(case)


def _packets(link: LinkFacts, where: str) -> Iterator[Finding]:
    back = link.gbit_back
    if link.gbit and back and not 0.5 <= back / link.gbit <= 2:
        yield Finding(
            "warning", "link.lopsided", where,
            "the two directions differ by more than a factor of two",
            expected="about the same both ways",
            found=f"{link.gbit:.3g} and {back:.3g} Gbit/s",
            next_step="check the cable, and what else uses the link",
        )  # fmt: skip


def _mtu(case: Case) -> Iterator[Finding]:
    for worker, leader, address in _calls(case):
        there = _owner(leader, address)
        if there is None or not there[0].mtu:
            continue
        for interface in worker.machine.interfaces:
            near = any(
                _network(own) == _network(f"{address}/{there[1]}")
                for own in interface.addresses
                if there[1] and "/" in own
            )
            if near and interface.mtu and interface.mtu != there[0].mtu:
                yield Finding(
                    "warning", "link.mtu", f"{worker.name}, {leader.name}",
                    "the two ends of the link have different MTUs: large packets are "
                    "dropped or cut on the way",
                    expected=f"{there[0].mtu} on both", found=str(interface.mtu),
                    next_step="set one MTU on both ends",
                )  # fmt: skip


def builds(case: Case) -> Iterator[Finding]:
    """Compare builds and clocks."""
    for system in sorted({m.machine.system for m in case.members}):
        named = {
            m.name: m.machine.build
            for m in case.members
            if m.machine.build and m.machine.system == system
        }
        if len(set(named.values())) > 1:
            yield Finding(
                "warning", "build.differs", ", ".join(named),
                "the machines run different builds",
                expected="one build on all machines of a system",
                found=", ".join(f"{who} {what}" for who, what in named.items()),
                next_step="build them from one commit, and stop old processes",
            )  # fmt: skip
    for member in case.members:
        clock = member.machine.clock
        if clock is not None and abs(clock) > _CLOCK_S:
            yield Finding(
                "warning", "clock.differs", member.name,
                "the clocks differ: logs and captures of the machines will not line up",
                expected=f"within {_CLOCK_S:g} s", found=f"{clock:+.1f} s",
                next_step="switch time synchronisation on",
            )  # fmt: skip


CHECKS = (interfaces, speeds, builds)
