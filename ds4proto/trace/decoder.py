"""Captures in, rows out: the front of the traces."""

from __future__ import annotations

import os
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from os import PathLike
from stat import S_ISREG
from typing import Any, BinaryIO, Final, cast

import msgspec

from ds4proto.link.limits import DEFAULT_LIMITS, Limits
from ds4proto.pcap.reader import CaptureReader
from ds4proto.pcap.types import CaptureError, CaptureInfo, Endpoint
from ds4proto.schema.recognise import protocol_of
from ds4proto.trace.rows import FrameRow
from ds4proto.trace.runs import Run, RunTable
from ds4proto.trace.sinks import PayloadMode
from ds4proto.trace.streams import Watch
from ds4proto.trace.tcp import Reassembler, stream_file_events
from ds4proto.trace.tcp_events import Closed, Data, Gap, Opened, StreamEvent

__all__ = ["ORDER_WINDOW", "CaptureDecoder", "Decoder", "Source", "decode"]

Source = str | PathLike[str] | BinaryIO
Wait = Callable[[], bool]

_GZIP: Final = b"\x1f\x8b"
_PEEK: Final = 512
ORDER_WINDOW: Final = 1024
"""Rows held back so that they come in the order of the capture."""
_ACROSS: Final = frozenset(
    {"DS4D-RESULT-21", "DS4D-RESULT-27", "DS4T-ACK-02", "DS4T-ACK-10"}
)
"""Rules by which an answer belongs to what the other direction asked."""


class Decoder:
    """Sans-IO: stream events in, rows out.

    Parameters
    ----------
    payload : {"summary", "none", "full"} or callable
        Describe payloads, pass over them, or keep up to 1 MiB of each as well; or
        what gives a `Summarizer` for each payload, see `sinks.sink_factory`.
    limits : Limits
        Caps on announced lengths.
    dialect : str, optional
        Read everything under this dialect instead of the one recognised.
    on_event : callable, optional
        Told of each event of TCP before the rows that come of it.

    Attributes
    ----------
    table : RunTable
    ended : list of Watch
        Connections that are over, with where their bytes went.
    """

    def __init__(
        self,
        *,
        payload: PayloadMode = "summary",
        limits: Limits = DEFAULT_LIMITS,
        dialect: str | None = None,
        start_ns: int | None = None,
        on_event: Callable[[StreamEvent], None] | None = None,
    ) -> None:
        self._on_event = on_event
        self._payload = payload
        self._limits = limits
        self._dialect = dialect
        self._start_ns = start_ns
        self._watches: dict[int, Watch] = {}
        self._open_at: dict[Endpoint, list[Watch]] = {}
        self.table = RunTable()
        self.ended: list[Watch] = []

    @property
    def runs(self) -> list[Run]:
        """Runs found so far."""
        return self.table.runs

    @property
    def start_ns(self) -> int:
        """Time of the capture's first packet, nanoseconds since 1970; 0 before it."""
        return self._start_ns or 0

    def is_foreign(self, stream: int) -> bool:
        """Tell whether a connection's bytes so far are no protocol of ours."""
        watch = self._watches.get(stream)
        return watch is not None and watch.foreign

    def start_at(self, time_ns: int) -> None:
        """Tell the time of the capture's first packet; later calls do nothing."""
        if self._start_ns is None:
            self._start_ns = time_ns

    def feed(self, event: StreamEvent) -> Iterator[FrameRow]:
        """Take one event of the reassembly; yield the rows that it completes."""
        if self._on_event is not None:
            self._on_event(event)
        if isinstance(event, Data):
            yield from self._watches[event.stream].data(event)
        elif isinstance(event, Opened):
            self._open(event)
        elif isinstance(event, Gap):
            yield from self._watches[event.stream].gap(event)
        elif isinstance(event, Closed):
            if event.kind == "fin":
                yield from self._watches[event.stream].closed(event.direction)
        else:
            watch = self._watches.pop(event.stream)
            yield from watch.end(event.stats)
            self._over(watch)
            self.ended.append(watch)

    def _open(self, event: Opened) -> None:
        if self._start_ns is None:
            self._start_ns = event.time_ns
        watch = self._watches[event.stream] = Watch(
            event,
            self.table,
            self._start_ns,
            payload=self._payload,
            limits=self._limits,
            dialect=self._dialect,
            on_open=self._before,
        )
        self._open_at.setdefault(watch.b, []).append(watch)

    def _before(self, opening: Watch) -> Iterator[FrameRow]:
        """Settle connections to the same listener first: order makes the pair."""
        waiting = self._open_at.get(opening.b, [])
        waiting[:] = [w for w in waiting if w.observer is None and not w.foreign]
        for watch in list(waiting):
            if watch.number < opening.number and watch.undecided:
                yield from watch.settle()

    def _over(self, watch: Watch) -> None:
        waiting = self._open_at.get(watch.b, [])
        if watch in waiting:
            waiting.remove(watch)
        if not waiting:
            self._open_at.pop(watch.b, None)


