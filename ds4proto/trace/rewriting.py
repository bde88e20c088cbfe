"""A capture in, a smaller or a harmless capture out: the engine of redact and cut.

Connections are taken apart to frames, each frame is kept, changed, shortened to its
head or left out, and what stays is written as TCP packets again: at the times and with
the segment borders of the original. Retransmissions and bare acknowledgements are not
written; traffic of other protocols is left out altogether.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import chain
from typing import Any, BinaryIO, Final, Literal

from ds4proto.pcap import CaptureReader, Endpoint, PcapngWriter, TcpConversation
from ds4proto.trace.decoder import Decoder, Source
from ds4proto.trace.redact import REDACTED
from ds4proto.trace.rows import Direction, FrameRow
from ds4proto.trace.tcp import Reassembler
from ds4proto.trace.tcp_events import Closed, Data, End, Gap, Opened, StreamEvent

__all__ = ["Kept", "Rewriting", "Summary", "rewrite"]

Kept = Literal["whole", "head", "none"]
Choice = Callable[[FrameRow], Kept]
Change = Callable[[FrameRow, bytes], bytes]
_STEP: Final = 1 << 24  # between initial sequence numbers of connections
_FOREIGN: Final = 1 << 16


@dataclass(slots=True)
class Summary:
    """What a rewriting did.

    Attributes
    ----------
    frames : Counter
        Rows by what became of them: ``whole``, ``head``, ``none``.
    undecoded_bytes : int
        Bytes of no frame; zeroed by a redaction.
    streams, foreign_streams : int
        Connections written, and connections left out.
    truncated : bool
        The input ends inside a record.
    """

    frames: Counter[str] = field(default_factory=Counter)
    undecoded_bytes: int = 0
    streams: int = 0
    foreign_streams: int = 0
    truncated: bool = False


@dataclass(slots=True)
class _Piece:
    """Bytes of one segment, or a mark (opened, ended) between them."""

    packet: int
    time_ns: int
    offset: int
    length: int
    data: bytearray | None
    mark: str = ""
    done: int = 0
    runs: list[tuple[int, int, Kept]] = field(default_factory=list)


class _Sink:
    """Takes the packets of all connections; may store less than their length."""

    def __init__(self, writer: PcapngWriter) -> None:
        self.linktype = writer.linktype
        self._writer = writer
        self.missing = 0

    def packet(self, time_ns: int, data: Any, *, origlen: int | None = None) -> None:
        size = len(data) if origlen is None else origlen
        self._writer.packet(time_ns, data[: len(data) - self.missing], origlen=size)


class _Stream:
    def __init__(self, opened: Opened, sink: _Sink) -> None:
        self.opened = opened
        self.queues: dict[Direction, deque[_Piece]] = {"a>b": deque(), "b>a": deque()}
        self.live = False
        self.over = False
        self._sink = sink
        self._talk: TcpConversation | None = None

    def first_packet(self) -> int | None:
        """Return the earliest packet that still waits, None if none does."""
        firsts = [queue[0].packet for queue in self.queues.values() if queue]
        return min(firsts, default=None)

    def forget(self) -> None:
        """Drop old bytes of foreign traffic, and keep what a magic may yet claim."""
        for queue in self.queues.values():
            size = sum(piece.length for piece in queue)
            while queue and size > _FOREIGN:
                size -= queue.popleft().length

    def write(self, direction: Direction, piece: _Piece) -> None:
        """Write one piece, as far as its runs say."""
        if self._talk is None:
            isn = self.opened.stream * _STEP & 0xFFFF_FFFF
            a, b = Endpoint(*self.opened.a), Endpoint(*self.opened.b)
            self._talk = TcpConversation(
                self._sink, a, b, isn_a=isn + 1000, isn_b=isn + 2000
            )
            if self.opened.syn_seen:
                self._talk.open(self.opened.time_ns)
        if piece.mark == "fin":
            self._talk.fin(piece.time_ns, direction)
        elif piece.mark == "rst":
            self._talk.rst(piece.time_ns, direction)
        for start, end, kept in piece.runs:
            if kept == "none" or (piece.data is None and kept == "whole"):
                self._talk.skip(direction, end - start)
            elif kept == "head":
                self._absent(direction, piece.time_ns, end - start)
            elif piece.data is not None:
                view = memoryview(piece.data)[start:end]
                self._talk.data(piece.time_ns, direction, view)

    def _absent(self, direction: Direction, time_ns: int, length: int) -> None:
        """Write packets whose payload was on the wire and is not stored."""
        assert self._talk is not None
        zeros = bytes(min(length, 1 << 15))
        for at in range(0, length, 1 << 15):
            size = min(length - at, 1 << 15)
            self._sink.missing = size
            try:
                self._talk.data(time_ns, direction, memoryview(zeros)[:size])
            finally:
                self._sink.missing = 0


class Rewriting:
    """Frames go through `choice` and `change`; packets come out in order."""

    def __init__(
        self,
        writer: PcapngWriter,
        *,
        choice: Choice,
        change: Change | None,
        head: Callable[[FrameRow], int],
    ) -> None:
        self._sink = _Sink(writer)
        self._choice, self._change, self._head = choice, change, head
        self._streams: dict[int, _Stream] = {}
        self._ready: list[tuple[int, int, _Stream, Direction, _Piece]] = []
        self._count = 0
        self.decoder = Decoder(payload="none")
        self.summary = Summary()

    def feed(self, event: StreamEvent) -> None:
        """Take one event of the reassembly."""
        if isinstance(event, Opened):
            self._streams[event.stream] = _Stream(event, self._sink)
        elif isinstance(event, Data):
            self._take(event)
        elif isinstance(event, Gap):
            self._add(event.stream, event.direction, _piece(event, None, event.offset))
        rows = list(self.decoder.feed(event))
        for row in rows:
            self._row(row)
        if isinstance(event, Closed):
            mark = _Piece(event.packet, event.time_ns, 0, 0, None, event.kind)
            self._add(event.stream, event.direction, mark)
            self._settle(self._streams[event.stream])
        elif isinstance(event, End):
            self._end(self._streams.pop(event.stream))
        if rows or isinstance(event, End):
            self._release()

    def finish(self) -> Summary:
        """Write what still waits."""
        for stream in list(self._streams.values()):
            self._end(stream)
        self._streams.clear()
        self._release()
        return self.summary

    def _take(self, event: Data) -> None:
        data = event.data
        if event.marks is None:
            self._add(event.stream, event.direction, _piece(event, data, event.offset))
            return
        starts = event.marks.offset.tolist()
        ends = [*starts[1:], event.offset + len(data)]
        rows = zip(
            starts, ends, event.marks.packet.tolist(), event.marks.time_ns.tolist(),
            strict=True,
        )  # fmt: skip
        for start, end, packet, time_ns in rows:
            part = bytearray(data[start - event.offset : end - event.offset])
            piece = _Piece(packet, time_ns, start, end - start, part)
            self._add(event.stream, event.direction, piece)

    def _add(self, number: int, direction: Direction, piece: _Piece) -> None:
        if piece.length or piece.mark:
            self._streams[number].queues[direction].append(piece)

    def _row(self, row: FrameRow) -> None:
        stream = self._streams[row.stream]
        stream.live = True
        kept = self._choice(row)
        self.summary.frames[kept if row.is_frame else "undecoded"] += 1
        if not row.is_frame:
            self.summary.undecoded_bytes += row.length
        queue = stream.queues[row.direction]
        start, end = row.stream_offset, row.stream_offset + row.length
        touched = [p for p in queue if p.offset < end and p.offset + p.length > start]
        if kept != "none" and self._change is not None:
            self._changed(row, touched, start, end)
        split = end if kept != "head" else start + self._head(row)
        for piece in touched:
            if kept == "head":
                self._run(piece, start, split, "whole")
                self._run(piece, split, end, "head")
            else:
                self._run(piece, start, end, kept)
        self._settle(stream)

    def _changed(
        self, row: FrameRow, touched: list[_Piece], start: int, end: int
    ) -> None:
        assert self._change is not None
        old = bytearray(end - start)
        spans = []
        for piece in touched:
            low, high = max(start, piece.offset), min(end, piece.offset + piece.length)
            spans.append((piece, low, high))
            if piece.data is not None:
                part = piece.data[low - piece.offset : high - piece.offset]
                old[low - start : high - start] = part
        new = self._change(row, bytes(old))
        for piece, low, high in spans:
            if piece.data is not None:
                part = bytearray(new[low - start : high - start])
                piece.data[low - piece.offset : high - piece.offset] = part

    def _run(self, piece: _Piece, start: int, end: int, kept: Kept) -> None:
        low = max(start, piece.offset) - piece.offset
        high = min(end, piece.offset + piece.length) - piece.offset
        if high <= low:
            return
        piece.done += high - low
        last = piece.runs[-1] if piece.runs else None
        if last is not None and last[2] == kept and last[1] == low:
            piece.runs[-1] = (last[0], high, kept)
        else:
            piece.runs.append((low, high, kept))

    def _settle(self, stream: _Stream) -> None:
        """Move what needs no further row to the packets that are ready."""
        for direction, queue in stream.queues.items():
            while queue and stream.live and queue[0].done >= queue[0].length:
                self._push(stream, direction, queue.popleft())

    def _push(self, stream: _Stream, direction: Direction, piece: _Piece) -> None:
        self._count += 1
        heappush(self._ready, (piece.packet, self._count, stream, direction, piece))

    def _end(self, stream: _Stream) -> None:
        if not stream.live:
            self.summary.foreign_streams += 1
            return
        self.summary.streams += 1
        for direction, queue in stream.queues.items():
            while queue:
                piece = queue.popleft()
                if piece.done < piece.length:  # bytes that no row told of
                    piece.runs = [(0, piece.length, "none")]
                self._push(stream, direction, piece)

    def _release(self) -> None:
        """Write the ready packets before which nothing can come any more."""
        firsts = []
        for stream in self._streams.values():
            if not stream.live and self.decoder.is_foreign(stream.opened.stream):
                stream.forget()
            else:
                firsts.append(stream.first_packet())
        limit = min((first for first in firsts if first is not None), default=None)
        while self._ready and (limit is None or self._ready[0][0] < limit):
            _, _, stream, direction, piece = heappop(self._ready)
            stream.write(direction, piece)


def _piece(event: Data | Gap, data: memoryview | None, offset: int) -> _Piece:
    length = event.length if isinstance(event, Gap) else len(event.data)
    kept = None if data is None else bytearray(data)
    return _Piece(event.packet, event.time_ns, offset, length, kept)


def rewrite(
    source: Source,
    target: BinaryIO,
    *,
    choice: Choice,
    change: Change | None = None,
    head: Callable[[FrameRow], int],
    comment: str,
) -> Summary:
    """Write what is chosen of a capture to a pcapng stream.

    Parameters
    ----------
    source : path or binary stream
        pcap or pcapng, gzip'd or not.
    target : binary stream
    choice : callable
        What stays of a row.
    change : callable, optional
        New bytes of a row, as many as before.
    head : callable
        Bytes of a row that ``head`` keeps.
    comment : str
        Stored in the section header; that of a redacted input stays.

    Raises
    ------
    CaptureError
        At damage in the input.
    """
    reassembler = Reassembler()
    with CaptureReader(source) as reader:
        batches = iter(reader)
        first = next(batches, None)
        if reader.info.comment == REDACTED:
            comment = REDACTED  # a part of a redacted file is one too
        with PcapngWriter(target, comment=comment) as writer:
            work = Rewriting(writer, choice=choice, change=change, head=head)
            for batch in chain(() if first is None else (first,), batches):
                if len(batch):
                    work.decoder.start_at(int(batch.time_ns[0]))
                for event in reassembler.feed(batch):
                    work.feed(event)
            truncated = reader.info.truncated
            for event in reassembler.finish():
                work.feed(event)
            summary = work.finish()
    summary.truncated = truncated
    return summary
