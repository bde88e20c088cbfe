"""Build TCP and UDP packets, and whole TCP conversations, from payload bytes.

Checksums are the Internet checksum of RFC 1071 with the pseudo-headers of RFC 9293 and
RFC 8200.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from struct import Struct
from typing import Final, Literal, Protocol

import numpy as np
import numpy.typing as npt

from ds4proto.pcap import headers as h
from ds4proto.pcap.types import Buf, Endpoint, LinkType

MAX_SEGMENT: Final = 65_000
"""Payload bytes of one packet at most, so that IP's 16-bit length holds."""
MAC_A: Final = bytes.fromhex("020000000001")
MAC_B: Final = bytes.fromhex("020000000002")
_HOPS: Final = 64
_DONT_FRAGMENT: Final = 0x4000
_DATA_OFFSET: Final = 5 << 4

_IPV4 = Struct(">" + h.IPV4)
_IPV6 = Struct(">" + h.IPV6)
_TCP = Struct(">" + h.TCP)
_UDP = Struct(">" + h.UDP)
_ETHERTYPE = Struct(">H")
_LOW_64 = (1 << 64) - 1
_SHORT: Final = 64

Address = IPv4Address | IPv6Address
Parts = Callable[[int, Sequence[tuple[bytes, Buf]]], None]
_LONG: Final = 4096
"""Payload from which writing it apart from its head is worth the calls."""


