"""Packets of this machine as they pass: the kernel's packet socket, or tcpdump.

Only connections of the protocols are kept, found by their first bytes on any port: the
packets before that (the handshake, a few more) are held until the first payload tells.
"""

from __future__ import annotations

import re
import select
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, cast

import numpy as np

from ds4proto.errors import WrongUsage
from ds4proto.pcap import (
    CaptureReader,
    Decapsulator,
    LinkType,
    PacketBatch,
    PcapngWriter,
)
from ds4proto.schema.recognise import protocol_of

__all__ = ["Finder", "Ring", "interfaces", "packets_of"]

_ALL_PROTOCOLS: Final = 3  # ETH_P_ALL of Linux
_OUTGOING: Final = 4  # PACKET_OUTGOING of Linux
_LOOPBACK_TYPE: Final = 772  # ARPHRD_LOOPBACK of Linux
_ETHERNET_TYPES: Final = (1, _LOOPBACK_TYPE)
_SOL_PACKET: Final = 263
_PACKET_STATISTICS: Final = 6
_SNAP: Final = 1 << 18
_BATCH: Final = 256
_LOOK_S: Final = 0.2
_BUFFER: Final = 64 << 20
_MAGIC: Final = 4
_MOST_FLOWS: Final = 16_384
_MOST_HELD: Final = 16
_MOST_SAID: Final = 1 << 16
_SAID: Final = re.compile(
    r"(\d+) packets? (received by filter|dropped by kernel|dropped by interface)"
)
Stop = Callable[[], bool]
FlowKey = tuple[int, int, int, int, int]


def interfaces() -> list[str]:
    """Return the names of this machine's interfaces."""
    try:
        return [name for _, name in socket.if_nameindex()]
    except OSError:
        return []


class Lost(NamedTuple):
    """What the kernel says at the end: packets seen and packets dropped."""

    seen: int = 0
    dropped: int = 0


def packets_of(
    interface: str, stop: Stop, told: Callable[[Lost], None], *, tool: str = "auto"
) -> Iterator[PacketBatch]:
    """Yield batches of packets until `stop` says so.

    Parameters
    ----------
    interface : str
    stop : callable
        Asked a few times a second.
    told : callable
        Given the kernel's counts at the end, where it has any.
    tool : {"auto", "socket", "tcpdump"}

    Raises
    ------
    WrongUsage
        Where neither way is open; the text says what to do.
    """
    linux = sys.platform.startswith("linux")
    reason = "this system has no packet sockets"
    if tool != "tcpdump" and linux and interface != "any":
        try:
            sock = _open(interface)
        except PermissionError:
            reason = "the packet socket needs root, or the capability CAP_NET_RAW"
        except (OSError, UnicodeEncodeError) as error:
            known = ", ".join(interfaces())
            why = error.strerror if isinstance(error, OSError) else "no name of one"
            raise WrongUsage(
                f"interface {interface}: {why}; there are: {known}"
            ) from None
        else:
            yield from _from_socket(sock, stop, told)
            return
    if tool != "socket" and shutil.which("tcpdump") is not None:
        yield from _from_tcpdump(interface, stop, told)
        return
    raise WrongUsage(
        f"cannot capture on {interface}: {reason}"
        + ("" if tool == "socket" else ", and there is no tcpdump")
        + ". Next: run as root, or record with ds4proto proxy, which needs none of this"
    )


def _open(interface: str) -> socket.socket:
    family = getattr(socket, "AF_PACKET")  # noqa: B009 - absent on macOS
    sock = socket.socket(family, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        sock.bind((interface, 0))
        if sock.getsockname()[3] not in _ETHERNET_TYPES:
            raise OSError(0, "is no Ethernet or loopback interface; use --tool tcpdump")
    except OSError:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


def _from_socket(
    sock: socket.socket, stop: Stop, told: Callable[[Lost], None]
) -> Iterator[PacketBatch]:
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    number = 1
    try:
        while not stop():
            poller.poll(int(_LOOK_S * 1000))
            found: list[tuple[int, bytes]] = []
            while len(found) < _BATCH:
                try:
                    data, address = sock.recvfrom(_SNAP)
                except (BlockingIOError, InterruptedError):
                    break
                # Loopback shows every packet twice, once as it leaves.
                if address[2] == _OUTGOING and address[3] == _LOOPBACK_TYPE:
                    continue
                found.append((time.time_ns(), data))
            if found:
                yield _batch(found, number)
                number += len(found)
    finally:
        try:
            counts = sock.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
            told(Lost(*struct.unpack("II", counts)))
        except OSError:
            told(Lost())
        sock.close()


def _batch(found: list[tuple[int, bytes]], number: int) -> PacketBatch:
    sizes = np.array([len(data) for _, data in found], np.int64)
    starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)[:-1]))
    return PacketBatch(
        memoryview(b"".join(data for _, data in found)),
        np.array([stamp for stamp, _ in found], np.int64),
        starts,
        sizes,
        sizes,
        np.full(len(found), int(LinkType.ETHERNET), np.int32),
        number,
        0,
    )


def counts_of(said: str) -> Lost:
    """Return what tcpdump says at its end: ``N packets received by filter`` and so on.

    Packets that the interface itself dropped are lost as well.
    """
    found = {what: int(count) for count, what in _SAID.findall(said)}
    dropped = found.get("dropped by kernel", 0) + found.get("dropped by interface", 0)
    return Lost(found.get("received by filter", 0), dropped)


