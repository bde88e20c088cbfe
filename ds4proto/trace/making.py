"""Rows out of the events of one connection, and the account of its bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from ds4proto.link.events import BEGAN_LATE, FrameReceived, Skipped, Violation
from ds4proto.link.observer import StreamObserver
from ds4proto.pcap.types import Endpoint
from ds4proto.schema import frame_of_code, header_of, read
from ds4proto.schema.fast import struct_of
from ds4proto.schema.problem import Problem
from ds4proto.trace.building import fields_and_payload
from ds4proto.trace.marks import Marks
from ds4proto.trace.payload import PayloadSummary
from ds4proto.trace.rows import UNDECODED, Direction, FrameRow, plain
from ds4proto.trace.runs import Request, Run, RunTable

__all__ = ["DIRECTIONS", "DirectionTotals", "RowMaker"]

Side = Literal["a", "b"]
DIRECTIONS: Final[tuple[Direction, Direction]] = ("a>b", "b>a")

MISFITS: Final = frozenset({"DS4D-HELLO-04", "DS4D-WORK-02", "DS4D-ROUTE-14"})
"""Rules of lengths inside DS4D bodies: where one is broken, the body can be cut into
fields in more than one way, and what it seems to say cannot be trusted. The bodies of
DS4T are of one size a type, so that their header alone makes them frames."""
_START_BYTES: Final = 128
_NO_HOST: Final = ("DS4D-ROUTE-02", "0")
"""A route record without a host: peers stop reading there, too."""


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

    def lose(self, length: int, reason: str) -> None:
        """Count bytes of no frame."""
        if length:
            self.undecoded[reason] += length


class RowMaker:
    """Makes the rows of one connection.

    Parameters
    ----------
    number : int
        Of the connection.
    a, b : Endpoint
    table : RunTable
        Learns from every frame who is who.
    start_ns : int
        Time of the capture's first packet.

    Attributes
    ----------
    totals : dict
        `DirectionTotals` by direction.
    base : dict
        Stream offset at which the observer began, by direction.
    marks : dict
        `Marks` by direction; who feeds the observer fills them first.
    """

    def __init__(
        self, number: int, a: Endpoint, b: Endpoint, table: RunTable, start_ns: int
    ) -> None:
        self.number = number
        self.a, self.b = a, b
        self.totals = {d: DirectionTotals() for d in DIRECTIONS}
        self.base: dict[Direction, int] = dict.fromkeys(DIRECTIONS, 0)
        self.marks = {d: Marks() for d in DIRECTIONS}
        self._table = table
        self._start_ns = start_ns
        self._done: dict[Direction, int] = dict.fromkeys(DIRECTIONS, 0)
        self._violations: dict[Direction, list[Problem]] = {d: [] for d in DIRECTIONS}
        self._start: dict[Direction, bytes] = dict.fromkeys(DIRECTIONS, b"")
        self._addresses = (str(a), str(b))
        self._sides: tuple[tuple[int, Side], tuple[int, Side]] = (
            (number, "a"),
            (number, "b"),
        )

    def rows(
        self, events: Iterable[Any], observer: StreamObserver
    ) -> Iterator[FrameRow]:
        """Yield the rows that events of the connection's observer make."""
        for event in events:
            if isinstance(event, FrameReceived):
                yield self._frame(event)
            elif isinstance(event, Skipped):
                yield self._skipped(event, observer)
            elif isinstance(event, Violation):
                self._violations[event.direction].append(event.problem)
        for direction in DIRECTIONS:
            self.marks[direction].forget(self._done[direction])

    def rest(
        self, observer: StreamObserver, direction: Direction
    ) -> Iterator[FrameRow]:
        """Yield a row of no bytes for problems that came behind the last frame."""
        if self._violations[direction]:
            yield self._row(
                direction, observer.protocol, observer.dialect, UNDECODED,
                self._done[direction] - self.base[direction], 0,
                {"reason": "a rule is broken between frames"}, None,
                self._due(direction, ()), self._table.run_of(self.number),
            )  # fmt: skip

    def behind_end(
        self, direction: Direction, length: int, observer: StreamObserver
    ) -> Iterator[FrameRow]:
        """Yield a row for bytes behind the end that a direction announced."""
        reason = "behind the end"
        self.totals[direction].lose(length, reason)
        yield self._row(
            direction, observer.protocol, observer.dialect, UNDECODED,
            self._done[direction] - self.base[direction], length, {"reason": reason},
            None, (), self._table.run_of(self.number),
        )  # fmt: skip

    def before_first(self, observer: StreamObserver) -> Iterator[FrameRow]:
        """Yield rows for what lies before the point where decoding begins."""
        reason = BEGAN_LATE
        for direction in DIRECTIONS:
            length = self.base[direction]
            if not length:
                continue
            self.totals[direction].undecoded.clear()
            self.totals[direction].lose(length, reason)
            self._done[direction] = length
            yield self._make(
                direction, observer.protocol, observer.dialect, UNDECODED, 0, length,
                {"reason": reason}, None, (), self._table.run_of(self.number),
                self.marks[direction].at(0), self.marks[direction].at(length - 1),
            )  # fmt: skip

    def _frame(self, event: FrameReceived) -> FrameRow:
        direction, spec = event.direction, event.spec
        problems = self._due(direction, event.problems)
        if event.problems and spec.protocol == "DS4D" and _misfits(event.problems):
            return self._malformed(event, problems)
        run, asked = self._learn(event)
        fields, payload = fields_and_payload(event, run, asked)
        totals = self.totals[direction]
        totals.accounted += event.length
        totals.frames[spec.full_name] += 1
        return self._row(
            direction, spec.protocol, event.dialect, spec.name, event.stream_offset,
            event.length, fields, payload, problems, run,
        )  # fmt: skip

    def _malformed(
        self, event: FrameReceived, problems: tuple[Problem, ...]
    ) -> FrameRow:
        """Make the row of a frame whose header is sound and whose body is not."""
        direction, spec = event.direction, event.spec
        self.totals[direction].lose(event.length, "malformed")
        fields, _ = fields_and_payload(event, None, None)
        fields = {"reason": "malformed", "frame": spec.name, **fields}
        return self._row(
            direction, spec.protocol, event.dialect, UNDECODED, event.stream_offset,
            event.length, fields, None, problems, self._table.run_of(self.number),
        )  # fmt: skip

    def saw(self, direction: Direction, offset: int, view: memoryview) -> None:
        """Keep the first bytes of the frame that is under way in a direction.

        `offset` is that of ``view[0]`` in the stream.
        """
        start = self._done[direction]
        if offset <= start:
            self._start[direction] = bytes(view[start - offset :][:_START_BYTES])
        elif len(self._start[direction]) < _START_BYTES:
            missing = _START_BYTES - len(self._start[direction])
            self._start[direction] += bytes(view[:missing])

    def _cut(self, event: Skipped, observer: StreamObserver) -> FrameRow | None:
        """Make the row of a frame of which the capture holds the beginning only."""
        start = self._start[event.direction]
        protocol = observer.protocol
        if event.reason != "not captured" or protocol not in ("DS4D", "DS4T"):
            return None
        layout = header_of(protocol)
        form = struct_of(layout, "*")
        if len(start) < form.size:
            return None
        magic, code, size = form.unpack_from(start)
        spec = frame_of_code(protocol, code, dialect=observer.dialect)
        known = next(f.const for f in layout.fields if f.path == "magic")
        if spec is None or magic != known or form.size + size != event.length:
            return None
        reading = read(spec, start, dialect=observer.dialect)
        fields = {k: plain(v) for k, v in reading.values.items()}
        fields["not_captured"] = max(0, event.length - len(start))
        totals = self.totals[event.direction]
        totals.accounted += event.length
        totals.frames[spec.full_name] += 1
        return self._row(
            event.direction, spec.protocol, observer.dialect, spec.name,
            event.stream_offset, event.length, fields, None,
            self._due(event.direction, ()), self._table.run_of(self.number),
        )  # fmt: skip

    def _skipped(self, event: Skipped, observer: StreamObserver) -> FrameRow:
        direction = event.direction
        cut = self._cut(event, observer)
        if cut is not None:
            return cut
        self.totals[direction].lose(event.length, event.reason)
        fields: dict[str, Any] = {"reason": event.reason}
        if event.reason == "truncated":
            fields |= self._announced(event, observer)
        return self._row(
            direction, observer.protocol, observer.dialect, UNDECODED,
            event.stream_offset, event.length, fields, None,
            self._due(direction, ()), self._table.run_of(self.number),
        )  # fmt: skip

    def _announced(self, event: Skipped, observer: StreamObserver) -> dict[str, Any]:
        """Return which frame a cut one is, and its whole length, where both show."""
        start, protocol = self._start[event.direction], observer.protocol
        if protocol not in ("DS4D", "DS4T") or event.length < len(start):
            return {}
        ahead = self._violations[event.direction]
        if any((problem.clause or "").startswith("DS4T-HELLO") for problem in ahead):
            return {}  # a hello has no header: its version would pass for a type
        layout = header_of(protocol)
        form = struct_of(layout, "*")
        if len(start) < form.size:
            return {}
        magic, code, size = form.unpack_from(start)
        spec = frame_of_code(protocol, code, dialect=observer.dialect)
        known = next(f.const for f in layout.fields if f.path == "magic")
        if spec is None or magic != known or event.length >= form.size + size:
            return {}
        return {"frame": spec.name, "announced": form.size + size}

    def _due(
        self, direction: Direction, problems: tuple[Problem, ...]
    ) -> tuple[Problem, ...]:
        """Return the problems of a row: those said ahead of it, then its own."""
        ahead = self._violations[direction]
        if not ahead:
            return problems
        self._violations[direction] = []
        return (*ahead, *(p for p in problems if p not in ahead))

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
        offset += self.base[direction]
        marks = self.marks[direction]
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
        src, dst = self._addresses
        role = self._table.roles.get
        src_role = role(self._sides[0]) or src
        dst_role = role(self._sides[1]) or dst
        if direction == "b>a":
            src, dst, src_role, dst_role = dst, src, dst_role, src_role
        return FrameRow(
            0 if run is None else run.number,
            self.number,
            direction,
            protocol,
            dialect,
            kind,
            (last[1] - self._start_ns) / 1e9,
            offset,
            length,
            first[0],
            last[0],
            fields,
            problems,
            (first[1] - self._start_ns) / 1e9,
            last[1] / 1e9,
            src,
            dst,
            src_role,
            dst_role,
            payload,
        )

    def _learn(self, event: FrameReceived) -> tuple[Run | None, Request | None]:
        """Tell the run table what a frame shows; get the run and what is answered."""
        table, number, f = self._table, self.number, event.fields
        spec, name = event.spec, event.spec.name
        sender: Side = "a" if event.direction == "a>b" else "b"
        if spec.protocol != "DS4D":
            kind = "data" if name.startswith(("GATE", "BARRIER")) else "control"
            run = table.any_run(number, self.b, "DS4T", kind)
            if name == "HELLO":
                table.tp_hello(run, number, sender, f)
            return run, None
        if name == "WORK":
            return table.work(number, self.b, sender, f), None
        if name == "RESULT":
            asked = table.answer(number, int(f["request"]))
            return table.any_run(number, self.b, "DS4D", "data"), asked
        if name == "HELLO":
            return table.hello(number, self.a, self.b, sender, f), None
        if name.startswith("SNAPSHOT"):
            asks = name in ("SNAPSHOT_SAVE_REQ", "SNAPSHOT_LOAD_BEGIN")
            request = int(f["request"])
            return table.snapshot(number, self.b, sender, request, asks=asks), None
        return table.any_run(number, self.b, "DS4D", "data"), None


def _misfits(problems: tuple[Problem, ...]) -> bool:
    return any(
        problem.fatal
        or problem.clause in MISFITS
        or (problem.clause, problem.found) == _NO_HOST
        for problem in problems
    )
