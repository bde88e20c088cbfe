"""Headers of one gate that differ: both ranks wait for a payload that never comes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ds4proto.schema import frames
from ds4proto.schema.declare import FrameSpec, fields_of
from ds4proto.schema.fast import struct_of
from ds4proto.trace.diagnosis.check import STALL, Scene
from ds4proto.trace.diagnosis.connections import Connections
from ds4proto.trace.diagnosis.finding import Finding, proof
from ds4proto.trace.diagnosis.spread import ms
from ds4proto.trace.rows import FrameRow
from ds4proto.trace.tcp_events import Data, StreamEvent

__all__ = ["GateHeaders", "is_gate"]

_TAIL: Final = 64
"""Bytes kept of the end of each direction: more than any gate header has."""
_MOST: Final = 4096


class GateHeaders:
    """What stands in the headers of gates whose payload never came."""

    def __init__(self, scene: Scene, connections: Connections) -> None:
        self._scene = scene
        self._connections = connections
        self._tails: dict[tuple[int, str], tuple[int, bytes]] = {}
        self._lone: dict[int, dict[str, tuple[FrameRow, bytes]]] = {}

    def saw(self, event: StreamEvent) -> None:
        """Keep the last bytes of each direction."""
        if not isinstance(event, Data):
            return
        key = (event.stream, event.direction)
        size = len(event.data)
        data = bytes(event.data[max(0, size - _TAIL) :])
        end, before = self._tails.get(key, (0, b""))
        if size < _TAIL and end == event.offset:
            data = (before + data)[-_TAIL:]
        self._tails[key] = (event.offset + size, data)

    def add(self, row: FrameRow) -> None:
        """Take the next row."""
        if not is_gate_header(row) or len(self._lone) >= _MOST:
            return
        end, data = self._tails.get((row.stream, row.direction), (0, b""))
        if end == row.stream_offset + row.length and row.length <= len(data):
            held = self._lone.setdefault(row.stream, {})
            held[row.direction] = (row, data[-row.length :])

    def differing(self, stream: int) -> bool:
        """Tell whether both ranks ended a connection with headers that differ."""
        held = list(self._lone.get(stream, {}).values())
        if len({data for _, data in held}) < 2:
            return False
        (row, one), (_, two) = held
        if _words(row, one).get("seq") == _words(row, two).get("seq"):
            return True
        # without silence after it, one rank may just be a gate ahead
        ended = self._connections.all[stream].ended
        return ended is not None and ended.quiet >= STALL

    def findings(self) -> Iterator[Finding]:
        """Answer connection by connection."""
        for stream, held in self._lone.items():
            if self.differing(stream):
                yield self._one(stream, *sorted(held.values(), key=_leader_first))

    def _one(
        self, stream: int, one: tuple[FrameRow, bytes], two: tuple[FrameRow, bytes]
    ) -> Finding:
        (row, first), (other, second) = one, two
        mine, theirs = _words(row, first), _words(row, second)
        said = [
            f"{name} {theirs[name]}, the {row.src_role}'s {name} {mine[name]}"
            for name in mine if mine[name] != theirs.get(name)
        ]  # fmt: skip
        held = self._connections.all.get(stream)
        ended = None if held is None else held.ended
        rest = ""
        if ended is not None and held is not None:
            who = self._connections.role(held, ended.side)
            rest = f", until the {who} {ended.verb} the connection"
            if ended.quiet >= STALL:
                rest = f" for {ms(ended.quiet)}{rest}"
        return Finding(
            "rule.gate-header", "severe", "certain",
            f"the ranks sent different headers for one gate: the {other.src_role}'s "
            f"says {'; '.join(said)}. Neither sends its payload after that{rest}",
            {"differ": len(said)},
            (proof(row, self._scene.file), proof(other, self._scene.file)),
            "the ranks run different schedules or builds: compare prefill chunk, split "
            "threshold, model and build of both",
            row.run, self._scene.file,
        )  # fmt: skip


def is_gate(row: FrameRow) -> bool:
    """Tell whether a row is the beginning of a gate that was cut off."""
    if row.is_frame or row.fields.get("reason") != "truncated" or not row.problems:
        return False
    return row.problems[0].path.startswith("GATE")


def is_gate_header(row: FrameRow) -> bool:
    """Tell whether a row is a gate's header, and nothing of its payload."""
    spec = _spec_of(row) if is_gate(row) else None
    if spec is None:
        return False
    return row.length == struct_of(spec.body, row.dialect.rstrip("?")).size


def _spec_of(row: FrameRow) -> FrameSpec | None:
    """Return the gate that a row began as."""
    name = row.problems[0].path.partition(".")[0]
    if not name.startswith("GATE") or not row.dialect:
        return None
    declared = frames(dialect=row.dialect)
    return next((spec for spec in declared if spec.name == name), None)


def _words(row: FrameRow, data: bytes) -> dict[str, str]:
    """Return the fields of a header, as the gate of a row has them."""
    spec = _spec_of(row)
    if spec is None:
        return {}
    dialect = row.dialect.rstrip("?")
    form = struct_of(spec.body, dialect)
    if form.size != len(data):
        return {}
    fields = fields_of(spec.body, dialect)
    values = zip((one.path for one in fields), form.unpack(data), strict=True)
    return {path: _shown(path, value) for path, value in values}


def _shown(path: str, value: int) -> str:
    if path == "magic":
        return repr(value.to_bytes(4, "big").decode("ascii", "backslashreplace"))
    return f"{value:#06x}" if path == "tag" else str(value)


def _leader_first(one: tuple[FrameRow, bytes]) -> bool:
    return one[0].src_role != "leader"
