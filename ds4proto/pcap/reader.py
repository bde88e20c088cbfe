"""Read captures as a stream of packet batches, in constant memory."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import suppress
from struct import pack
from types import TracebackType
from typing import Self

import numpy as np

from ds4proto.pcap.classic import ClassicWalker, magic_of, parse_header
from ds4proto.pcap.format import (
    BLOCK_SHB,
    MAX_RECORD_BYTES,
    PCAP_HEADER_BYTES,
)
from ds4proto.pcap.nextgen import SectionWalker
from ds4proto.pcap.source import ByteSource, SourceLike, Wait
from ds4proto.pcap.types import (
    CaptureError,
    CaptureInfo,
    Interface,
    PacketBatch,
)

_SHB_MAGIC = pack("<I", BLOCK_SHB)  # reads the same in both byte orders
BLOCK_BYTES = 1 << 20


class CaptureReader:
    """Iterator over the batches of one capture.

    Parameters
    ----------
    source : path, "-" or binary stream
        gzip'd input is noticed by its magic number.
    follow : bool
        Go on at the end of a file that still grows. Needs `wait`.
    wait : callable, optional
        Called at the end of the input; returns True to read again, False to stop.
        Sleeping and deadlines are its business.
    block_bytes : int
        How much is read at once.
    max_record : int
        Longest packet record or pcapng block that is accepted, bytes.

    Attributes
    ----------
    info : CaptureInfo
    packets : int
        Packets yielded so far.
    bytes_read : int
        Bytes of the (decompressed) capture taken so far.

    Raises
    ------
    CaptureError
        While iterating, at damage; all packets before it have been yielded.
    OSError
        Where the source cannot be opened or read.
    """

    def __init__(
        self,
        source: SourceLike,
        *,
        follow: bool = False,
        wait: Wait | None = None,
        block_bytes: int = BLOCK_BYTES,
        max_record: int = MAX_RECORD_BYTES,
    ) -> None:
        if follow and wait is None:
            raise TypeError("follow=True needs a wait callable that bounds the waiting")
        if block_bytes < 1 or max_record < 1:
            raise ValueError("block_bytes and max_record must be positive")
        self._source = ByteSource(source, wait=wait if follow else None)
        self._block_bytes = block_bytes
        self._max_record = max_record
        self.info = CaptureInfo()
        self.packets = 0
        self.bytes_read = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file if it was opened here."""
        with suppress(OSError):
            self._source.close()

    def __iter__(self) -> Iterator[PacketBatch]:
        try:
            yield from self._batches()
        finally:
            self.close()

    def _batches(self) -> Iterator[PacketBatch]:
        head = self._fill(b"", len(_SHB_MAGIC))
        if not head:
            return
        if head[:4] == _SHB_MAGIC:
            self.info.format = "pcapng"
            yield from self._nextgen(head)
            return
        head = self._fill(head, PCAP_HEADER_BYTES)
        if len(head) < PCAP_HEADER_BYTES:
            magic_of(head)
            self._note_truncation(0)
            return
        yield from self._classic(head)

    def _classic(self, data: bytes) -> Iterator[PacketBatch]:
        header = parse_header(data)
        info = self.info
        info.format = "pcap"
        info.byteorder = "little" if header.order == "<" else "big"
        ticks = 1_000_000_000 if header.nanoseconds else 1_000_000
        info.interfaces.append(Interface(header.linktype, header.snaplen, ticks))
        walker = ClassicWalker(header, self._max_record)
        base, pos = 0, PCAP_HEADER_BYTES
        while True:
            starts, stop, fault = walker.walk(data, pos, base)
            if starts.size:
                time_ns, offset, caplen, origlen = walker.fields(data, starts)
                linktype = np.full(starts.size, header.linktype, np.int32)
                yield self._batch(
                    data, base, (time_ns, offset, caplen, origlen), linktype
                )
            if fault is not None:
                raise fault
            more = self._more(len(data) - stop)
            if not more:
                if stop < len(data):
                    self._note_truncation(base + stop)
                self._check_gzip(base + len(data))
                return
            data, base, pos = data[stop:] + more, base + stop, 0

    def _nextgen(self, data: bytes) -> Iterator[PacketBatch]:
        walker = SectionWalker(self.info, self._max_record)
        base, stop = 0, 0
        while True:
            for item in walker.walk(data, 0, base):
                if isinstance(item, int):
                    stop = item
                else:
                    yield self._batch(data, base, item[:4], item.linktype)
            more = self._more(len(data) - stop)
            if not more:
                if stop < len(data):
                    self._note_truncation(base + stop)
                self._check_gzip(base + len(data))
                return
            data, base = data[stop:] + more, base + stop

    def _batch(
        self,
        data: bytes,
        base: int,
        columns: tuple[np.ndarray[tuple[int], np.dtype[np.int64]], ...],
        linktype: np.ndarray[tuple[int], np.dtype[np.int32]],
    ) -> PacketBatch:
        first = self.packets + 1
        self.packets += int(linktype.size)
        time_ns, offset, caplen, origlen = columns
        return PacketBatch(
            memoryview(data), time_ns, offset, caplen, origlen, linktype, first, base
        )

    def _more(self, held: int) -> bytes:
        # A long record is read in steps that double, so that it is not copied often.
        return self._read(max(self._block_bytes, held))

    def _fill(self, data: bytes, size: int) -> bytes:
        while len(data) < size:
            more = self._read(self._block_bytes)
            if not more:
                break
            data += more
        return data

    def _read(self, size: int) -> bytes:
        try:
            data = self._source.read(size)
        except zlib.error as error:
            raise CaptureError(
                "damaged gzip data",
                offset=self.bytes_read,
                expected="a deflate stream",
                found=str(error),
                next_step="copy the file again, or unpack what is whole with gzip",
            ) from None
        self.info.gzip = self._source.gzip
        self.bytes_read += len(data)
        return data

    def _note_truncation(self, offset: int) -> None:
        if self.info.truncated_at is None:
            self.info.truncated_at = offset

    def _check_gzip(self, offset: int) -> None:
        if self._source.cut_short:
            self._note_truncation(offset)


def open_capture(
    source: SourceLike,
    *,
    follow: bool = False,
    wait: Wait | None = None,
    block_bytes: int = BLOCK_BYTES,
    max_record: int = MAX_RECORD_BYTES,
) -> CaptureReader:
    """Return a `CaptureReader` for `source`; see there for the parameters."""
    return CaptureReader(
        source,
        follow=follow,
        wait=wait,
        block_bytes=block_bytes,
        max_record=max_record,
    )
