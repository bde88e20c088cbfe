"""Answers from plain ds4 logs: what the lines mean, and where in the model they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TextIO

from ds4proto.link.schedule import Schedule, gate_of
from ds4proto.printable import counted
from ds4proto.trace.diagnosis.finding import Evidence, Finding, Severity
from ds4proto.trace.diagnosis.known_texts import UNKNOWN, meaning_of
from ds4proto.trace.ds4_logs import (
    MOST_LINE,
    GateLine,
    KnownSchedule,
    LogLine,
    gate_of_line,
    infer_schedule,
    parse_log,
)

__all__ = ["LogReader", "is_log", "settings_findings"]

_HEAD: Final = 4096
_MOST: Final = 10_000
_SHOWN: Final = 3
_QUIET: Final = frozenset({"DS4T-LIFE-09"})
_WARNING: Final = frozenset({"DS4D-WORK-25", "DS4T-FAIL-16"})
_GATES: Final = ("gate-timeout", "gate-desync", "gate-failed")


def is_log(head: bytes) -> bool:
    """Tell whether the first bytes of a file are lines of text."""
    if not head or b"\0" in head:
        return False
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < max(1, len(head) - 4):
            return False
        text = head[: error.start].decode("utf-8")
    return all(char.isprintable() or char in "\r\n\t\x1b" for char in text)


class LogReader:
    """One log file.

    Attributes
    ----------
    understood : int
        Lines that mean something.
    """

    def __init__(self, file: str) -> None:
        self.file = file
        self.understood = 0
        self.lines: list[LogLine] = []
        self.counts: Counter[str] = Counter()

    def read(self) -> None:
        """Read the file; of each text the first few lines are kept.

        Raises
        ------
        OSError
        """
        seen: Counter[str] = Counter()
        with Path(self.file).open(encoding="utf-8", errors="replace") as source:
            for line in parse_log(_bounded(source)):
                self.counts[line.kind] += 1
                if len(self.lines) >= _MOST:
                    continue
                said = meaning_of(line.text)
                if line.kind == "text" and said is UNKNOWN:
                    continue
                key = f"{line.kind} {said.clause or line.text[:200]}"
                if line.kind in _GATES:
                    key = line.text
                seen[key] += 1
                if seen[key] <= _SHOWN:
                    self.lines.append(line)

    def settings(self) -> dict[str, str]:
        """Return what the log says of settings that both ranks need equal."""
        found: dict[str, str] = {}
        for line in self.lines:
            if line.kind == "connected":
                found["transport"] = line.values[1]
                if line.values[2]:
                    found["gate timeout"] = f"{line.values[2]} ms"
        return found

    def findings(self, given: Schedule | None = None) -> Iterator[Finding]:
        """Answer line by line.

        Parameters
        ----------
        given : Schedule, optional
            Of a hello, or of the user; else it is inferred.
        """
        if given is not None:
            known = KnownSchedule(given, "the schedule was given", certain=True)
        else:
            known = infer_schedule(self.lines)
        told: set[str] = set()
        for line in self.lines:
            yield from self._line(line, known, told)
        yield from self._refused()

    def _line(
        self, line: LogLine, known: KnownSchedule, told: set[str]
    ) -> Iterator[Finding]:
        if line.kind in _GATES:
            self.understood += 1
            yield self._gate(line, known)
            return
        if line.kind in ("connected", "waiting", "slab", "rdma", "refused"):
            self.understood += 1
            return
        text = line.values[1] if line.kind == "rejected" else line.text
        said = meaning_of(text)
        if said is not UNKNOWN and said.clause not in _QUIET:
            self.understood += 1
            key = said.clause or said.meaning
            if key in told:
                return
            told.add(key)
            severity: Severity = "warning" if said.clause in _WARNING else "severe"
            yield Finding(
                "log.text", severity, "certain",
                f"line {line.number}: {line.text!r}: {said.meaning}",
                {"line": line.number}, (self._proof(line),), said.next_step,
                file=self.file, clause=said.clause,
            )  # fmt: skip
            return
        if line.kind == "text" or line.kind in told:
            return
        self.understood += 1
        told.add(line.kind)
        yield from self._event(line)

    def _gate(self, line: LogLine, known: KnownSchedule) -> Finding:
        gate = gate_of_line(line)
        said = meaning_of(line.text)
        if gate is None:
            return Finding(
                "log.gate", "severe", "certain",
                f"line {line.number}: {line.text!r}: a batch or bulk gate failed; its "
                "number counts such gates alone and names no token",
                {"line": line.number}, (self._proof(line),),
                said.next_step or "see the other rank's last lines", file=self.file,
            )  # fmt: skip
        where, sure = _place(gate, known)
        got = ""
        if line.kind == "gate-desync":
            theirs, _ = _place(GateLine(int(line.values[2])), known)
            got = f"; the peer was at {theirs} (seq {line.values[2]})"
        return Finding(
            "log.gate", "severe", "certain" if sure else "possible",
            f"line {line.number}: gate seq {gate.seq} is {where}{got} "
            f"({known.why})",
            {"line": line.number, "seq": gate.seq, "place": where},
            (self._proof(line),),
            said.next_step or "a place in the model, not an early transport failure: "
            "see what the other rank did at that gate"
            + ("" if sure else "; --gates says which schedule it is"),
            file=self.file, clause=said.clause,
        )  # fmt: skip

    def _event(self, line: LogLine) -> Iterator[Finding]:
        words: dict[str, tuple[str, Severity, str]] = {
            "dropped": ("log.worker-dropped", "warning", "a worker left the route"),
            "coordinator-lost": (
                "log.coordinator-lost", "warning",
                "the control connection ended; the worker dials again every second",
            ),
            "rejected": ("log.rejected", "severe", "a worker was refused"),
        }  # fmt: skip
        if line.kind not in words:
            return
        code, severity, meaning = words[line.kind]
        count = self.counts[line.kind]
        yield Finding(
            code, severity, "certain",
            f"line {line.number}: {line.text!r}: {meaning}"
            + (f" ({counted(count, 'time')})" if count > 1 else ""),
            {"times": count, "line": line.number}, (self._proof(line),),
            "look at the last lines of the other side", file=self.file,
        )  # fmt: skip

    def _refused(self) -> Iterator[Finding]:
        count = self.counts["refused"]
        first = next((line for line in self.lines if line.kind == "refused"), None)
        if first is None:
            return
        later = self.counts["connected"] > 0
        yield Finding(
            "log.refused", "note" if later else "severe", "certain",
            f"{counted(count, 'time')} nothing listened at {first.values[0]} "
            f"({first.values[1]})"
            + (", later it did: the partner was started after this side" if later
               else ", and it never did"),
            {"times": count, "line": first.number}, (self._proof(first),),
            "" if later else "start the leader first, check address and port, and wait "
            "until its model is loaded", file=self.file,
        )  # fmt: skip

    def _proof(self, line: LogLine) -> Evidence:
        return Evidence(self.file, line=line.number, text=line.text[:200])


def settings_findings(readers: Sequence[LogReader]) -> Iterator[Finding]:
    """Compare what the logs of several ranks say of settings that no hello carries."""
    names = {name for reader in readers for name in reader.settings()}
    for name in sorted(names):
        values = {
            reader.file: reader.settings()[name]
            for reader in readers
            if name in reader.settings()
        }
        if len(set(values.values())) < 2:
            continue
        listed = ", ".join(f"{file}: {value}" for file, value in values.items())
        yield Finding(
            "log.settings", "warning", "certain",
            f"the ranks run with different settings of {name}: {listed}; the wire does "
            "not check it", dict(values), (),
            "start both with the same environment and options",
        )  # fmt: skip


def _place(gate: GateLine, known: KnownSchedule) -> tuple[str, bool]:
    """Return a gate in words, and whether they are sure."""
    schedule = known.schedule
    if not schedule.slots or gate.seq < 1:
        return "no gate of this schedule", False
    place = gate_of(gate.seq, schedule)
    said = f"token {place.token}, layer {place.layer}, {place.kind}"
    if gate.layer is None:
        return said, known.certain
    kind = "FFN" if gate.gate else "ATTN"
    if (place.layer, place.kind) != (gate.layer, kind):
        return f"layer {gate.layer}, {kind} (of another schedule, token unknown)", False
    return said, True


def _bounded(source: TextIO) -> Iterator[str]:
    """Yield the begin of each line; the rest of a long one is read in pieces."""
    while line := source.readline(MOST_LINE):
        piece = line
        while piece and not piece.endswith("\n"):
            piece = source.readline(MOST_LINE)
        yield line


def head_of(path: str) -> bytes:
    """Return the first bytes of a file.

    Raises
    ------
    OSError
    """
    with Path(path).open("rb") as source:
        return source.read(_HEAD)
