"""What each connection went through, whatever it spoke: opened, fed, closed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from ds4proto.pcap.types import Endpoint
from ds4proto.trace.diagnosis.check import Scene
from ds4proto.trace.diagnosis.finding import Evidence
from ds4proto.trace.rows import FrameRow
from ds4proto.trace.tcp_events import Closed, Data, Opened, StreamEvent, StreamStats

__all__ = ["Close", "Connection", "Connections"]

_CLOSES: Final = 6
_SHOWN_UNDECODED: Final = 4
_HOLES: Final = frozenset({"gap", "not captured"})
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
    holes : dict
        Direction -> time behind the last bytes that the capture lost or left out.
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
    holes: dict[str, float] = field(default_factory=dict)
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
            self.end = max(self.end, held.last)
        elif isinstance(event, Opened):
            time = self._seconds(event.time_ns)
            self.all[event.stream] = Connection(
                event.stream, event.a, event.b, time, event.packet, event.syn_seen, time
            )
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
            return
        if row.length and len(held.undecoded) < _SHOWN_UNDECODED:
            held.undecoded.append(row)
        if row.length and row.fields.get("reason") in _HOLES:
            held.holes[row.direction] = row.time

    def settle(self) -> None:
        """Learn what the decoder knows at the end."""
        for watch in self._scene.decoder.decoder.ended:
            held = self.all.get(watch.number)
            if held is None:
                continue
            held.stats, held.kind, held.notes = watch.stats, watch.kind, watch.notes
            self.end = max(self.end, watch.last_time)
        self._by_run.clear()
        for held in self.all.values():
            run = self._scene.run_number(held.stream)
            self._by_run.setdefault(run, []).append(held)

    def hid(self, stream: int, direction: str, since: float) -> bool:
        """Tell whether a direction has a hole behind a time: nobody knows its bytes."""
        held = self.all.get(stream)
        return held is not None and held.holes.get(direction, -1.0) >= since

    def blind(self, run: int) -> bool:
        """Tell whether a run has a direction that ends in a hole.

        Without its commands a pair's schedule is unknown, and so is how it ended.
        """
        for held in self.of_run(run):
            for way, time in held.holes.items():
                last = held.last_frame.get(way)
                if last is None or last.time <= time:
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
        for run in table.runs:
            role = role or run.workers.get(end)
        return role or str(end)

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
