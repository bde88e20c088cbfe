"""One TCP connection on its way from bytes to rows.

Which protocol a connection speaks is found by content. While that is open, its bytes
are held (a few KiB); a connection that shows no magic is foreign and its bytes are
only counted. Where the capture began in the middle of a connection, the magic is
searched for, and an observer takes over from there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from ds4proto.link.events import FrameReceived, Skipped, Violation
from ds4proto.link.limits import DEFAULT_LIMITS, Limits
from ds4proto.link.observer import FIRST_BYTES, StreamObserver, open_observer
from ds4proto.pcap.types import Endpoint
from ds4proto.schema.dialects import dialects_of
from ds4proto.schema.problem import Problem
from ds4proto.schema.recognise import protocol_of
from ds4proto.trace.building import fields_and_payload
from ds4proto.trace.marks import Marks
from ds4proto.trace.payload import PayloadSummary
from ds4proto.trace.rows import UNDECODED, Direction, FrameRow
from ds4proto.trace.runs import Request, Run, RunTable
from ds4proto.trace.sinks import PayloadMode, sink_factory
from ds4proto.trace.tcp_events import Data, Gap, Opened, StreamStats

__all__ = ["DirectionTotals", "Watch"]

Side = Literal["a", "b"]
_DIRECTIONS: Final[tuple[Direction, Direction]] = ("a>b", "b>a")
_HELD: Final = 64 * 1024
_MAGIC_BYTES: Final = 4
_HELLO_SIZES: Final = frozenset(
    d.hello_size for d in dialects_of("DS4T") if d.hello_size
)
_LONGEST_HELLO: Final = max(_HELLO_SIZES)
_SHORTEST_HELLO: Final = min(_HELLO_SIZES)
_OTHER: Final[dict[Direction, Direction]] = {"a>b": "b>a", "b>a": "a>b"}
_MAGICS: Final = (b"DS4D", b"T4SD", b"B4SD")


@dataclass(slots=True)
class DirectionTotals:
    """Where the bytes of one direction went; all of them, once it has ended."""

    accounted: int = 0
    undecoded: Counter[str] = field(default_factory=Counter)
    frames: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        """All bytes so far."""
        return self.accounted + sum(self.undecoded.values())


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
        self.syn_seen = opened.syn_seen
        self.observer: StreamObserver | None = None
        self.foreign = False
        self.stats: StreamStats | None = None
        self.totals = {d: DirectionTotals() for d in _DIRECTIONS}
        self.last_ns = opened.time_ns
        self._table = table
        self._start_ns = start_ns
        self._payload = payload
        self._limits = limits
        self._dialect = dialect
        self._on_open = on_open
        self._held: list[Data | Gap] = []
        self._held_bytes = 0
        self._heads: dict[Direction, bytes] = {}
        self._late = not opened.syn_seen  # the beginning may not be in the capture
        self._base: dict[Direction, int] = {"a>b": 0, "b>a": 0}
        self._marks = {d: Marks() for d in _DIRECTIONS}
        self._done: dict[Direction, int] = {"a>b": 0, "b>a": 0}
        self._violations: dict[Direction, list[Problem]] = {"a>b": [], "b>a": []}
        self._ended: set[Direction] = set()
        self._tails: dict[Direction, bytes] = {"a>b": b"", "b>a": b""}
        self._first: dict[Direction, tuple[int, int]] = {}

    @property
    def last_time(self) -> float:
        """Seconds from the capture's first packet to this connection's last."""
        stats = self.stats
        last = self.last_ns if stats is None else stats.last_time_ns
        return max(0, last - self._start_ns) / 1e9

    @property
    def kind(self) -> str:
        """``control``, ``data``, ``forward``, ``snapshot``, ``foreign``, ``silent``."""
        run = self._table.run_of(self.number)
        if run is not None and self.number in run.streams:
            return run.streams[self.number]
        if any(totals.total for totals in self.totals.values()):
            return "foreign" if self.foreign else "unknown"
        return "silent"

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
                found.append("refused" if not stats.ba.syn else "reset, 0 bytes")
            elif stats.ba.syn:
                found.append("connected, 0 bytes")
            else:
                found.append("never answered")
        return found

    # -- what the reassembly says --------------------------------------------------

    def data(self, data: Data) -> Iterator[FrameRow]:
        """Take bytes; yield the rows that they complete."""
        self.last_ns = data.last_time_ns
        self._first.setdefault(data.direction, (data.packet, data.time_ns))
        if self.observer is not None:
            yield from self._feed(data)
        elif self.foreign:
            yield from self._foreign(data)
        else:
            yield from self._hold(data)

    def gap(self, gap: Gap) -> Iterator[FrameRow]:
        """Take bytes that the capture does not hold."""
        if self.observer is not None:
            yield from self._feed_gap(gap)
        elif self.foreign:
            self._tails[gap.direction] = b""
            self._late = True
            self._lose(gap.direction, gap.length, "foreign")
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
            for direction in _DIRECTIONS:
                yield from self._end_of(direction)

    # -- finding the protocol ------------------------------------------------------

    @property
    def undecided(self) -> bool:
        """Whether bytes are held until the protocol is known."""
        return self.observer is None and not self.foreign and bool(self._held)

    def settle(self) -> Iterator[FrameRow]:
        """Decide on the protocol with the bytes at hand, and let go of them."""
        if not self._heads and not self._held:
            return
        yield from self._on_open(self)
        self._open(self._heads, complete=not self._late)
        self.foreign = self.observer is None
        held, self._held = self._held, []
        for item in held:
            yield from self.gap(item) if isinstance(item, Gap) else self.data(item)
        for direction in tuple(self._ended):
            if self.observer is not None:
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

    def _open(self, first: dict[Direction, bytes], *, complete: bool) -> None:
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
        window = tail + bytes(view if self._late else view[:FIRST_BYTES])
        at = 0
        while self._late or first:
            found = _find(window, at, anywhere=self._late)
            if found is None:
                break
            head = window[found : found + FIRST_BYTES]
            self._open({direction: head}, complete=not self._late)
            if self.observer is not None:
                self.foreign = False
                yield from self._take_over(data, found - len(tail))
                return
            at = found + 1
        self._tails[direction] = window[-(_MAGIC_BYTES - 1) :] if self._late else b""
        self._lose(direction, len(view), "foreign")

    def _take_over(self, data: Data, at: int) -> Iterator[FrameRow]:
        """Begin to decode at `at`, which may lie up to three bytes before `data`."""
        direction, other = data.direction, _OTHER[data.direction]
        tail = self._tails[direction][at:] if at < 0 else b""
        self._lose(direction, max(at, 0), "foreign")
        self.totals[direction].undecoded["foreign"] -= len(tail)
        self._base[direction] = data.offset + at
        self._base[other] = self.totals[other].total
        yield from self._before_first(data)
        rest = data.data[max(at, 0) :]
        self._marks[direction].add(data)
        if tail:
            yield from self._feed_bytes(direction, memoryview(tail), data.time_ns)
        yield from self._feed_bytes(direction, rest, data.last_time_ns)

    def _before_first(self, data: Data) -> Iterator[FrameRow]:
        """Say what lies before the first header: rows for bytes that no frame has."""
        assert self.observer is not None
        for direction in _DIRECTIONS:
            length = self._base[direction]
            if not length:
                continue
            totals = self.totals[direction]
            totals.undecoded.clear()
            self._lose(direction, length, "before the first header")
            first = self._first.get(direction, (data.packet, data.time_ns))
            yield self._make(
                direction, self.observer.protocol, self.observer.dialect, UNDECODED,
                0, length, {"reason": "before the first header"}, None, (),
                self._table.run_of(self.number), first, (data.packet, data.time_ns),
            )  # fmt: skip

    def _lose(self, direction: Direction, length: int, reason: str) -> None:
        if length:
            self.totals[direction].undecoded[reason] += length

    # -- through the observer ------------------------------------------------------

    def _feed(self, data: Data) -> Iterator[FrameRow]:
        assert self.observer is not None
        direction = data.direction
        self._marks[direction].add(data)
        yield from self._feed_bytes(direction, data.data, data.last_time_ns)

    def _feed_bytes(
        self, direction: Direction, view: memoryview, time_ns: int
    ) -> Iterator[FrameRow]:
        assert self.observer is not None
        yield from self._rows(self.observer.feed(direction, view, time_ns / 1e9))

    def _feed_gap(self, gap: Gap) -> Iterator[FrameRow]:
        assert self.observer is not None
        self._marks[gap.direction].add_gap(gap)
        now = gap.time_ns / 1e9
        yield from self._rows(
            self.observer.gap(gap.direction, gap.length, now, gap.reason)
        )

    def _end_of(self, direction: Direction) -> Iterator[FrameRow]:
        if direction in self._ended and self.observer is None:
            return
        self._ended.add(direction)
        assert self.observer is not None
        yield from self._rows(self.observer.feed(direction, None, self.last_ns / 1e9))

    def _rows(self, events: Iterable[Any]) -> Iterator[FrameRow]:
        for event in events:
            if isinstance(event, FrameReceived):
                yield self._frame(event)
            elif isinstance(event, Skipped):
                yield self._skipped(event)
            elif isinstance(event, Violation):
                self._violations[event.direction].append(event.problem)
        for direction in _DIRECTIONS:
            self._marks[direction].forget(self._done[direction])

    def _frame(self, event: FrameReceived) -> FrameRow:
        direction, spec = event.direction, event.spec
        if any(problem.fatal for problem in event.problems):
            return self._malformed(event)
        run, asked = self._learn(event)
        fields, payload = fields_and_payload(event, run, asked)
        totals = self.totals[direction]
        totals.accounted += event.length
        totals.frames[spec.full_name] += 1
        problems = event.problems
        if self._violations[direction]:
            problems = (*self._violations[direction], *problems)
            self._violations[direction] = []
        return self._row(
            direction, spec.protocol, event.dialect, spec.name, event.stream_offset,
            event.length, fields, payload, problems, run,
        )  # fmt: skip

    def _malformed(self, event: FrameReceived) -> FrameRow:
        """Make the row of a frame whose header is sound and whose body is not."""
        direction, spec = event.direction, event.spec
        self._lose(direction, event.length, "malformed")
        run = self._table.run_of(self.number)
        fields, _ = fields_and_payload(event, None, None)
        fields = {"reason": "malformed", "frame": spec.name, **fields}
        problems = (*self._violations[direction], *event.problems)
        self._violations[direction] = []
        return self._row(
            direction, spec.protocol, event.dialect, UNDECODED, event.stream_offset,
            event.length, fields, None, problems, run,
        )  # fmt: skip

    def _skipped(self, event: Skipped) -> FrameRow:
        direction = event.direction
        self._lose(direction, event.length, event.reason)
        problems = tuple(self._violations[direction])
        self._violations[direction] = []
        assert self.observer is not None
        return self._row(
            direction, self.observer.protocol, self.observer.dialect, UNDECODED,
            event.stream_offset, event.length, {"reason": event.reason}, None, problems,
            self._table.run_of(self.number),
        )  # fmt: skip

    def _row(
        self,
        direction: Direction,
        protocol: str,
        dialect: str,
        kind: str,
        offset: int,
        length: int,
        fields: dict[str, Any],
        payload: PayloadSummary | None,
        problems: tuple[Problem, ...],
        run: Run | None,
    ) -> FrameRow:
        offset += self._base[direction]
        marks = self._marks[direction]
        first, last = marks.at(offset), marks.at(offset + max(length - 1, 0))
        self._done[direction] = offset + length
        return self._make(
            direction, protocol, dialect, kind, offset, length, fields, payload,
            problems, run, first, last,
        )  # fmt: skip

    def _make(
        self,
        direction: Direction,
        protocol: str,
        dialect: str,
        kind: str,
        offset: int,
        length: int,
        fields: dict[str, Any],
        payload: PayloadSummary | None,
        problems: tuple[Problem, ...],
        run: Run | None,
        first: tuple[int, int],
        last: tuple[int, int],
    ) -> FrameRow:
        first_packet, first_ns = first
        last_packet, last_ns = last
        sends: Side = "a" if direction == "a>b" else "b"
        takes: Side = "b" if sends == "a" else "a"
        src, dst = str(self._at(sends)), str(self._at(takes))
        return FrameRow(
            0 if run is None else run.number,
            self.number,
            direction,
            protocol,
            dialect,
            kind,
            (last_ns - self._start_ns) / 1e9,
            offset,
            length,
            first_packet,
            last_packet,
            fields,
            problems,
            (first_ns - self._start_ns) / 1e9,
            last_ns / 1e9,
            src,
            dst,
            self._table.role(self.number, sends) or src,
            self._table.role(self.number, takes) or dst,
            payload,
        )

    def _at(self, side: Side) -> Endpoint:
        return self.a if side == "a" else self.b

    def _learn(self, event: FrameReceived) -> tuple[Run | None, Request | None]:
        """Tell the run table what a frame shows; get the run and what is answered."""
        table, number, spec, f = self._table, self.number, event.spec, event.fields
        sender: Side = "a" if event.direction == "a>b" else "b"
        if spec.protocol != "DS4D":
            run = table.run_of(number)
            if run is None:
                run = table.lone(
                    number, "DS4T", "data" if spec.code is None else "control"
                )
            if spec.name == "HELLO":
                table.tp_hello(run, number, sender, f)
            return run, None
        name = spec.name
        if name == "WORK":
            return table.work(number, self.b, sender, f), None
        if name == "RESULT":
            asked = table.answer(number, int(f["request"]))
            run = table.run_of(number) or table.lone(number, "DS4D", "data")
            return run, asked
        if name == "HELLO":
            return table.hello(number, self.a, self.b, sender, f), None
        if name.startswith("SNAPSHOT"):
            asks = name in ("SNAPSHOT_SAVE_REQ", "SNAPSHOT_LOAD_BEGIN")
            request = int(f["request"])
            return table.snapshot(number, self.b, sender, request, asks=asks), None
        return table.run_of(number) or table.lone(number, "DS4D", "data"), None


def _find(window: bytes, start: int, *, anywhere: bool) -> int | None:
    """Return where the next magic stands in `window`, or None."""
    if not anywhere:
        return 0 if not start and window[:_MAGIC_BYTES] in _MAGICS else None
    places = [window.find(magic, start) for magic in _MAGICS]
    return min((at for at in places if at >= 0), default=None)
