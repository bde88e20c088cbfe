"""The segments of one stream in one batch, and the vectorised way through them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ds4proto.pcap import headers as h
from ds4proto.pcap.columns import dtype_of, gather
from ds4proto.pcap.types import U8, U32, TcpColumns
from ds4proto.trace.tcp_events import I64, Data, Direction, Marks
from ds4proto.trace.tcp_half import SEQ_MASK, Context, Half

BIG_SEGMENT = 1 << 15
"""Segments from this size on are handed out without joining them to others."""
DUPLICATE_NS = 1_000_000
"""Two equal packets closer than this are one packet that was captured twice."""

_IPV4 = dtype_of(h.IPV4, ">", h.IPV4_NAMES)
_TCP = dtype_of(h.TCP, ">", h.TCP_NAMES)
Sides = tuple[Half, Half]
LastPacket = tuple[bytes, int, int] | None
"""TCP header and ident, payload length, and time of a packet."""


class Rows:
    """Columns of one stream, in capture order. `side` is 0 or 1 for each segment."""

    __slots__ = (
        "_columns", "_pick", "ack", "caplen", "flags", "length", "packet", "position",
        "seq", "side", "special", "time_ns", "view",
    )  # fmt: skip

    def __init__(self, columns: TcpColumns, pick: I64 | None, side: U8) -> None:
        batch = columns.batch
        self._columns = columns
        self._pick = pick
        self.side = side
        row = columns.row
        if pick is None:
            self.seq, self.ack, self.flags = columns.seq, columns.ack, columns.flags
            self.length, self.caplen = columns.payload_len, columns.payload_caplen
            self.position = columns.payload_offset
        else:
            row = row[pick]
            self.seq, self.ack = columns.seq[pick], columns.ack[pick]
            self.flags = columns.flags[pick]
            self.length = columns.payload_len[pick]
            self.caplen = columns.payload_caplen[pick]
            self.position = columns.payload_offset[pick]
        self.packet = row + batch.first_number
        self.time_ns = batch.time_ns[row]
        self.view = batch.data
        self.special: I64 = np.flatnonzero(self.flags & (h.SYN | h.FIN | h.RST))

    def __len__(self) -> int:
        return int(self.side.size)

    def orient(self, first: int) -> None:
        """Swap the sides where the flow called 0 here is side `first` = 1."""
        if first:
            self.side = self.side ^ np.uint8(1)

    def keep_last(self, start: int, end: int, last: list[LastPacket]) -> None:
        """Note the last packet of each side, to know its copy in the next batch."""
        side_of = self.side[start:end]
        for side in (0, 1):
            mine = np.flatnonzero(side_of == side)
            if mine.size:
                place = start + int(mine[-1])
                header = self._headers(np.array([place])).tobytes()
                last[side] = header, int(self.length[place]), int(self.time_ns[place])

    def without_duplicates(
        self, first: int, start: int, end: int, last: list[LastPacket]
    ) -> tuple[Rows, list[tuple[int, int]]]:
        """Drop packets in ``[start, end)`` that the capture saw twice in a row.

        `last` holds what stood before row `first`. Returns the remaining rows, and
        (side, payload length) of what was dropped. Two copies agree in every TCP
        field and, for IPv4, in the packet's ident, which a true retransmission does
        not repeat.
        """
        drop = np.zeros(len(self), np.bool_)
        for side in (0, 1):
            mine = np.flatnonzero(self.side[first:end] == side) + first
            known = last[side]
            if mine.size and mine[0] >= start and known is not None:
                header, length, time_ns = known
                place = int(mine[0])
                drop[place] = (
                    length == int(self.length[place])
                    and int(self.time_ns[place]) - time_ns <= DUPLICATE_NS
                    and header == self._headers(mine[:1]).tobytes()
                )
            mine = mine[max(int(np.searchsorted(mine, start)) - 1, 0) :]
            if mine.size < 2:
                continue
            here, before = mine[1:], mine[:-1]
            same = (
                (self.seq[here] == self.seq[before])
                & (self.length[here] == self.length[before])
                & (self.time_ns[here] - self.time_ns[before] <= DUPLICATE_NS)
                & (here >= start)
            )
            here, before = here[same], before[same]
            if here.size:
                equal = self._headers(here) == self._headers(before)
                drop[here[equal]] = True
        if not drop.any():
            return self, []
        lost = np.flatnonzero(drop)
        dropped = list(
            zip(self.side[lost].tolist(), self.length[lost].tolist(), strict=True)
        )
        keep = np.flatnonzero(~drop)
        pick = keep if self._pick is None else self._pick[keep]
        return Rows(self._columns, pick, self.side[keep]), dropped

    def _headers(self, rows: I64) -> npt.NDArray[np.void]:
        """Return TCP header and IPv4 ident as comparable bytes."""
        columns = self._columns
        at = rows if self._pick is None else self._pick[rows]
        tcp = gather(columns.batch.data, columns.tcp_offset[at], _TCP)
        ident = np.zeros(at.size, "<u2")
        four = columns.version[at] == 4
        ip = gather(columns.batch.data, columns.ip_offset[at[four]], _IPV4)
        ident[four] = ip["ident"]
        both = np.zeros(at.size, [("tcp", f"V{_TCP.itemsize}"), ("ident", "<u2")])
        both["tcp"] = tcp.view(f"V{_TCP.itemsize}")
        both["ident"] = ident
        return both


class InOrder(NamedTuple):
    """In-order segments of one side: rows, their lengths, bytes before each."""

    rows: I64
    length: I64
    before: I64


def in_order(
    rows: Rows, halves: Sides, start: int, end: int
) -> tuple[int, list[InOrder]]:
    """Find how far from `start` both sides go on without anything unusual.

    Returns the first row that needs care (or `end`), and the segments of each side
    before it.
    """
    k = int(np.searchsorted(rows.special, start))
    if k < rows.special.size:
        end = min(end, int(rows.special[k]))
    stop = end
    found: list[InOrder] = []
    side_of = rows.side[start:end]
    one_sided = -1
    if side_of.size and (side_of == side_of[0]).all():
        one_sided = int(side_of[0])
    for side, half in enumerate(halves):
        if one_sided < 0:
            mine = np.flatnonzero(side_of == side) + start
        else:
            mine = np.arange(start, end if side == one_sided else start)
        if not half.started and mine.size:
            payload = np.flatnonzero(rows.length[mine])
            mine = mine[payload[0] :] if payload.size else mine[:0]
        if not mine.size:
            found.append(InOrder(mine, mine, mine))
            continue
        seq, length = rows.seq[mine], rows.length[mine]
        before = np.cumsum(length)
        before -= length
        base = half.next_seq + half.fin_done if half.started else int(seq[0])
        due: U32 = (before + base).astype(np.uint32)
        good = seq == due
        if half.fin_done:
            good &= length == 0
        if not good.all():
            stop = min(stop, int(mine[int(good.argmin())]))
        found.append(InOrder(mine, length, before))
    if stop < end:
        found = [
            InOrder(*(column[: int(np.searchsorted(one.rows, stop))] for column in one))
            for one in found
        ]
    return stop, found


def move(
    rows: Rows, halves: Sides, found: list[InOrder], context: Context, *, turns: bool
) -> None:
    """Deliver in-order segments of both sides as runs.

    With `turns`, a run ends where the other side speaks, so that the order between
    the directions is kept; without, each side's segments join across the batch.
    """
    carrying: list[tuple[int, I64, I64]] = []
    for side, one in enumerate(found):
        if not one.rows.size:
            continue
        half = halves[side]
        last = int(one.rows[-1])
        if rows.flags[last] & h.ACK:
            halves[1 - side].peer_ack = int(rows.ack[last])
        payload = np.flatnonzero(one.length)
        if not payload.size:
            continue
        mine = one.rows if payload.size == one.rows.size else one.rows[payload]
        if not half.started:
            half.start(int(rows.seq[mine[0]]))
        offset = one.before[payload] + half.next_offset
        total = int(one.before[-1] + one.length[-1])
        half.stats.unique_bytes += total
        half.next_offset += total
        half.next_seq = (half.next_seq + total) & SEQ_MASK
        half.remember(offset, rows.caplen[mine], rows.position[mine], rows.view)
        carrying.append((side, mine, offset))
    if not turns or len(carrying) < 2:
        for side, mine, offset in carrying:
            runs(rows, halves, mine, offset, context, side)
    elif carrying:
        mine = np.concatenate([carrying[0][1], carrying[1][1]])
        offset = np.concatenate([carrying[0][2], carrying[1][2]])
        order = np.argsort(mine, kind="stable")
        runs(rows, halves, mine[order], offset[order], context, None)


def runs(
    rows: Rows,
    halves: Sides,
    mine: I64,
    offset: I64,
    context: Context,
    side: int | None,
) -> None:
    """Emit the segments `mine`, which carry stream offsets `offset`, as runs.

    `side` is the side they all belong to, or None where both take turns.
    """
    length, caplen = rows.length[mine], rows.caplen[mine]
    position, packet, time_ns = (
        rows.position[mine],
        rows.packet[mine],
        rows.time_ns[mine],
    )
    sides = rows.side[mine]
    cut = caplen != length
    first = _run_starts(offset, length, cut, sides if side is None else None,
                        context.limits.max_piece)  # fmt: skip
    last = np.append(first[1:], mine.size) - 1
    names: tuple[Direction, Direction] = (halves[0].direction, halves[1].direction)
    stream, out, view = halves[0].stream, context.out, rows.view
    columns = zip(
        first.tolist(), last.tolist(),
        (offset[last] + caplen[last] - offset[first]).tolist(),
        (offset[last] + length[last]).tolist(), offset[first].tolist(),
        position[first].tolist(), sides[first].tolist(), packet[first].tolist(),
        time_ns[first].tolist(), packet[last].tolist(), time_ns[last].tolist(),
        strict=True,
    )  # fmt: skip
    for low, high, size, end, at, where, which, number, time, number2, time2 in columns:
        if low == high:
            data = view[where : where + size]
            marks = None
        else:
            span = slice(low, high + 1)
            data = join(view, position[span], caplen[span])
            marks = Marks(offset[span], packet[span], time_ns[span])
        if size:
            piece = Data(
                stream, names[which], at, data, number, time, number2, time2, marks
            )
            out.append((number, piece))
        if at + size < end:
            context.row = number2
            halves[which].gap(
                at + size, end - at - size, "not captured", number2, time2
            )


def _run_starts(
    offset: I64,
    length: I64,
    cut: npt.NDArray[np.bool_],
    sides: U8 | None,
    max_piece: int,
) -> I64:
    """Return where runs begin: at turns, behind cuts, around big segments."""
    breaks = np.zeros(offset.size, np.bool_)
    breaks[0] = True
    breaks[1:] = cut[:-1]
    if sides is not None:
        breaks[1:] |= sides[1:] != sides[:-1]
    big = length >= BIG_SEGMENT
    if big.any():
        breaks |= big
        breaks[1:] |= big[:-1]
    first = np.flatnonzero(breaks)
    sizes = np.add.reduceat(length, first)
    if int(sizes.max()) > max_piece:
        # Cut long runs where they pass multiples of the limit.
        inside = offset - np.repeat(
            offset[first], np.diff(np.append(first, offset.size))
        )
        part = (inside + length - 1) // max_piece
        breaks[1:] |= part[1:] != part[:-1]
        first = np.flatnonzero(breaks)
    return first


def join(view: memoryview, position: I64, length: I64) -> memoryview:
    """Join the bytes at ``[position, position + length)`` of `view`.

    Segments of one size at equal distances are copied in a single step.
    """
    size = int(length[0])
    stride = int(position[1] - position[0])
    if position.size > 3 and (length == size).all():
        steps = position[1:] - position[:-1]
        if (steps == stride).all() and stride > 0:
            grid: npt.NDArray[np.uint8] = np.ndarray(
                (position.size, size), np.uint8, view, int(position[0]), (stride, 1)
            )
            return memoryview(grid.tobytes())
    spans = zip(position.tolist(), (position + length).tolist(), strict=True)
    return memoryview(b"".join([view[low:high] for low, high in spans]))
