"""Which device and which GID: pure functions over tables, for Linux and macOS.

Nothing here opens a device. A provider fills the tables; the choice is then a matter
of rules (DS4T-RDMA-30 to -38) and can be tested, explained and compared.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ds4proto.link.ds4t_texts import text_of
from ds4proto.link.rdma_attributes import ETHERNET, INFINIBAND

GidKind = Literal["RoCE v1", "RoCE v2", "IB", ""]
PortState = Literal["DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER", "NOP"]
Verdict = Literal["no library", "no device", "port down", "no usable GID"]
"""The four cases that a person must be able to tell apart (DS4T-RDMA-06)."""

GID_BYTES: Final = 16
MAX_INDEX: Final = 255
"""Largest index that Linux ranks look at (DS4T-RDMA-33)."""
_MAPPED = bytes(10) + b"\xff\xff"
_ZERO = bytes(GID_BYTES)
_NO_GID = "no active RoCEv2 GID for the requested device/index"
_MANY = "multiple active ports, none matches the control address"


@dataclass(frozen=True, slots=True)
class GidEntry:
    """One entry of a port's GID table; holes are simply not listed.

    Attributes
    ----------
    index : int
    gid : bytes
        16 raw bytes.
    kind : str
        Empty where the provider does not say.
    netdev : str
        Network interface, where known.
    """

    index: int
    gid: bytes
    kind: GidKind = ""
    netdev: str = ""

    @property
    def zero(self) -> bool:
        """An entry without an address."""
        return self.gid == _ZERO

    @property
    def mapped(self) -> bool:
        """An IPv4-mapped address (bytes 0-9 zero, 10-11 ff ff)."""
        return self.gid.startswith(_MAPPED)

    @property
    def link_local(self) -> bool:
        """fe80::/10, which exists on every interface and routes nowhere."""
        return self.gid[0] == 0xFE and self.gid[1] & 0xC0 == 0x80

    def __str__(self) -> str:
        if len(self.gid) != GID_BYTES:
            return f"[{self.index}] {self.gid.hex()}"
        address = ipaddress.IPv6Address(self.gid)
        shown = str(address.ipv4_mapped or address)
        return f"[{self.index}] {shown} {self.kind}".rstrip()


@dataclass(frozen=True, slots=True)
class Device:
    """One verbs device, its port 1 and that port's GID table."""

    name: str
    state: PortState
    link_layer: int = ETHERNET
    active_mtu: int = 5
    lid: int = 0
    gids: tuple[GidEntry, ...] = ()
    table_length: int = 256

    def entry(self, index: int) -> GidEntry | None:
        """Return the entry at an index, None for a hole or beyond the table."""
        return next((e for e in self.gids if e.index == index), None)


@dataclass(frozen=True, slots=True)
class Choice:
    """What to bind to: the device, and the index to use in RTR on both steps.

    ``score`` is 2 where the GID is the control connection's own address, else 1.
    """

    device: Device
    entry: GidEntry
    score: int = 1

    @property
    def gid_index(self) -> int:
        """The one index for query_gid and for sgid_index in RTR."""
        return self.entry.index


@dataclass(frozen=True, slots=True)
class NoChoice:
    """Why RDMA cannot be used: one of four verdicts, the peer's text, what to do."""

    verdict: Verdict
    text: str
    next_step: str
    clause: str

    def __str__(self) -> str:
        return f"{self.text} ({self.verdict}). Next: {self.next_step}"


def no_library(tried: Sequence[str]) -> NoChoice:
    """Return the verdict for a machine without a verbs library."""
    names = ", ".join(tried) or "none"
    return NoChoice(
        "no library",
        text_of("DS4T-RDMA-31"),
        f"install the verbs library (tried {names}), or start with --transport tcp",
        "DS4T-RDMA-06",
    )


def _no_device(name: str | None, devices: Sequence[Device]) -> NoChoice:
    known = ", ".join(d.name for d in devices)
    step = "load the driver of the adapter, or start with --transport tcp"
    if name is not None and devices:
        step = f"--rdma-device {name} is not among: {known}"
    return NoChoice("no device", text_of("DS4T-RDMA-31"), step, "DS4T-RDMA-31")


def _port_down(devices: Sequence[Device], clause: str) -> NoChoice:
    states = ", ".join(f"{d.name}={d.state}" for d in devices)
    text = text_of(clause).replace("%s=%s, ...", states)
    return NoChoice(
        "port down",
        text,
        f"connect the cable and bring the interface up on both machines ({states})",
        clause,
    )


def _gids(device: Device) -> list[GidEntry]:
    """Entries that can be used at all: inside the table, whole, not zero."""
    return [
        entry
        for entry in sorted(device.gids, key=lambda e: e.index)
        if 0 <= entry.index < device.table_length
        and len(entry.gid) == GID_BYTES
        and not entry.zero
    ]