def _from_tcpdump(
    interface: str, stop: Stop, told: Callable[[Lost], None]
) -> Iterator[PacketBatch]:
    child = subprocess.Popen(
        ["tcpdump", "-i", interface, "-U", "-n", "-s", "0", "-w", "-", "tcp"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stderr is not None
    try:
        poller = select.poll()
        poller.register(child.stdout, select.POLLIN | select.POLLHUP)
        while not poller.poll(int(_LOOK_S * 1000)):
            if stop():
                return
        with CaptureReader(
            cast(BinaryIO, _Piped(child.stdout.fileno(), stop))
        ) as reader:
            yield from reader
        if not reader.packets and not stop():
            said = child.stderr.read(2000).decode("utf-8", "replace").strip()
            raise WrongUsage(
                f"tcpdump cannot capture on {interface}: {said.splitlines()[-1:]}. "
                "Next: run as root, or record with ds4proto proxy"
            )
    finally:
        child.terminate()
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        told(counts_of(child.stderr.read(_MOST_SAID).decode("utf-8", "replace")))
        child.stdout.close()
        child.stderr.close()


class _Piped:
    """Reads a pipe as it fills, and ends when asked to."""

    def __init__(self, number: int, stop: Stop) -> None:
        self._number, self._stop = number, stop
        self._poller = select.poll()
        self._poller.register(number, select.POLLIN | select.POLLHUP)

    def read1(self, size: int = -1) -> bytes:
        """Return what is there, nothing at the end."""
        import os

        while not self._poller.poll(int(_LOOK_S * 1000)):
            if self._stop():
                return b""
        return os.read(self._number, size if size > 0 else 1 << 16)

    read = read1


class _Flow:
    """One connection: whether it is ours, and what waits for the answer."""

    __slots__ = ("held", "ours")

    def __init__(self) -> None:
        self.ours = False
        self.held: list[tuple[int, bytes, int]] = []


class Finder:
    """Keeps the packets of connections that speak one of the protocols.

    Attributes
    ----------
    flows : int
        Connections that are ours.
    kept, passed_over : int
        Packets.
    """

    def __init__(self) -> None:
        self._flows: OrderedDict[FlowKey, _Flow] = OrderedDict()
        self._split = Decapsulator(udp_ports=frozenset())
        self.flows = 0
        self.kept = 0
        self.passed_over = 0

    def feed(self, batch: PacketBatch) -> Iterator[tuple[int, bytes, int]]:
        """Yield time, bytes and length on the wire of the packets that are kept."""
        columns, _ = self._split.split(batch)
        table = zip(
            columns.row.tolist(), columns.src_hi.tolist(), columns.src_lo.tolist(),
            columns.dst_hi.tolist(), columns.dst_lo.tolist(), columns.ports.tolist(),
            columns.payload_offset.tolist(), columns.payload_caplen.tolist(),
            strict=True,
        )  # fmt: skip
        seen = 0
        for row, *ends, ports, at, size in table:
            seen += 1
            flow = self._flow(_key(ends, ports))
            packet = (
                int(batch.time_ns[row]), bytes(batch.packet(row)),
                int(batch.origlen[row]),
            )  # fmt: skip
            if not flow.ours and size:
                head = bytes(batch.data[at : at + _MAGIC])
                flow.ours = size >= _MAGIC and protocol_of(head) is not None
                self.flows += flow.ours
            if flow.ours:
                self.kept += 1 + len(flow.held)
                yield from flow.held
                flow.held.clear()
                yield packet
                continue
            flow.held.append(packet)
            if len(flow.held) > _MOST_HELD:
                flow.held.pop(0)
                self.passed_over += 1
        self.passed_over += len(batch) - seen

    def finish(self) -> None:
        """Count what still waits for a first payload as other traffic."""
        for flow in self._flows.values():
            self.passed_over += len(flow.held)
            flow.held.clear()

    def _flow(self, key: FlowKey) -> _Flow:
        flow = self._flows.get(key)
        if flow is None:
            flow = self._flows[key] = _Flow()
            if len(self._flows) > _MOST_FLOWS:
                self._flows.popitem(last=False)
        else:
            self._flows.move_to_end(key)
        return flow


def _key(ends: list[int], ports: int) -> FlowKey:
    """Return one key for both directions of a connection."""
    there = (ends[0], ends[1], ports >> 16)
    back = (ends[2], ends[3], ports & 0xFFFF)
    one, two = min(there, back), max(there, back)
    return one[0], one[1], two[0], two[1], one[2] << 16 | two[2]


class Ring:
    """Writes packets to one file, or to the last few of a row of files.

    Parameters
    ----------
    path : str
    files, size : int
        How many files stay, and about how many bytes each has; 0 files: one without
        end, named `path` itself.
    """

    def __init__(self, path: str, files: int = 0, size: int = 0) -> None:
        self._path = Path(path)
        self._files, self._size = files, size
        self._number = 0
        self.names: list[Path] = []
        self._writer = self._next()
        self._bytes = 0

    def _next(self) -> PcapngWriter:
        path = self._path
        if self._files:
            self._number += 1
            path = path.with_name(f"{path.stem}.{self._number:04d}{path.suffix}")
        self.names.append(path)
        while self._files and len(self.names) > self._files:
            self.names.pop(0).unlink(missing_ok=True)
        return PcapngWriter(path)

    def packet(self, time_ns: int, data: bytes, origlen: int) -> None:
        """Write one packet, to the next file where this one is full."""
        if self._files and self._bytes > self._size:
            self._writer.close()
            self._writer = self._next()
            self._bytes = 0
        self._writer.packet(time_ns, data, origlen=origlen)
        self._bytes += len(data)

    def close(self) -> None:
        """Finish the file at hand."""
        self._writer.close()

    def abandon(self) -> None:
        """Close without the mark of completeness."""
        self._writer.abandon()
