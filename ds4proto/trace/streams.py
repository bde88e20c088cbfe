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

from ds4proto.link.ds4t_hello_reader import names_role
from ds4proto.link.events import Event
from ds4proto.link.limits import DEFAULT_LIMITS, Limits
from ds4proto.link.observer import FIRST_BYTES, StreamObserver, open_observer
from ds4proto.schema import to_bytes
from ds4proto.schema.dialects import dialects_of
from ds4proto.schema.ds4d_hello import ERROR
from ds4proto.schema.recognise import hello_size, protocol_of
from ds4proto.trace.making import DIRECTIONS, DirectionTotals, RowMaker
from ds4proto.trace.probing import MAGICS, Probes
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
        self._probes: Probes | None = None

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
                answered = stats.ba.segments or not stats.syn_seen
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
            if direction in self._ended:
                yield from self._maker.behind_end(direction, gap.length, self.observer)
                return
            now = gap.time_ns / 1e9
            events = self.observer.gap(direction, gap.length, now, gap.reason)
            yield from self._maker.rows(events, self.observer)
        elif self.foreign:
            self._tails[direction] = b""
            self.totals[direction].lose(gap.length, "foreign")
            if self._probes is not None:
                self._maker.marks[direction].add_gap(gap)
                now = gap.time_ns / 1e9
                won = self._probes.gap(direction, gap.length, now, gap.reason)
                if won is not None:
                    yield from self._adopt(*won)
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
        if self._probes is not None:
            now = self._last_ns / 1e9
            for direction in DIRECTIONS:
                won = self._probes and self._probes.feed(direction, None, now)
                if won:
                    yield from self._adopt(*won)
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
        begun = [_begins(head) for head in self._heads.values()]
        some = not self._late or any(begun)
        # DS4D says in each header what it is; a DS4T direction begins with its hello
        pair = {protocol_of(head) for head in self._heads.values()} & {"DS4T"}
        both = len(begun) == len(DIRECTIONS) and all(begun)
        whole = some and (not self._late or not pair or both)
        if some or self._table.pair_for(self.b) is not None:
            self._open(self._heads, complete=whole)
        if self.observer is None and some and self._table.is_listener(self.b):
            # Who dials a peer of a run and shows no magic breaks its first rule.
            self._open({"a>b": to_bytes(ERROR, {"text": ""}, dialect="upstream")})
            self._table.any_run(self.number, self.b, "DS4D", "control")
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
            late=self._late,
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
        totals = self.totals[direction]
        first = not totals.total
        if self._late:
            self._maker.marks[direction].add(data)
            if self._probes is None:
                self._begin_probes(data)
            if self._probes is not None:
                start = max(0, self._maker.base[direction] - data.offset)
                now = data.last_time_ns / 1e9
                won = self._probes.feed(direction, view[start:], now)
                totals.lose(len(view), "foreign")
                if won is not None:
                    yield from self._adopt(*won)
                return
        elif first:
            self._maker.marks[direction].add(data)
        if first and not self._late and protocol_of(view) is not None:
            self._open({direction: bytes(view[:FIRST_BYTES])})
            if self.observer is not None:
                self.foreign = False
                other = _OTHER[direction]
                self._maker.base[other] = self.totals[other].total
                yield from self._maker.before_first(self.observer)
                yield from self.data(data)
                return
        totals.lose(len(view), "foreign")

    def _begin_probes(self, data: Data) -> None:
        """Try all protocols from the first magic on, if `data` holds or ends one."""
        direction, tail = data.direction, self._tails[data.direction]
        window = tail + bytes(data.data)
        places = [window.find(magic) for magic in MAGICS]
        at = min((place for place in places if place >= 0), default=None)
        self._tails[direction] = window[1 - len(MAGICS[0]) :]
        if at is None:
            return
        self._probes = Probes(self._probe)
        base, other = self._maker.base, _OTHER[direction]
        base[direction] = data.offset + at - len(tail)
        base[other] = self.totals[other].total
        if at < len(tail):
            self._probes.feed(direction, memoryview(tail[at:]), data.time_ns / 1e9)

    def _probe(self, sign: bytes) -> StreamObserver | None:
        return open_observer(
            {"a>b": sign},
            sink=sink_factory(self._payload, self._dialect_now),
            limits=self._limits,
            dialect=self._dialect,
            complete=False,
        )

    def _adopt(
        self, observer: StreamObserver, events: list[Event]
    ) -> Iterator[FrameRow]:
        """Go on with the observer that found true frames."""
        self.observer, self._probes = observer, None
        self.foreign = False
        for totals in self.totals.values():
            totals.undecoded.clear()
        yield from self._maker.before_first(observer)
        yield from self._maker.rows(events, observer)
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
    sized = len(head) in _HELLO_SIZES or hello_size(memoryview(head)) is not None
    return sized and names_role(head)
