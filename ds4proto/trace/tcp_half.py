"""One direction of a TCP stream, segment by segment: order, overlap, holes.

This is the careful path. `ds4proto.trace.tcp` moves whole runs of in-order segments
past it and calls in here only where something is out of the ordinary.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ds4proto.trace.tcp_events import (
    I64,
    Closed,
    Data,
    Direction,
    DirectionStats,
    Gap,
    GapReason,
    StreamEvent,
)

SEQ_MASK = 0xFFFF_FFFF
WINDOW = 1 << 30
"""Largest window TCP can announce (RFC 7323); what lies farther off is not ours."""
SEGMENT_COST = 128
"""Bytes of bookkeeping charged for each segment that waits behind a hole."""


MOST_BEFORE_FIRST = 1 << 24
"""Bytes that may be lost before the first segment seen, for a presumed start."""
_STRAYS = 3  # segments outside the window before the next one opens a new stream


def signed(delta: int) -> int:
    """Read a 32-bit difference of sequence numbers as a signed distance."""
    return ((delta + 0x8000_0000) & SEQ_MASK) - 0x8000_0000


class Limits(NamedTuple):
    """Bounds of what waits behind a hole; see `ds4proto.trace.tcp.Reassembler`."""

    max_piece: int
    max_pending: int
    max_hold_ns: int
    grace_packets: int


@dataclass(slots=True)
class Context:
    """What all directions share: the output, where it stands, what is waiting."""

    limits: Limits
    out: list[tuple[int, StreamEvent]]
    row: int = 0
    serial: int = 0
    pending_bytes: int = 0
    opened: int = 0  # streams so far

    def emit(self, event: StreamEvent) -> None:
        """Queue an event at the current row."""
        self.out.append((self.row, event))


@dataclass(slots=True)
class Piece:
    """A segment, or what is left of it: wire bytes ``[offset, offset + length)``."""

    offset: int
    length: int
    data: memoryview
    packet: int
    time_ns: int

    @property
    def end(self) -> int:
        """Offset behind the last byte."""
        return self.offset + self.length

    def cut(self, start: int, end: int) -> Piece:
        """Return the part of this piece in ``[start, end)``."""
        low, high = start - self.offset, end - self.offset
        return Piece(start, end - start, self.data[low:high], self.packet, self.time_ns)


class _Recent(NamedTuple):
    """Bytes delivered not long ago, kept to compare retransmissions with."""

    serial: int
    start: int
    end: int
    offset: I64 | None  # None: `view` is the bytes themselves
    length: I64 | None
    position: I64 | None
    view: memoryview


class Half:
    """State of one direction.

    Attributes
    ----------
    next_offset : int
        Stream offset of the next byte to deliver.
    next_seq : int
        Sequence number of that byte.
    started : bool
        Whether those two mean anything yet.
    presumed : bool
        They are what the other side's SYN-ACK says: the SYN was not captured.
    """

    __slots__ = (
        "_ack_grace",
        "_hole_since",
        "_keys",
        "_pending",
        "_recent",
        "_stray_end",
        "_stray_run",
        "context",
        "direction",
        "fin_at",
        "fin_done",
        "fin_mark",
        "isn",
        "next_offset",
        "next_seq",
        "peer_ack",
        "presumed",
        "started",
        "stats",
        "stream",
    )

    def __init__(self, context: Context) -> None:
        self.context = context
        self.stats = DirectionStats()
        self.stream = 0
        self.direction: Direction = "a>b"
        self.started = False
        self.presumed = False
        self.next_offset = 0
        self.next_seq = 0
        self.isn: int | None = None
        self.peer_ack: int | None = None
        self.fin_at: int | None = None
        self.fin_mark = (0, 0)  # packet, time
        self.fin_done = False
        self._pending: list[Piece] = []
        self._keys: list[int] = []
        self._hole_since: int | None = None
        self._ack_grace = 0
        self._recent: deque[_Recent] = deque()
        self._stray_end = -1
        self._stray_run = 0

    @property
    def waiting(self) -> bool:
        """Whether segments wait behind a hole."""
        return bool(self._pending)

    def start(self, seq: int) -> None:
        """Let the byte with sequence number `seq` be offset 0."""
        self.started = True
        self.next_offset = 0
        self.next_seq = seq & SEQ_MASK

    def presume(self, seq: int) -> None:
        """Let `seq` be offset 0 unless the first segment shows that it cannot be."""
        if not self.started:
            self.start(seq)
            self.presumed = True

    def check_presumed(self, seq: int) -> None:
        """Hold a presumed start against a segment; made-up numbers are dropped."""
        first = not self.next_offset and not self._pending
        if first and not 0 <= signed(seq - self.next_seq) <= MOST_BEFORE_FIRST:
            self.started = False
        self.presumed = False

    def offset_of(self, seq: int) -> int:
        """Return the stream offset nearest to `next_offset` that `seq` can mean."""
        return self.next_offset + signed(seq - self.next_seq)

    def strays(self, seq: int, length: int) -> bool:
        """Note a segment outside any window; True when a new stream must have begun.

        Four of them in a row that continue each other are another connection, of
        which the SYN was not captured.
        """
        if not self.started or abs(signed(seq - self.next_seq)) <= WINDOW:
            self._stray_run = 0
            return False
        if seq != self._stray_end:
            self._stray_run = 0
        elif self._stray_run == _STRAYS:
            return True
        self._stray_run += 1
        self._stray_end = (seq + length) & SEQ_MASK
        return False

    def accept(self, seq: int, piece: Piece) -> None:
        """Take one segment with payload; `piece.offset` is set here."""
        stats = self.stats
        length = piece.length
        if not self.started:
            self.start(seq)
        piece.offset = self.offset_of(seq)
        if abs(piece.offset - self.next_offset) > WINDOW:
            stats.discarded_bytes += length
            return
        if self.fin_at is not None and piece.end > self.fin_at:
            keep = max(piece.offset, self.fin_at)
            stats.discarded_bytes += piece.end - keep
            if keep <= piece.offset:
                return
            piece = piece.cut(piece.offset, keep)
        if piece.offset < 0:
            before = min(piece.end, 0) - piece.offset
            stats.discarded_bytes += before
            if piece.end <= 0:
                return
            piece = piece.cut(0, piece.end)
        if piece.offset > self.next_offset:
            stats.out_of_order += 1
            self._wait(piece)
            return
        old = min(piece.end, self.next_offset) - piece.offset
        if old:
            self._repeat(piece.offset, piece.data[:old], old, whole=old == piece.length)
            if old == piece.length:
                return
            piece = piece.cut(self.next_offset, piece.end)
        self._beyond_pending(piece)
        self._drain()

    def probe(self, seq: int, packet: int, time_ns: int) -> None:
        """Take a segment without payload."""
        if not self.started:
            return
        distance = signed(seq - self.next_seq) - self.fin_done
        if distance == -1:
            self.stats.keep_alives += 1
        elif 0 < distance <= WINDOW and self.fin_at is None:
            # The sender is past bytes that were never seen.
            at = self.next_offset + distance
            if not self._pending or self._pending[-1].end < at:
                self._wait(Piece(at, 0, memoryview(b""), packet, time_ns))

    def finish_at(self, seq: int, packet: int, time_ns: int) -> None:
        """Take a FIN; `seq` is the sequence number of the FIN itself."""
        self.stats.fin = True
        if not self.started:
            self.start(seq)
        at = self.offset_of(seq)
        if self.fin_at is not None or not 0 <= at - self.next_offset <= WINDOW:
            return
        self.fin_at = at
        self.fin_mark = (packet, time_ns)
        if at > self.next_offset and (not self._pending or self._pending[-1].end < at):
            self._wait(Piece(at, 0, memoryview(b""), packet, time_ns))
        self._drain()

    def look_at_hole(self, time_ns: int) -> None:
        """Give up on the first hole once it will not be filled any more."""
        while self._pending:
            limits = self.context.limits
            first = self._pending[0]
            acked = self.next_offset
            if self.peer_ack is not None:
                acked += signed(self.peer_ack - self.next_seq)
            until = first.offset
            held_ns = 0 if self._hole_since is None else time_ns - self._hole_since
            full = self.context.pending_bytes > limits.max_pending
            if full or held_ns > limits.max_hold_ns:
                pass
            elif acked > self.next_offset:
                # The peer has the bytes, the capture does not; but packets can be
                # captured out of order, and some captures have made-up
                # acknowledgements, so give the bytes a few packets' time.
                self._ack_grace += 1
                if self._ack_grace <= limits.grace_packets:
                    return
                until = min(until, acked)
            else:
                self._ack_grace = 0
                return
            self._skip(until, first.packet, first.time_ns)

    def flush(self) -> None:
        """Deliver all that waits, with gaps for the holes."""
        while self._pending:
            first = self._pending[0]
            self._skip(first.offset, first.packet, first.time_ns)
        self._recent.clear()

    def count_unseen_end(self) -> None:
        """Count last bytes that the peer acknowledges and the capture does not hold.

        An acknowledgement counts a FIN as one more; one that was not captured can not
        be told from a last byte, so that a single one is let pass.
        """
        if self.started and self.peer_ack is not None and self.fin_at is None:
            unseen = signed(self.peer_ack - self.next_seq) - 1
            self.stats.unseen_end_bytes = unseen if 0 < unseen <= WINDOW else 0

    def forget(self, serial: int) -> None:
        """Let go of delivered bytes of batch `serial` and older."""
        recent = self._recent
        while recent and recent[0].serial <= serial:
            recent.popleft()

    def remember(
        self, offset: I64, length: I64, position: I64, view: memoryview
    ) -> None:
        """Keep sight of in-order segments that were delivered as a run."""
        self._recent.append(
            _Recent(
                self.context.serial,
                int(offset[0]),
                int(offset[-1] + length[-1]),
                offset,
                length,
                position,
                view,
            )
        )

    def gap(
        self, offset: int, length: int, reason: GapReason, packet: int, time_ns: int
    ) -> None:
        """Report a hole that stays."""
        if reason == "lost":
            self.stats.lost_bytes += length
        else:
            self.stats.not_captured_bytes += length
        self.context.emit(
            Gap(self.stream, self.direction, offset, length, reason, packet, time_ns)
        )

    def _advance(self, length: int) -> None:
        self.next_offset += length
        self.next_seq = (self.next_seq + length) & SEQ_MASK

    def _deliver(self, piece: Piece) -> None:
        got = len(piece.data)
        if got:
            self.context.emit(
                Data(
                    self.stream,
                    self.direction,
                    piece.offset,
                    piece.data,
                    piece.packet,
                    piece.time_ns,
                    piece.packet,
                    piece.time_ns,
                )
            )
            self._recent.append(
                _Recent(
                    self.context.serial,
                    piece.offset,
                    piece.offset + got,
                    None,
                    None,
                    None,
                    piece.data,
                )
            )
        self.stats.unique_bytes += piece.length
        self._advance(piece.length)
        if got < piece.length:
            self.gap(
                piece.offset + got,
                piece.length - got,
                "not captured",
                piece.packet,
                piece.time_ns,
            )

    def _beyond_pending(self, piece: Piece) -> None:
        """Deliver an in-order piece; bytes that already wait keep their first copy."""
        for part in self._uncovered(piece):
            if part.offset > self.next_offset:
                self._drain()
            self._deliver(part)

    def _uncovered(self, piece: Piece) -> list[Piece]:
        """Return the parts of `piece` that no waiting segment holds."""
        if not self._pending:
            return [piece]
        parts: list[Piece] = []
        at = piece.offset
        k = max(bisect_right(self._keys, at) - 1, 0)
        while k and not self._pending[k].length:
            k -= 1  # a mere mark; the bytes around it lie before
        while k < len(self._pending) and at < piece.end:
            held = self._pending[k]
            k += 1
            if held.end <= at or not held.length:
                continue
            if held.offset >= piece.end:
                break
            if held.offset > at:
                parts.append(piece.cut(at, held.offset))
                at = held.offset
            until = min(held.end, piece.end)
            again = piece.cut(at, until)
            self.stats.retransmitted_bytes += again.length
            self.stats.overlaps += 1
            first = held.data[at - held.offset : until - held.offset]
            both = min(len(first), len(again.data))
            if first[:both] != again.data[:both]:
                self.stats.conflicts += 1
            at = until
        if at < piece.end:
            parts.append(piece.cut(at, piece.end))
        elif not parts:
            self.stats.retransmissions += 1
            self.stats.overlaps -= 1
        return parts

    def _wait(self, piece: Piece) -> None:
        """Store a piece behind a hole; its bytes are copied out of the block."""
        if self._hole_since is None:
            self._hole_since = piece.time_ns
        parts = self._uncovered(piece) if piece.length else [piece]
        for part in parts:
            part.data = memoryview(bytes(part.data))
            k = bisect_left(self._keys, part.offset)
            self._keys.insert(k, part.offset)
            self._pending.insert(k, part)
            self.context.pending_bytes += len(part.data) + SEGMENT_COST

    def _drain(self) -> None:
        """Deliver what waited and is in order now."""
        done = 0
        pending = self._pending
        while done < len(pending) and pending[done].offset <= self.next_offset:
            piece = pending[done]
            done += 1
            self.context.pending_bytes -= len(piece.data) + SEGMENT_COST
            if piece.length:
                self._deliver(piece)
        if done:
            del pending[:done]
            del self._keys[:done]
            self._hole_since = pending[0].time_ns if pending else None
            self._ack_grace = 0
        if self.fin_at == self.next_offset and not self.fin_done:
            self.fin_done = True
            packet, time_ns = self.fin_mark
            self.context.emit(
                Closed(self.stream, self.direction, "fin", time_ns, packet)
            )

    def _skip(self, until: int, packet: int, time_ns: int) -> None:
        if until > self.next_offset:
            self.gap(
                self.next_offset, until - self.next_offset, "lost", packet, time_ns
            )
            self._advance(until - self.next_offset)
        self._drain()

    def _repeat(
        self, offset: int, data: memoryview, length: int, *, whole: bool
    ) -> None:
        """Count bytes that were delivered before, and compare them."""
        stats = self.stats
        stats.retransmitted_bytes += length
        if whole:
            stats.retransmissions += 1
            if length == 1 and offset == self.next_offset - 1:
                stats.keep_alives += 1
                return  # the byte of a keep-alive is arbitrary
        else:
            stats.overlaps += 1
        if self._differs(offset, data):
            stats.conflicts += 1

    def _differs(self, offset: int, data: memoryview) -> bool:
        end = offset + len(data)
        for recent in self._recent:
            low, high = max(offset, recent.start), min(end, recent.end)
            if low >= high:
                continue
            for start, first in _segments(recent, low, high):
                mine = data[start - offset : start - offset + len(first)]
                if mine != first[: len(mine)]:
                    return True
        return False


def _segments(recent: _Recent, low: int, high: int) -> list[tuple[int, memoryview]]:
    """Return the remembered bytes in ``[low, high)`` with their offsets."""
    if recent.offset is None or recent.length is None or recent.position is None:
        start = recent.start
        return [(low, recent.view[low - start : high - start])]
    found = []
    k = int(np.searchsorted(recent.offset, low, side="right")) - 1
    while k < recent.offset.size and int(recent.offset[k]) < high:
        start, length = int(recent.offset[k]), int(recent.length[k])
        at = max(start, low)
        until = min(start + length, high)
        if at < until:
            position = int(recent.position[k]) + at - start
            found.append((at, recent.view[position : position + until - at]))
        k += 1
    return found
