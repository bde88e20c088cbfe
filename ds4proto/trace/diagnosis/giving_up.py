"""Who gave up first, and why: requests without answers, gates without partners."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ds4proto.printable import counted
from ds4proto.trace.diagnosis.check import STALL, Scene
from ds4proto.trace.diagnosis.connections import Connection, Connections
from ds4proto.trace.diagnosis.finding import Finding, in_its_wake, proof
from ds4proto.trace.diagnosis.hops import Pipelines
from ds4proto.trace.diagnosis.spread import ms
from ds4proto.trace.rows import FrameRow

__all__ = ["GivingUpCheck"]

SOON: Final = 0.02
"""Seconds within which nobody gives up waiting for an answer."""


class GivingUpCheck:
    """Ends of DS4D connections, and requests that were never answered."""

    def __init__(
        self, scene: Scene, connections: Connections, pipelines: Pipelines
    ) -> None:
        self._scene = scene
        self._connections = connections
        self._pipelines = pipelines
        self._answered: dict[int, FrameRow] = {}
        self._last_of_run: dict[int, float] = {}

    def add(self, row: FrameRow) -> None:
        """Take the next row."""
        if row.protocol != "DS4D" or not row.is_frame:
            return
        if row.type == "RESULT":
            self._answered[row.stream] = row
        if row.type in ("WORK", "RESULT"):
            self._last_of_run[row.run] = row.time

    def findings(self) -> Iterator[Finding]:
        """Answer run by run; what ended first is the cause, the rest follows."""
        found: list[tuple[float, Finding]] = []
        for stream in sorted(self._pipelines.waiting_streams):
            held = self._connections.all.get(stream)
            if held is not None:
                found.append(self._unanswered(held))
        first: dict[int, float] = {}
        for time, finding in found:
            if finding.severity == "severe":
                first[finding.run] = min(time, first.get(finding.run, time))
        for time, finding in found:
            if finding.severity == "severe" and time > first[finding.run]:
                yield in_its_wake(finding)
            else:
                yield finding
        waiting = self._pipelines.waiting_streams
        told: set[int] = set(first)
        for held in sorted(self._connections.all.values(), key=_end_of):
            if held.stream in waiting:
                continue
            for finding in self._left(held):
                if finding.severity != "note" or finding.run not in told:
                    yield finding
                told.add(finding.run)

    def _unanswered(self, held: Connection) -> tuple[float, Finding]:
        rows = sorted(self._pipelines.waiting(held.stream), key=lambda row: row.time)
        row = rows[0]
        f, run = row.fields, row.run
        what = (
            f"request {f['request']} (position {f['pos0']}, "
            f"{counted(f['n_tokens'], 'token')}, "
            f"layers {f['layer_start']}:{f['layer_end']})"
        )
        if len(rows) > 1:
            what += f" and {len(rows) - 1} more"
        last = self._answered.get(held.stream)
        before = (
            f"; the last request it answered is {last.fields['request']} at "
            f"{last.time:.3f} s" if last is not None
            else "; it answered none before"
        )  # fmt: skip
        close = next((c for c in held.closes if c.time >= row.first_time), None)
        evidence = [proof(row, self._scene.file, "never answered")]
        if close is not None:
            evidence.append(self._connections.close_proof(held, close))
        sender = "a" if row.direction == "a>b" else "b"
        back = "b>a" if sender == "a" else "a>b"
        if self._connections.hid(held.stream, back, row.first_time):
            return row.time, Finding(
                "unknown.lost-answer", "note", "certain",
                f"whether {what} was answered the capture cannot tell: bytes of "
                f"{row.dst_role}'s direction behind it are not in it",
                {"request": f["request"], "open": len(rows)},
                (proof(row, self._scene.file, "no answer to see"),),
                "record again without loss, or give the whole capture",
                run, self._scene.file,
            )  # fmt: skip
        numbers: dict[str, float | int | str] = {
            "request": f["request"], "open": len(rows), "hop": row.dst_role,
        }  # fmt: skip
        if close is None:
            return self._open_end(held, row, what, before, numbers)
        wait = close.time - row.time
        numbers["waited_ms"] = round(wait * 1e3, 3)
        if close.side == sender and last is not None and last.time >= close.time:
            return close.time, Finding(
                "end.cancelled", "warning", "likely",
                f"{row.src_role} {close.verb} the connection with {what} open, while "
                f"{row.dst_role} still answered{before}: a request was cancelled, or "
                f"{row.src_role} was interrupted; {row.dst_role} is sound, and leaves "
                "the route with that connection",
                numbers, tuple(evidence),
                "a coordinator that keeps its connection drops the answers that are "
                "late, and begins the next prompt with a reset: use a build that "
                f"does, or wait until {row.dst_role} has registered again",
                run, self._scene.file,
            )  # fmt: skip
        if close.side == sender and wait < SOON:
            return close.time, Finding(
                "end.peer-gone", "severe", "possible",
                f"the connection ended {ms(wait)} after {what}, too soon for "
                f"{row.src_role} to have given up: {row.dst_role} had gone, or "
                f"{row.src_role} was interrupted{before}",
                numbers, tuple(evidence),
                f"look at the last lines of {row.dst_role} first: killed, crashed, out "
                "of memory", run, self._scene.file,
            )  # fmt: skip
        if close.side == sender:
            return close.time, Finding(
                "end.gave-up", "severe", "certain",
                f"{row.src_role} gave up first: it {close.verb} the connection "
                f"{ms(wait)} after {what}, which {row.dst_role} never answered{before}"
                f"; nothing had passed for {ms(close.quiet)}",
                numbers, tuple(evidence),
                f"{row.dst_role} was silent: look at its last lines and its load, "
                "whether it waits for the hop behind it, and at the time limit of "
                f"{row.src_role}", run, self._scene.file,
            )  # fmt: skip
        return close.time, Finding(
            "end.peer-gone", "severe", "certain",
            f"{row.dst_role} went away first: it {close.verb} the connection "
            f"{ms(wait)} after {what} came, without an answer{before}",
            numbers, tuple(evidence),
            f"look at the last lines of {row.dst_role}: killed, crashed, out of "
            "memory, or its own error; a reset points to a process that died",
            run, self._scene.file,
        )  # fmt: skip

    def _open_end(
        self,
        held: Connection,
        row: FrameRow,
        what: str,
        before: str,
        numbers: dict[str, float | int | str],
    ) -> tuple[float, Finding]:
        quiet = self._connections.end - max(held.last, row.time)
        numbers["silent_ms"] = round(quiet * 1e3, 3)
        stalled = quiet >= STALL
        return row.time, Finding(
            "stall.request" if stalled else "unknown.capture-end",
            "severe" if stalled else "note",
            "likely" if stalled else "possible",
            f"{what} waits for {row.dst_role}, silent since {held.last:.3f} s: "
            f"{ms(quiet)} until the capture ends, the connection stays open{before}"
            if stalled else
            f"the capture ends with {what} on its way to {row.dst_role}: whether an "
            "answer came later it cannot tell",
            numbers, (proof(row, self._scene.file, "never answered"),),
            f"look whether {row.dst_role} is alive (stopped, swapping, a wait of its "
            "own), and whether the network drops its packets" if stalled else
            "record longer", row.run, self._scene.file,
        )  # fmt: skip

    def _left(self, held: Connection) -> Iterator[Finding]:
        """Tell who ended a connection with nothing to answer."""
        run = self._scene.run_number(held.stream)
        close = held.ended
        watched = held.kind in ("control", "forward")
        if close is None or not run or not watched or not held.frames:
            return
        if self._connections.blind(run):
            return  # a request may have been open in the hole
        who = self._connections.role(held, close.side)
        if who == "leader" or "tp-" in who or not self._is_pipeline(run):
            return
        other = self._connections.role(held, "b" if close.side == "a" else "a")
        left = who.startswith("worker") and other == "coordinator"
        went_on = self._last_of_run.get(run, 0) > close.time
        quiet = close.quiet >= STALL
        code = "end.after-silence" if quiet else "end.closed"
        step = ""
        if left:
            code = "end.worker-left"
            step = f"look why {who} ended: its last lines, an error frame before it"
        elif quiet:
            step = (
                f"if that was no pause of the user: what {who} sent last was lost "
                "before the place of the recording, and it gave up waiting"
            )
        yield Finding(
            code, "warning" if left else "note", "certain",
            f"{who} {close.verb} its connection with {other} first, at "
            f"{close.time:.3f} s, with no request open"
            + (f", after {ms(close.quiet)} of silence" if quiet else "")
            + (", and the run went on" if went_on and left else
               ": the route ends with it" if left else ""),
            {"time_s": round(close.time, 6), "side": who},
            (self._connections.close_proof(held, close),),
            step, run, self._scene.file,
        )  # fmt: skip

    def _is_pipeline(self, number: int) -> bool:
        runs = self._scene.decoder.decoder.runs
        return 0 < number <= len(runs) and runs[number - 1].protocol == "DS4D"


def _end_of(held: Connection) -> float:
    return held.ended.time if held.ended is not None else float("inf")