def choose_macos(
    devices: Sequence[Device],
    *,
    name: str | None = None,
    gid_index: int | None = None,
) -> Choice | NoChoice:
    """Choose as a rank on macOS does (DS4T-RDMA-30, -32).

    Parameters
    ----------
    devices : sequence of Device
        In the order of the library's list.
    name : str, optional
        ``--rdma-device``; taken although its port is not active.
    gid_index : int, optional
        ``--rdma-gid-index``; else the first IPv4-mapped entry.
    """
    named = [d for d in devices if name is None or d.name == name]
    if not named:
        return _no_device(name, devices)
    if name is None:
        active = [d for d in named if d.state == "ACTIVE"]
        if not active:
            return _port_down(named, "DS4T-RDMA-30")
        named = active
    device = named[0]
    usable = _gids(device)
    if gid_index is not None:
        asked = next((e for e in usable if e.index == gid_index), None)
        return Choice(device, asked) if asked else _bad_index(device, gid_index)
    mapped = next((e for e in usable if e.mapped), None)
    if mapped is not None:
        return Choice(device, mapped)
    return NoChoice(
        "no usable GID",
        text_of("DS4T-RDMA-32"),
        f"{device.name} lists {_table(device)}; give the interface an IPv4 address",
        "DS4T-RDMA-32",
    )


def _bad_index(device: Device, index: int) -> NoChoice:
    why = "is not in the table"
    entry = device.entry(index)
    if entry is not None:
        why = "is zero" if entry.zero else "cannot be used"
    if index >= device.table_length:
        why = f"is beyond the table of {device.table_length} entries"
    return NoChoice(
        "no usable GID",
        f"tp rdma: query_gid({index}): GID index {why}",
        f"{device.name} lists {_table(device)}; pick one of them",
        "DS4T-RDMA-37",
    )


def _table(device: Device) -> str:
    return ", ".join(str(entry) for entry in _gids(device)) or "no GID at all"


def choose_linux(
    devices: Sequence[Device],
    control_address: str,
    *,
    name: str | None = None,
    gid_index: int | None = None,
) -> Choice | NoChoice:
    """Choose as a rank on Linux does (DS4T-RDMA-33 to -36).

    Parameters
    ----------
    devices : sequence of Device
        In the order of the library's list.
    control_address : str
        Local address of the control connection, IPv4 or IPv6.
    name, gid_index
        As for `choose_macos`.
    """
    named = [d for d in devices if name is None or d.name == name]
    if not named:
        return _no_device(name, devices)
    active = [d for d in named if d.state == "ACTIVE"]
    if not active:
        return _port_down(named, "DS4T-RDMA-36")
    found = []
    own = gid_of_address(control_address)
    for device in active:
        best = _best(device, own, gid_index)
        if device.link_layer == ETHERNET and best is not None:
            found.append(best)
    if not found:
        return _refused(_NO_GID, "DS4T-RDMA-36", active, gid_index)
    winner = max(found, key=lambda choice: choice.score)
    if winner.score == 1 and len(found) > 1:
        return _refused(_MANY, "DS4T-RDMA-35", active, gid_index)
    return winner


def _best(device: Device, own: bytes | None, index: int | None) -> Choice | None:
    best: Choice | None = None
    for entry in _gids(device):
        if entry.kind != "RoCE v2" or entry.index > MAX_INDEX:
            continue
        if index is not None and entry.index != index:
            continue
        score = 2 if entry.gid == own else 1
        if best is None or score > best.score:
            best = Choice(device, entry, score)
    return best


def _refused(
    reason: str, clause: str, devices: Sequence[Device], index: int | None
) -> NoChoice:
    tables = "; ".join(f"{d.name}: {_table(d)}" for d in devices)
    asked = "" if index is None else f"index {index} was asked for; "
    infiniband = [d.name for d in devices if d.link_layer == INFINIBAND]
    if infiniband:
        asked += f"{', '.join(infiniband)} is native InfiniBand, which is not RoCE; "
    step = f"{asked}the active ports list {tables}"
    return NoChoice("no usable GID", text_of("DS4T-RDMA-33", reason), step, clause)


def gid_of_address(address: str) -> bytes | None:
    """Return the GID of an address: IPv4 mapped, IPv6 as it is; None if neither."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    return _MAPPED + parsed.packed if parsed.version == 4 else parsed.packed


def same_subnet(mine: bytes, theirs: bytes, prefix: int) -> bool:
    """Tell whether two IPv4-mapped GIDs lie in one subnet of ``prefix`` bits."""
    if not (mine.startswith(_MAPPED) and theirs.startswith(_MAPPED)):
        return False
    shift = 32 - prefix
    a, b = (int.from_bytes(gid[12:16], "big") >> shift for gid in (mine, theirs))
    return a == b


def entry_in_subnet(device: Device, theirs: bytes, prefix: int = 24) -> GidEntry | None:
    """Return the entry from which the peer's address is reached directly, if any."""
    return next((e for e in _gids(device) if same_subnet(e.gid, theirs, prefix)), None)


def changed_entry(before: Choice, now: Device) -> str | None:
    """Return what happened to the chosen entry since, None where it still holds.

    A rank reads the table anew for each queue pair (DS4T-RDMA-38): an interface that
    went down and up moves its entries.
    """
    entry = now.entry(before.gid_index)
    if entry is not None and entry.gid == before.entry.gid:
        return None
    moved = next((e for e in now.gids if e.gid == before.entry.gid), None)
    if moved is not None:
        return f"GID moved from index {before.gid_index} to {moved.index}"
    found = "a hole" if entry is None else "zero" if entry.zero else str(entry)
    return f"index {before.gid_index} held {before.entry}, and is now {found}"
