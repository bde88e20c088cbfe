"""Rules of the specification that frames break, and bytes that are no frame at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from string import hexdigits
from typing import Final

from ds4proto.printable import counted
from ds4proto.schema.problem import Problem
from ds4proto.trace.diagnosis.check import STALL, Scene
from ds4proto.trace.diagnosis.connections import Connections
from ds4proto.trace.diagnosis.finding import Finding, proof
from ds4proto.trace.diagnosis.gate_headers import GateHeaders, is_gate
from ds4proto.trace.diagnosis.hops import Pipelines
from ds4proto.trace.diagnosis.spread import ms
from ds4proto.trace.diagnosis.tp_gates import Pairs, gate_name
from ds4proto.trace.diagnosis.tp_refusals import Refusals
from ds4proto.trace.rows import FrameRow

__all__ = ["RulesCheck"]

_MOST: Final = 4096
_MAGIC: Final = 4
_TOLD: Final = frozenset({"foreign", "before the first header", "not captured", "gap"})
_ELSEWHERE: Final = frozenset(
    {"DS4T-HELLO-05", "DS4T-HELLO-03", "DS4T-HELLO-30", "DS4D-RESULT-27"}
)
"""Clauses whose breach another check tells in full."""


@dataclass(slots=True)
class Breach:
    """One clause that one side breaks."""

    row: FrameRow
    problem: Problem
    count: int = 1
    last: tuple[FrameRow, Problem] | None = None


class RulesCheck:
    """Breaches by clause, and streams that fell out of step or were cut."""

    def __init__(
        self,
        scene: Scene,
        connections: Connections,
        pairs: Pairs,
        pipelines: Pipelines,
        headers: GateHeaders,
        refusals: Refusals,
    ) -> None:
        self._scene = scene
        self._refusals = refusals
        self._crossed = pipelines.crossed
        self._connections = connections
        self._headers = headers
        self._pairs = pairs
        self._breaches: dict[tuple[int, str, str], Breach] = {}
        self._cut: list[FrameRow] = []
        self._odd: dict[tuple[int, str], tuple[FrameRow, int]] = {}

    def add(self, row: FrameRow) -> None:
        """Take the next row."""
        told = row.fields.get("reason") == "truncated" and not row.is_frame
        for problem in () if told else row.problems:
            key = (row.run, row.src_role, problem.clause)
            held = self._breaches.get(key)
            if held is not None:
                held.count += 1
                held.last = row, problem
            elif len(self._breaches) < _MOST:
                self._breaches[key] = Breach(row, problem)
        if row.is_frame or not row.length:
            return
        reason = str(row.fields.get("reason", ""))
        if reason == "truncated":
            if len(self._cut) < _MOST:
                self._cut.append(row)
        elif reason not in _TOLD:
            first, nbytes = self._odd.get((row.stream, reason), (row, 0))
            self._odd[row.stream, reason] = (first, nbytes + row.length)

    def findings(self) -> Iterator[Finding]:
        """Answer by clause, then by connection."""
        told: list[FrameRow] = []
        for (run, role, clause), breach in self._breaches.items():
            self._in_the_clear(run, breach)
            refused = self._refusals.of(run)
            if refused is not None and refused.row is breach.row:
                told.append(breach.row)
                continue  # told with the end that followed
            of_length = breach.problem.path.endswith(".partial")
            if self._at_the_end(breach.row) and (of_length or not breach.row.is_frame):
                continue
            if clause not in _ELSEWHERE and not self._captured_late(breach):
                if breach.problem.fatal:
                    told.append(breach.row)
                yield self._breach(run, role, clause, breach)
        for row in self._cut:
            if self._headers.differing(row.stream):
                continue  # told together
            pair = self._pairs.runs.get(row.run)
            if is_gate(row) and (pair is None or not pair.handshake):
                continue  # without the hellos nobody knows how long it is
            held = self._connections.all.get(row.stream)
            begun = held is None or held.frames or held.ended is not None
            if begun or row.fields.get("frame"):
                yield self._truncated(row)  # half-open ones are told together
        for (_, reason), (row, nbytes) in self._odd.items():
            if self._at_the_end(row):
                continue  # the gate's length shows only in what would follow
            if any(row is one for one in told):
                continue  # the rule that it breaks says more
            yield Finding(
                "frame.out-of-step", "severe", "certain",
                f"{row.src_role} -> {row.dst_role}: {counted(nbytes, 'byte', 'are')} "
                "no frame "
                f"({reason}), the first at byte {row.stream_offset} of the stream",
                {"bytes": nbytes, "reason": reason}, (proof(row, self._scene.file),),
                "the frame before had another length than announced, bytes were lost "
                "or changed on the way, or another program speaks here",
                row.run, self._scene.file,
            )  # fmt: skip

    def _in_the_clear(self, run: int, held: Breach) -> None:
        """Take the last time as the one to show, where a hole may explain the first."""
        if held.last is not None and self._connections.doubtful(run, held.row.time):
            held.row, held.problem = held.last

    def _at_the_end(self, row: FrameRow) -> bool:
        """Tell whether a gate was not over when the capture ended."""
        if row.protocol != "DS4B" or (row.is_frame and row.type != "GATE_BULK"):
            return False
        held = self._connections.all.get(row.stream)
        if held is None or held.ended is not None:
            return False
        return row.time >= held.seen.get(row.direction, 0.0)

    def _captured_late(self, held: Breach) -> bool:
        """Tell whether an answer only seems to come out of turn.

        Where a WORK was captured behind its own answer, the decoder waits for another.
        """
        due = held.problem.expected.partition(",")[0]
        late = held.problem.clause == "DS4D-RESULT-21" and due.isdecimal()
        return late and (held.row.stream, int(due)) in self._crossed

    def _breach(self, run: int, role: str, clause: str, held: Breach) -> Finding:
        row, problem = held.row, held.problem
        place = ""
        pair = self._pairs.runs.get(run)
        if row.type.startswith("GATE") and pair is not None:
            place = f" at {gate_name(row, pair.schedule)}"
        where = f" in {row.type}" if row.is_frame else ""
        severe = problem.fatal or row.type.startswith("GATE")
        return Finding(
            "rule.broken", "severe" if severe else "warning", "certain",
            f"{role} breaks {clause}{where}{place}: {problem.path} is "
            f"{_spelled(problem.found)}, expected {problem.expected}"
            + ("" if row.is_frame else
               f"; {counted(row.length, 'byte', 'are')} no frame")
            + (f" ({counted(held.count, 'time')})" if held.count > 1 else ""),
            {"times": held.count, "field": problem.path},
            (proof(row, self._scene.file),),
            problem.next_step or f"ds4proto spec show {clause}",
            run, self._scene.file, clause,
        )  # fmt: skip

    def _truncated(self, row: FrameRow) -> Finding:
        held = self._connections.all.get(row.stream)
        f = row.fields
        frame, total = str(f.get("frame", "")), int(f.get("announced", 0))
        if frame and total:
            what = (
                f"inside {frame}: {row.length} of {counted(total, 'byte')} came, "
                f"{total - row.length} {'is' if total - row.length == 1 else 'are'} "
                "missing"
            )
        elif row.problems:
            problem = row.problems[0]
            what = (
                f"inside {_part(problem.path)}: {counted(row.length, 'byte')} of it "
                f"came; expected {problem.expected}, found {problem.found}"
            )
        elif frame:
            what = f"inside {frame}: {counted(row.length, 'byte')} of it came"
        else:
            what = f"inside a header: {counted(row.length, 'byte')} of it came"
        side = "a" if row.direction == "a>b" else "b"
        src, dst = row.src_role, row.dst_role
        if held is not None:
            src = self._connections.role(held, side)
            dst = self._connections.role(held, "b" if side == "a" else "a")
        close = None if held is None else held.closed_by(side)
        other = None if held is None else held.ended
        last = self._last(row)
        numbers: dict[str, float | int | str] = {
            "received": row.length, "announced": total,
        }  # fmt: skip
        evidence = [proof(row, self._scene.file, "cut off")]
        quiet = 0.0 if held is None else self._connections.end - held.last
        if other is None and quiet >= STALL:
            numbers["silent_ms"] = round(quiet * 1e3, 3)
            return Finding(
                "stall.inside-frame", "severe", "likely",
                f"{src} -> {dst} stood still {what}; then nothing "
                f"for {ms(quiet)} until the capture ends, the connection stays "
                f"open{last}", numbers, tuple(evidence),
                f"{src} stopped while it sent, or the network lets nothing "
                "through: look whether it is stopped or swaps, and at the link",
                row.run, self._scene.file,
            )  # fmt: skip
        if held is None or other is None:
            return Finding(
                "unknown.capture-end", "note", "possible",
                f"the capture ends {what}, from {src}; whether the rest came "
                f"it cannot tell{last}", numbers, tuple(evidence), "record longer",
                row.run, self._scene.file,
            )  # fmt: skip
        evidence.append(self._connections.close_proof(held, close or other))
        who = src if other.side == side else dst
        way = f"{src} -> {dst}"
        if other.quiet >= STALL:
            numbers["silent_ms"] = round(other.quiet * 1e3, 3)
            return Finding(
                "stall.inside-frame", "severe", "certain",
                f"{way} stood still {what}; then nothing for {ms(other.quiet)}, until "
                f"{who} {other.verb} the connection at {other.time:.3f} s{last}",
                numbers, tuple(evidence),
                f"{src} stopped while it sent, or the network lets nothing "
                "through: look at its last lines, whether it is stopped or swaps, and "
                "at the link", row.run, self._scene.file,
            )  # fmt: skip
        return Finding(
            "end.cut-off", "severe", "certain",
            f"{way} was cut off {what}; {who} {other.verb} the connection first, at "
            f"{other.time:.3f} s, {ms(other.quiet)} after the last byte{last}",
            numbers, tuple(evidence),
            f"look why {who} ended there: its last lines; the other side only saw the "
            "end", row.run, self._scene.file,
        )  # fmt: skip

    def _last(self, row: FrameRow) -> str:
        held = self._connections.all.get(row.stream)
        if held is None or not held.last_frame:
            return "; no whole frame came before"
        parts = []
        for way, frame in sorted(held.last_frame.items()):
            request = frame.fields.get("request", frame.fields.get("seq", ""))
            shown = f" {request}" if request != "" else ""
            parts.append(f"{frame.type}{shown} from {frame.src_role} ({way})")
        return f"; last whole frames: {', '.join(parts)}"


def _part(path: str) -> str:
    """Return the frame that a problem's path begins with, or that it is a header."""
    name = path.partition(".")[0]
    return "a header" if name == "header" else name


def _spelled(found: str) -> str:
    """Return four bytes also as text, where they are some: another program speaks."""
    digits = found.removeprefix("0x")
    if len(digits) != 2 * _MAGIC or set(digits.lower()) - set(hexdigits):
        return found
    text = bytes.fromhex(digits).decode("latin-1")
    return f"{found} ({text!r})" if text.isascii() and text.isprintable() else found
