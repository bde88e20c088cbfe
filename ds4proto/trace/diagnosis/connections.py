"""What each connection went through, whatever it spoke: opened, fed, closed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from ds4proto.pcap.types import Endpoint
from ds4proto.trace.decoder import ORDER_WINDOW
from ds4proto.trace.diagnosis.check import Scene
from ds4proto.trace.diagnosis.finding import Evidence
from ds4proto.trace.rows import FrameRow
from ds4proto.trace.tcp_events import (
    Closed,
    Data,
    Direction,
    Gap,
    Opened,
    StreamEvent,
    StreamStats,
)

__all__ = ["Close", "Connection", "Connections", "Hole"]

_CLOSES: Final = 6
_SHOWN_UNDECODED: Final = 4
_WAYS: Final[tuple[Direction, Direction]] = ("a>b", "b>a")
_MOST_HOLES: Final = 2 * ORDER_WINDOW
TRUST: Final = 32
"""Whole frames behind a hole from which what follows is judged as if it were not."""
_KIND: Final = {"fin": "closed", "rst": "reset"}


@dataclass(frozen=True, slots=True)
class Close:
    """One FIN or RST: who, when, and after how much silence of both sides."""

    side: str
    kind: str
    time: float
    packet: int
    quiet: float

    @property
    def verb(self) -> str:
        """``closed`` or ``reset``."""
        return _KIND.get(self.kind, self.kind)


@dataclass(slots=True)
class Hole:
    """Bytes of one direction that the capture lost or left out.

    Attributes
    ----------
    begin, end : float
        Time of the last bytes before it, and of the first ones behind it.
    until : float
        When the frames behind it made the connection known again.
    first, past : int
        Stream offsets of its first byte and of the one behind it; 0 where not known.
    """

    direction: str
    begin: float
    end: float
    first: int = 0
    past: int = 0
    until: float = float("inf")
    left: int = TRUST


@dataclass(slots=True)
class Connection:
    """One TCP connection.

    Attributes
    ----------
    opened, last : float
        Seconds since the first packet: of the first packet, of the last bytes.
    closes : list of Close
        In order; the first says who ended it.
    last_frame : dict
        Last whole frame of each direction.
    frames : int
    undecoded : list of FrameRow
        First few runs of bytes of no frame.
    holes : list of Hole
        What the capture lost or left out; of very many the last ones are joined.
    seen : dict
        Direction -> time of its last bytes.
    begun : bool
        Whether the capture holds its beginning.
    trusted : float
        When so many frames had passed that a beginning without them is of no matter.
    """

    stream: int
    a: Endpoint
    b: Endpoint
    opened: float
    packet: int
    syn_seen: bool
    last: float
    closes: list[Close] = field(default_factory=list)
    nbytes: dict[str, int] = field(default_factory=lambda: {"a>b": 0, "b>a": 0})
    last_frame: dict[str, FrameRow] = field(default_factory=dict)
    frames: int = 0
    undecoded: list[FrameRow] = field(default_factory=list)
    holes: list[Hole] = field(default_factory=list)
    seen: dict[str, float] = field(default_factory=dict)
    begun: bool = False
    trusted: float = float("inf")
    stats: StreamStats | None = None
    kind: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def ended(self) -> Close | None:
        """Who ended it first."""
        return self.closes[0] if self.closes else None

    def closed_by(self, side: str) -> Close | None:
        """Return the first FIN or RST of a side."""
        return next((close for close in self.closes if close.side == side), None)


class Connections:
    """Gathers the fate of every connection of a capture."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.all: dict[int, Connection] = {}
        self.end = 0.0
        self._by_run: dict[int, list[Connection]] = {}

    def saw(self, event: StreamEvent) -> None:
        """Take what TCP did."""
        if isinstance(event, Data):
            held = self.all[event.stream]
            held.nbytes[event.direction] += len(event.data)
            held.last = self._seconds(event.last_time_ns)
            held.seen[event.direction] = held.last
            self.end = max(self.end, held.last)
        elif isinstance(event, Gap):
            self._hole(self.all[event.stream], event)
        elif isinstance(event, Opened):
            time = self._seconds(event.time_ns)
            self.all[event.stream] = Connection(
                event.stream, event.a, event.b, time, event.packet, event.syn_seen,
                time, begun=event.syn_seen,
            )  # fmt: skip
            self.end = max(self.end, time)
        elif isinstance(event, Closed):
            held = self.all[event.stream]
            if len(held.closes) < _CLOSES:
                time = self._seconds(event.time_ns)
                side = event.direction[0]
                quiet = max(0.0, time - held.last)
                close = Close(side, event.kind, time, event.packet, quiet)
                held.closes.append(close)
                self.end = max(self.end, time)

    def add(self, row: FrameRow) -> None:
        """Take the next row."""
        held = self.all.get(row.stream)
        if held is None:
            return
        if row.is_frame:
            held.last_frame[row.direction] = row
            held.frames += 1
            held.begun = held.begun or (row.type == "HELLO" and not row.stream_offset)
            if held.frames == TRUST:
                held.trusted = row.time
            self._inside(held, row)
            self._heal(held, row)
            return
        if row.length and len(held.undecoded) < _SHOWN_UNDECODED:
            held.undecoded.append(row)

    @staticmethod
    def _inside(held: Connection, row: FrameRow) -> None:
        """Forget holes in a payload whose frame says its length: values alone."""
        if not held.holes or not held.syn_seen or row.protocol == "DS4B":
            return  # offsets count from the SYN; a bulk gate does not say its length
        past = row.stream_offset + row.length
        inside = []
        for place, hole in enumerate(held.holes):
            if hole.direction != row.direction or not hole.past:
                continue
            if hole.first >= past:
                break  # they come in order, some of them ahead of their rows
            if hole.first >= row.stream_offset and hole.past <= past:
                inside.append(place)
        for place in reversed(inside):
            del held.holes[place]

    @staticmethod
    def _heal(held: Connection, row: FrameRow) -> None:
        """Count a frame behind the last hole."""
        hole = held.holes[-1] if held.holes else None
        if hole is None or not hole.left or row.first_time < hole.end:
            return
        hole.left -= 1
        if not hole.left:
            for one in held.holes:
                one.until = min(one.until, row.time)

    def _hole(self, held: Connection, gap: Gap) -> None:
        begin = held.seen.get(gap.direction, held.opened)
        time = self._seconds(gap.time_ns)
        if len(held.holes) >= _MOST_HOLES:
            last = held.holes[-1]
            last.end, last.until, last.left = time, float("inf"), TRUST
            last.first = last.past = 0
            if last.direction != gap.direction:
                last.direction = ""
            return
        past = gap.offset + gap.length
        held.holes.append(Hole(gap.direction, begin, time, gap.offset, past))

    def settle(self) -> None:
        """Learn what the decoder knows at the end."""
        for watch in self._scene.decoder.decoder.ended:
            held = self.all.get(watch.number)
            if held is None:
                continue
            held.stats, held.kind, held.notes = watch.stats, watch.kind, watch.notes
            self.end = max(self.end, watch.last_time)
            for way in _WAYS:
                if held.stats is not None and held.stats.of(way).unseen_end_bytes:
                    begin = held.seen.get(way, held.opened)
                    held.holes.append(Hole(way, begin, watch.last_time))
        self._by_run.clear()
        for held in self.all.values():
            run = self._scene.run_number(held.stream)
            self._by_run.setdefault(run, []).append(held)

    def hid(
        self, stream: int, direction: str, since: float, until: float = float("inf")
    ) -> bool:
        """Tell whether a direction has a hole within a time: nobody knows its bytes."""
        held = self.all.get(stream)
        return held is not None and any(
            hole.end >= since and hole.begin <= until
            for hole in held.holes if hole.direction in (direction, "")
        )  # fmt: skip

    def holed(self, run: int) -> bool:
        """Tell whether the capture lost bytes of a run, or began inside it."""
        return any(held.holes or not held.begun for held in self.of_run(run))

    def doubtful(self, run: int, time: float) -> bool:
        """Tell whether what a run's frames said before a time is not all known.

        What follows from earlier frames (whose turn it is, how long a gate is) is not
        known behind a hole in any of its connections, until enough frames have passed
        there.
        """
        return any(
            hole.begin <= time <= hole.until
            for held in self.of_run(run)
            for hole in held.holes
        ) or any(not held.begun and time <= held.trusted for held in self.of_run(run))

    def blind(self, run: int) -> bool:
        """Tell whether a run has a direction that ends in a hole.

        Without its commands a pair's schedule is unknown, and so is how it ended.
        """
        for held in self.of_run(run):
            for hole in held.holes:
                last = held.last_frame.get(hole.direction)
                if last is None or last.time < hole.end:
                    return True
        return False

    def of_run(self, run: int) -> Iterator[Connection]:
        """Yield the connections of a run in order of appearance, once settled."""
        yield from self._by_run.get(run, ())

    def role(self, held: Connection, side: str) -> str:
        """Return who sits at a side."""
        table = self._scene.decoder.decoder.table
        role = table.role(held.stream, "a" if side == "a" else "b")
        end = held.a if side == "a" else held.b
        return role or table.worker_at(end) or str(end)

    def close_proof(self, held: Connection, close: Close) -> Evidence:
        """Return the evidence that a FIN or RST is."""
        way = "a>b" if close.side == "a" else "b>a"
        return Evidence(
            self._scene.file, held.stream, way, close.packet,
            time=round(close.time, 9), text=close.kind.upper(),
        )  # fmt: skip

    def _seconds(self, time_ns: int) -> float:
        start = self._scene.decoder.decoder.start_ns
        return max(0, time_ns - start) / 1e9 if start else 0.0