def checksum(*parts: Buf) -> int:
    """Return the Internet checksum over `parts`; all but the last of even length."""
    total = 0
    for part in parts:
        if len(part) < _SHORT:
            total += int.from_bytes(part, "little")
            continue
        # Whole words of 32 bits sum faster, and 2**16 is 1 modulo 0xFFFF.
        words: npt.NDArray[np.uint32] = np.frombuffer(part, "<u4", len(part) // 4)
        total += int(words.sum(dtype=np.uint64))
        total += int.from_bytes(part[len(part) & ~3 :], "little")
    # One's complement sums do not care about byte order until the end (RFC 1071).
    little = (0xFFFF - total % 0xFFFF) % 0xFFFF
    return little >> 8 | (little & 0xFF) << 8


@lru_cache(256)
def _address(text: str) -> Address:
    return ip_address(text)


def _network(
    src: Address, dst: Address, protocol: int, length: int, ident: int
) -> tuple[bytes, bytes]:
    """Return the IP header and the pseudo-header for `length` transport bytes."""
    if isinstance(src, IPv4Address) and isinstance(dst, IPv4Address):
        fields = (
            4 << 4 | h.IPV4_BYTES // 4, 0, h.IPV4_BYTES + length, ident & 0xFFFF,
            _DONT_FRAGMENT, _HOPS, protocol,
        )  # fmt: skip
        blank = _IPV4.pack(*fields, 0, int(src), int(dst))
        header = _IPV4.pack(*fields, checksum(blank), int(src), int(dst))
        return header, src.packed + dst.packed + bytes((0, protocol)) + (
            length.to_bytes(2, "big")
        )
    if isinstance(src, IPv6Address) and isinstance(dst, IPv6Address):
        halves = [
            part
            for address in (int(src), int(dst))
            for part in (address >> 64, address & _LOW_64)
        ]
        header = _IPV6.pack(6 << 28, length, protocol, _HOPS, *halves)
        pseudo = src.packed + dst.packed + length.to_bytes(4, "big")
        return header, pseudo + protocol.to_bytes(4, "big")
    raise ValueError(
        f"cannot build a packet from {src} to {dst}: expected two IPv4 or two IPv6 "
        "addresses; give both ends the same family"
    )


def link_header(linktype: int, version: int, *, from_a: bool = True) -> bytes:
    """Return the link header in front of an IP packet of that version.

    Raises
    ------
    ValueError
        For a link type that cannot be built.
    """
    ethertype = h.ETHERTYPE_IPV4 if version == 4 else h.ETHERTYPE_IPV6
    if linktype == LinkType.ETHERNET:
        macs = MAC_B + MAC_A if from_a else MAC_A + MAC_B
        return macs + _ETHERTYPE.pack(ethertype)
    if linktype in (LinkType.RAW, LinkType.RAW_BSD, LinkType.RAW_OPENBSD):
        return b""
    if linktype in (LinkType.IPV4, LinkType.IPV6):
        return b""
    if linktype == LinkType.NULL:
        family = h.AF_INET if version == 4 else h.AF_INET6[-1]
        return family.to_bytes(h.NULL_BYTES, "little")
    raise ValueError(
        f"cannot build packets for link type {int(linktype)}: expected Ethernet (1), "
        "raw IP (101) or null (0); choose one of those"
    )


def build_tcp(
    src: Endpoint,
    dst: Endpoint,
    *,
    seq: int,
    ack: int = 0,
    flags: int = h.ACK,
    payload: Buf = b"",
    window: int = 0xFFFF,
    ident: int = 0,
    linktype: int = LinkType.ETHERNET,
    from_a: bool = True,
) -> bytes:
    """Build one TCP packet, link header included.

    Parameters
    ----------
    src, dst : Endpoint
        Both IPv4 or both IPv6.
    seq, ack : int
        Taken modulo 2**32.
    flags : int
        FIN 1, SYN 2, RST 4, PSH 8, ACK 16.
    payload : bytes-like
        At most `MAX_SEGMENT` bytes.
    ident : int
        Ident of an IPv4 packet.
    from_a : bool
        Chooses between the two made-up Ethernet addresses.

    Raises
    ------
    ValueError
        On mixed address families, too much payload, or an unknown link type.
    """
    if len(payload) > MAX_SEGMENT:
        raise ValueError(
            f"payload of {len(payload)} bytes in one segment: expected at most "
            f"{MAX_SEGMENT}; split it"
        )
    head = tcp_head(
        src, dst, seq=seq, ack=ack, flags=flags, payload=payload, window=window,
        ident=ident, linktype=linktype, from_a=from_a,
    )  # fmt: skip
    return b"".join((head, payload))


def tcp_head(
    src: Endpoint,
    dst: Endpoint,
    *,
    seq: int,
    ack: int,
    flags: int,
    payload: Buf,
    window: int = 0xFFFF,
    ident: int = 0,
    linktype: int = LinkType.ETHERNET,
    from_a: bool = True,
) -> bytes:
    """Return what stands before the payload of a TCP packet; see `build_tcp`."""
    source, target = _address(src.host), _address(dst.host)
    ip, pseudo = _network(
        source, target, h.PROTOCOL_TCP, h.TCP_BYTES + len(payload), ident
    )
    fields = (
        src.port << 16 | dst.port, seq & 0xFFFF_FFFF, ack & 0xFFFF_FFFF, _DATA_OFFSET,
        flags, window,
    )  # fmt: skip
    value = checksum(pseudo, _TCP.pack(*fields, 0, 0), payload)
    link = link_header(linktype, source.version, from_a=from_a)
    return b"".join((link, ip, _TCP.pack(*fields, value, 0)))


def build_udp(
    src: Endpoint,
    dst: Endpoint,
    *,
    payload: Buf,
    ident: int = 0,
    linktype: int = LinkType.ETHERNET,
    from_a: bool = True,
) -> bytes:
    """Build one UDP packet, link header included; see `build_tcp`."""
    if len(payload) > MAX_SEGMENT:
        raise ValueError(
            f"payload of {len(payload)} bytes in one datagram: expected at most "
            f"{MAX_SEGMENT}; split it"
        )
    source, target = ip_address(src.host), ip_address(dst.host)
    length = h.UDP_BYTES + len(payload)
    ip, pseudo = _network(source, target, h.PROTOCOL_UDP, length, ident)
    ports = src.port << 16 | dst.port
    value = checksum(pseudo, _UDP.pack(ports, length, 0), payload) or 0xFFFF
    link = link_header(linktype, source.version, from_a=from_a)
    return b"".join((link, ip, _UDP.pack(ports, length, value), payload))


class PacketSink(Protocol):
    """Where a conversation puts its packets; both writers are one."""

    linktype: int

    def packet(self, time_ns: int, data: Buf, *, origlen: int | None = None) -> None:
        """Store one packet."""


class TcpConversation:
    """Writes the bytes of one connection as TCP packets that any tool reads.

    Sequence and acknowledgement numbers are kept consistent; every segment
    acknowledges all that was written of the other direction.

    Parameters
    ----------
    sink : PacketSink
        A `PcapngWriter` or `PcapWriter`.
    a, b : Endpoint
        `a` is the side that connects.
    isn_a, isn_b : int
        Initial sequence numbers.
    max_segment : int
        Payload bytes of one packet at most.
    """

    def __init__(
        self,
        sink: PacketSink,
        a: Endpoint,
        b: Endpoint,
        *,
        isn_a: int = 1_000,
        isn_b: int = 2_000,
        max_segment: int = MAX_SEGMENT,
    ) -> None:
        if not 0 < max_segment <= MAX_SEGMENT:
            raise ValueError(
                f"max_segment is {max_segment}: expected 1 to {MAX_SEGMENT}"
            )
        self._sink = sink
        # A sink may take head and payload apart, which spares two copies.
        self._in_parts: Parts | None = getattr(sink, "packet_parts", None)
        self._ends = (a, b)
        self._next = [isn_a & 0xFFFF_FFFF, isn_b & 0xFFFF_FFFF]
        self._ident = [0, 0]
        self._max_segment = max_segment

    def open(self, time_ns: int) -> None:
        """Write the three-way handshake, all at one time."""
        self._packet(time_ns, 0, h.SYN)
        self._packet(time_ns, 1, h.SYN | h.ACK)
        self._packet(time_ns, 0, h.ACK)

    def data(
        self,
        time_ns: int,
        direction: Literal["a>b", "b>a"],
        data: Buf | Sequence[Buf],
    ) -> None:
        """Write bytes of one direction, in as many segments as they need."""
        side = self._side(direction)
        parts = [data] if isinstance(data, bytes | bytearray | memoryview) else data
        for part in parts:
            view = memoryview(part).cast("B")
            pieces = [
                view[start : start + self._max_segment]
                for start in range(0, len(view), self._max_segment)
            ]
            if self._in_parts is not None and len(view) >= _LONG:
                flags = h.PSH | h.ACK
                heads = [(self._head(side, flags, piece), piece) for piece in pieces]
                self._in_parts(time_ns, heads)
                continue
            for piece in pieces:
                self._packet(time_ns, side, h.PSH | h.ACK, piece)

    def fin(self, time_ns: int, direction: Literal["a>b", "b>a"]) -> None:
        """Write the FIN of one direction and the other side's acknowledgement."""
        side = self._side(direction)
        self._packet(time_ns, side, h.FIN | h.ACK)
        self._packet(time_ns, 1 - side, h.ACK)

    def rst(self, time_ns: int, direction: Literal["a>b", "b>a"]) -> None:
        """Write a reset sent by one side."""
        self._packet(time_ns, self._side(direction), h.RST | h.ACK)

    def skip(self, direction: Literal["a>b", "b>a"], length: int) -> None:
        """Leave out `length` bytes of one direction, as a lossy capture would."""
        side = self._side(direction)
        self._next[side] = (self._next[side] + length) & 0xFFFF_FFFF

    def _side(self, direction: str) -> int:
        if direction not in ("a>b", "b>a"):
            raise ValueError(f'direction is {direction!r}: expected "a>b" or "b>a"')
        return 0 if direction == "a>b" else 1

    def _packet(self, time_ns: int, side: int, flags: int, payload: Buf = b"") -> None:
        head = self._head(side, flags, payload)
        self._sink.packet(time_ns, b"".join((head, payload)))

    def _head(self, side: int, flags: int, payload: Buf) -> bytes:
        """Return what stands before a payload, and count it as sent."""
        self._ident[side] = (self._ident[side] + 1) & 0xFFFF
        head = tcp_head(
            self._ends[side],
            self._ends[1 - side],
            seq=self._next[side],
            ack=self._next[1 - side] if flags & h.ACK else 0,
            flags=flags,
            payload=payload,
            ident=self._ident[side],
            linktype=self._sink.linktype,
            from_a=side == 0,
        )
        used = len(payload) + bool(flags & h.SYN) + bool(flags & h.FIN)
        self._next[side] = (self._next[side] + used) & 0xFFFF_FFFF
        return head
