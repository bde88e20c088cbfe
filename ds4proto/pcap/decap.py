"""Find the TCP segments and UDP datagrams in whole batches of packets.

The usual packets (a known link header, IPv4 or plain IPv6, TCP) are read as numpy
columns; everything else goes through `ds4proto.pcap.headers.dissect`, one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ds4proto.pcap import headers as h
from ds4proto.pcap.columns import dtype_of, gather
from ds4proto.pcap.types import (
    I32,
    I64,
    Endpoint,
    LinkType,
    PacketBatch,
    TcpColumns,
    UdpDatagram,
)

ROCE_V2_PORT = 4791

_ETHERTYPE = np.dtype([("kind", ">u2")])
_FAMILY = np.dtype([("little", "<u4")])
_IPV4 = dtype_of(h.IPV4, ">", h.IPV4_NAMES)
_IPV6 = dtype_of(h.IPV6, ">", h.IPV6_NAMES)
_TCP = dtype_of(h.TCP, ">", h.TCP_NAMES)
_LINKS = {
    LinkType.ETHERNET: (h.ETHERTYPE_IN_ETHERNET, h.ETHERNET_BYTES),
    LinkType.LINUX_SLL: (h.ETHERTYPE_IN_SLL, h.SLL_BYTES),
    LinkType.LINUX_SLL2: (h.ETHERTYPE_IN_SLL2, h.SLL2_BYTES),
}
_BARE = (LinkType.RAW, LinkType.RAW_BSD, LinkType.RAW_OPENBSD)
Mask = npt.NDArray[np.bool_]
Version = npt.NDArray[np.uint8]


class _Ip(NamedTuple):
    """Columns of IP headers that carry TCP."""

    row: I64
    version: int
    src_hi: npt.NDArray[np.uint64]
    src_lo: npt.NDArray[np.uint64]
    dst_hi: npt.NDArray[np.uint64]
    dst_lo: npt.NDArray[np.uint64]
    ip_offset: I64
    tcp_offset: I64
    wire_end: I64
    cap_end: I64


class Decapsulator:
    """Splits batches into TCP segments and UDP datagrams.

    Parameters
    ----------
    udp_ports : set of int, or None
        Ports (either side) whose datagrams are kept; None keeps all. RoCE v2 alone by
        default.

    Attributes
    ----------
    counts : Counter
        Packets by what became of them: ``"tcp"``, ``"udp"``, or the reason why they
        could not be used.
    """

    def __init__(
        self, *, udp_ports: AbstractSet[int] | None = frozenset({ROCE_V2_PORT})
    ) -> None:
        self._udp_ports = udp_ports
        self.counts: Counter[str] = Counter()

    def split(self, batch: PacketBatch) -> tuple[TcpColumns, list[UdpDatagram]]:
        """Return the TCP segments of `batch`, and the datagrams worth keeping."""
        parts, done = _vectorised(batch)
        rest = np.flatnonzero(~done)
        datagrams: list[UdpDatagram] = []
        if rest.size:
            parts.append(self._one_by_one(batch, rest, datagrams))
        columns = _merge(batch, parts)
        self.counts["tcp"] += len(columns)
        return columns, datagrams

    def _one_by_one(
        self, batch: PacketBatch, rows: I64, datagrams: list[UdpDatagram]
    ) -> TcpColumns:
        found: list[tuple[int, h.Transport]] = []
        offset, caplen = batch.offset[rows].tolist(), batch.caplen[rows].tolist()
        origlen, link = batch.origlen[rows].tolist(), batch.linktype[rows].tolist()
        for k, row in enumerate(rows.tolist()):
            got = h.dissect(batch.data, offset[k], caplen[k], origlen[k], link[k])
            if isinstance(got, str):
                self.counts[got] += 1
            elif got.protocol == h.PROTOCOL_UDP:
                self.counts["udp"] += 1
                self._keep(batch, row, got, datagrams)
            else:
                found.append((row, got))
        return _from_rows(batch, found)

    def _keep(
        self, batch: PacketBatch, row: int, got: h.Transport, out: list[UdpDatagram]
    ) -> None:
        sport, dport = got.ports >> 16, got.ports & 0xFFFF
        wanted = self._udp_ports
        if wanted is not None and sport not in wanted and dport not in wanted:
            return
        start = got.payload_offset
        out.append(
            UdpDatagram(
                batch.first_number + row,
                int(batch.time_ns[row]),
                Endpoint(h.host(got.version, got.src_hi, got.src_lo), sport),
                Endpoint(h.host(got.version, got.dst_hi, got.dst_lo), dport),
                batch.data[start : start + got.payload_caplen],
                got.payload_len,
            )
        )


def tcp_columns(batch: PacketBatch) -> TcpColumns:
    """Return the TCP segments of `batch`; whatever else it holds is left aside."""
    return Decapsulator(udp_ports=frozenset()).split(batch)[0]


def _vectorised(batch: PacketBatch) -> tuple[list[TcpColumns], Mask]:
    """Return the segments found by columns, and which rows that settled."""
    done = np.zeros(len(batch), np.bool_)
    parts: list[TcpColumns] = []
    if not done.size:
        return parts, done
    links = batch.linktype
    if (links == links[0]).all():
        groups: list[tuple[int, I64]] = [(int(links[0]), np.arange(len(batch)))]
    else:
        groups = [(int(k), np.flatnonzero(links == k)) for k in np.unique(links)]
    for link, rows in groups:
        row, at, version = _ip_starts(batch, link, rows)
        for number, step in ((4, _ipv4), (6, _ipv6)):
            mine = version == number
            if not mine.any():
                continue
            if mine.all():
                ip = step(batch, row, at)
            else:
                ip = step(batch, row[mine], at[mine])
            if ip.row.size:
                columns = _tcp(batch, ip)
                done[columns.row] = True
                parts.append(columns)
    return parts, done


def _ip_starts(batch: PacketBatch, link: int, rows: I64) -> tuple[I64, I64, Version]:
    """Return rows, start of IP and its version (0 = unknown) behind one link type."""
    at, caplen = batch.offset[rows], batch.caplen[rows]
    end = at + caplen
    none: I64 = np.empty(0, np.int64)
    if link in _LINKS:
        type_at, size = _LINKS[LinkType(link)]
        rows, at, end = _where(caplen >= size, rows, at, end)
        kind = gather(batch.data, at + type_at, _ETHERTYPE)["kind"].astype(np.int32)
        at = at + size
        _skip_vlans(batch, kind, at, end)
        return rows, at, _version_of(kind, (h.ETHERTYPE_IPV4,), (h.ETHERTYPE_IPV6,))
    if link in (LinkType.NULL, LinkType.LOOP):
        rows, at, end = _where(caplen >= h.NULL_BYTES, rows, at, end)
        little = gather(batch.data, at, _FAMILY)["little"].astype(np.uint32)
        # Families are below 256: whichever end holds the byte names the order.
        family = np.where(little < 256, little, little.byteswap()).astype(np.int32)
        return rows, at + h.NULL_BYTES, _version_of(family, (h.AF_INET,), h.AF_INET6)
    if link in _BARE:
        rows, at, end = _where(caplen > 0, rows, at, end)
        nibble = (np.frombuffer(batch.data, np.uint8)[at] >> 4).astype(np.uint8)
        return rows, at, nibble
    if link == LinkType.IPV4:
        return rows, at, np.full(rows.size, 4, np.uint8)
    if link == LinkType.IPV6:
        return rows, at, np.full(rows.size, 6, np.uint8)
    return none, none, np.empty(0, np.uint8)


def _skip_vlans(batch: PacketBatch, kind: I32, at: I64, end: I64) -> None:
    """Step over VLAN tags in place, as many as `dissect` would."""
    if (kind < min(h.ETHERTYPES_VLAN)).all():
        return
    for _ in range(h.MAX_VLANS):
        tagged = np.isin(kind, h.ETHERTYPES_VLAN) & (at + h.VLAN_BYTES <= end)
        if not tagged.any():
            return
        inner = gather(batch.data, at[tagged] + h.ETHERTYPE_IN_VLAN, _ETHERTYPE)
        kind[tagged] = inner["kind"]
        at[tagged] += h.VLAN_BYTES


def _version_of(kind: I32, four: tuple[int, ...], six: tuple[int, ...]) -> Version:
    is_four = kind == four[0]
    if is_four.all():
        return np.full(kind.size, 4, np.uint8)
    return np.where(is_four, 4, np.where(np.isin(kind, six), 6, 0)).astype(np.uint8)


def _where(keep: Mask, *columns: I64) -> tuple[I64, ...]:
    return columns if keep.all() else tuple(column[keep] for column in columns)


def _ipv4(batch: PacketBatch, row: I64, at: I64) -> _Ip:
    start = batch.offset[row]
    end = start + batch.caplen[row]
    fits = end - at >= h.IPV4_BYTES + h.TCP_BYTES
    row, at, start, end = _where(fits, row, at, start, end)
    head = gather(batch.data, at, _IPV4)
    first = head["version_ihl"]
    size = (first & 15).astype(np.int64) * 4
    total = head["total"].astype(np.int64)
    wire_end = at + total
    if not total.all():
        whole = start + np.maximum(batch.origlen[row], batch.caplen[row])
        wire_end = np.where(total == 0, whole, wire_end)
    cap_end = np.minimum(end, wire_end)
    good = (
        (first >> 4 == 4)
        & (size >= h.IPV4_BYTES)
        & (head["fragment"] & h.IPV4_FRAGMENT_BITS == 0)
        & (head["protocol"] == h.PROTOCOL_TCP)
        & (at + size + h.TCP_BYTES <= cap_end)
    )
    if not good.all():
        row, at, wire_end, cap_end, size = _where(
            good, row, at, wire_end, cap_end, size
        )
        head = head[good]
    zero = np.zeros(row.size, np.uint64)
    return _Ip(
        row, 4,
        zero, head["src"].astype(np.uint64), zero, head["dst"].astype(np.uint64),
        at, at + size, wire_end, cap_end,
    )  # fmt: skip


def _ipv6(batch: PacketBatch, row: I64, at: I64) -> _Ip:
    start = batch.offset[row]
    end = start + batch.caplen[row]
    fits = end - at >= h.IPV6_BYTES + h.TCP_BYTES
    row, at, start, end = _where(fits, row, at, start, end)
    head = gather(batch.data, at, _IPV6)
    length = head["length"].astype(np.int64)
    wire_end = at + h.IPV6_BYTES + length
    if not length.all():
        whole = start + np.maximum(batch.origlen[row], batch.caplen[row])
        wire_end = np.where(length == 0, whole, wire_end)
    cap_end = np.minimum(end, wire_end)
    good = (
        (head["version_flow"] >> 28 == 6)
        & (head["protocol"] == h.PROTOCOL_TCP)
        & (at + h.IPV6_BYTES + h.TCP_BYTES <= cap_end)
    )
    if not good.all():
        row, at, wire_end, cap_end = _where(good, row, at, wire_end, cap_end)
        head = head[good]
    return _Ip(
        row, 6,
        head["src_hi"].astype(np.uint64), head["src_lo"].astype(np.uint64),
        head["dst_hi"].astype(np.uint64), head["dst_lo"].astype(np.uint64),
        at, at + h.IPV6_BYTES, wire_end, cap_end,
    )  # fmt: skip


def _tcp(batch: PacketBatch, ip: _Ip) -> TcpColumns:
    head = gather(batch.data, ip.tcp_offset, _TCP)
    size = (head["offset"] >> 4).astype(np.int64) * 4
    payload_at = ip.tcp_offset + size
    payload_len = ip.wire_end - payload_at
    payload_at = np.minimum(payload_at, ip.cap_end)
    columns = TcpColumns(
        batch,
        ip.row,
        np.full(ip.row.size, ip.version, np.uint8),
        ip.src_hi, ip.src_lo, ip.dst_hi, ip.dst_lo,
        head["ports"].astype(np.uint32),
        head["seq"].astype(np.uint32),
        head["ack"].astype(np.uint32),
        head["flags"].copy(),
        ip.ip_offset, ip.tcp_offset,
        payload_at,
        np.minimum(ip.cap_end - payload_at, payload_len),
        payload_len,
    )  # fmt: skip
    good = (size >= h.TCP_BYTES) & (payload_len >= 0)
    return columns if good.all() else select(columns, good)


_FIELDS = tuple(name for name in TcpColumns.__dataclass_fields__ if name != "batch")


def select(columns: TcpColumns, which: Mask | I64) -> TcpColumns:
    """Return the segments picked by a mask or an index."""
    picked = {name: getattr(columns, name)[which] for name in _FIELDS}
    return TcpColumns(batch=columns.batch, **picked)


def _merge(batch: PacketBatch, parts: list[TcpColumns]) -> TcpColumns:
    parts = [part for part in parts if len(part)]
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return _from_rows(batch, [])
    fields = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in _FIELDS
    }
    joined = TcpColumns(batch=batch, **fields)
    return select(joined, np.argsort(joined.row, kind="stable"))


def _from_rows(batch: PacketBatch, found: list[tuple[int, h.Transport]]) -> TcpColumns:
    names = h.Transport._fields
    values = (
        zip(*(got for _, got in found), strict=True) if found else [()] * len(names)
    )
    by_name = dict(zip(names, values, strict=True))
    return TcpColumns(
        batch,
        np.array([row for row, _ in found], np.int64),
        np.array(by_name["version"], np.uint8),
        np.array(by_name["src_hi"], np.uint64),
        np.array(by_name["src_lo"], np.uint64),
        np.array(by_name["dst_hi"], np.uint64),
        np.array(by_name["dst_lo"], np.uint64),
        np.array(by_name["ports"], np.uint32),
        np.array(by_name["seq"], np.uint32),
        np.array(by_name["ack"], np.uint32),
        np.array(by_name["flags"], np.uint8),
        np.array(by_name["ip_offset"], np.int64),
        np.array(by_name["transport_offset"], np.int64),
        np.array(by_name["payload_offset"], np.int64),
        np.array(by_name["payload_caplen"], np.int64),
        np.array(by_name["payload_len"], np.int64),
    )
