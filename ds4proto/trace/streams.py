"""One TCP connection on its way from bytes to rows.

Which protocol a connection speaks is found by content. While that is open, its bytes
are held (a few KiB); a connection that shows no magic is foreign and its bytes are
only counted. Where the capture began in the middle of a connection, the magic is
searched for, and an observer takes over from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final

from ds4proto.link.limits import DEFAULT_LIMITS, Limits
from ds4proto.link.observer import FIRST_BYTES, StreamObserver, open_observer
from ds4proto.schema import to_bytes
from ds4proto.schema.dialects import dialects_of
from ds4proto.schema.ds4d_hello import ERROR
from ds4proto.schema.recognise import hello_size, protocol_of
from ds4proto.trace.making import DIRECTIONS, DirectionTotals, RowMaker
from ds4proto.trace.rows import Direction, FrameRow
from ds4proto.trace.runs import RunTable
from ds4proto.trace.sinks import PayloadMode, sink_factory
from ds4proto.trace.tcp_events import Data, Gap, Opened, StreamStats

__all__ = ["Watch"]

_HELD: Final = 64 * 1024
_MAGIC_BYTES: Final = 4
_HELLO_SIZES: Final = frozenset(
    d.hello_size for d in dialects_of("DS4T") if d.hello_size
)
_LONGEST_HELLO: Final = max(_HELLO_SIZES)
_SHORTEST_HELLO: Final = min(_HELLO_SIZES)
_OTHER: Final[dict[Direction, Direction]] = {"a>b": "b>a", "b>a": "a>b"}
_MAGICS: Final = (b"DS4D", b"T4SD", b"B4SD")


class Watch:
    """A connection that is being decoded.

    Parameters
    ----------
    opened : Opened
    table : RunTable
        Shared by all connections of a capture.
    start_ns : int
        Time of the capture's first packet.
    payload, limits, dialect
        As for `ds4proto.trace.decoder.Decoder`.
    on_open : callable
        Called before an observer is made; yields the rows of connections that have
        to be settled first.

    Attributes
    ----------
    observer : StreamObserver or None
        Once the protocol is known.
    foreign : bool
        The bytes so far are no protocol of ours.
    stats : StreamStats or None
        Counts of the TCP layer, at the end.
    """

    def __init__(
        self,
        opened: Opened,
        table: RunTable,
        start_ns: int,
        *,
        payload: PayloadMode = "summary",
        limits: Limits = DEFAULT_LIMITS,
        dialect: str | None = None,
        on_open: Callable[[Watch], Iterable[FrameRow]] = lambda _watch: (),
    ) -> None:
        self.number = opened.stream
        self.a, self.b = opened.a, opened.b
        self.observer: StreamObserver | None = None
        self.foreign = False
        self.stats: StreamStats | None = None
        self._maker = RowMaker(self.number, self.a, self.b, table, start_ns)
        self._table = table
        self._start_ns = start_ns
        self._last_ns = opened.time_ns
        self._payload = payload
        self._limits = limits
        self._dialect = dialect
        self._on_open = on_open
        self._held: list[Data | Gap] = []
        self._held_bytes = 0
        self._heads: dict[Direction, bytes] = {}
        self._late = not opened.syn_seen  # the beginning may not be in the capture
        self._ended: set[Direction] = set()
        self._tails: dict[Direction, bytes] = dict.fromkeys(DIRECTIONS, b"")

    @property
    def totals(self) -> dict[Direction, DirectionTotals]:
        """Where the bytes of each direction went."""
        return self._maker.totals

    @property
    def last_time(self) -> float:
        """Seconds from the capture's first packet to this connection's last."""
        stats = self.stats
        last = self._last_ns if stats is None else stats.last_time_ns
        return max(0, last - self._start_ns) / 1e9

    @property
    def kind(self) -> str:
        """Role of the connection.

        ``control``, ``data``, ``forward`` or ``snapshot``; ``foreign``; ``silent``
        without any byte.
        """
        if not any(totals.total for totals in self.totals.values()):
            return "silent"
        run = self._table.run_of(self.number)
        if run is not None and self.number in run.streams:
            return run.streams[self.number]
        return "foreign" if self.foreign else "unknown"

    @property
    def notes(self) -> list[str]:
        """What is odd about the connection as a whole."""
        found = []
        heads = {protocol_of(head) for head in self._heads.values()}
        if heads & {"DS4D-LE", "DS4T-BE"}:
            found.append("a peer writes headers in the other byte order")
        stats = self.stats
        if self.kind == "silent" and stats is not None:
            if stats.ab.rst or stats.ba.rst:
                found.append("reset, 0 bytes" if stats.ba.syn else "refused")
            else:
                answered = stats.ba.syn or not stats.syn_seen
                found.append("connected, 0 bytes" if answered else "never answered")
        return found

    # -- what the reassembly says --------------------------------------------------

    def data(self, data: Data) -> Iterator[FrameRow]:
        """Take bytes; yield the rows that they complete."""
        self._last_ns = data.last_time_ns
        if self.observer is not None:
            self._maker.marks[data.direction].add(data)
            yield from self._feed(data.direction, data.data, data.last_time_ns)
            self._maker.saw(data.direction, data.offset, data.data)
        elif self.foreign:
            yield from self._foreign(data)
        else:
            yield from self._hold(data)

    def gap(self, gap: Gap) -> Iterator[FrameRow]:
        """Take bytes that the capture does not hold."""
        direction = gap.direction
        if self.observer is not None:
            self._maker.marks[direction].add_gap(gap)
            now = gap.time_ns / 1e9
            events = self.observer.gap(direction, gap.length, now, gap.reason)
            yield from self._maker.rows(events, self.observer)
        elif self.foreign:
            self._tails[direction] = b""
            self._late = True
            self.totals[direction].lose(gap.length, "foreign")
        else:
            self._late = True
            self._held.append(gap)

    def closed(self, direction: Direction) -> Iterator[FrameRow]:
        """One direction says no more (FIN)."""
        if self.observer is not None:
            yield from self._end_of(direction)
        else:
            self._ended.add(direction)

    def end(self, stats: StreamStats) -> Iterator[FrameRow]:
        """Nothing follows: settle what is open, account for every byte."""
        self.stats = stats
        if self.observer is None and not self.foreign:
            yield from self.settle()
        if self.observer is not None:
            for direction in DIRECTIONS:
                if direction not in self._ended:
                    yield from self._end_of(direction)
            for direction in DIRECTIONS:
                yield from self._maker.rest(self.observer, direction)

    def _end_of(self, direction: Direction) -> Iterator[FrameRow]:
        self._ended.add(direction)
        if self.observer is not None:
            events = self.observer.feed(direction, None, self._last_ns / 1e9)
            yield from self._maker.rows(events, self.observer)

    def _feed(
        self, direction: Direction, view: memoryview, time_ns: int
    ) -> Iterator[FrameRow]:
        if self.observer is not None:
            events = self.observer.feed(direction, view, time_ns / 1e9)
            yield from self._maker.rows(events, self.observer)

    # -- finding the protocol ------------------------------------------------------

    @property
    def undecided(self) -> bool:
        """Whether bytes are held until the protocol is known."""
        return self.observer is None and not self.foreign and bool(self._held)

    def settle(self) -> Iterator[FrameRow]:
        """Decide on the protocol with the bytes at hand, and let go of them."""
        if not self._held:
            return
        yield from self._on_open(self)
        whole = not self._late or any(map(_begins, self._heads.values()))
        self._open(self._heads, complete=whole)
        if self.observer is None and self._table.is_listener(self.b):
            # Who dials a peer of a run and shows no magic breaks its first rule.
            self._open({"a>b": to_bytes(ERROR, {"text": ""}, dialect="upstream")})
        self.foreign = self.observer is None
        held, self._held = self._held, []
        for item in held:
            yield from self.gap(item) if isinstance(item, Gap) else self.data(item)
        for direction in DIRECTIONS:
            if direction in self._ended:
                yield from self._end_of(direction)

    def _hold(self, data: Data) -> Iterator[FrameRow]:
        head = self._heads.get(data.direction, b"")
        if len(head) < FIRST_BYTES:
            head += bytes(data.data[: FIRST_BYTES - len(head)])
            self._heads[data.direction] = head
        if self._enough() or self._held_bytes + len(data.data) > _HELD:
            self._held.append(data)  # used up before the next piece comes
            yield from self.settle()
        else:
            copy = memoryview(bytes(data.data))
            self._held.append(replace(data, data=copy))
            self._held_bytes += len(copy)

    def _enough(self) -> bool:
        """Tell whether the first bytes settle the protocol, or ever will."""
        heads = self._heads
        names = [protocol_of(h) for h in heads.values() if len(h) >= _MAGIC_BYTES]
        if any(name is not None and name.startswith("DS4D") for name in names):
            return True
        if self._table.pair_for(self.b) is not None:
            return True
        lengths = [len(head) for head in heads.values()]
        if any(names):
            if len(lengths) == 2:
                return min(lengths) >= _SHORTEST_HELLO
            return lengths[0] > _LONGEST_HELLO or lengths[0] in _HELLO_SIZES
        return len(names) == 2 or max(lengths) >= FIRST_BYTES

    def _open(self, first: dict[Direction, bytes], *, complete: bool = True) -> None:
        pair = self._table.pair_for(self.b)
        heads = {protocol_of(head) for head in first.values()}
        joins = pair is not None
        if pair is None and heads & {"DS4T", "DS4B", "DS4T-BE"}:
            pair = self._table.new_pair(self.number, self.b)
        self.observer = open_observer(
            dict(first),
            pair=pair,
            sink=sink_factory(self._payload, self._dialect_now),
            limits=self._limits,
            dialect=self._dialect,
            complete=complete,
        )
        if self.observer is not None and joins:
            self._table.join_pair(self.number, self.b)

    def _dialect_now(self) -> str:
        if self.observer is None:
            return self._dialect or "upstream"
        return self.observer.dialect

    def _foreign(self, data: Data) -> Iterator[FrameRow]:
        """Count foreign bytes; look for a magic where one may still come.

        That is in the first bytes of the side that was silent until now, and, where
        the capture began in the middle of a connection, everywhere.
        """
        direction, view = data.direction, data.data
        tail = self._tails[direction]
        first = not self.totals[direction].total
        if first:
            self._maker.marks[direction].add(data)
        if self._late or first:
            window = tail + bytes(view if self._late else view[:FIRST_BYTES])
            at = self._search(direction, window)
            if at is not None:
                yield from self._take_over(data, at - len(tail))
                return
            self._tails[direction] = window[1 - _MAGIC_BYTES :] if self._late else b""
        self.totals[direction].lose(len(view), "foreign")

    def _search(self, direction: Direction, window: bytes) -> int | None:
        """Open an observer at the first magic that proves true; return its place."""
        at = _find(window, 0, anywhere=self._late)
        while at is not None:
            head = window[at : at + FIRST_BYTES]
            self._open({direction: head}, complete=not self._late)
            if self.observer is not None:
                return at
            at = _find(window, at + 1, anywhere=self._late)
        return None

    def _take_over(self, data: Data, at: int) -> Iterator[FrameRow]:
        """Begin to decode at `at`, which may lie up to three bytes before `data`."""
        observer = self.observer
        if observer is None:
            return
        self.foreign = False
        maker, direction = self._maker, data.direction
        other = _OTHER[direction]
        tail = self._tails[direction][at:] if at < 0 else b""
        maker.base[direction] = data.offset + at
        maker.base[other] = self.totals[other].total
        yield from maker.before_first(observer, (data.packet, data.time_ns))
        maker.marks[direction].add(data)
        if tail:
            yield from self._feed(direction, memoryview(tail), data.time_ns)
        yield from self._feed(direction, data.data[max(at, 0) :], data.last_time_ns)
        for way in DIRECTIONS:
            if way in self._ended:
                yield from self._end_of(way)


def _begins(head: bytes) -> bool:
    """Tell whether bytes look like the first ones that a peer ever sent.

    Where the handshake was not captured, the bytes behind it still may have been.
    """
    protocol = protocol_of(head)
    if protocol != "DS4T":
        return protocol is not None and protocol.startswith("DS4D")
    return len(head) in _HELLO_SIZES or hello_size(memoryview(head)) is not None


def _find(window: bytes, start: int, *, anywhere: bool) -> int | None:
    """Return where the next magic stands in `window`, or None."""
    if not anywhere:
        return 0 if not start and window[:_MAGIC_BYTES] in _MAGICS else None
    places = [window.find(magic, start) for magic in _MAGICS]
    return min((at for at in places if at >= 0), default=None)
