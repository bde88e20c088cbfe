"""One TCP stream: both directions, how it opens, closes, and is told from the next."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ds4proto.pcap import headers as h
from ds4proto.pcap.types import U32, Endpoint
from ds4proto.trace.tcp_events import (
    SMALL_SEGMENT,
    Closed,
    End,
    Opened,
    StreamStats,
)
from ds4proto.trace.tcp_half import (
    SEQ_MASK,
    WINDOW,
    Context,
    Half,
    Piece,
    signed,
)
from ds4proto.trace.tcp_rows import LastPacket, Rows, in_order, move

DELAYED_ACK_NS = (35_000_000, 250_000_000)
"""How long delayed acknowledgements wait: 40 ms on Linux, up to 200 ms elsewhere."""
GOES_ON_NS = 5_000_000
_CAREFUL = 16  # rows taken one by one before order is looked for again
_FIRST_LOOK = 128  # rows looked at after something unusual; grows when all is well


class Stream:
    """A conversation between two endpoints, from its first packet to its last."""

    __slots__ = (
        "_context", "_last", "_sent", "_tail", "_turns", "ends", "first", "halves",
        "key", "last", "number", "opened", "rtt_ns", "syn_seen", "syn_time",
    )  # fmt: skip

    def __init__(
        self,
        ends: tuple[Endpoint, Endpoint],
        context: Context,
        *,
        turns: bool,
    ) -> None:
        self.number = 0  # until it opens
        self.ends = ends
        self._context = context
        self._turns = turns
        self.halves = (Half(context), Half(context))
        self.opened = False
        self.syn_seen = False
        self.first = (0, 0)
        self.last = (0, 0)
        self.rtt_ns: int | None = None
        self._sent: list[tuple[int, int] | None] = [None, None]
        self._last: list[LastPacket] = [None, None]
        self._tail: list[_Beat] = []
        self.syn_time: list[int | None] = [None, None]
        self._name(0)

    def renumber(self, number: int) -> None:
        """Take another number: streams are numbered by the packets that open them."""
        self.number = number
        for half in self.halves:
            half.stream = number

    def _name(self, opener: int) -> None:
        for side, half in enumerate(self.halves):
            half.stream = self.number
            half.direction = "a>b" if side == opener else "b>a"

    @property
    def opener(self) -> int:
        """Side that is called `a`."""
        return 0 if self.halves[0].direction == "a>b" else 1

    def stats(self) -> StreamStats:
        """Return the counts so far."""
        a = self.opener
        return StreamStats(
            self.number,
            self.ends[a],
            self.ends[1 - a],
            self.first[0],
            self.last[0],
            self.first[1],
            self.last[1],
            self.syn_seen,
            self.rtt_ns,
            self.halves[a].stats,
            self.halves[1 - a].stats,
        )

    def feed(self, rows: Rows, start: int) -> tuple[Rows, int, bool]:
        """Take rows from `start` on.

        Returns the rows, less those found to be duplicates; the first row that was
        not taken, because it may be another stream's; and whether it surely is.
        """
        k = int(np.searchsorted(rows.special, start))
        end = len(rows)
        for place in rows.special[k:].tolist():
            if place > start and rows.flags[place] & h.SYN:
                end = place
                break
        if self.first == (0, 0):
            self.first = (int(rows.packet[start]), int(rows.time_ns[start]))
        rows, taken, strange = self._chunk(rows, start, end)
        self._count(rows, start, taken)
        rows.keep_last(start, taken, self._last)
        return rows, taken, strange

    def belongs(self, rows: Rows, place: int) -> bool:
        """Tell whether a SYN belongs to this stream, or starts a new one."""
        side, seq = int(rows.side[place]), int(rows.seq[place])
        half, other = self.halves[side], self.halves[1 - side]
        if half.isn is not None:
            return half.isn == seq
        if half.started and not half.presumed:
            # data came first: fine if it began right behind this SYN
            begin = half.next_seq - half.next_offset
            return (begin - seq - 1) & SEQ_MASK == 0
        if rows.flags[place] & h.ACK:
            if other.isn is None:
                return True
            return 0 <= signed(int(rows.ack[place]) - other.isn - 1) <= WINDOW
        simultaneous = other.isn is not None and other.next_offset == 0
        return simultaneous or not self.opened

    def end(self) -> None:
        """Flush both directions and report the end, if there was a beginning."""
        for half in self.halves:
            half.flush()
            half.count_unseen_end()
        if self.opened:
            self._context.emit(End(self.number, self.stats()))

    def _chunk(self, rows: Rows, start: int, end: int) -> tuple[Rows, int, bool]:
        context, halves = self._context, self.halves
        look = end - start
        place = start
        searched = False
        while place < end:
            if not (halves[0].waiting or halves[1].waiting):
                limit = min(end, place + look)
                stop, found = in_order(rows, halves, place, limit)
                if stop > place:
                    self._open_at_payload(rows, place, stop)
                    self._round_trip(rows, place, stop)
                    move(rows, halves, found, context, turns=self._turns)
                    place = stop
                if stop == limit:
                    look *= 4
                    continue
                look = _FIRST_LOOK
            if not searched:
                searched = True
                rows, dropped = rows.without_duplicates(start, place, end, self._last)
                if dropped:
                    self._drop(dropped)
                    end -= len(dropped)
                    look = end - start
                    continue
            until = min(end, place + _CAREFUL)
            while place < until:
                if self._one(rows, place):
                    return rows, place, True
                place += 1
                if not (halves[0].waiting or halves[1].waiting):
                    break
        return rows, end, False

    def _drop(self, dropped: list[tuple[int, int]]) -> None:
        """Count packets that the capture saw twice."""
        for side, length in dropped:
            stats = self.halves[side].stats
            stats.segments += 1
            stats.duplicate_packets += 1
            stats.payload_bytes += length
            stats.retransmitted_bytes += length
            stats.data_segments += length > 0
            stats.small_segments += 0 < length < SMALL_SEGMENT

    def _one(self, rows: Rows, place: int) -> bool:
        """Take one segment; True where it must open a new stream instead."""
        side = int(rows.side[place])
        seq, flags = int(rows.seq[place]), int(rows.flags[place])
        length, time_ns = int(rows.length[place]), int(rows.time_ns[place])
        packet = int(rows.packet[place])
        half, other = self.halves[side], self.halves[1 - side]
        self._context.row = packet
        if flags & h.SYN:
            self._syn(side, seq, int(rows.ack[place]), flags, packet, time_ns)
            seq = (seq + 1) & SEQ_MASK
        elif half.presumed and not flags & h.RST:
            half.check_presumed(seq)
        if length and half.strays(seq, length):
            return True
        if flags & h.ACK:
            other.peer_ack = int(rows.ack[place])
            self._round_trip_of_one(side, seq, other.peer_ack, length, time_ns)
        if length:
            self._open(side, packet, time_ns, syn=False)
            at = int(rows.position[place])
            view = rows.view[at : at + int(rows.caplen[place])]
            half.accept(seq, Piece(0, length, view, packet, time_ns))
        elif not flags & (h.SYN | h.FIN | h.RST):
            half.probe(seq, packet, time_ns)
        if flags & h.FIN:
            self._open(side, packet, time_ns, syn=False)
            half.finish_at((seq + length) & SEQ_MASK, packet, time_ns)
        if flags & h.RST:
            self._reset(half, seq, packet, time_ns)
        for one in self.halves:
            if one.waiting:
                one.look_at_hole(time_ns)
        return False

    def _syn(
        self, side: int, seq: int, ack: int, flags: int, packet: int, time_ns: int
    ) -> None:
        half, other = self.halves[side], self.halves[1 - side]
        half.stats.syn = True
        half.isn = seq
        if not half.started or (half.presumed and not half.next_offset):
            half.start(seq + 1)
        half.presumed = False
        if self.syn_time[side] is None:
            self.syn_time[side] = time_ns
        sent = self.syn_time[1 - side]
        answers = bool(flags & h.ACK)
        if answers:
            other.presume(ack)
        if (
            answers
            and sent is not None
            and other.isn is not None
            and ack == (other.isn + 1 + other.next_offset) & SEQ_MASK
        ):
            self._rtt(time_ns - sent)
        self._open(1 - side if answers else side, packet, time_ns, syn=True)

    def _reset(self, half: Half, seq: int, packet: int, time_ns: int) -> None:
        if half.stats.rst or not self.opened:
            return
        if half.started and abs(signed(seq - half.next_seq)) > WINDOW:
            return  # not from this conversation
        half.stats.rst = True
        half.flush()
        self._context.emit(Closed(self.number, half.direction, "rst", time_ns, packet))

    def _open(self, opener: int, packet: int, time_ns: int, *, syn: bool) -> None:
        if self.opened:
            return
        self.opened = True
        self._context.opened += 1
        self.number = self._context.opened
        self.syn_seen = syn
        self._name(opener)
        self._context.emit(
            Opened(
                self.number, self.ends[opener], self.ends[1 - opener], time_ns, packet,
                syn,
            )
        )  # fmt: skip

    def _open_at_payload(self, rows: Rows, start: int, stop: int) -> None:
        if self.opened:
            return
        payload = np.flatnonzero(rows.length[start:stop])
        if payload.size:
            place = start + int(payload[0])
            packet = int(rows.packet[place])
            self._context.row = packet
            self._open(
                int(rows.side[place]), packet, int(rows.time_ns[place]), syn=False
            )

    def _rtt(self, span: int) -> None:
        if span >= 0 and (self.rtt_ns is None or span < self.rtt_ns):
            self.rtt_ns = span

    def _round_trip(self, rows: Rows, start: int, stop: int) -> None:
        """Time the answers that acknowledge just the end of the segment before them."""
        length, side_of = rows.length[start:stop], rows.side[start:stop]
        ack, time_ns = rows.ack[start:stop], rows.time_ns[start:stop]
        data = length > 0
        for side in (0, 1):
            mine = side_of == side
            theirs = np.flatnonzero(~mine)
            sent = np.flatnonzero(mine & data)
            before = np.searchsorted(sent, theirs) - 1
            early = theirs[before < 0]
            carried = self._sent[side]
            if early.size and carried is not None:
                hit = early[ack[early] == carried[0]]
                if hit.size:
                    self._rtt(int(time_ns[hit].min()) - carried[1])
            if not sent.size:
                continue
            end: U32 = (rows.seq[start:stop][sent] + length[sent]).astype(np.uint32)
            late, asked = theirs[before >= 0], before[before >= 0]
            spans = (time_ns[late] - time_ns[sent[asked]])[ack[late] == end[asked]]
            if spans.size:
                self._rtt(int(spans.min()))
            self._sent[side] = (int(end[-1]), int(time_ns[sent[-1]]))

    def _round_trip_of_one(self, side: int, seq: int, ack: int, length: int,
                           time_ns: int) -> None:  # fmt: skip
        """Do the same for one segment, before its payload is taken."""
        sent = self._sent[1 - side]
        if sent is not None and ack == sent[0]:
            self._rtt(time_ns - sent[1])
        half = self.halves[side]
        if length:
            # An answer to a repeated segment tells nothing (Karn).
            fresh = not half.started or seq == half.next_seq
            self._sent[side] = ((seq + length) & SEQ_MASK, time_ns) if fresh else None

    def _count(self, rows: Rows, start: int, end: int) -> None:
        """Count what does not depend on the order of segments."""
        if end == start:
            return
        self.last = (int(rows.packet[end - 1]), int(rows.time_ns[end - 1]))
        length, side_of = rows.length[start:end], rows.side[start:end]
        for side, half in enumerate(self.halves):
            mine = length[side_of == side]
            stats = half.stats
            stats.segments += int(mine.size)
            data = int(np.count_nonzero(mine))
            stats.data_segments += data
            stats.small_segments += int(np.count_nonzero(mine < SMALL_SEGMENT)) - (
                int(mine.size) - data
            )
            stats.payload_bytes += int(mine.sum())
        self._pauses(rows, start, end)

    def _pauses(self, rows: Rows, start: int, end: int) -> None:
        """Find senders that waited for a delayed bare ACK and then went on."""

        def beat(place: int) -> _Beat:
            return _Beat(
                int(rows.side[place]),
                bool(rows.length[place]),
                not rows.length[place] and bool(rows.flags[place] == h.ACK),
                int(rows.time_ns[place]),
            )

        time_ns = rows.time_ns[start:end]
        waited = time_ns[1:] - time_ns[:-1]
        shortest, longest = DELAYED_ACK_NS
        for k in np.flatnonzero((waited >= shortest) & (waited <= longest)).tolist():
            if start + k + 2 < end:
                self._pause([beat(start + k + one) for one in (0, 1, 2)])
        edge = self._tail + [beat(k) for k in range(start, min(start + 2, end))]
        for k in range(len(edge) - 2):
            self._pause(edge[k : k + 3])
        if end - start >= 2:
            self._tail = [beat(end - 2), beat(end - 1)]
        else:
            self._tail = edge[-2:]

    def _pause(self, beats: list[_Beat]) -> None:
        sent, bare, resumed = beats
        shortest, longest = DELAYED_ACK_NS
        if (
            sent.data
            and bare.bare
            and resumed.data
            and sent.side == resumed.side != bare.side
            and shortest <= bare.time_ns - sent.time_ns <= longest
            and resumed.time_ns - bare.time_ns <= GOES_ON_NS
        ):
            self.halves[sent.side].stats.delayed_ack_pauses += 1


class _Beat(NamedTuple):
    """What the search for delayed acknowledgements knows of a packet."""

    side: int
    data: bool
    bare: bool
    time_ns: int