class CaptureDecoder:
    """Iterator over the rows of one capture.

    Parameters
    ----------
    source : path, "-" or binary stream
        pcap, pcapng, either of them gzip'd, or the plain bytes of one direction of
        one connection (told by its first magic).
    payload, limits, dialect, on_event
        As for `Decoder`.
    follow, wait
        As for `ds4proto.pcap.reader.CaptureReader`.
    reorder : int
        Rows held back so that they come in the order of the capture: the length of a
        gate is known only when the next one comes. Without effect with `follow`.

    Attributes
    ----------
    decoder : Decoder
    info : CaptureInfo
        What the container said; `truncated` where its last record is cut off.
    packets : int
    packet_counts : Counter
        Packets by what became of them.
    """

    def __init__(
        self,
        source: Source,
        *,
        payload: PayloadMode = "summary",
        limits: Limits = DEFAULT_LIMITS,
        dialect: str | None = None,
        follow: bool = False,
        wait: Wait | None = None,
        reorder: int = ORDER_WINDOW,
        on_event: Callable[[StreamEvent], None] | None = None,
    ) -> None:
        self._reorder = 0 if follow else reorder
        self.decoder = Decoder(
            payload=payload, limits=limits, dialect=dialect, on_event=on_event
        )
        self.info = CaptureInfo()
        self._source = source
        self._follow = follow
        self._wait = wait
        self._reader: CaptureReader | None = None
        self._reassembler = Reassembler()
        self.plain_stream = False

    @property
    def packets(self) -> int:
        """Packets read so far."""
        return self._reader.packets if self._reader is not None else 0

    @property
    def packet_counts(self) -> dict[str, int]:
        """Packets by what became of them."""
        return dict(self._reassembler.counts)

    def __iter__(self) -> Iterator[FrameRow]:
        with ExitStack() as opened:
            source, head = _peek(self._source, opened)
            if protocol_of(head) is not None:
                self.plain_stream = True
                for event in stream_file_events(source):
                    yield from self.decoder.feed(event)
            elif self._reorder:
                yield from in_order(self._capture(source), self._reorder)
            else:
                yield from self._capture(source)

    def _capture(self, source: Source) -> Iterator[FrameRow]:
        feed = self.decoder.feed
        with CaptureReader(source, follow=self._follow, wait=self._wait) as reader:
            self._reader, self.info = reader, reader.info
            batches = iter(reader)
            damage: CaptureError | None = None
            while True:
                try:
                    batch = next(batches, None)
                except CaptureError as error:
                    damage = error
                    batch = None
                if batch is None:
                    break
                if len(batch):
                    self.decoder.start_at(int(batch.time_ns[0]))
                for event in self._reassembler.feed(batch):
                    yield from feed(event)
        for event in self._reassembler.finish():
            yield from feed(event)
        if damage is not None:
            raise damage


