"""Link, IP and TCP headers: hand-made packets, and columns against one by one."""

from __future__ import annotations

import ipaddress
import random
import struct
from collections import Counter
from dataclasses import fields

import dpkt
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4proto.pcap import (
    Decapsulator,
    Endpoint,
    PacketBatch,
    TcpColumns,
    build_tcp,
    build_udp,
    tcp_columns,
)
from ds4proto.pcap.headers import dissect

A4, B4 = Endpoint("10.1.2.3", 40000), Endpoint("192.168.0.9", 8001)
A6, B6 = Endpoint("fe80::1", 40000), Endpoint("2001:db8::ff", 8001)
IPV4 = build_tcp(A4, B4, seq=7, ack=9, payload=b"hello", linktype=101)
IPV6 = build_tcp(A6, B6, seq=7, ack=9, payload=b"hello", linktype=101)
MACS = bytes(12)


def pktap(inner, linktype, length=108, kind=1):
    return struct.pack("<III", length, kind, linktype).ljust(length, b"\0") + inner


# name -> (link type, packet), each around the same IP packet.
WRAPPED = {
    "ethernet": (1, MACS + b"\x08\x00" + IPV4),
    "ethernet 6": (1, MACS + b"\x86\xdd" + IPV6),
    "vlan": (1, MACS + b"\x81\x00\x00\x05\x08\x00" + IPV4),
    "qinq": (1, MACS + b"\x88\xa8\x00\x05\x81\x00\x00\x06\x86\xdd" + IPV6),
    "old qinq": (1, MACS + b"\x91\x00\x00\x05" * 1 + b"\x08\x00" + IPV4),
    "sll": (113, bytes(14) + b"\x08\x00" + IPV4),
    "sll 6": (113, bytes(14) + b"\x86\xdd" + IPV6),
    "sll vlan": (113, bytes(14) + b"\x81\x00\x00\x05\x08\x00" + IPV4),
    "sll2": (276, b"\x08\x00" + bytes(18) + IPV4),
    "sll2 6": (276, b"\x86\xdd" + bytes(18) + IPV6),
    "null little": (0, struct.pack("<I", 2) + IPV4),
    "null big": (0, struct.pack(">I", 2) + IPV4),
    "null macOS 6": (0, struct.pack("<I", 30) + IPV6),
    "null FreeBSD 6": (0, struct.pack(">I", 28) + IPV6),
    "null OpenBSD 6": (0, struct.pack("<I", 24) + IPV6),
    "null Linux 6": (0, struct.pack("<I", 10) + IPV6),
    "loop": (108, struct.pack(">I", 2) + IPV4),
    "loop 6": (108, struct.pack(">I", 24) + IPV6),
    "raw": (101, IPV4),
    "raw 6": (101, IPV6),
    "raw bsd": (12, IPV4),
    "raw openbsd": (14, IPV6),
    "ipv4": (228, IPV4),
    "ipv6": (229, IPV6),
    "pktap ethernet": (258, pktap(MACS + b"\x08\x00" + IPV4, 1)),
    "pktap raw": (258, pktap(IPV6, 12, 156)),
    "pktap null": (258, pktap(struct.pack("<I", 2) + IPV4, 0)),
}


def batch_of(packets, first=1):
    """Make a batch of (link type, captured bytes, original length)."""
    data = b"".join(p for _, p, _ in packets)
    caplen = np.array([len(p) for _, p, _ in packets], np.int64)
    return PacketBatch(
        memoryview(data),
        np.arange(len(packets), dtype=np.int64) * 1000,
        np.cumsum(caplen) - caplen,
        caplen,
        np.array([n for *_, n in packets], np.int64),
        np.array([link for link, *_ in packets], np.int32),
        first,
        0,
    )


def one(linktype, packet, origlen=None):
    batch = batch_of([(linktype, packet, origlen or len(packet))])
    split = Decapsulator(udp_ports=None)
    columns, datagrams = split.split(batch)
    return columns, datagrams, split.counts


@pytest.mark.parametrize("name", WRAPPED)
def test_link_types(name):
    linktype, packet = WRAPPED[name]
    columns, _, counts = one(linktype, packet)
    assert counts == {"tcp": 1}
    start = int(columns.payload_offset[0])
    assert packet[start : start + 5] == b"hello"
    assert (columns.payload_len[0], columns.payload_caplen[0]) == (5, 5)
    assert (columns.seq[0], columns.ack[0], columns.flags[0]) == (7, 9, 16)
    assert columns.ports[0] == 40000 << 16 | 8001
    a, b = (A4, B4) if columns.version[0] == 4 else (A6, B6)
    assert int(columns.src_hi[0]) << 64 | int(columns.src_lo[0]) == int(
        ipaddress.ip_address(a.host)
    )
    assert int(columns.dst_hi[0]) << 64 | int(columns.dst_lo[0]) == int(
        ipaddress.ip_address(b.host)
    )


