"""Checkpoints of a sync, as a leader and a worker have them in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ds4proto.link.ds4t_events import CHUNK, END, START
from ds4proto_conformance.bench.base import Connections
from ds4proto_conformance.bench.tp import TpBench
from ds4proto_conformance.bench.tp_wire import ControlFrame
from ds4proto_conformance.settings import Settings
from ds4proto_conformance.verdicts import Deviation
from ds4proto_conformance.wire import Ended

__all__ = ["FIRST", "MISSING", "MeetingBench", "Trace"]

FIRST: Final = "DS4T-CKPT-06"
"""A rank speaks before it reads."""
MISSING: Final[Mapping[int, str]] = {
    START: "DS4T-CKPT-09",
    CHUNK: "DS4T-CKPT-10",
    END: "DS4T-CKPT-11",
}
"""Point -> the clause that asks for its checkpoint."""


@dataclass(slots=True)
class Trace:
    """What one operation showed: the peer's partials in order, its logits."""

    partials: list[bytes] = field(default_factory=list)
    logits: list[bytes] = field(default_factory=list)
    checkpoints: list[tuple[int, int]] = field(default_factory=list)


class MeetingBench(TpBench):
    """The part of the bench for tp-workers that meets at checkpoints."""

    def __init__(self, connections: Connections, settings: Settings) -> None:
        super().__init__(connections, settings)
        self._meeting = 0
        self._speaks_first: bool | None = None

    def command(self, name: str, **values: Any) -> None:
        """Send a command."""
        raise NotImplementedError

    def meet(
        self,
        point: int,
        current: int,
        total: int,
        trace: Trace,
        *,
        cancel: bool = False,
    ) -> bool:
        """Meet the worker at a checkpoint, where the dialect has them.

        A worker that speaks first may have an engine with more progress than we know:
        its further points are answered with their own words.
        """
        if not self.own.rules.checkpoints:
            return False
        if self._speaks_first is None and point == START:
            self._speaks_first = False
            early = self.control.quiet(self.quiet)
            if early is not None:
                self._speaks_first = True
                return self._answer(early, point, current, total, trace, cancel)
        if not self._speaks_first:
            self.checkpoint(point, current, total, int(cancel))
            return self._answer(self.control.next(), point, current, total, trace, None)
        return self._answer(self.control.next(), point, current, total, trace, cancel)

    def _answer(
        self,
        found: ControlFrame | Ended,
        point: int,
        current: int,
        total: int,
        trace: Trace,
        reply: bool | None,
    ) -> bool:
        """Judge the worker's checkpoint; with `reply` ours is still to be sent."""
        while True:
            values = self.checkpoint_of(found, point, asked=reply is None)
            theirs = values["point"], values["current"]
            due = theirs == (point, current)
            trace.checkpoints.append(theirs)
            number = self._meeting + (reply is not None)
            seen = (values["seq"], values["total"])
            if seen != (number, total):
                clause = "DS4T-CKPT-02" if seen[0] != number else "DS4T-CKPT-04"
                raise Deviation(
                    clause, f"checkpoint {number}, total {total}", str(found)
                )
            if not due and (reply is None or theirs[0] in (START, END)):
                clause = "DS4T-CKPT-10" if point == CHUNK else "DS4T-CKPT-11"
                clause = "DS4T-CKPT-09" if point == START else clause
                raise Deviation(clause, f"point {point}, current {current}", str(found))
            if reply is not None:
                self.checkpoint(*theirs, total, int(reply))
            if due:
                return bool(values["cancelled"]) or bool(reply)
            found = self.control.next()

    def checkpoint_of(
        self, found: ControlFrame | Ended, point: int, *, asked: bool
    ) -> dict[str, Any]:
        """Return the words of a checkpoint.

        Parameters
        ----------
        asked : bool
            Whether the worker has ours already.

        Raises
        ------
        Deviation
            It is missing: the clause is that of its point, or that of who speaks first
            where the worker waits in silence.
        """
        if not isinstance(found, Ended) and found.name == "SYNC_CHECKPOINT":
            return found.values
        silent = isinstance(found, Ended) and found.how == "silence"
        clause = FIRST if silent and not asked else MISSING.get(point, FIRST)
        due = "its checkpoint before it reads ours" if clause == FIRST else "its own"
        raise Deviation(
            clause, f"a SYNC_CHECKPOINT of point {point}: {due}", str(found)
        )

    def checkpoint(
        self, point: int, current: int, total: int, cancelled: int = 0, **lies: int
    ) -> None:
        """Send a checkpoint."""
        self._meeting += 1
        values = {"seq": self._meeting, "point": point, "current": current,
                  "total": total, "cancelled": cancelled, **lies}  # fmt: skip
        self.command("SYNC_CHECKPOINT", **values)
