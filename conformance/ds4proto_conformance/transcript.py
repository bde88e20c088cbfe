"""What crossed the connections of one case, kept as bytes and decoded on demand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from ds4proto.link.events import Direction, FrameReceived
from ds4proto.schema.problem import Problem
from ds4proto.trace.rows import plain

__all__ = ["Line", "Transcript"]

HEX_BYTES: Final = 96
"""Bytes of each frame that a report shows."""
MAX_FRAMES: Final = 60
"""Frames of one case that a report shows."""
MAX_BYTES: Final = 8 << 20
"""Bytes of one connection that are kept."""


@dataclass(slots=True)
class Line:
    """One connection: pieces in the order in which they crossed.

    Attributes
    ----------
    dialled_by_us : bool
    pieces : list of (bool, float, bytes)
        Whether the peer sent it, when, and what; an empty piece is an end.
    judged : bool
        Whether what the peer sends here is its own, and not passed on from us.
    start : int
        Index of the first piece that belongs to the present case.
    """

    name: str
    protocol: str
    dialled_by_us: bool
    pieces: list[tuple[bool, float, bytes]] = field(default_factory=list)
    kept: int = 0
    start: int = 0
    judged: bool = True

    def note(self, from_peer: bool, now: float, data: bytes) -> None:
        """Keep one piece; neighbours of one sender are joined."""
        if self.kept + len(data) > MAX_BYTES:
            return
        self.kept += len(data)
        last = self.pieces[-1] if len(self.pieces) > self.start else None
        if last is not None and data and last[2] and last[0] == from_peer:
            self.pieces[-1] = (from_peer, now, last[2] + data)
        else:
            self.pieces.append((from_peer, now, data))

    def stream(self, from_peer: bool) -> bytes:
        """Return all bytes of one direction."""
        return b"".join(data for sender, _, data in self.pieces if sender == from_peer)

    def direction(self, from_peer: bool) -> Direction:
        """Return the observers' name of a direction."""
        return "b>a" if from_peer == self.dialled_by_us else "a>b"


class Transcript:
    """The connections of one case."""

    def __init__(self) -> None:
        self.lines: list[Line] = []

    def line(self, name: str, protocol: str, *, dialled_by_us: bool) -> Line:
        """Begin a connection."""
        made = Line(name, protocol, dialled_by_us)
        self.lines.append(made)
        return made

    def join(self, line: Line) -> None:
        """Go on with a connection of an earlier case: only what follows is shown."""
        line.start = len(line.pieces)
        self.lines.append(line)

    def events(self, dialect: str) -> list[tuple[Line, int, Any]]:
        """Return (line, index of the piece, event) of everything that crossed."""
        found: list[tuple[Line, int, Any]] = []
        for line in self.lines:
            found += [(line, i, e) for i, e in _events(line, dialect)]
        return found

    def problems(self, dialect: str) -> list[Problem]:
        """Return the rules that frames of the peer break, seen from outside."""
        return [
            problem
            for line, index, event in self.events(dialect)
            if isinstance(event, FrameReceived)
            and index >= line.start
            and line.judged
            and event.direction == line.direction(True)
            for problem in event.problems
        ]

    def frames(self, dialect: str) -> list[dict[str, Any]]:
        """Return what crossed as a report holds it, the oldest first."""
        rows = []
        for line, index, event in self.events(dialect):
            if index < line.start:
                continue
            from_peer, when, data = line.pieces[index]
            sender = "peer" if from_peer else "tester"
            row = _row(event, line.stream(from_peer), data)
            rows.append((when, {"on": line.name, "from": sender, **row}))
        rows.sort(key=lambda row: row[0])
        shown = [row for _, row in rows[:MAX_FRAMES]]
        if len(rows) > MAX_FRAMES:
            shown.append({"type": f"{len(rows) - MAX_FRAMES} more frames"})
        return shown


def _events(line: Line, dialect: str) -> list[tuple[int, Any]]:
    if line.protocol != "DS4D":
        return [(i, None) for i in range(len(line.pieces))]
    from ds4proto.link.ds4d_observer import Ds4dObserver, settled_candidates

    observer = Ds4dObserver(settled_candidates(dialect), settled=True)
    found: list[tuple[int, Any]] = []
    ended: set[bool] = set()
    for index, (from_peer, now, data) in enumerate(line.pieces):
        if from_peer in ended:
            continue
        if not data:
            ended.add(from_peer)
        direction = line.direction(from_peer)
        found += [(index, e) for e in observer.feed(direction, data or None, now)]
    return found


def _row(event: Any, stream: bytes, data: bytes) -> dict[str, Any]:
    if isinstance(event, FrameReceived):
        at = event.stream_offset
        data = stream[at : at + event.length]
        fields = {k: plain(v) for k, v in event.fields.items() if _shown(v)}
        row: dict[str, Any] = {
            "type": f"{event.spec.protocol}.{event.spec.name}",
            "length": event.length,
            "fields": fields,
        }
        if event.problems:
            row["problems"] = [str(problem) for problem in event.problems]
    else:
        kind = "end of stream" if not data else type(event).__name__
        reason = getattr(event, "reason", "")
        row = {"type": f"{kind} {reason}".strip(), "length": len(data)}
    row["hex"] = data[:HEX_BYTES].hex()
    return row


def _shown(value: Any) -> bool:
    return not isinstance(value, memoryview)
