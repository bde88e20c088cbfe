"""Walk the blocks of a pcapng section."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from struct import Struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ds4proto.pcap.columns import dtype_of, gather
from ds4proto.pcap.format import (
    BLOCK_EPB,
    BLOCK_FRAME_BYTES,
    BLOCK_HEAD,
    BLOCK_HEAD_BYTES,
    BLOCK_IDB,
    BLOCK_ISB,
    BLOCK_PB,
    BLOCK_SHB,
    BLOCK_SPB,
    BYTE_ORDER_MAGIC,
    DEFAULT_TICKS,
    EPB_BODY,
    EPB_BODY_BYTES,
    IDB_BODY,
    IDB_BODY_BYTES,
    MAX_INTERFACES,
    OPTION_COMMENT,
    OPTION_END,
    OPTION_HEAD,
    OPTION_IF_NAME,
    OPTION_IF_TSOFFSET,
    OPTION_IF_TSRESOL,
    OPTION_SHB_USERAPPL,
    OWN_APPLICATION,
    PB_BODY,
    PB_BODY_BYTES,
    SHB_BODY,
    SHB_BODY_BYTES,
    SPB_BODY,
    SPB_BODY_BYTES,
    TSRESOL_POWER_OF_TWO,
    padded,
)
from ds4proto.pcap.types import I32, I64, CaptureError, CaptureInfo, Interface

_EPB_NAMES = ("interface", "high", "low", "caplen", "origlen")
_PB_NAMES = ("interface", "drops", "high", "low", "caplen", "origlen")
_SMALLEST = {
    BLOCK_EPB: BLOCK_FRAME_BYTES + EPB_BODY_BYTES,
    BLOCK_PB: BLOCK_FRAME_BYTES + PB_BODY_BYTES,
    BLOCK_SPB: BLOCK_FRAME_BYTES + SPB_BODY_BYTES,
    BLOCK_IDB: BLOCK_FRAME_BYTES + IDB_BODY_BYTES,
    BLOCK_SHB: BLOCK_FRAME_BYTES + SHB_BODY_BYTES,
}
_NS = 1_000_000_000
_I64_MAX = (1 << 63) - 1


class Packets(NamedTuple):
    """Columns of the packets between two section headers."""

    time_ns: I64
    offset: I64
    caplen: I64
    origlen: I64
    linktype: I32


class Blocks(NamedTuple):
    """Packet blocks of a block of data: where, how long, which are not EPB."""

    starts: list[int]
    lengths: list[int]
    odd: list[tuple[int, int]]  # (index into starts, block type)
    others: list[tuple[int, int]]  # (position, block type) of blocks without packets


class SectionWalker:
    """Takes blocks apart; keeps the byte order and interfaces of the section."""

    def __init__(self, info: CaptureInfo, max_block: int) -> None:
        self._info = info
        self._max_block = max_block
        self._interfaces: list[Interface] = []
        self._own = False
        self._set_order("<")

    def _set_order(self, order: str) -> None:
        self._order = order
        self._head = Struct(order + BLOCK_HEAD)
        self._epb = dtype_of(EPB_BODY, order, _EPB_NAMES)
        self._pb = dtype_of(PB_BODY, order, _PB_NAMES)
        self._tail = np.dtype([("length", order + "u4")])

    def walk(self, data: bytes, pos: int, file_offset: int) -> Iterator[Packets | int]:
        """Yield the packets of `data` from `pos` on, then the stop position.

        The last item is the start of the first block that is not all there.

        Raises
        ------
        CaptureError
            At a damaged block, after the packets before it were yielded.
        """
        blocks = Blocks([], [], [], [])
        end = len(data)
        fault: CaptureError | None = None
        while fault is None and pos + BLOCK_HEAD_BYTES <= end:
            kind, length = self._head.unpack_from(data, pos)
            if kind == BLOCK_SHB:
                if pos + BLOCK_HEAD_BYTES + SHB_BODY_BYTES > end:
                    break
                fault = yield from self._flush(data, blocks, file_offset)
                blocks = Blocks([], [], [], [])
                if fault is not None:
                    break
                try:
                    length = self._section(data, pos, file_offset)
                except CaptureError as error:
                    fault = error
                    break
                if length < 0:
                    break
            if (
                length < _SMALLEST.get(kind, BLOCK_FRAME_BYTES)
                or length & 3
                or length > self._max_block
            ):
                fault = self._bad_length(file_offset + pos, length, kind)
                break
            if pos + length > end:
                break
            if kind == BLOCK_EPB:
                blocks.starts.append(pos)
                blocks.lengths.append(length)
            elif kind in (BLOCK_PB, BLOCK_SPB):
                blocks.odd.append((len(blocks.starts), kind))
                blocks.starts.append(pos)
                blocks.lengths.append(length)
            elif kind == BLOCK_IDB:
                # An interface holds for the packets behind it, not for those before.
                fault = yield from self._flush(data, blocks, file_offset)
                blocks = Blocks([], [], [], [])
                if fault is None:
                    fault = self._interface(data, pos, length, file_offset)
            elif kind != BLOCK_SHB:
                blocks.others.append((pos, kind))
            pos += length
        earlier = yield from self._flush(data, blocks, file_offset)
        fault = earlier or fault
        if fault is not None:
            raise fault
        yield pos

    def _flush(
        self, data: bytes, blocks: Blocks, file_offset: int
    ) -> Generator[Packets, None, CaptureError | None]:
        """Yield the packets of `blocks`; count the other blocks before any damage."""
        fault: CaptureError | None = None
        if blocks.starts:
            packets, fault = self._columns(data, blocks, file_offset)
            yield packets
        for pos, kind in blocks.others:
            if fault is None or file_offset + pos < fault.offset:
                self._other(kind)
        return fault

    def _section(self, data: bytes, pos: int, file_offset: int) -> int:
        """Begin a section; return the block length, or -1 where data lacks."""
        for order in "<>":
            body = Struct(order + SHB_BODY).unpack_from(data, pos + BLOCK_HEAD_BYTES)
            if body[0] == BYTE_ORDER_MAGIC:
                break
        else:
            raise CaptureError(
                "pcapng section without byte-order magic",
                offset=file_offset + pos + BLOCK_HEAD_BYTES,
                expected=f"{BYTE_ORDER_MAGIC:08x}",
                found=f"{body[0]:08x}",
                next_step="the file is damaged from here on; cut it at this offset",
            )
        head = Struct(order + BLOCK_HEAD).unpack_from(data, pos)
        length = int(head[1])
        if body[1] != 1:
            raise CaptureError(
                "unsupported pcapng version",
                offset=file_offset + pos + BLOCK_HEAD_BYTES + 4,
                expected="1.x",
                found=f"{body[1]}.{body[2]}",
                next_step="convert it with a current capture tool",
            )
        if length < _SMALLEST[BLOCK_SHB] or length & 3 or length > self._max_block:
            raise self._bad_length(file_offset + pos, length, BLOCK_SHB)
        if pos + length > len(data):
            return -1
        self._set_order(order)
        self._interfaces = []
        info = self._info
        info.byteorder = "little" if order == "<" else "big"
        info.application = info.comment = ""
        options = self._options(
            data, pos + BLOCK_HEAD_BYTES + SHB_BODY_BYTES, pos + length - 4
        )
        for code, value in options:
            if code == OPTION_SHB_USERAPPL:
                info.application = value.decode("utf-8", "replace")
            elif code == OPTION_COMMENT and not info.comment:
                info.comment = value.decode("utf-8", "replace")
        self._own = info.application.startswith(OWN_APPLICATION)
        if self._own:
            info.marked_complete = False
        return length

    def _other(self, kind: int) -> None:
        if kind != BLOCK_ISB:
            self._info.skipped_blocks += 1
        elif self._own:
            self._info.marked_complete = True

    def _interface(
        self, data: bytes, pos: int, length: int, file_offset: int
    ) -> CaptureError | None:
        body_at = pos + BLOCK_HEAD_BYTES
        if len(self._interfaces) >= MAX_INTERFACES:
            return CaptureError(
                "too many interfaces in one section",
                offset=file_offset + pos,
                expected=f"at most {MAX_INTERFACES}",
                found="one more",
                next_step="the file is damaged or made up; split it by section",
            )
        linktype, _, snaplen = Struct(self._order + IDB_BODY).unpack_from(data, body_at)
        interface = Interface(linktype, snaplen, DEFAULT_TICKS)
        for code, value in self._options(
            data, body_at + IDB_BODY_BYTES, pos + length - 4
        ):
            if code == OPTION_IF_NAME:
                interface.name = value.decode("utf-8", "replace")
            elif code == OPTION_IF_TSRESOL and len(value) == 1:
                exponent = value[0] & ~TSRESOL_POWER_OF_TWO
                base = 2 if value[0] & TSRESOL_POWER_OF_TWO else 10
                interface.ticks_per_second = base**exponent
            elif code == OPTION_IF_TSOFFSET and len(value) == 8:
                interface.offset_seconds = Struct(self._order + "q").unpack(value)[0]
        self._interfaces.append(interface)
        self._info.interfaces.append(interface)
        return None

    def _options(self, data: bytes, pos: int, end: int) -> Iterator[tuple[int, bytes]]:
        head = Struct(self._order + OPTION_HEAD)
        while pos + head.size <= end:
            code, length = head.unpack_from(data, pos)
            pos += head.size
            if code == OPTION_END or pos + length > end:
                return
            yield code, data[pos : pos + length]
            pos += padded(length)

    def _bad_length(self, offset: int, length: int, kind: int) -> CaptureError:
        least = _SMALLEST.get(kind, BLOCK_FRAME_BYTES)
        return CaptureError(
            "pcapng block length out of bounds",
            offset=offset,
            expected=f"a multiple of 4 from {least} to {self._max_block}",
            found=str(length),
            next_step="the file is damaged from here on; cut it at this offset, or "
            "raise the record limit if the capture really holds such blocks",
        )

    def _columns(
        self, data: bytes, blocks: Blocks, file_offset: int
    ) -> tuple[Packets, CaptureError | None]:
        """Return the packets up to the first damaged block, and its fault."""
        at = np.array(blocks.starts, np.int64)
        length = np.array(blocks.lengths, np.int64)
        kinds = np.full(at.size, BLOCK_EPB)
        for index, kind in blocks.odd:
            kinds[index] = kind
        raw = _Raw(at.size)
        for kind, dtype in ((BLOCK_EPB, self._epb), (BLOCK_PB, self._pb)):
            rows = np.flatnonzero(kinds == kind)
            if not rows.size:
                continue
            body = gather(data, at[rows] + BLOCK_HEAD_BYTES, dtype)
            raw.interface[rows] = body["interface"]
            high = body["high"].astype(np.uint64)
            raw.ticks[rows] = (high << np.uint64(32)) | body["low"]
            raw.caplen[rows] = body["caplen"]
            raw.origlen[rows] = body["origlen"]
            raw.offset[rows] = at[rows] + (BLOCK_HEAD_BYTES + EPB_BODY_BYTES)
            raw.room[rows] = length[rows] - (BLOCK_FRAME_BYTES + EPB_BODY_BYTES)
        timed = kinds != BLOCK_SPB
        simple = np.flatnonzero(~timed)
        if simple.size:
            self._simple(data, at, length, simple, raw)
        tail = gather(data, at + length - 4, self._tail)["length"]
        bad = (
            (raw.caplen > raw.room)
            | (raw.interface >= len(self._interfaces))
            | (tail != length)
        )
        fault = None
        if bad.any():
            first = int(bad.argmax())
            fault = self._broken(file_offset + int(at[first]), raw, first)
            raw.cut(first)
            timed = timed[:first]
        return self._resolve(raw, timed), fault

    def _simple(self, data: bytes, at: I64, length: I64, rows: I64, raw: _Raw) -> None:
        """Fill in simple packet blocks: no time, no captured length of their own."""
        size = Struct(self._order + SPB_BODY)
        snaplen = self._interfaces[0].snaplen if self._interfaces else 0
        for row in rows.tolist():
            start = int(at[row]) + BLOCK_HEAD_BYTES
            original = size.unpack_from(data, start)[0]
            room = int(length[row]) - BLOCK_FRAME_BYTES - SPB_BODY_BYTES
            raw.room[row] = room
            raw.offset[row] = start + SPB_BODY_BYTES
            raw.origlen[row] = original
            raw.caplen[row] = min(original, snaplen or original, room)

    def _resolve(self, raw: _Raw, timed: npt.NDArray[np.bool_]) -> Packets:
        time_ns = np.zeros(raw.interface.size, np.int64)
        linktype = np.zeros(raw.interface.size, np.int32)
        for number in np.unique(raw.interface).tolist():
            rows = np.flatnonzero(raw.interface == number)
            one = self._interfaces[number]
            linktype[rows] = one.linktype
            time_ns[rows] = _nanoseconds(
                raw.ticks[rows], one.ticks_per_second, one.offset_seconds
            )
        time_ns[~timed] = 0
        return Packets(time_ns, raw.offset, raw.caplen, raw.origlen, linktype)

    def _broken(self, offset: int, raw: _Raw, row: int) -> CaptureError:
        return CaptureError(
            "pcapng packet block does not hold together",
            offset=offset,
            expected=f"an interface below {len(self._interfaces)}, at most "
            f"{int(raw.room[row])} captured bytes, and the block length repeated",
            found=f"interface {int(raw.interface[row])}, "
            f"{int(raw.caplen[row])} captured bytes",
            next_step="the file is damaged from here on; cut it at this offset",
        )


class _Raw:
    """Fields of packet blocks before interfaces are looked up."""

    def __init__(self, n: int) -> None:
        self.interface = np.zeros(n, np.int64)
        self.ticks = np.zeros(n, np.uint64)
        self.caplen = np.zeros(n, np.int64)
        self.origlen = np.zeros(n, np.int64)
        self.offset = np.zeros(n, np.int64)
        self.room = np.zeros(n, np.int64)

    def cut(self, n: int) -> None:
        self.interface = self.interface[:n]
        self.ticks = self.ticks[:n]
        self.caplen = self.caplen[:n]
        self.origlen = self.origlen[:n]
        self.offset = self.offset[:n]


def _nanoseconds(
    ticks: np.ndarray[tuple[int], np.dtype[np.uint64]], per_second: int, offset: int
) -> I64:
    """Turn timestamps of any resolution into ns; values past int64 are clipped."""
    if _NS % per_second == 0:
        scale = _NS // per_second
        if int(ticks.max()) <= (_I64_MAX - abs(offset) * _NS) // scale:
            return ticks.astype(np.int64) * scale + offset * _NS
    exact = [(t * _NS) // per_second + offset * _NS for t in ticks.tolist()]
    return np.array([max(min(t, _I64_MAX), -_I64_MAX) for t in exact], np.int64)