def in_order(rows: Iterable[FrameRow], window: int) -> Iterator[FrameRow]:
    """Yield rows by the packet that completed them, as far as a window reaches.

    An error of `rows` is raised when the rows before it are out.
    """
    held: deque[FrameRow] = deque()
    damage: Exception | None = None
    source = iter(rows)
    while True:
        try:
            row = next(source)
        except StopIteration:
            break
        except (ValueError, OSError) as error:
            damage = error
            break
        packet, place = row.last_packet, len(held)
        while place and held[place - 1].last_packet > packet:
            place -= 1
        if _is_hole(row) or (held and row.first_packet < held[-1].last_packet):
            _take_back(held, row)
        held.insert(place, row)
        if len(held) > window:
            yield held.popleft()
    yield from held
    if damage is not None:
        raise damage


def _is_hole(row: FrameRow) -> bool:
    return not row.is_frame and row.fields.get("reason") == "gap"


def _take_back(held: deque[FrameRow], late: FrameRow) -> None:
    """Take back that answers lack their request: `late` is it, or a hole it may be in.

    Bytes behind a hole come out when it is filled or given up, and so does the hole:
    some packets behind their place. Answers in between were judged without them.
    """
    hole = _is_hole(late)
    for place in range(len(held) - 1, -1, -1):
        row = held[place]
        if not hole and row.last_packet <= late.first_packet:
            return
        if row.stream != late.stream:
            continue
        if row.direction == late.direction:
            if row.is_frame:
                return
            continue
        if not hole and _of_another(row, late):
            continue
        kept = tuple(p for p in row.problems if p.clause not in _ACROSS)
        if len(kept) < len(row.problems):
            held[place] = msgspec.structs.replace(row, problems=kept)


def _of_another(answer: FrameRow, asked: FrameRow) -> bool:
    """Tell whether an answer names another request or session."""
    return any(
        answer.fields[name] != asked.fields[name]
        for name in ("request", "session_id")
        if name in answer.fields and name in asked.fields
    )


def decode(source: Source, *, payload: PayloadMode = "summary") -> Iterator[FrameRow]:
    """Yield a row a frame, in the order of the capture, in constant memory.

    Parameters
    ----------
    source : path, "-" or binary stream
        pcap, pcapng, gzip'd or not, or the plain bytes of one direction.
    payload : {"summary", "none", "full"}

    Raises
    ------
    CaptureError
        At damage, after the rows of everything before it.
    OSError
        Where the source cannot be read.
    """
    return iter(CaptureDecoder(source, payload=payload))


class _Peeked:
    """A binary stream of which the first bytes were read already."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self._head = head
        self._rest = rest
        self._read_some: Any = getattr(rest, "read1", rest.read)

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes, those peeked at first."""
        if self._head:
            if size < 0:
                head, self._head = self._head, b""
                return head + self._rest.read()
            data, self._head = self._head[:size], self._head[size:]
            return data
        return cast(bytes, self._read_some(size))


def _peek(source: Source, opened: ExitStack) -> tuple[Source, bytes]:
    """Return a source that still gives everything, and its first bytes, unpacked."""
    stream: BinaryIO
    if isinstance(source, str | PathLike) and str(source) != "-":
        file = opened.enter_context(
            open(source, "rb", buffering=0)  # noqa: PTH123, SIM115 - either kind of path
        )
        if S_ISREG(os.fstat(file.fileno()).st_mode):
            return source, _unpacked(file.read(_PEEK))
        stream = cast(BinaryIO, file)  # a pipe can be opened once
    elif isinstance(source, str | PathLike):
        import sys

        stream = sys.stdin.buffer
    else:
        stream = source
    read_some = getattr(stream, "read1", stream.read)  # a pipe may hold few bytes
    head = b""
    while len(head) < len(_GZIP) + 2:
        more = read_some(_PEEK if not head else 1)
        if not more:
            break
        head += more
    return cast(BinaryIO, _Peeked(head, stream)), _unpacked(head)


def _unpacked(head: bytes) -> bytes:
    if head[: len(_GZIP)] != _GZIP:
        return head
    try:
        return zlib.decompressobj(31).decompress(head, _PEEK)
    except zlib.error:
        return b""
