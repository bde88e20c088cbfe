"""Output of the systems' own tools, read: pure functions from text to records.

What a line does not say stays absent; text of another tool, or none, gives nothing and
raises nothing.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from ds4proto.link.rdma_attributes import ETHERNET, INFINIBAND
from ds4proto.link.rdma_choice import Device, GidEntry, GidKind, PortState
from ds4proto.preflight.facts import Interface

__all__ = [
    "parse_ibv_devinfo",
    "parse_ifconfig",
    "parse_ip_addr",
    "parse_rdma_ctl",
    "parse_sysctl",
    "thunderbolt_generation",
]

_MOST: Final = 1 << 20
_GID: Final = re.compile(r"GID\[\s*(\d{1,5})\]:\s*([0-9a-fA-F:.]+)(?:,\s*(.*\S))?")
_STATES: Final[dict[str, PortState]] = {
    "PORT_DOWN": "DOWN",
    "PORT_INIT": "INIT",
    "PORT_ARMED": "ARMED",
    "PORT_ACTIVE": "ACTIVE",
    "PORT_ACTIVE_DEFER": "ACTIVE_DEFER",
    "PORT_NOP": "NOP",
}
_KINDS: Final[dict[str, GidKind]] = {
    "RoCE v1": "RoCE v1",
    "RoCE v2": "RoCE v2",
    "IB": "IB",
    "IB/RoCE v1": "RoCE v1",
}
_LAYERS: Final = {"Ethernet": ETHERNET, "InfiniBand": INFINIBAND}


def _lines(text: str) -> Iterator[str]:
    return iter(text[:_MOST].splitlines())


@dataclass(slots=True)
class _Port:
    name: str
    state: PortState = "NOP"
    link_layer: int = 0
    mtu: int = 0
    lid: int = 0
    gids: list[GidEntry] = field(default_factory=list)
    seen: bool = False

    def device(self) -> Device:
        last = max((entry.index for entry in self.gids), default=-1)
        return Device(
            self.name, self.state, self.link_layer or ETHERNET, self.mtu or 5,
            self.lid, tuple(self.gids), max(256, last + 1),
        )  # fmt: skip


def parse_ibv_devinfo(text: str) -> list[Device]:
    """Return the devices of ``ibv_devinfo -v``, each with its first port.

    An empty list stands for a library without a device ("No IB devices found") as well
    as for no output at all: ask the caller whether the tool was there.
    """
    found: list[_Port] = []
    ports = 0
    for line in _lines(text):
        key, _, value = line.strip().partition(":")
        value = value.strip()
        if key == "hca_id":
            found.append(_Port(value))
            ports = 0
        elif not found:
            continue
        elif key == "port":
            ports += 1
        elif ports == 1:
            _port_line(found[-1], key, value, line)
    return [port.device() for port in found]


def _port_line(port: _Port, key: str, value: str, line: str) -> None:
    word = value.partition(" ")[0]
    if key == "state":
        port.state = _STATES.get(word, "NOP")
    elif key == "link_layer":
        port.link_layer = _LAYERS.get(word, 0)
    elif key == "active_mtu":
        code = re.search(r"\((\d)\)", value)
        port.mtu = int(code[1]) if code else 0
    elif key == "port_lid":
        port.lid = int(word) if word.isdecimal() else 0
    elif key.startswith("GID["):
        entry = _gid(line)
        if entry is not None:
            port.gids.append(entry)


def _gid(line: str) -> GidEntry | None:
    match = _GID.search(line)
    if match is None:
        return None
    try:
        packed = ipaddress.IPv6Address(match[2]).packed
    except ValueError:
        return None
    return GidEntry(int(match[1]), packed, _KINDS.get(match[3] or "", ""))


def parse_rdma_ctl(text: str) -> bool | None:
    """Tell whether ``rdma_ctl status`` says enabled; None where it says neither."""
    words = set(re.findall(r"[a-z]+", text[:_MOST].lower()))
    if "disabled" in words:
        return False
    return True if "enabled" in words else None


def parse_sysctl(text: str) -> dict[str, str]:
    """Return names and values of ``sysctl`` in either spelling (``: `` or `` = ``)."""
    found = {}
    for line in _lines(text):
        match = re.match(r"([A-Za-z0-9_.-]+)\s*(?::|=)\s*(.*)", line)
        if match:
            found[match[1]] = match[2].strip()
    return found


def thunderbolt_generation(text: str) -> int | None:
    """Return the generation from ``system_profiler SPThunderboltDataType``.

    The fastest port counts: 80 Gb/s and more is 5, 40 is 4 (or 3, which has no RDMA
    either).
    """
    speeds = [int(n) for n in re.findall(r"Up to (\d{1,4}) Gb/s", text[:_MOST])]
    if not speeds:
        return None
    return 5 if max(speeds) >= 80 else 4


@dataclass(slots=True)
class _Draft:
    name: str
    mtu: int = 0
    up: bool = True
    kind: str = ""
    addresses: list[str] = field(default_factory=list)
    members: list[str] = field(default_factory=list)

    def done(self) -> Interface:
        kind = "bridge" if self.members else self.kind or _kind(self.name)
        return Interface(
            self.name, tuple(self.addresses), kind, self.mtu, self.up,
            tuple(self.members),
        )  # fmt: skip


def _kind(name: str) -> str:
    for prefix, kind in (
        ("lo", "loopback"), ("bridge", "bridge"), ("br", "bridge"), ("wl", "wifi"),
        ("thunderbolt", "thunderbolt"), ("eth", "ethernet"), ("enp", "ethernet"),
    ):  # fmt: skip
        if name.startswith(prefix):
            return kind
    return ""


def _flags(words: str) -> bool:
    flags = re.search(r"<([^>]*)>", words)
    names = flags[1].split(",") if flags else []
    return "UP" in names and ("LOWER_UP" in names or "NO-CARRIER" not in names)


def parse_ifconfig(text: str) -> tuple[Interface, ...]:
    """Return the interfaces of ``ifconfig``, of macOS, BSD or Linux."""
    found: list[_Draft] = []
    for line in _lines(text):
        head = re.match(r"([A-Za-z0-9_.-]+): flags=\S+ .*?mtu (\d+)", line)
        if head is None:
            head = re.match(r"([A-Za-z0-9_.-]+): flags=.*?<.*?>.*?mtu (\d+)", line)
        if head:
            found.append(_Draft(head[1], int(head[2]), _flags(line)))
        elif found:
            _ifconfig_line(found[-1], line.split())
    return tuple(one.done() for one in found)


def _ifconfig_line(draft: _Draft, words: list[str]) -> None:
    if len(words) < 2:
        return
    if words[0] == "member:":
        draft.members.append(words[1])
    elif words[0] == "status:":
        draft.up = draft.up and words[1] == "active"
    elif words[0] in ("inet", "inet6"):
        address = words[1].partition("%")[0].partition("/")[0]
        pairs = dict(zip(words[2::2], words[3::2], strict=False))
        prefix = pairs.get("prefixlen", "") or _prefix(pairs.get("netmask", ""))
        draft.addresses.append(f"{address}/{prefix}" if prefix else address)


def _prefix(mask: str) -> str:
    try:
        number = (
            int(mask, 16) if mask.startswith("0x") else int(ipaddress.IPv4Address(mask))
        )
    except ValueError:
        return ""
    return str(number.bit_count())


def parse_ip_addr(text: str) -> tuple[Interface, ...]:
    """Return the interfaces of ``ip addr`` (also with ``-d``)."""
    found: dict[str, _Draft] = {}
    masters: list[tuple[str, str]] = []
    current: _Draft | None = None
    for line in _lines(text):
        head = re.match(r"\d+: ([^:@\s]+)[^:]*: (<.*)", line)
        if head:
            mtu = re.search(r"\bmtu (\d+)", head[2])
            current = _Draft(head[1], int(mtu[1]) if mtu else 0, _flags(head[2]))
            found[head[1]] = current
            master = re.search(r"\bmaster (\S+)", head[2])
            if master:
                masters.append((master[1], head[1]))
        elif current is not None:
            words = line.split()
            if words and words[0] in ("inet", "inet6") and len(words) > 1:
                current.addresses.append(words[1])
            elif words and words[0] == "bridge" and len(words) > 1:
                current.kind = "bridge"
    for bridge, member in masters:
        if bridge in found:
            found[bridge].members.append(member)
    return tuple(one.done() for one in found.values())
