"""The meetings of a sync: both ranks send, both read, and agree (v12 and later)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ds4proto.link.ds4t_events import END, FAILED, INTERRUPTED, OK, START, Checkpoint
from ds4proto.link.ds4t_texts import LocalProtocolError, PairFailed, failed
from ds4proto.schema.problem import Buf
from ds4proto.schema.registry import build, frame

_WORDS = ("START", "CHUNK", "PROGRESS", "END")
PHASE = "prefill sync"


class Meetings:
    """The checkpoints of one connection, for either rank.

    ``open`` begins a sync, ``send`` says the own checkpoint, ``receive`` takes the
    peer's; whichever comes second completes the meeting.
    """

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect
        self._spec = frame("DS4T.SYNC_CHECKPOINT", dialect=dialect)
        self._seq = 0
        self._total = 0
        self._mine: Checkpoint | None = None
        self._theirs: Mapping[str, Any] | None = None
        self._started = False
        self.cancelled = False
        """An agreed cancel in this sync."""
        self.ended = False
        """Both ranks passed END."""

    def open(self, total: int) -> None:
        """Begin a sync of ``total`` prompt tokens."""
        self._total = total
        self._mine = self._theirs = None
        self._started = self.cancelled = self.ended = False

    @property
    def waiting(self) -> bool:
        """The own checkpoint is out and the peer's is due."""
        return self._mine is not None and self._theirs is None

    @property
    def reads(self) -> bool:
        """The next control frame is a checkpoint of the peer, and may be taken."""
        return self._theirs is None and not self.ended

    @property
    def early(self) -> bool:
        """The peer's checkpoint is there and the own one is due."""
        return self._mine is None and self._theirs is not None

    def send(self, event: Checkpoint) -> list[Buf]:
        """Return the own frame (DS4T-CKPT-09 to -13).

        Raises
        ------
        LocalProtocolError
            For a point that is not due.
        """
        self._check(event)
        current = event.current
        if event.point == END and self.cancelled and current == OK:
            current = INTERRUPTED
        self._mine = Checkpoint(event.point, current, event.total, event.cancelled)
        self._started = True
        self._seq += 1
        values = {
            "seq": self._seq,
            "point": event.point,
            "current": current,
            "total": event.total,
            "cancelled": int(event.cancelled),
        }
        return build(self._spec, values, dialect=self._dialect)

    def _check(self, event: Checkpoint) -> None:
        due = ""
        if self.ended:
            due = "nothing: this sync has passed END"
        elif not self._started and (event.point, event.current) != (START, 0):
            due = "START with current 0"
        elif self._started and event.point == START:
            due = "CHUNK, PROGRESS or END"
        elif self.cancelled and event.point != END:
            due = "END, because a cancel was agreed"
        elif event.total != self._total:
            due = f"total {self._total}, the prompt"
        elif not START <= event.point <= END:
            due = "a point from 0 to 3"
        if due:
            raise LocalProtocolError(f"checkpoint {event}: due is {due}")

    def receive(self, values: Mapping[str, Any]) -> None:
        """Take the peer's frame; ``judge`` compares when both are there."""
        self._theirs = values

    def seen(self) -> Checkpoint:
        """Return the peer's checkpoint as it came."""
        values = self._theirs or {}
        return Checkpoint(
            values["point"],
            values["current"],
            values["total"],
            values["cancelled"] == 1,
        )

    def judge(self, now: float) -> Checkpoint | PairFailed | None:
        """Return what both agreed on, a failure, or None while one is missing.

        The peer's own words are judged as soon as they are there.
        """
        theirs = self._theirs
        if theirs is None:
            return None
        if theirs["cancelled"] > 1:
            return self._failed(
                "DS4T-CKPT-05", "cancelled", "0 or 1", theirs["cancelled"], now
            )
        mine = self._mine
        if mine is None:
            return None
        pairs = (
            ("DS4T-CKPT-02", "seq", self._seq),
            ("DS4T-CKPT-03", "point", mine.point),
            ("DS4T-CKPT-04", "current", mine.current),
            ("DS4T-CKPT-04", "total", mine.total),
        )
        for clause, name, wanted in pairs:
            if theirs[name] != wanted:
                end = mine.point == END and name == "current"
                rule = "DS4T-CKPT-14" if end else clause
                return self._failed(rule, name, str(wanted), theirs[name], now)
        agreed = mine.cancelled or theirs["cancelled"] == 1
        self.cancelled = self.cancelled or agreed
        self.ended = mine.point == END
        self._mine = self._theirs = None
        return Checkpoint(mine.point, mine.current, mine.total, self.cancelled)

    def refuse_status(self, status: int) -> None:
        """Check the status of a sync before it is acknowledged (DS4T-CKPT-17).

        Raises
        ------
        LocalProtocolError
            Where END has not been passed, or 2 is said without an agreed cancel.
        """
        if status in (OK, INTERRUPTED) and not self.ended:
            raise LocalProtocolError("a sync ends with checkpoint END, then its ack")
        if status == INTERRUPTED and not self.cancelled:
            raise LocalProtocolError(f"status 2 needs an agreed cancel, use {FAILED}")

    def _failed(
        self, clause: str, name: str, wanted: str, found: object, now: float
    ) -> PairFailed:
        where = _WORDS[self._mine.point] if self._mine else "a checkpoint"
        return failed(
            now,
            clause,
            phase=PHASE,
            path=f"SYNC_CHECKPOINT.{name}",
            expected=f"{wanted} at {where} (checkpoint {self._seq})",
            found=str(found),
            next_step="both ranks need the same prompt, chunk size and build",
        )


def wrong_frame(code: int, size: int, now: float) -> PairFailed:
    """Return the failure for another frame in the place of a checkpoint."""
    return failed(
        now,
        "DS4T-CKPT-08",
        phase=PHASE,
        expected="SYNC_CHECKPOINT (type 22) of 24 bytes",
        found=f"type {code} of {size} bytes",
    )
