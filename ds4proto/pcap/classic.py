"""Walk the records of a classic pcap block."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

import numpy as np

from ds4proto.pcap.columns import dtype_of, gather
from ds4proto.pcap.format import (
    PCAP_HEADER,
    PCAP_HEADER_BYTES,
    PCAP_LINKTYPE_MASK,
    PCAP_MAGIC_NS,
    PCAP_MAGIC_US,
    PCAP_RECORD,
    PCAP_RECORD_BYTES,
    PCAP_RECORD_CAPLEN,
    PCAP_VERSION,
)
from ds4proto.pcap.types import I64, CaptureError

_RECORD_NAMES = ("seconds", "fraction", "caplen", "origlen")
_RUN_AFTER = 8  # equal lengths in a row before a whole run is tried at once
_RUN_SHORT = 32  # runs shorter than this do not pay


class ClassicHeader(NamedTuple):
    """Global header of a classic pcap file."""

    order: str
    nanoseconds: bool
    snaplen: int
    linktype: int


class Walk(NamedTuple):
    """Record starts found in a block, where the walk stopped, and why."""

    starts: I64
    stop: int
    fault: CaptureError | None


def magic_of(head: bytes) -> tuple[str, int]:
    """Return byte order and magic number of the file that begins with `head`.

    Raises
    ------
    CaptureError
        On an unknown magic number.
    """
    for order in "<>":
        magic = int.from_bytes(head[:4], "little" if order == "<" else "big")
        if magic in (PCAP_MAGIC_US, PCAP_MAGIC_NS):
            return order, magic
    raise CaptureError(
        "not a capture file",
        offset=0,
        expected="a pcap, pcapng or gzip magic number",
        found=head[:4].hex(" "),
        next_step="pass a pcap or pcapng file; decode and stats also take plain bytes "
        "that begin with a frame",
    )


def parse_header(head: bytes) -> ClassicHeader:
    """Read the global header; `head` holds its 24 bytes.

    Raises
    ------
    CaptureError
        On an unknown magic number or version.
    """
    order, magic = magic_of(head)
    _, major, minor, _, _, snaplen, network = Struct(order + PCAP_HEADER).unpack(
        head[:PCAP_HEADER_BYTES]
    )
    if major != PCAP_VERSION[0]:
        raise CaptureError(
            "unsupported pcap version",
            offset=4,
            expected=f"{PCAP_VERSION[0]}.{PCAP_VERSION[1]}",
            found=f"{major}.{minor}",
            next_step="convert it with a current capture tool",
        )
    return ClassicHeader(
        order, magic == PCAP_MAGIC_NS, snaplen, network & PCAP_LINKTYPE_MASK
    )


class ClassicWalker:
    """Finds record boundaries; equal-sized neighbours are found in one step."""

    def __init__(self, header: ClassicHeader, max_record: int) -> None:
        self.header = header
        self._caplen = Struct(header.order + "I")
        self._caplen_dtype = np.dtype(header.order + "u4")
        self._record = dtype_of(PCAP_RECORD, header.order, _RECORD_NAMES)
        self._max_record = max_record

    def walk(self, data: bytes, pos: int, file_offset: int) -> Walk:
        """Find all whole records of `data` from `pos` on.

        ``Walk.stop`` is the start of the first record that is not all there.
        """
        chunks: list[I64] = []
        starts: list[int] = []
        append = starts.append
        caplen_at = self._caplen.unpack_from
        end = len(data)
        last_head = end - PCAP_RECORD_BYTES
        limit = self._max_record
        previous, same, pause = -1, 0, 0
        fault: CaptureError | None = None
        while pos <= last_head:
            caplen: int = caplen_at(data, pos + PCAP_RECORD_CAPLEN)[0]
            after = pos + PCAP_RECORD_BYTES + caplen
            if after > end or caplen > limit:
                if caplen > limit:
                    fault = self._too_long(file_offset + pos, caplen)
                break
            if caplen != previous:
                previous, same = caplen, 0
            elif same < _RUN_AFTER + pause:
                same += 1
            else:
                run = self._run(data, pos, caplen)
                chunks.append(np.array(starts, np.int64))
                starts.clear()
                chunks.append(run)
                pause = 0 if run.size > _RUN_SHORT else min(2 * pause + 8, 1 << 12)
                pos = int(run[-1]) + PCAP_RECORD_BYTES + caplen
                same = 0
                continue
            append(pos)
            pos = after
        chunks.append(np.array(starts, np.int64))
        return Walk(
            np.concatenate(chunks) if len(chunks) > 1 else chunks[0], pos, fault
        )

    def _run(self, data: bytes, pos: int, caplen: int) -> I64:
        stride = PCAP_RECORD_BYTES + caplen
        count = (len(data) - pos) // stride
        lengths: np.ndarray[tuple[int], np.dtype[np.uint32]] = np.ndarray(
            (count,), self._caplen_dtype, data, pos + PCAP_RECORD_CAPLEN, (stride,)
        )
        differs = lengths != caplen
        first = int(differs.argmax())
        if differs[first]:
            count = first
        return pos + stride * np.arange(count, dtype=np.int64)

    def _too_long(self, offset: int, caplen: int) -> CaptureError:
        return CaptureError(
            "packet record too long",
            offset=offset,
            expected=f"a captured length of at most {self._max_record} bytes",
            found=str(caplen),
            next_step="the file is damaged from here on; cut it at this offset, or "
            "raise the record limit if the capture really holds such packets",
        )

    def fields(self, data: bytes, starts: I64) -> tuple[I64, I64, I64, I64]:
        """Return (time in ns, packet offset, captured, original length)."""
        record = gather(data, starts, self._record)
        fraction = record["fraction"].astype(np.int64)
        if not self.header.nanoseconds:
            fraction *= 1000
        time_ns = record["seconds"].astype(np.int64) * 1_000_000_000 + fraction
        return (
            time_ns,
            starts + PCAP_RECORD_BYTES,
            record["caplen"].astype(np.int64),
            record["origlen"].astype(np.int64),
        )
