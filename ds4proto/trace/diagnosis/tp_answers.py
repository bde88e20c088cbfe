"""Answers on the control connection of a pair: failed commands, hashes that differ."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace as with_fields

from ds4proto.link.ds4t_context import COMMANDS
from ds4proto.link.ds4t_events import INTERRUPTED
from ds4proto.printable import counted
from ds4proto.trace.diagnosis.check import Scene
from ds4proto.trace.diagnosis.finding import Finding, proof
from ds4proto.trace.diagnosis.tp_gates import PairRun, Pairs
from ds4proto.trace.diagnosis.tp_refusals import Refusals
from ds4proto.trace.rows import FrameRow

__all__ = ["TpAnswersCheck"]

_MOST: Final = 4096


class TpAnswersCheck:
    """COMMAND_ACK and SYNC_ACK with a status, HASH frames of both ranks."""

    def __init__(self, scene: Scene, pairs: Pairs, refusals: Refusals) -> None:
        self._scene = scene
        self._pairs = pairs
        self._refusals = refusals
        self._hashes: OrderedDict[tuple[int, int], FrameRow] = OrderedDict()
        self._equal = 0
        self._found: list[Finding] = []
        self._split: set[int] = set()
        self._command: dict[int, FrameRow] = {}

    def add(self, row: FrameRow) -> None:
        """Take the next row."""
        if row.protocol != "DS4T" or not row.is_frame:
            return
        self._session(row)
        if row.type == "HASH":
            self._hash(row)
        elif row.type.endswith("_ACK") and row.fields.get("status"):
            self._failed(row)
        elif row.src_role == "leader" and row.type in COMMANDS:
            self._command[row.run] = row

    def findings(self) -> Iterator[Finding]:
        """Return what was seen, in order."""
        for finding in map(self._ended_on_it, self._found):
            refused = self._refusals.of(finding.run)
            unknown = finding.code == "tp.unknown-session" and refused is not None
            if not unknown:  # else told with the end that followed
                yield finding
        for run in self._pairs.runs.values():
            yield from self._misplaced(run)

    def _ended_on_it(self, finding: Finding) -> Finding:
        """Tell an interruption after which the leader did nothing more but end."""
        run = self._pairs.runs.get(finding.run)
        if finding.code != "tp.command-interrupted" or run is None:
            return finding
        if run.answered is None or not finding.evidence:
            return finding
        ack = proof(run.answered[1], self._scene.file)
        if finding.evidence[-1] != ack or run.logits_due:
            return finding
        return with_fields(
            finding, severity="warning",
            sentence=f"{finding.sentence}; no command followed, so that the leader "
            "gave up on it, or its user did",
            next_step="if nobody interrupted it, the worker's log says why it did",
        )  # fmt: skip

    def _misplaced(self, run: PairRun) -> Iterator[Finding]:
        if run.misplaced is None:
            return
        command, row = run.misplaced
        yield Finding(
            "rule.wrong-answer", "severe", "certain",
            f"the worker answered {command.type} (seq {command.fields.get('seq')}) "
            f"with {row.type}, where LOGITS are due: the leader takes nothing else, "
            "and the token is lost",
            {"found": row.type, "expected": "LOGITS"},
            (proof(command, self._scene.file, "command"),
             proof(row, self._scene.file, "answer")),
            "the worker is another build, or compares states on its side alone: start "
            "both from the same commit with the same environment",
            run.number, self._scene.file,
        )  # fmt: skip

    def _session(self, row: FrameRow) -> None:
        """Note a command for a session that was never created, or is gone."""
        fault = self._refusals.commands.fault(row.run)
        if fault is None or fault.row is not row or len(self._found) >= _MOST:
            return
        if fault.clause != "DS4T-CTRL-05" or row.problems:
            return
        number = int(row.fields["session_id"])
        self._found.append(
            Finding(
                "tp.unknown-session", "severe", "likely",
                f"{row.type} is for session {number}, which does not exist: the worker "
                "ends the pair on such a command",
                {"session": number}, (proof(row, self._scene.file),),
                "the leader lost count of its sessions, or the frame was changed on "
                "the way", row.run, self._scene.file, fault.clause,
            )
        )  # fmt: skip

    def _failed(self, row: FrameRow) -> None:
        if len(self._found) >= _MOST:
            return
        status = int(row.fields["status"])
        command = self._command.get(row.run)
        interrupted = status == INTERRUPTED
        fault = self._refusals.commands.fault(row.run)
        why = ""
        if command is not None and fault is not None and fault.row is command:
            why = f", which it has to refuse ({fault.clause}): {fault.words}"
        evidence = [proof(row, self._scene.file)]
        if command is not None:
            evidence.insert(0, proof(command, self._scene.file, "command"))
        self._found.append(
            Finding(
                "tp.command-interrupted" if interrupted else "tp.command-failed",
                "note" if interrupted else "severe", "certain",
                f"the worker answered {command.type if command else 'a command'} of "
                f"session {row.fields.get('session_id')} with status {status}"
                + (" (interrupted)" if interrupted else why),
                {"status": status}, tuple(evidence),
                "" if interrupted else
                "the fault is in what the leader asked for: look at its last lines"
                if why else "the reason stands in the worker's log alone",
                row.run, self._scene.file, fault.clause if why and fault else "",
            )
        )  # fmt: skip

    def _hash(self, row: FrameRow) -> None:
        key = (row.run, int(row.fields["seq"]))
        other = self._hashes.pop(key, None)
        if other is None or other.direction == row.direction:
            self._hashes[key] = row
            if len(self._hashes) > _MOST:
                self._hashes.popitem(last=False)
            return
        if other.fields["hash"] == row.fields["hash"]:
            self._equal += 1
            return
        if row.run in self._split:
            return
        self._split.add(row.run)
        self._found.append(
            Finding(
                "tp.diverged", "severe", "certain",
                f"the ranks hold different states from comparison {row.fields['seq']} "
                f"on: {other.src_role} {other.fields['hash']:#018x}, {row.src_role} "
                f"{row.fields['hash']:#018x}; "
                f"{counted(self._equal, 'comparison')} before agreed",
                {"seq": int(row.fields["seq"]), "equal_before": self._equal},
                (proof(other, self._scene.file), proof(row, self._scene.file)),
                "each rank added other numbers: compare weights, environment and "
                "build, and whether a narrow gate codec was applied to the own half",
                row.run, self._scene.file,
            )
        )  # fmt: skip
