"""Capture files: pcap and pcapng, gzip'd or not, and the headers in their packets.

Invariants: any bytes give packets and then, at most, a `CaptureError`; packets, facts
and error are the same whether the file is read at once or byte by byte; every packet
lies inside the file; segments found by columns are those that one packet at a time
gives.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from dataclasses import astuple
from typing import Any, Final

from ds4proto.pcap import headers
from ds4proto.pcap.build import build_tcp, build_udp
from ds4proto.pcap.decap import Decapsulator
from ds4proto.pcap.reader import CaptureReader
from ds4proto.pcap.types import CaptureError, Endpoint, PacketBatch, TcpColumns
from ds4proto.pcap.writer import PcapngWriter, PcapWriter
from ds4proto_fuzz.parsers.target import Target, broken, same

__all__ = ["CAPTURE"]

MOST_BYTES: Final = 1 << 18
"""Unpacked bytes after which a reading stops: a small gzip file can hold many."""
LONGEST: Final = 1 << 16
DAMAGED: Final = "damaged gzip data"
SMALL_STEP: Final = 1
BIG_STEP: Final = 977
"""Step of the second reading where a gzip file unpacks to more than a little."""


def check(data: bytes) -> None:
    """Read a file whole and in small steps; compare the packets one by one."""
    whole = _read(data, 1 << 20)
    size = whole[-1]
    step = SMALL_STEP if size <= 4 * CAPTURE.most else BIG_STEP
    pieces = _read(data, step)
    errors = (whole[1] or "", pieces[1] or "")
    if all(errors) and any(text.startswith(DAMAGED) for text in errors):
        # How much of damaged deflate data can be saved depends on how it is asked for;
        # one reading may meet nonsense that the other never gets to see.
        some = min(len(whole[0]), len(pieces[0]))
        same("whole or byte by byte: saved", whole[0][:some], pieces[0][:some])
        return
    names = ("packets", "error", "facts", "segments", "counts")
    for name, one, other in zip(names, whole, pieces, strict=False):
        same(f"whole or byte by byte: {name}", one, other)


def _read(data: bytes, step: int) -> tuple[Any, ...]:
    reader = CaptureReader(io.BytesIO(data), block_bytes=step, max_record=LONGEST)
    splitter = Decapsulator(udp_ports=None)
    packets: list[Any] = []
    segments: list[Any] = []
    error = None
    try:
        for batch in reader:
            if len(batch) and batch.first_number != len(packets) + 1:
                broken("packets are numbered on", first=batch.first_number)
            packets += _packets(batch, reader.bytes_read)
            segments += _segments(splitter, batch)
            if reader.bytes_read >= MOST_BYTES:
                break
    except CaptureError as found:
        error = str(found)
        if not 0 <= found.offset <= reader.bytes_read:
            broken("an error lies inside the file", offset=found.offset, error=error)
    if reader.bytes_read >= MOST_BYTES:
        # Both readings stop, though not at the same packet.
        return [], None, None, [], None, reader.bytes_read
    return (
        packets,
        error,
        astuple(reader.info),
        segments,
        dict(splitter.counts),
        reader.bytes_read,
    )


def _packets(batch: PacketBatch, read: int) -> Iterator[Any]:
    for row in range(len(batch)):
        start, caplen = int(batch.offset[row]), int(batch.caplen[row])
        if start < 0 or caplen < 0 or start + caplen > len(batch.data):
            broken("a packet lies inside its block", start=start, caplen=caplen)
        if batch.file_offset + start + caplen > read:
            broken("a packet lies inside the file", start=start, caplen=caplen)
        yield (
            int(batch.time_ns[row]),
            batch.file_offset + start,
            bytes(batch.packet(row)),
            int(batch.origlen[row]),
            int(batch.linktype[row]),
        )


def _segments(splitter: Decapsulator, batch: PacketBatch) -> Iterator[Any]:
    """Yield the segments and datagrams of a batch; compare columns with rows."""
    columns, datagrams = splitter.split(batch)
    found = {int(columns.row[k]): _transport(columns, k) for k in range(len(columns))}
    told = {one.packet: one for one in datagrams}
    for row in range(len(batch)):
        start = int(batch.offset[row])
        due = headers.dissect(
            batch.data,
            start,
            int(batch.caplen[row]),
            int(batch.origlen[row]),
            int(batch.linktype[row]),
        )
        number = batch.first_number + row
        if isinstance(due, str) or due.protocol == headers.PROTOCOL_UDP:
            if row in found:
                broken("columns and rows agree", row=number, due=due, found=found[row])
            if not isinstance(due, str):
                one = told[number]
                yield number, bytes(one.payload), one.src, one.dst, one.payload_len
            continue
        if found.get(row) != due:
            broken("columns and rows agree", row=number, due=due, found=found.get(row))
        at, end = due.payload_offset, due.payload_offset + due.payload_caplen
        if at < start or end > start + int(batch.caplen[row]):
            broken("a payload lies inside its packet", row=number, segment=due)
        yield number, bytes(batch.data[at:end]), due.seq, due.ack, due.payload_len


def _transport(columns: TcpColumns, k: int) -> headers.Transport:
    names = {"transport_offset": "tcp_offset"}
    values = (
        int(getattr(columns, names.get(name, name))[k])
        for name in headers.Transport._fields
        if name != "protocol"
    )
    return headers.Transport(headers.PROTOCOL_TCP, *values)


def seeds() -> Iterator[bytes]:
    """Yield small files of both kinds, of every link type, plain and gzip'd."""
    for link in (1, 0, 101):
        yield _file(PcapWriter, link, four=True)
        yield _file(PcapngWriter, link, four=True)
    for link in (1, 0, 101):
        yield _file(PcapngWriter, link, four=False)
    yield gzip.compress(_file(PcapWriter, 1, four=True), mtime=0)
    yield gzip.compress(_file(PcapngWriter, 1, four=True), mtime=0)


def _file(writer: Any, link: int, *, four: bool) -> bytes:
    hosts = ("10.0.0.1", "10.0.0.2") if four else ("fd00::1", "fd00::2")
    a, b = Endpoint(hosts[0], 40_000), Endpoint(hosts[1], 8_001)
    out = io.BytesIO()
    sink = writer(out, linktype=link)
    packets = [
        build_tcp(a, b, seq=1, ack=0, flags=2, payload=b"", linktype=link, ident=1),
        build_tcp(
            a, b, seq=2, ack=9, flags=24, payload=b"DS4D", linktype=link, ident=2
        ),
        build_udp(a, b, payload=b"roce", linktype=link),
    ]
    for number, packet in enumerate(packets):
        sink.packet(number * 1_000_000, packet, origlen=len(packet) + number)
    return out.getvalue()


CAPTURE: Final = Target(
    "capture", "pcap and pcapng files, and the headers in them", check, seeds, 1500
)
