"""TCP reassembly: batches of packets in, directional byte streams out.

Whole batches are handled as numpy columns: segments are grouped by conversation, and
as long as the sequence numbers of a direction follow each other, its payload is
handed out in runs. The first segment that does not fit sends that conversation, and
only that one, through the careful path of `ds4proto.trace.tcp_half`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from os import PathLike
from typing import BinaryIO, Literal

import numpy as np

from ds4proto.pcap import headers as h
from ds4proto.pcap.decap import Decapsulator
from ds4proto.pcap.reader import open_capture
from ds4proto.pcap.source import StreamFile
from ds4proto.pcap.types import (
    CaptureError,
    Endpoint,
    PacketBatch,
    TcpColumns,
    UdpDatagram,
)
from ds4proto.trace.tcp_events import (
    Data,
    Direction,
    End,
    Opened,
    StreamEvent,
    StreamStats,
)
from ds4proto.trace.tcp_flows import Flow, FlowKey, group, reverse
from ds4proto.trace.tcp_half import Context, Half, Limits
from ds4proto.trace.tcp_rows import Rows
from ds4proto.trace.tcp_stream import Stream

Join = Literal["turn", "batch"]
_REMEMBERED_BYTES = 8 << 20
_REMEMBERED_BATCHES = 256


class Reassembler:
    """Sans-IO reassembly of all TCP streams of a capture.

    Parameters
    ----------
    join : {"turn", "batch"}
        How far consecutive segments of a direction are joined into one `Data`:
        "turn" stops where the other side of that stream sends data, so that events
        keep the order of the capture; "batch" joins all that a batch holds, which is
        faster for small segments, but the two directions of a stream then come one
        after the other.
    max_piece : int
        Joined pieces stay near this many bytes.
    max_pending : int
        Bytes, over all streams, that may wait behind holes. Past that the hole at
        hand is given up.
    max_hold_ns : int
        Capture time for which a segment may wait behind a hole.
    grace_packets : int
        A hole whose bytes the peer has acknowledged is given up after this many
        further packets of the stream: the capture lost them, nobody will send them
        again. The delay is there because packets may be captured out of order, and
        because acknowledgements may be made up and run ahead of the data.
    max_streams : int
        Conversations followed at once; the one that has been still longest is ended
        to make room.
    udp_ports : set of int or None
        As in `ds4proto.pcap.decap.Decapsulator`.

    Attributes
    ----------
    counts : Counter
        Packets by what became of them.
    datagrams : list of UdpDatagram
        Those of the last batch.
    """

    def __init__(
        self,
        *,
        join: Join = "turn",
        max_piece: int = 1 << 20,
        max_pending: int = 16 << 20,
        max_hold_ns: int = 30_000_000_000,
        grace_packets: int = 32,
        max_streams: int = 65_536,
        udp_ports: frozenset[int] | None = frozenset(),
    ) -> None:
        if min(max_piece, max_pending, max_streams) < 1:
            raise ValueError("max_piece, max_pending and max_streams must be positive")
        self._turns = join == "turn"
        self._context = Context(
            Limits(max_piece, max_pending, max_hold_ns, grace_packets), []
        )
        self._max_streams = max_streams
        self._flows: dict[FlowKey, tuple[Stream, int]] = {}
        self._order: dict[Stream, FlowKey] = {}
        self._decap = Decapsulator(udp_ports=udp_ports)
        self._seen: deque[tuple[int, int, list[Half]]] = deque()
        self._seen_bytes = 0
        self.counts = self._decap.counts
        self.datagrams: list[UdpDatagram] = []

    @property
    def streams(self) -> list[StreamStats]:
        """Statistics of the streams that were opened and have not ended."""
        return [stream.stats() for stream in self._order if stream.opened]

    def feed(self, batch: PacketBatch) -> Iterator[StreamEvent]:
        """Take one batch; yield what it completes, in capture order."""
        columns, self.datagrams = self._decap.split(batch)
        context = self._context
        context.out = []
        context.serial += 1
        self._forget(len(batch.data))
        conversations = 0
        if len(columns):
            for rows, key in _conversations(columns, group(columns)):
                self._converse(rows, key)
                conversations += 1
        out, context.out = context.out, []
        if conversations > 1:
            out.sort(key=_position)
            self._number(out)
        return iter([event for _, event in out])

    def _number(self, out: list[tuple[int, StreamEvent]]) -> None:
        """Give the streams that this batch opened numbers in the order of the capture.

        Conversations are taken one after the other; without this the number of a
        stream would depend on where a block of the file ended.
        """
        made = [event.stream for _, event in out if isinstance(event, Opened)]
        due = dict(zip(made, sorted(made), strict=True))
        if all(old == new for old, new in due.items()):
            return
        for _, event in out:
            event.stream = due.get(event.stream, event.stream)
            if isinstance(event, End):
                event.stats.stream = event.stream
        for stream in self._order:
            if stream.number in due:
                stream.renumber(due[stream.number])

    def finish(self) -> Iterator[StreamEvent]:
        """End the capture: flush what waits behind holes, end every stream."""
        context = self._context
        context.out = []
        for stream in sorted(self._order, key=lambda one: one.number):
            stream.end()
        self._order.clear()
        self._flows.clear()
        self._seen.clear()
        out, context.out = context.out, []
        return iter([event for _, event in out])

    def _converse(self, rows: Rows, key: FlowKey) -> None:
        known = self._flows.get(key)
        if known is None:
            stream, side = self._begin(key), 0
        else:
            stream, side = known
            self._order[stream] = self._order.pop(stream)  # now the most recent
        rows.orient(side)
        place = 0
        while place < len(rows):
            first_syn = rows.flags[place] & h.SYN
            if first_syn and not stream.belongs(rows, place):
                stream = self._replace(stream, key, side, int(rows.packet[place]))
            rows, place, strange = stream.feed(rows, place)
            if strange:
                stream = self._replace(stream, key, side, int(rows.packet[place]))
        self._seen[-1][2].extend(stream.halves)

    def _begin(self, key: FlowKey, side: int = 0) -> Stream:
        if len(self._order) >= self._max_streams:
            self._drop(next(iter(self._order)))
        ends = _ends(key) if side == 0 else _ends(reverse(key))
        stream = Stream(ends, self._context, turns=self._turns)
        self._flows[key] = (stream, side)
        self._flows.setdefault(reverse(key), (stream, 1 - side))
        self._order[stream] = key
        return stream

    def _replace(self, stream: Stream, key: FlowKey, side: int, packet: int) -> Stream:
        self._context.row = packet
        self._drop(stream)
        return self._begin(key, side)

    def _drop(self, stream: Stream) -> None:
        stream.end()
        key = self._order.pop(stream)
        self._flows.pop(key, None)
        self._flows.pop(reverse(key), None)

    def _forget(self, size: int) -> None:
        """Begin a batch of `size` bytes; let go of the oldest ones past the bound.

        Delivered bytes are kept for a while, to tell whether a retransmission
        repeats them or contradicts them.
        """
        seen = self._seen
        seen.append((self._context.serial, size, []))
        self._seen_bytes += size
        while len(seen) > 1 and (
            self._seen_bytes > _REMEMBERED_BYTES or len(seen) > _REMEMBERED_BATCHES
        ):
            serial, old, halves = seen.popleft()
            self._seen_bytes -= old
            for half in halves:
                half.forget(serial)


def _position(item: tuple[int, StreamEvent]) -> int:
    return item[0]


def _ends(key: FlowKey) -> tuple[Endpoint, Endpoint]:
    version, src_hi, src_lo, dst_hi, dst_lo, ports = key
    return (
        Endpoint(h.host(version, src_hi, src_lo), ports >> 16),
        Endpoint(h.host(version, dst_hi, dst_lo), ports & 0xFFFF),
    )


def _conversations(
    columns: TcpColumns, flows: dict[FlowKey, Flow]
) -> Iterator[tuple[Rows, FlowKey]]:
    """Put the two flows of each conversation together, in order of appearance."""
    done: set[FlowKey] = set()
    for key, mine in flows.items():
        if key in done:
            continue
        back_key = reverse(key)
        done.add(back_key)
        back = flows.get(back_key) if back_key != key else None
        if back is None:
            pick = None if mine.size == len(columns) else mine
            yield Rows(columns, pick, np.zeros(mine.size, np.uint8)), key
            continue
        side_of = np.zeros(len(columns), np.uint8)
        side_of[back] = 1
        if mine.size + back.size == len(columns):
            yield Rows(columns, None, side_of), key
        else:
            pick = np.sort(np.concatenate([mine, back]))
            yield Rows(columns, pick, side_of[pick]), key


def read_streams(
    source: str | PathLike[str] | BinaryIO,
    *,
    join: Join = "turn",
    follow: bool = False,
    wait: Callable[[], bool] | None = None,
) -> Iterator[StreamEvent]:
    """Read a capture and yield its TCP stream events.

    Parameters
    ----------
    source : path, "-" or binary stream
    join : {"turn", "batch"}
        See `Reassembler`.
    follow, wait
        See `ds4proto.pcap.reader.CaptureReader`.

    Raises
    ------
    CaptureError
        At damage, after the events of all packets before it, `End` included.
    """
    reassembler = Reassembler(join=join)
    with open_capture(source, follow=follow, wait=wait) as reader:
        batches = iter(reader)
        while True:
            try:
                batch = next(batches, None)
            except CaptureError:
                yield from reassembler.finish()
                raise
            if batch is None:
                break
            yield from reassembler.feed(batch)
    yield from reassembler.finish()


def stream_file_events(
    source: str | PathLike[str] | BinaryIO, *, direction: Direction = "a>b"
) -> Iterator[StreamEvent]:
    """Yield the events of a plain file that holds one direction of one stream.

    Such a file has no endpoints, no packets and no clock: hosts are the file's name,
    ports, packet numbers and times are 0.
    """
    with StreamFile(source) as pieces:
        a, b = Endpoint(pieces.name, 0), Endpoint("", 0)
        yield Opened(1, a, b, 0, 0, syn_seen=False)
        stats = StreamStats(1, a, b, 0, 0, 0, 0, syn_seen=False)
        one = stats.of(direction)
        for offset, data in pieces:
            one.payload_bytes += len(data)
            one.unique_bytes += len(data)
            yield Data(1, direction, offset, data, 0, 0, 0, 0)
        yield End(1, stats)
