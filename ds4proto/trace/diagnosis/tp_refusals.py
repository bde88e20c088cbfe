"""The frame on which a pair ended: one rank sent it, the other has to refuse it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from ds4proto import clauses
from ds4proto.link.ds4t_rules import RULES
from ds4proto.schema.problem import Problem
from ds4proto.trace.diagnosis.check import STALL, Scene
from ds4proto.trace.diagnosis.finding import Finding, proof
from ds4proto.trace.diagnosis.spread import ms
from ds4proto.trace.diagnosis.tp_commands import CommandFaults
from ds4proto.trace.diagnosis.tp_ends import GaveUp, PairEnds
from ds4proto.trace.diagnosis.tp_gates import OTHER, PairRun, Pairs
from ds4proto.trace.rows import FrameRow

__all__ = ["Refusals", "Refused"]

_LEADER_REFUSES: Final = {
    "DS4T-ACK-01": "DS4T-ACK-04",
    "DS4T-ACK-02": "DS4T-ACK-05",
    "DS4T-ACK-10": "DS4T-ACK-05",
    "DS4T-LOGITS-01": "DS4T-LOGITS-03",
    "DS4T-CTRL-01": "DS4T-ACK-04",
    "DS4T-CTRL-02": "DS4T-ACK-04",
    "DS4T-CTRL-17": "DS4T-LOGITS-03",
}
"""Clause that a worker's frame breaks -> clause by which a leader refuses it."""
_ACK_RESERVED: Final = "COMMAND_ACK.reserved0"
_LETTERS: Final = re.compile(r"%\w+")
_CLOSING: Final = frozenset({"INVALIDATE", "SESSION_DESTROY", "STOP"})
"""What a leader sends when it is done, or has given up."""


class Refused(NamedTuple):
    """A frame, who sent it, and why the other rank ended the pair on it.

    ``clause`` demands the refusal; ``words`` say what is wrong with the frame.
    """

    row: FrameRow
    sender: str
    clause: str
    words: str
    gave_up: GaveUp | None


class Refusals:
    """Watches the control connection of every pair for the last frame of each rank."""

    def __init__(self, scene: Scene, pairs: Pairs, ends: PairEnds) -> None:
        self._scene = scene
        self._pairs = pairs
        self._ends = ends
        self.commands = CommandFaults()
        self._answers: dict[int, tuple[FrameRow, Problem]] = {}
        self._known: dict[int, Refused | None] = {}

    def add(self, row: FrameRow) -> None:
        """Take the next row."""
        self._known.clear()
        self.commands.add(row)
        if row.protocol != "DS4T" or row.type.startswith(("GATE", "HELLO")):
            return
        if row.src_role == "leader" and row.type not in _CLOSING:
            self._answers.pop(row.run, None)  # the leader took the answer
        elif row.src_role == "worker":
            found = _refused_by_leader(row)
            if found is not None:
                self._answers.setdefault(row.run, (row, found))

    def of(self, number: int) -> Refused | None:
        """Return the frame on which a run ended, None where it ended on none."""
        if number not in self._known:
            run = self._pairs.runs.get(number)
            self._known[number] = None if run is None else self._of(run)
        return self._known[number]

    def _of(self, run: PairRun) -> Refused | None:
        if not run.handshake:
            return None
        gave_up = self._ends.first(run)
        return self._by_worker(run, gave_up) or self._by_leader(run, gave_up)

    def _by_worker(self, run: PairRun, gave_up: GaveUp | None) -> Refused | None:
        fault = self.commands.fault(run.number)
        if fault is None or gave_up is None or gave_up.rank != "worker":
            return None
        if run.answered is not None and run.answered[0] is fault.row:
            return None  # it said so by a status
        if not 0 <= gave_up.time - fault.row.time < STALL:
            return None
        return Refused(fault.row, "leader", fault.clause, fault.words, gave_up)

    def _by_leader(self, run: PairRun, gave_up: GaveUp | None) -> Refused | None:
        held = self._answers.get(run.number)
        if held is None or (gave_up is not None and gave_up.rank != "leader"):
            return None
        row, problem = held
        words = f"{problem.path} is {problem.found}, expected {problem.expected}"
        clause = _LEADER_REFUSES.get(problem.clause, "DS4T-ACK-08")
        return Refused(row, "worker", clause, words, gave_up)

    def findings(self) -> Iterator[Finding]:
        """Answer pair by pair."""
        for number in self._pairs.runs:
            refused = self.of(number)
            if refused is not None:
                yield self._one(number, refused)

    def _one(self, number: int, refused: Refused) -> Finding:
        row, gave_up, sender = refused.row, refused.gave_up, refused.sender
        by = OTHER[sender]
        what = row.type if row.is_frame else "bytes"
        if gave_up is None:
            ended = "only the end of the pair can follow"
        else:
            wait = max(0.0, gave_up.time - row.time)
            ended = f"it did, and {gave_up.how} {ms(wait)} later"
        text = _LETTERS.sub("...", clauses.get(refused.clause).error or "")
        log = f"; a ds4 {by} logs {text!r} then" if text else ""
        return Finding(
            "rule.refused", "severe", "certain" if gave_up is not None else "likely",
            f"the {by} has to refuse the {sender}'s {what}: {refused.words}; {ended}",
            {"sender": sender, "refused_by": by},
            (proof(row, self._scene.file, "refused"), *self._ends.proof(gave_up)),
            f"the fault is the {sender}'s: compare the builds of both ranks, and "
            f"whether something changed the frame on the way{log}",
            number, self._scene.file, refused.clause,
        )  # fmt: skip


def _refused_by_leader(row: FrameRow) -> Problem | None:
    """Return the problem of a worker's frame for which a leader refuses it."""
    rules = RULES.get(row.dialect.rstrip("?"))
    reserved = rules is not None and rules.ack_reserved
    for problem in row.problems:
        if problem.clause in _LEADER_REFUSES:
            return problem
        if reserved and problem.path == _ACK_RESERVED:
            return problem
    return None