@pytest.mark.parametrize("name", WRAPPED)
def test_cut_at_every_byte(name):
    linktype, packet = WRAPPED[name]
    for cut in range(len(packet)):
        columns, _, counts = one(linktype, packet[:cut], len(packet))
        if cut < len(packet) - 5:
            assert (len(columns), counts["truncated header"]) == (0, 1), cut
        else:
            assert columns.payload_len[0] == 5
            assert columns.payload_caplen[0] == cut - len(packet) + 5


def test_ethernet_padding_is_not_payload():
    packet = MACS + b"\x08\x00" + build_tcp(A4, B4, seq=1, payload=b"ab", linktype=101)
    columns, *_ = one(1, packet.ljust(60, b"\xee"))
    assert (columns.payload_len[0], columns.payload_caplen[0]) == (2, 2)


@pytest.mark.parametrize("name", ["ethernet", "raw", "sll2"])
def test_total_length_left_empty_by_offload(name):
    linktype, packet = WRAPPED[name]
    at = packet.index(IPV4)
    changed = bytearray(packet)
    changed[at + 2 : at + 4] = bytes(2)
    columns, *_ = one(linktype, bytes(changed) + bytes(70_000))
    assert columns.payload_len[0] == 70_005
    columns, *_ = one(linktype, bytes(changed), len(changed) + 70_000)
    assert (columns.payload_len[0], columns.payload_caplen[0]) == (70_005, 5)


def test_ipv6_payload_length_left_empty():
    changed = IPV6[:4] + bytes(2) + IPV6[6:]
    columns, *_ = one(101, changed + bytes(66_000))
    assert columns.payload_len[0] == 66_005


def test_ipv4_options_and_tcp_options():
    ip = bytearray(IPV4[:20])
    ip[0] = 0x47
    ip[2:4] = struct.pack(">H", 28 + 32 + 3)
    tcp = bytearray(IPV4[20:40])
    tcp[12] = 8 << 4
    packet = bytes(ip) + b"\x01" * 8 + bytes(tcp) + b"\x01" * 12 + b"xyz"
    columns, *_ = one(101, packet)
    assert columns.payload_offset[0] == len(packet) - 3
    assert columns.payload_len[0] == 3


def extended(*headers):
    """Put IPv6 extension headers before the TCP header."""
    body, kinds = b"", [kind for kind, _ in headers] + [6]
    for (_, rest), following in zip(headers, kinds[1:], strict=True):
        body += bytes([following]) + rest
    tcp = IPV6[40:]
    length = struct.pack(">H", len(body) + len(tcp))
    return IPV6[:4] + length + bytes([kinds[0]]) + IPV6[7:40] + body + tcp


HOP, ROUTE, ATOMIC, AUTH, DEST = (
    (0, b"\x00" + bytes(6)),
    (43, b"\x01" + bytes(14)),
    (44, bytes(7)),
    (51, b"\x04" + bytes(22)),
    (60, b"\x02" + bytes(22)),
)


@pytest.mark.parametrize(
    "headers", [(HOP,), (HOP, ROUTE, DEST), (ATOMIC,), (AUTH,), (DEST,) * 8]
)
def test_ipv6_extension_headers(headers):
    packet = extended(*headers)
    columns, _, counts = one(101, packet)
    assert counts == {"tcp": 1}
    assert columns.payload_offset[0] == len(packet) - 5


def test_ipv6_extension_headers_are_bounded():
    assert +one(101, extended(*[HOP] * 9))[2] == {"other ip protocol": 1}


