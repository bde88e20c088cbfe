"""What a worker owes for some bytes: the library's own machine is asked.

The machine is `ds4proto.link.ds4d_worker`, whose checks are the clauses in their
order. Where an answer depends on the peer's engine or on its bounds, both a served
and a refused answer are right (``either``).
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from typing import Any, Final

from ds4proto.link.ds4d_events import Close, Transmit
from ds4proto.link.ds4d_frames import HEADER_SIZE, unpack_header
from ds4proto.link.ds4d_limits import LinkLimits
from ds4proto.link.ds4d_worker import Worker, WorkerLink
from ds4proto.link.ds4d_worker_events import (
    EvaluateWork,
    LoadData,
    LoadStarted,
    OpenForward,
    ResetSession,
    RestoreShard,
    SaveShard,
    ShardFailed,
    ShardRestored,
    ShardSaved,
    WorkEvaluated,
)
from ds4proto.link.events import Violation
from ds4proto_fuzz.ds4d.facts import Facts
from ds4proto_fuzz.ds4d.frames import POOL
from ds4proto_fuzz.ds4d.wire import Seen, seen_of

__all__ = ["Due", "Expectation", "WorkerOracle"]

_LIMITS: Final = LinkLimits(max_sessions=1 << 20)
_SURE_TOKENS: Final = 8
"""Spans up to this length every engine takes; longer ones may pass a prefill cap."""
_NO_SESSION: Final = "DS4D-SNAP-03"
_NO_HASH: Final = ("DS4D-WORK-26", _NO_SESSION, "DS4D-SNAP-04", "DS4D-SNAP-05")
"""Refusals that depend on what a session holds."""


@dataclass(slots=True)
class Due:
    """One frame that is due.

    Attributes
    ----------
    clause : str
        Clause that makes it a refusal.
    either : bool
        The opposite answer is right as well.
    saved : bool
        A shard of unknown size follows.
    """

    frame: Seen
    clause: str = ""
    either: bool = False
    saved: bool = False


@dataclass(slots=True)
class Expectation:
    """What is due on one connection since the last look.

    Attributes
    ----------
    closed : bool
        The peer ends the connection; answers before that may be lost.
    clause : str
        Clause that makes it do so.
    inside : bool
        The peer is in the middle of a frame or of a load, and waits.
    """

    frames: list[Due] = field(default_factory=list)
    closed: bool = False
    clause: str = ""
    inside: bool = False
    loose: bool = False


class WorkerOracle:
    """A worker that does everything right, without an engine.

    Parameters
    ----------
    facts : Facts
    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._worker = Worker(facts.worker, limits=_LIMITS)
        self._links: dict[str, WorkerLink] = {}
        self._due: dict[str, Expectation] = {}
        self._clause: dict[str, str] = {}
        self._known: set[int] = set()
        self._shard = bytearray()
        self._blurred = False

    def feed(self, on: str, data: bytes | None) -> None:
        """Give bytes to a connection; None ends our direction."""
        link = self._links.get(on)
        if link is None:
            kind: Any = "control" if on == "control" else "data"
            link = self._links[on] = self._worker.open(kind, 0.0)
            self._due[on] = Expectation()
        if link.closed:
            return
        link.receive_data(data, 0.0)
        self._settle(on, link)

    def take(self, on: str) -> Expectation:
        """Return what has become due."""
        found = self._due.get(on, Expectation())
        link = self._links.get(on)
        if link is not None:
            found.inside = on in self.inside()
            found.closed = link.closed
        self._due[on] = Expectation()
        return found

    def inside(self) -> list[str]:
        """Return the connections on which the peer waits for the rest of something."""
        return [
            on
            for on, link in self._links.items()
            if link.load is not None or link._intake.inside
        ]

    def _settle(self, on: str, link: WorkerLink) -> None:
        todo: list[Any] = [link]
        while todo:
            for machine in todo:
                for event in machine.events():
                    self._event(on, machine, event)
            todo = list(self._worker.woken())

    def _event(self, on: str, link: Any, event: Any) -> None:
        if isinstance(event, Violation):
            self._clause[on] = event.problem.clause
        elif isinstance(event, Transmit):
            self._transmit(on, event)
        elif isinstance(event, Close):
            self._due[on].closed = True
            self._due[on].clause = self._clause.get(on, "DS4D-FRAME-04")
        elif isinstance(event, ResetSession):
            self._known.add(event.session)
        elif isinstance(event, EvaluateWork):
            self._evaluate(link, event)
        elif isinstance(event, LoadStarted):
            self._shard.clear()
        elif isinstance(event, LoadData):
            self._shard += event.data
        elif isinstance(event, SaveShard):
            self._blurred = event.session not in self._known
            link.send(ShardSaved([], 0), 0.0)
        elif isinstance(event, RestoreShard):
            sound = bytes(self._shard) == self._facts.shard and bool(self._shard)
            self._blurred = True
            if sound:
                self._known.add(event.session)
            else:  # whether other bytes are a shard, the engine says
                self._due[on].loose = True
            link.send(ShardRestored() if sound else ShardFailed("refused"), 0.0)
        elif isinstance(event, OpenForward):
            self._due[on].loose = True
            event.forwarder.failed("unknown", 0.0)

    def _doubtful(self) -> bool:
        """Tell whether a session was named that this case has not reset."""
        return bool(set(self._worker.sessions._sessions) - self._known)

    def _evaluate(self, link: WorkerLink, job: EvaluateWork) -> None:
        model = self._facts.model
        size = {"ack": 0, "logits": model.logits_bytes}.get(
            job.want, model.hidden_bytes(len(job.tokens), job.bits)
        )
        self._blurred = (
            job.session not in self._known
            or job.session not in POOL  # the table of sessions may be full
            or len(job.tokens) > _SURE_TOKENS
            or not _finite(job.hidden, job.bits)
        )
        link.send(WorkEvaluated(bytes(size)), 0.0)

    def _transmit(self, on: str, event: Transmit) -> None:
        data = memoryview(b"".join(map(bytes, event.buffers)))
        while data:
            _, code, size = unpack_header(data)
            seen = seen_of(code, data[HEADER_SIZE : HEADER_SIZE + size])
            data = data[HEADER_SIZE + size :]
            self._expect(on, seen)

    def _expect(self, on: str, seen: Seen) -> None:
        clause = self._clause.pop(on, "") if seen.refuses else ""
        if seen.name == "ERROR":
            self._clause[on] = clause
        either = self._blurred and not clause
        if clause in _NO_HASH and (clause == _NO_SESSION or self._doubtful()):
            either = True  # what a session held before this case is not known
        frames = self._due[on].frames
        if seen.name == "SNAPSHOT_DONE" and frames and frames[-1].saved:
            return  # the shard and its end are read as one with their begin
        saved = seen.name == "SNAPSHOT_BEGIN" and not seen.refuses
        frames.append(Due(seen, clause, either, saved))
        self._blurred = False


def _finite(hidden: memoryview | None, bits: int) -> bool:
    if hidden is None or bits == 8:
        return True
    form = "f" if bits == 32 else "e"
    size = struct.calcsize(form)
    values = struct.unpack(f"<{len(hidden) // size}{form}", hidden)
    return math.isfinite(sum(map(abs, values)))
