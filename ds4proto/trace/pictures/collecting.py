"""Rows in, a picture out, in one pass; what is kept of each frame is capped."""

from __future__ import annotations

import re
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from ds4proto.printable import counted, printable
from ds4proto.trace.pictures.bins import FIRST_WIDTH_S, Peaks, Sums
from ds4proto.trace.pictures.heat import ActivationRange, GateSkew
from ds4proto.trace.pictures.model import FRAMES, Picture, Remark
from ds4proto.trace.pictures.oddities import Oddity
from ds4proto.trace.pictures.spans import Spans
from ds4proto.trace.pictures.values import cut, shown
from ds4proto.trace.rows import FrameRow
from ds4proto.trace.text import fields_text, payload_text, problem_text

__all__ = ["CHUNK", "PROBLEM", "REVERSE", "UNDECODED_FLAG", "Collector"]

CHUNK: Final = 1000
"""Frames of one block of details."""
LANES: Final = 64
MAPPED_RUNS: Final = 64
"""Runs that get heat maps; each takes about a megabyte."""
PROBLEM, UNDECODED_FLAG, REVERSE = 1, 2, 4
"""Bits of a frame's flags: breaks a rule; is no frame; goes from b to a."""
_OPEN: Final = 65_536
_OTHERS: Final = "others"
_DIGITS: Final = re.compile(r"\d+")