@pytest.mark.parametrize(
    ("linktype", "packet", "reason"),
    [
        (1, MACS + b"\x08\x06" + bytes(28), "arp"),
        (1, MACS + b"\x88\xcc" + bytes(28), "not ip"),
        (1, MACS + b"\x00\x26" + bytes(38), "not ip"),
        (1, MACS + b"\x81\x00\x00\x05" * 5 + b"\x08\x00" + IPV4, "not ip"),
        (0, struct.pack("<I", 17) + IPV4, "not ip"),
        (101, b"\x15" + IPV4[1:], "not ip"),
        (228, IPV6, "bad ip header"),
        (229, IPV4 + bytes(20), "bad ip header"),
        (101, b"\x44" + IPV4[1:], "bad ip header"),
        (101, IPV4[:2] + b"\x00\x13" + IPV4[4:], "bad ip header"),
        (101, IPV4[:6] + b"\x20\x00" + IPV4[8:], "ip fragment"),
        (101, IPV4[:6] + b"\x00\x01" + IPV4[8:], "ip fragment"),
        (101, extended((44, b"\x00\x00\x01" + bytes(4))), "ip fragment"),
        (101, IPV4[:9] + b"\x01" + IPV4[10:], "other ip protocol"),
        (101, IPV4[:32] + b"\x40" + IPV4[33:], "bad tcp header"),
        (101, IPV4[:32] + b"\xf0" + IPV4[33:], "bad tcp header"),
        (258, pktap(IPV4, 12, kind=2), "not ip"),
        (258, pktap(pktap(IPV4, 12), 258), "not ip"),
        (258, pktap(IPV4, 12, 11), "not ip"),
        (147, IPV4, "unknown link type 147"),
    ],
)
def test_what_cannot_be_used_is_counted(linktype, packet, reason):
    columns, _, counts = one(linktype, packet)
    assert (len(columns), dict(counts)) == (0, {reason: 1, "tcp": 0})


def test_datagrams():
    packet = build_udp(A4, Endpoint("10.0.0.7", 4791), payload=b"roce" * 9)
    batch = batch_of([(1, packet, 99), (1, packet[:60], len(packet))], first=11)
    default = Decapsulator()
    _, (whole, cut) = default.split(batch)
    assert (whole.packet, whole.time_ns, whole.src) == (11, 0, A4)
    assert str(whole.dst) == "10.0.0.7:4791"
    assert (bytes(whole.payload), whole.payload_len) == (b"roce" * 9, 36)
    assert (len(cut.payload), cut.payload_len, cut.time_ns) == (18, 36, 1000)
    other = build_udp(A6, B6, payload=b"dns?")
    _, left = default.split(batch_of([(1, other, len(other))]))
    assert (left, default.counts["udp"]) == ([], 3)
    assert bytes(one(1, other)[1][0].payload) == b"dns?"
    assert str(one(1, other)[1][0].src) == "[fe80::1]:40000"


def one_by_one(batch):
    counts = Counter()
    found = []
    for row in range(len(batch)):
        got = dissect(
            batch.data,
            int(batch.offset[row]),
            int(batch.caplen[row]),
            int(batch.origlen[row]),
            int(batch.linktype[row]),
        )
        if isinstance(got, str):
            counts[got] += 1
        elif got.protocol == 6:
            counts["tcp"] += 1
            found.append((row, *got[1:]))
        else:
            counts["udp"] += 1
    return found, counts


@st.composite
def packets(draw):
    rng = random.Random(draw(st.integers(0, 2**32)))
    found = []
    for _ in range(draw(st.integers(0, 12))):
        linktype, packet = WRAPPED[rng.choice(list(WRAPPED))]
        changed = bytearray(packet)
        for _ in range(rng.choice((0, 0, 1, 2, 8))):
            at = rng.randrange(min(len(changed), 120))
            changed[at] = rng.choice((0, 1, 4, 6, 0x45, 0x60, 255, rng.randrange(256)))
        cut = rng.choice((len(changed), rng.randrange(len(changed) + 1)))
        kind = rng.choice((linktype, linktype, linktype, 1, 101))
        found.append(
            (kind, bytes(changed[:cut]), rng.choice((cut, len(changed), 9999)))
        )
    return found


@settings(max_examples=500)
@given(packets())
def test_columns_agree_with_one_by_one(found):
    batch = batch_of(found)
    split = Decapsulator()
    columns, _ = split.split(batch)
    names = [field.name for field in fields(TcpColumns)[1:]]
    rows = list(zip(*(getattr(columns, name).tolist() for name in names), strict=True))
    wanted, counts = one_by_one(batch)
    assert rows == wanted
    assert +split.counts == counts


def test_plain_batch_never_goes_one_by_one(monkeypatch):
    def refuse(*_):
        raise AssertionError("took the slow way")

    monkeypatch.setattr("ds4proto.pcap.headers.dissect", refuse)
    offloaded = IPV4[:2] + bytes(2) + IPV4[4:]
    for linktype, packet in [*WRAPPED.values(), (101, offloaded)]:
        if linktype != 258:
            batch = batch_of([(linktype, packet, len(packet))] * 3)
            assert len(tcp_columns(batch)) == 3


def test_agrees_with_dpkt():
    ip = dpkt.ethernet.Ethernet(WRAPPED["qinq"][1]).data
    assert bytes(ip.data.data) == b"hello"
    assert (ip.data.sport, ip.data.dport, ip.data.seq) == (40000, 8001, 7)
