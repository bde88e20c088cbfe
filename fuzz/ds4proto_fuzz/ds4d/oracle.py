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
from ds4proto.link.ds4d_forward import Forwarder
from ds4proto.link.ds4d_frames import HEADER_SIZE, refusal_frame, unpack_header
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

__all__ = ["NEXT", "Due", "Expectation", "WorkerOracle"]

NEXT: Final = "next"
"""Name of the connection to the next hop."""
_ITSELF: Final = "itself"
_NOBODY: Final = "nobody"
_BOUNDS: Final = ("DS4D-FWD-16", "DS4D-FWD-17", "DS4D-FWD-24")
"""Refusals of sizes that another worker may still take."""
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
    relayed : bool
        The next hop's answer, which goes up unread and unchanged (DS4D-FWD-08).
    """

    frame: Seen
    clause: str = ""
    either: bool = False
    saved: bool = False
    relayed: bool = False


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
    next_port : int
        Where the next hop of its routes listens; its connection is called ``next``.
    """

    def __init__(self, facts: Facts, next_port: int = 0) -> None:
        self._facts = facts
        self._next_port = next_port
        self._names: dict[int, str] = {}
        self._worker = Worker(facts.worker, limits=_LIMITS)
        self._links: dict[str, WorkerLink | Forwarder] = {}
        self._due: dict[str, Expectation] = {}
        self._clause: dict[str, str] = {}
        self._known: set[int] = set()
        self._shard = bytearray()
        self._blurred = False
        self._unsure = False
        """Whether something may have been refused that is forwarded here."""

    def feed(self, on: str, data: bytes | None) -> None:
        """Give bytes to a connection; None ends our direction."""
        link = self._links.get(on)
        if link is None and on == NEXT:
            return  # nothing has been forwarded
        if link is None:
            kind: Any = "control" if on == "control" else "data"
            link = self._added(on, self._worker.open(kind, 0.0))
        if link.closed:
            return
        link.receive_data(data, 0.0)
        self._settle(link)

    def _added(self, on: str, link: Any) -> Any:
        self._links[on], self._names[id(link)] = link, on
        self._due[on] = Expectation(loose=self._unsure)
        return link

    @property
    def forwards(self) -> bool:
        """Whether the worker has a connection to the next hop by now."""
        return NEXT in self._links

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
            if getattr(link, "load", None) is not None or link._intake.inside
        ]

    def _settle(self, link: Any) -> None:
        todo: list[Any] = [link]
        while todo:
            for machine in todo:
                on = self._names.get(id(machine), _NOBODY)
                for event in machine.events():
                    self._event(on, machine, event)
            todo = list(self._worker.woken())

    def _event(self, on: str, link: Any, event: Any) -> None:
        if on == _NOBODY:
            return  # a connection that was never made
        if isinstance(event, Violation):
            self._clause[on] = event.problem.clause
            if event.problem.clause in _BOUNDS:
                self._loosen()
        elif isinstance(event, Transmit):
            self._transmit(on, event)
            if on == _ITSELF:
                self._refuse_own(link, event)
        elif isinstance(event, Close):
            below = self._clause.get(NEXT, "DS4D-FRAME-04")
            self._due[on].closed = True
            self._due[on].clause = self._clause.get(on, below)
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
            self._open(on, event)

    def _open(self, on: str, event: OpenForward) -> None:
        """Have the next hop be us, or the worker itself, which refuses its own WORK."""
        if event.port == self._next_port:
            self._added(NEXT, event.forwarder).opened(0.0)
        elif event.port == self._facts.port:
            self._added(_ITSELF, event.forwarder).opened(0.0)
        else:
            self._due[on].loose = True
            event.forwarder.failed("unknown", 0.0)

    def _refuse_own(self, link: Any, event: Transmit) -> None:
        assert event.request is not None
        frame = refusal_frame(event.request, "not these layers")
        link.receive_data(b"".join(map(bytes, frame)), 0.0)

    def _loosen(self) -> None:
        for due in self._due.values():
            due.loose = True

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
        if job.want == "forward" and self._blurred:  # refused, or with another reason
            self._blurred = False
            self._unsure = True
            self._loosen()
        link.send(WorkEvaluated(bytes(size)), 0.0)

    def _transmit(self, on: str, event: Transmit) -> None:
        data = memoryview(b"".join(map(bytes, event.buffers)))
        while data:
            _, code, size = unpack_header(data)
            seen = seen_of(code, data[HEADER_SIZE : HEADER_SIZE + size])
            data = data[HEADER_SIZE + size :]
            self._expect(on, seen)

    def _expect(self, on: str, seen: Seen) -> None:
        relayed = on != NEXT and self._relaying(seen)
        clause = ""
        if seen.refuses:
            clause = self._clause.pop(on, "") or self._clause.get(NEXT, "")
        if seen.refuses and (relayed or _ITSELF in self._links):
            clause = clause or "DS4D-FWD-08"
        if seen.name == "ERROR":
            self._clause[on] = clause
        either = (self._blurred or self._unsure) and not clause
        if clause in _NO_HASH and (clause == _NO_SESSION or self._doubtful()):
            either = True  # what a session held before this case is not known
        frames = self._due[on].frames
        if seen.name == "SNAPSHOT_DONE" and frames and frames[-1].saved:
            return  # the shard and its end are read as one with their begin
        saved = seen.name == "SNAPSHOT_BEGIN" and not seen.refuses
        frames.append(Due(seen, clause, either, saved, relayed))
        self._blurred = False

    def _relaying(self, seen: Seen) -> bool:
        """Tell whether a RESULT came from below: it then holds two records or more.

        A refusal from below holds one, a refusal of our own none.
        """
        records = seen.words.get("telemetry_count", 0)
        return (
            NEXT in self._links
            and seen.name == "RESULT"
            and records > (not seen.refuses)
        )


def _finite(hidden: memoryview | None, bits: int) -> bool:
    if hidden is None or bits == 8:
        return True
    form = "f" if bits == 32 else "e"
    size = struct.calcsize(form)
    values = struct.unpack(f"<{len(hidden) // size}{form}", hidden)
    return math.isfinite(sum(map(abs, values)))