class Collector:
    """Takes rows; `picture` returns what is to be drawn.

    Parameters
    ----------
    limit : int
        Frames held one by one; those behind are counted alone.
    gates : callable
        Says the row gates a token of a run, for the token that a gate belongs to.
    """

    def __init__(
        self,
        *,
        limit: int = FRAMES,
        gates: Callable[[int], int | None] = lambda _run: None,
    ) -> None:
        self.gates = gates
        self.rows = 0
        self._limit = limit
        self._lanes: dict[tuple[int, str], int] = {}
        self._nodes: list[dict[str, Any]] = []
        self._types: dict[str, int] = {}
        self._type_frames: Counter[str] = Counter()
        self._type_bytes: Counter[str] = Counter()
        self._times = {
            name: array("d") for name in ("time", "first", "length", "offset")
        }
        self._codes = {
            name: array("I")
            for name in ("stream", "packet", "first_packet", "type", "source", "target")
        }
        self._flags = array("B")
        self._chunk: list[Any] = []
        self._details: list[bytes] = []
        self._encoder = msgspec.json.Encoder()
        self._spans = Spans()
        self._span_rows: list[list[float]] = []
        self._bytes: dict[int, Sums] = {}
        self._frames = Sums()
        self._in_flight = Peaks()
        self._asked: set[tuple[int, int]] = set()
        self._skew: dict[int, GateSkew] = {}
        self._ranges: dict[int, ActivationRange] = {}
        self._mapped: set[int] = set()
        self._unmapped = False
        self._odd: dict[str, Oddity] = {}
        self._end = 0.0
        self._heads = False

    def add(self, row: FrameRow, head: bytes = b"") -> None:
        """Take a row and its first bytes, as far as they are known."""
        source = self._lane(row.run, row.src_role, row.src)
        target = self._lane(row.run, row.dst_role, row.dst)
        self._count(row, source, target)
        if self.rows <= self._limit:
            self._keep(row, source, target)
            self._describe(row, head)

    def _count(self, row: FrameRow, source: int, target: int) -> None:
        self.rows += 1
        self._end = max(self._end, row.time)
        name = row.name if row.is_frame else row.type
        self._types.setdefault(name, len(self._types))
        self._type_frames[name] += 1
        self._type_bytes[name] += row.length
        for problem in row.problems:
            odd = self._odd.setdefault(
                problem.clause, Oddity("error", printable(problem_text(problem)))
            )
            odd.add(row)
        if not row.is_frame:
            reason = printable(str(row.fields.get("reason", "")))
            odd = self._odd.setdefault(f"bytes: {reason}", Oddity("warning", reason))
            odd.add(row)
        sums = self._bytes.setdefault(source, Sums())
        sums.spread(row.first_time, row.time, row.length)
        self._frames.add(row.time, 1)
        if row.is_frame:
            self._follow(row, source, target)

    def _follow(self, row: FrameRow, source: int, target: int) -> None:
        """Watch requests, gates and values."""
        if row.type in ("WORK", "RESULT") and "request" in row.fields:
            self._requests(row)
            span = self._spans.add(row, source, target)
            if span is not None and len(self._span_rows) < self._limit:
                times = (span.begin, span.passed_on, span.end)
                self._span_rows.append([span.node, *times, span.request])
        gates = self.gates(row.run)
        mapped = self._is_mapped(row.run)
        if mapped and row.type.startswith("GATE"):
            skew = self._skew.setdefault(row.run, GateSkew())
            change = skew.add(row, gates)
            if change:
                self._in_flight.step(row.time, change)
        if mapped and row.payload is not None:
            found = self._ranges.setdefault(row.run, ActivationRange())
            found.add(row, gates)

    def _is_mapped(self, run: int) -> bool:
        """Tell whether a run has heat maps: an endless run of reconnects has some."""
        if run not in self._mapped:
            if len(self._mapped) >= MAPPED_RUNS:
                self._unmapped = True
                return False
            self._mapped.add(run)
        return True

    def _requests(self, row: FrameRow) -> None:
        """Count what the coordinator waits for; later hops carry the same requests."""
        key = row.stream, int(row.fields["request"])
        if row.type == "WORK":
            first_hop = not row.fields.get("route_index")
            room = len(self._asked) < _OPEN  # answers that never come
            if first_hop and room and key not in self._asked:
                self._asked.add(key)
                self._in_flight.step(row.time, 1)
        elif key in self._asked:
            self._asked.discard(key)
            self._in_flight.step(row.time, -1)

    def _lane(self, run: int, role: str, address: str) -> int:
        found = self._lanes.get((run, role))
        if found is None:
            if len(self._nodes) >= LANES:  # an endless run of reconnects
                run, role, address = 0, _OTHERS, ""
                if (run, role) in self._lanes:
                    return self._lanes[run, role]
            found = self._lanes[run, role] = len(self._nodes)
            self._nodes.append(
                {"run": run, "role": printable(role), "address": printable(address)}
            )
        return found

    def _keep(self, row: FrameRow, source: int, target: int) -> None:
        times, codes = self._times, self._codes
        times["time"].append(row.time)
        times["first"].append(row.first_time)
        times["length"].append(row.length)
        times["offset"].append(row.stream_offset)
        codes["stream"].append(row.stream)
        codes["packet"].append(row.last_packet)
        codes["first_packet"].append(row.first_packet)
        codes["type"].append(self._types[row.name if row.is_frame else row.type])
        codes["source"].append(source)
        codes["target"].append(target)
        self._flags.append(
            (PROBLEM if row.problems else 0)
            | (0 if row.is_frame else UNDECODED_FLAG)
            | (REVERSE if row.direction == "b>a" else 0)
        )

    def _describe(self, row: FrameRow, head: bytes) -> None:
        line = fields_text(row, self.gates(row.run)) if row.is_frame else ""
        if row.payload is not None:
            line = f"{line}  {payload_text(row.payload)}".strip()
        fields = {key: shown(value) for key, value in row.fields.items()}
        fields |= {
            "offset in the stream": shown(row.stream_offset),
            "dialect": printable(row.dialect),
        }
        problems = [printable(problem_text(problem)) for problem in row.problems]
        line = cut(printable(line))
        self._heads = self._heads or bool(head)
        self._chunk.append([line, fields, problems, head.hex()])
        if len(self._chunk) == CHUNK:
            self._close_chunk()

    def _close_chunk(self) -> None:
        self._details.append(zlib.compress(self._encoder.encode(self._chunk), 6))
        self._chunk = []

    def remarks(self) -> list[Remark]:
        """Return what is odd in the rows: broken rules, bytes of no frame."""
        found = [odd.remark(name) for name, odd in self._odd.items()]
        return sorted(found, key=lambda one: one.severity != "error")

    def picture(
        self,
        *,
        title: str,
        remarks: Iterable[Remark] = (),
        summary: dict[str, Any] | None = None,
        notes: Iterable[str] = (),
    ) -> Picture:
        """Return what was collected; call it when all rows have passed.

        Parameters
        ----------
        title : str
            Shown on top; the name of the capture.
        remarks : iterable of Remark
            Findings to list.
        summary : dict, optional
            More counts to show.
        notes : iterable of str
            Warnings to show.
        """
        if self._chunk:
            self._close_chunk()
        held = len(self._flags)
        places = self._places()
        said = list(notes)
        if held < self.rows:
            said.append(
                f"{held} of {counted(self.rows, 'frame')} are held one by one; charts, "
                "heat maps "
                "and totals count all of them"
            )
        if any(one["role"] == _OTHERS for one in self._nodes):
            said.append(f"more than {LANES} nodes: the rest share one lane")
        if self._unmapped:
            said.append(
                f"more than {MAPPED_RUNS} runs: the rest have no heat maps, and their "
                "gates are not among those in flight"
            )
        return Picture(
            title=printable(title),
            summary={
                "frames": self.rows,
                "bytes": sum(self._type_bytes.values()),
                "seconds": self._end,
                **({"frames held": held} if held < self.rows else {}),
                **(summary or {}),
            },
            types=[
                {
                    "name": name,
                    "frames": self._type_frames[name],
                    "bytes": self._type_bytes[name],
                }
                for name in self._types
            ],
            nodes=self._named(places),
            frames=self._columns(places),
            details=self._details,
            spans=[[int(places[int(lane)]), *rest] for lane, *rest in self._span_rows],
            series=self._series(places),
            heat=self._heat(),
            remarks=[remark.printable() for remark in remarks],
            notes=[printable(note) for note in said],
            heads=self._heads,
        )

    def _places(self) -> npt.NDArray[np.uint32]:
        """Return where each lane is drawn: who leads first, then by layer."""
        order = sorted(range(len(self._nodes)), key=lambda at: _rank(self._nodes[at]))
        places = np.zeros(len(order), np.uint32)
        places[order] = np.arange(len(order))
        return places

    def _named(self, places: npt.NDArray[np.uint32]) -> list[dict[str, Any]]:
        several = len({node["run"] for node in self._nodes if node["run"]}) > 1
        found = [self._nodes[at] for at in np.argsort(places)]
        for node in found:
            run = f"run {node['run']}: " if several and node["run"] else ""
            node["name"] = run + node["role"]
        return found

    def _columns(self, places: npt.NDArray[np.uint32]) -> dict[str, Any]:
        found: dict[str, Any] = {n: np.array(held) for n, held in self._times.items()}
        for name, held in self._codes.items():
            column = np.array(held, np.uint32)
            found[name] = places[column] if name in ("source", "target") else column
        found["flags"] = np.array(self._flags, np.uint8)
        return found

    def _series(self, places: npt.NDArray[np.uint32]) -> dict[str, Any]:
        every = [self._frames, self._in_flight, *self._bytes.values()]
        width = max((one.width for one in every), default=FIRST_WIDTH_S)
        count = int(self._end / width) + 1
        return {
            "width": width,
            "frames": self._frames.values(width, count),
            "in_flight": self._in_flight.values(width, count),
            "bytes": {
                str(places[lane]): [round(v, 3) for v in sums.values(width, count)]
                for lane, sums in sorted(
                    self._bytes.items(), key=lambda one: int(places[one[0]])
                )
            },
        }

    def _heat(self) -> list[dict[str, Any]]:
        found = []
        for run, skew in sorted(self._skew.items()):
            found.append((run, skew.map))
        for run, ranges in sorted(self._ranges.items()):
            found.append((run, ranges.map))
        return [heat.document(run) for run, heat in found if heat]


def _rank(node: dict[str, Any]) -> tuple[bool, int, bool, list[int], str]:
    """Order lanes: known runs, then who leads, then by first layer."""
    role = node["role"]
    layers = [int(digits) for digits in _DIGITS.findall(role)]
    leads = role in ("coordinator", "leader")
    return node["run"] == 0, node["run"], not leads, layers, role
