"""Link, IP, TCP and UDP headers: their layouts, and one packet at a time.

`dissect` is the definition; `ds4proto.pcap.decap` does the common cases for a whole
batch at once and must agree with it. Sources: IEEE 802.3 and 802.1Q, RFC 791, RFC 8200,
RFC 9293, RFC 768, tcpdump.org/linktypes.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from struct import Struct
from typing import Final, NamedTuple

from ds4proto.pcap.types import Buf, LinkType

ETHERNET_BYTES: Final = 14
ETHERTYPE_IN_ETHERNET: Final = 12
SLL_BYTES: Final = 16
ETHERTYPE_IN_SLL: Final = 14
SLL2_BYTES: Final = 20
ETHERTYPE_IN_SLL2: Final = 0
NULL_BYTES: Final = 4
VLAN_BYTES: Final = 4
ETHERTYPE_IN_VLAN: Final = 2
MAX_VLANS: Final = 4
ETHERTYPE_IPV4: Final = 0x0800
ETHERTYPE_ARP: Final = 0x0806
ETHERTYPE_IPV6: Final = 0x86DD
ETHERTYPES_VLAN: Final = (0x8100, 0x88A8, 0x9100)
AF_INET: Final = 2
AF_INET6: Final = (10, 24, 28, 30)  # Linux, NetBSD and OpenBSD, FreeBSD, macOS

# PKTAP, little-endian: header length, record kind, link type of what follows.
PKTAP_HEAD: Final = "III"
PKTAP_PACKET: Final = 1

# version+length of header, tos, total, id, flags+fragment, ttl, protocol, checksum,
# source, destination
IPV4: Final = "BBHHHBBHII"
IPV4_NAMES: Final = (
    "version_ihl", "tos", "total", "ident", "fragment", "ttl", "protocol", "checksum",
    "src", "dst",
)  # fmt: skip
IPV4_BYTES: Final = 20
IPV4_FRAGMENT_BITS: Final = 0x3FFF  # more-fragments and the offset
# version+class+flow, payload length, next header, hop limit, source, destination
IPV6: Final = "IHBBQQQQ"
IPV6_NAMES: Final = (
    "version_flow", "length", "protocol", "hops", "src_hi", "src_lo", "dst_hi",
    "dst_lo",
)  # fmt: skip
IPV6_BYTES: Final = 40
MAX_EXTENSION_HEADERS: Final = 8
HOP_BY_HOP, ROUTING, FRAGMENT, AUTHENTICATION, DESTINATION = 0, 43, 44, 51, 60
EIGHT_BYTE_UNITS: Final = (HOP_BY_HOP, ROUTING, DESTINATION)
PROTOCOL_TCP: Final = 6
PROTOCOL_UDP: Final = 17
# source and destination port, sequence, acknowledgement, data offset, flags, window,
# checksum, urgent; the ports are read as one number
TCP: Final = "IIIBBHHH"
TCP_NAMES: Final = (
    "ports", "seq", "ack", "offset", "flags", "window", "checksum", "urgent",
)  # fmt: skip
TCP_BYTES: Final = 20
FIN, SYN, RST, PSH, ACK, URG = 1, 2, 4, 8, 16, 32
UDP: Final = "IHH"  # ports, length, checksum
UDP_BYTES: Final = 8

_ETHERTYPE = Struct(">H")
_IPV4 = Struct(">" + IPV4)
_IPV6 = Struct(">" + IPV6)
_TCP = Struct(">" + TCP)
_UDP = Struct(">" + UDP)
_PKTAP = Struct("<" + PKTAP_HEAD)


class Transport(NamedTuple):
    """A TCP segment or UDP datagram found in a packet; offsets are into the buffer."""

    protocol: int
    version: int
    src_hi: int
    src_lo: int
    dst_hi: int
    dst_lo: int
    ports: int
    seq: int
    ack: int
    flags: int
    ip_offset: int
    transport_offset: int
    payload_offset: int
    payload_caplen: int
    payload_len: int


class _Ip(NamedTuple):
    version: int
    protocol: int
    src_hi: int
    src_lo: int
    dst_hi: int
    dst_lo: int
    transport: int
    wire_end: int


TRUNCATED: Final = "truncated header"
BAD_IP: Final = "bad ip header"
BAD_TCP: Final = "bad tcp header"
BAD_UDP: Final = "bad udp header"
FRAGMENT_LEFT: Final = "ip fragment"
OTHER_IP: Final = "other ip protocol"
ARP: Final = "arp"
NOT_IP: Final = "not ip"
UNKNOWN_LINK: Final = "unknown link type"


def host(version: int, high: int, low: int) -> str:
    """Return the text of an address given as two 64-bit halves."""
    if version == 4:
        return str(IPv4Address(low))
    return str(IPv6Address(high << 64 | low))


def dissect(
    data: Buf, start: int, caplen: int, origlen: int, linktype: int
) -> Transport | str:
    """Take one packet apart.

    Parameters
    ----------
    data : bytes-like
        Buffer that holds the packet at ``[start, start + caplen)``.
    origlen : int
        Length of the packet on the wire, bytes.
    linktype : int
        Link type number.

    Returns
    -------
    Transport or str
        The segment or datagram, or the reason why there is none to be had.
    """
    end = start + caplen
    link = _strip_link(data, start, end, linktype)
    if isinstance(link, str):
        return link
    ip_at, version = link
    wire_end = start + max(origlen, caplen)
    parse = _ipv4 if version == 4 else _ipv6
    ip = parse(data, ip_at, end, wire_end)
    if isinstance(ip, str):
        return ip
    end = min(end, ip.wire_end)
    if ip.protocol == PROTOCOL_TCP:
        return _tcp(data, ip_at, ip, end)
    if ip.protocol == PROTOCOL_UDP:
        return _udp(data, ip_at, ip, end)
    return OTHER_IP


def _strip_link(
    data: Buf, start: int, end: int, linktype: int
) -> tuple[int, int] | str:
    """Return (where IP starts, its version), or a reason."""
    if linktype == LinkType.PKTAP:
        if start + _PKTAP.size > end:
            return TRUNCATED
        length, kind, inner = _PKTAP.unpack_from(data, start)
        if kind != PKTAP_PACKET or length < _PKTAP.size:
            return NOT_IP
        if start + length > end:
            return TRUNCATED
        start += length
        linktype = inner
        if linktype == LinkType.PKTAP:
            return NOT_IP
    if linktype == LinkType.ETHERNET:
        return _by_ethertype(data, start + ETHERTYPE_IN_ETHERNET,
                             start + ETHERNET_BYTES, end)  # fmt: skip
    if linktype == LinkType.LINUX_SLL:
        return _by_ethertype(data, start + ETHERTYPE_IN_SLL, start + SLL_BYTES, end)
    if linktype == LinkType.LINUX_SLL2:
        return _by_ethertype(data, start + ETHERTYPE_IN_SLL2, start + SLL2_BYTES, end)
    if linktype in (LinkType.NULL, LinkType.LOOP):
        if start + NULL_BYTES > end:
            return TRUNCATED
        head = bytes(data[start : start + NULL_BYTES])
        for family in (int.from_bytes(head, "little"), int.from_bytes(head, "big")):
            if family == AF_INET:
                return start + NULL_BYTES, 4
            if family in AF_INET6:
                return start + NULL_BYTES, 6
        return NOT_IP
    if linktype == LinkType.IPV4:
        return start, 4
    if linktype == LinkType.IPV6:
        return start, 6
    if linktype in (LinkType.RAW, LinkType.RAW_BSD, LinkType.RAW_OPENBSD):
        if start >= end:
            return TRUNCATED
        version = data[start] >> 4
        return (start, version) if version in (4, 6) else NOT_IP
    return f"{UNKNOWN_LINK} {linktype}"


def _by_ethertype(
    data: Buf, type_at: int, after: int, end: int
) -> tuple[int, int] | str:
    if after > end:
        return TRUNCATED
    kind = _ETHERTYPE.unpack_from(data, type_at)[0]
    vlans = 0
    while kind in ETHERTYPES_VLAN and vlans < MAX_VLANS:
        if after + VLAN_BYTES > end:
            return TRUNCATED
        kind = _ETHERTYPE.unpack_from(data, after + ETHERTYPE_IN_VLAN)[0]
        after += VLAN_BYTES
        vlans += 1
    if kind == ETHERTYPE_IPV4:
        return after, 4
    if kind == ETHERTYPE_IPV6:
        return after, 6
    return ARP if kind == ETHERTYPE_ARP else NOT_IP


def _ipv4(data: Buf, at: int, end: int, wire_end: int) -> _Ip | str:
    if at + IPV4_BYTES > end:
        return TRUNCATED
    first, _, total, _, fragment, _, protocol, _, src, dst = _IPV4.unpack_from(data, at)
    header = (first & 15) * 4
    if first >> 4 != 4 or header < IPV4_BYTES:
        return BAD_IP
    # Segmentation offload leaves the total length empty: the packet's own counts.
    whole = at + total if total else wire_end
    if whole < at + header:
        return BAD_IP
    if fragment & IPV4_FRAGMENT_BITS:
        return FRAGMENT_LEFT
    return _Ip(4, protocol, 0, src, 0, dst, at + header, whole)


def _ipv6(data: Buf, at: int, end: int, wire_end: int) -> _Ip | str:
    if at + IPV6_BYTES > end:
        return TRUNCATED
    first, length, protocol, _, *addresses = _IPV6.unpack_from(data, at)
    if first >> 28 != 6:
        return BAD_IP
    pos = at + IPV6_BYTES
    whole = pos + length if length else wire_end
    end = min(end, whole)
    for _ in range(MAX_EXTENSION_HEADERS):
        if protocol in EIGHT_BYTE_UNITS:
            if pos + 8 > end:
                return TRUNCATED
            protocol, size = data[pos], (data[pos + 1] + 1) * 8
        elif protocol == AUTHENTICATION:
            if pos + 8 > end:
                return TRUNCATED
            protocol, size = data[pos], (data[pos + 1] + 2) * 4
        elif protocol == FRAGMENT:
            if pos + 8 > end:
                return TRUNCATED
            if _ETHERTYPE.unpack_from(data, pos + 2)[0] & 0xFFF9:
                return FRAGMENT_LEFT
            protocol, size = data[pos], 8
        else:
            break
        pos += size
    if pos > whole:
        return BAD_IP
    src_hi, src_lo, dst_hi, dst_lo = addresses
    return _Ip(6, protocol, src_hi, src_lo, dst_hi, dst_lo, pos, whole)


def _tcp(data: Buf, ip_at: int, ip: _Ip, end: int) -> Transport | str:
    at = ip.transport
    if at + TCP_BYTES > end:
        return TRUNCATED
    ports, seq, ack, offset, flags, _, _, _ = _TCP.unpack_from(data, at)
    header = (offset >> 4) * 4
    payload_at = at + header
    payload_len = ip.wire_end - payload_at
    if header < TCP_BYTES or payload_len < 0:
        return BAD_TCP
    payload_at = min(payload_at, end)
    return Transport(
        PROTOCOL_TCP, ip.version, ip.src_hi, ip.src_lo, ip.dst_hi, ip.dst_lo,
        ports, seq, ack, flags, ip_at, at,
        payload_at, min(end - payload_at, payload_len), payload_len,
    )  # fmt: skip


def _udp(data: Buf, ip_at: int, ip: _Ip, end: int) -> Transport | str:
    at = ip.transport
    if at + UDP_BYTES > end:
        return TRUNCATED
    ports, length, _ = _UDP.unpack_from(data, at)
    room = ip.wire_end - at
    if length == 0:  # as for IP: left empty by offload
        length = room
    if length < UDP_BYTES or length > room:
        return BAD_UDP
    payload_at = at + UDP_BYTES
    payload_len = length - UDP_BYTES
    return Transport(
        PROTOCOL_UDP, ip.version, ip.src_hi, ip.src_lo, ip.dst_hi, ip.dst_lo,
        ports, 0, 0, 0, ip_at, at,
        payload_at, min(end - payload_at, payload_len), payload_len,
    )  # fmt: skip
