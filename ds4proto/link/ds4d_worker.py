"""A worker process: its connections, what they share, and who may evaluate.

``WorkerLink`` reads and dispatches (clauses WORKER-01 to -09); the order of
evaluation and answers is in ``ds4d_worker_queue``, snapshots in
``ds4d_worker_snapshots``.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from ds4proto.link.ds4d_events import Fault, Transmit
from ds4proto.link.ds4d_forward import Forwarder
from ds4proto.link.ds4d_frames import CODE, WORK_PART, error_frame
from ds4proto.link.ds4d_intake import BadMagic, End, Frame
from ds4proto.link.ds4d_limits import ERROR_BYTES
from ds4proto.link.ds4d_local import DECODER_ONLY, TO_WORKER, read_local
from ds4proto.link.ds4d_snapshot_server import (
    SAVE_PART,
    plan_chunk,
    plan_load,
)
from ds4proto.link.ds4d_texts import kept, text
from ds4proto.link.ds4d_work_checks import (
    Head,
    Work,
    judge_work,
    plan_work,
    read_head,
    truncated,
)
from ds4proto.link.ds4d_worker_events import (
    DropSessions,
    LocalFrame,
    PeerError,
    ShardFailed,
    ShardRestored,
    ShardSaved,
    WorkEvaluated,
    WorkFailed,
)
from ds4proto.link.ds4d_worker_queue import Queue
from ds4proto.link.ds4d_worker_shared import Shared
from ds4proto.link.ds4d_worker_snapshots import Snapshots
from ds4proto.schema.ds4d_hello import ERROR
from ds4proto.schema.ds4d_snapshot import (
    SNAPSHOT_CHUNK,
    SNAPSHOT_LOAD_BEGIN,
    SNAPSHOT_SAVE_REQ,
)
from ds4proto.schema.ds4d_work import WORK
from ds4proto.schema.problem import Buf

Kind = Literal["control", "data"]
State = Literal["open", "busy", "loading", "draining", "ending", "closed"]

TRANSITIONS: Final[dict[tuple[State, str], State]] = {
    # reading
    ("open", "work"): "open",
    ("open", "save"): "busy",
    ("busy", "snapshot answered"): "open",
    ("open", "load begin"): "loading",
    ("open", "load refused"): "open",
    ("loading", "chunk"): "loading",
    ("loading", "last chunk"): "busy",
    ("loading", "load refused"): "ending",
    ("open", "load broken"): "ending",
    # ends
    ("open", "end of stream"): "draining",
    ("open", "bad frame"): "ending",
    ("loading", "bad frame"): "ending",
    ("busy", "bad frame"): "ending",
    ("draining", "bad frame"): "ending",
    ("ending", "bad frame"): "ending",
    ("open", "broken"): "ending",
    ("loading", "broken"): "ending",
    ("busy", "broken"): "ending",
    ("draining", "broken"): "ending",
    ("ending", "broken"): "ending",
    ("ending", "snapshot answered"): "ending",
    ("draining", "all answered"): "closed",
    ("ending", "all answered"): "closed",
}
"""States of one connection.

``busy``: a snapshot is with the engine and reading has stopped. ``draining``: the
peer has half-closed, everything read is still answered (WORKER-04). ``ending``:
queued WORK is dropped, what had begun is still answered (WORKER-05).
"""

_WORK, _ERROR = CODE[WORK], CODE[ERROR]
_SAVE, _LOAD = CODE[SNAPSHOT_SAVE_REQ], CODE[SNAPSHOT_LOAD_BEGIN]
_CHUNK = CODE[SNAPSHOT_CHUNK]


class Worker(Shared):
    """One worker process: what its connections share.

    It is not thread-safe: hold one lock around every call, not around the engine's
    work.

    Parameters
    ----------
    facts : WorkerFacts
    limits : LinkLimits
    policy : {"safe", "upstream"}
        ``upstream`` answers the oldest pending request alone when the next worker is
        lost (DS4D-FWD-20).
    """

    def open(self, kind: Kind, now: float) -> WorkerLink:
        """Return the machine of a new connection; control ones send HELLO first."""
        return WorkerLink(self, kind, now)


class WorkerLink(Snapshots, Queue):
    """One connection of a worker, control or data.

    Events: ``Transmit``, ``Close``, ``PeerError``, ``ResetSession``,
    ``EvaluateWork``, ``SaveShard``, ``LoadStarted``, ``LoadData``, ``LoadAborted``,
    ``RestoreShard``, ``OpenForward``, ``DropSessions``, ``Violation``; in the private
    dialect ``LocalFrame``, which is answered by writing to the connection.
    Commands: ``WorkEvaluated``, ``WorkFailed``, ``ShardSaved``, ``ShardFailed``,
    ``ShardRestored``. At most one of EvaluateWork, SaveShard and RestoreShard is open
    in the whole worker; its answer goes to the link that asked.
    """

    def __init__(self, worker: Shared, kind: Kind, now: float) -> None:
        super().__init__(worker)
        self.kind = kind
        self.state: State = "open"
        self._head: Head | None = None
        self._last_words: list[Buf] = []
        self._reason = ""
        self._idle_since = now

    # for the caller

    def hello(self, listen_port: int) -> list[Buf]:
        """Return the HELLO of a control connection."""
        return [self.worker.facts.hello_frame(listen_port)]

    def send(self, event: Any, now: float) -> list[Buf]:
        """Give the answer to the open request; more events may follow.

        The buffers to write come as ``Transmit`` events, so the list is empty.

        Raises
        ------
        LocalProtocolError
            If nothing of the kind is open on this link.
        """
        self._now = now
        if isinstance(event, WorkEvaluated):
            self.evaluated(event, now)
        elif isinstance(event, WorkFailed):
            self.refused_by_engine(event, now)
        elif isinstance(event, ShardSaved | ShardRestored | ShardFailed):
            self.snapshot_answered(event, now)
        else:
            raise TypeError(f"no command of a worker link: {event!r}")
        return []

    def broken(self, reason: str, now: float) -> None:
        """Tell that reading or writing failed: nothing more can be answered."""
        if self._closed:
            return
        self.abort_load(reason)
        self.move("broken")
        self._mute = True
        self._reason = reason
        self.drop_everything()
        self.finish(now)

    # reading

    def _reading(self) -> bool:
        if self.state == "loading":
            return True
        return self.state == "open" and not self.queue_full

    def _plan(self, type_: int, size: int, kept: memoryview) -> int:
        if self.load is not None:
            return plan_chunk(self.load, size, kept) if type_ == _CHUNK else 0
        if type_ == _WORK:
            return self._plan_work(size, kept)
        if type_ == _SAVE:
            return SAVE_PART.size if size == SAVE_PART.size else 0
        if type_ == _LOAD:
            return plan_load(self.worker.facts, size, kept)
        if type_ in TO_WORKER and self.worker.facts.model.private:
            return size if size <= self._limits.max_body else 0
        return min(size, ERROR_BYTES) if type_ == _ERROR else 0

    def _plan_work(self, size: int, kept: memoryview) -> int:
        if size < WORK_PART.size or len(kept) > WORK_PART.size:
            return len(kept)
        if not len(kept):
            return WORK_PART.size
        head = self._head = read_head(self.worker.facts, size, kept)
        return plan_work(head, self._limits)

    def move(self, cause: str) -> None:
        """Change the state as the table says."""
        self.state = TRANSITIONS[self.state, cause]

    def _item(self, item: Any, now: float) -> None:
        self._idle_since = now
        if isinstance(item, Frame):
            if self.load is not None:
                self.chunk(item, now)
            else:
                self._dispatch(item, now)
        elif isinstance(item, BadMagic):
            words = text("DS4D-FRAME-01", item.magic)
            fault = Fault("DS4D-FRAME-01", words)
            self._violate(fault, "header", now, at=item.offset, fatal=True)
            self.abandon(words, now)
        elif isinstance(item, End):
            self._end(item, now)

    def _dispatch(self, frame: Frame, now: float) -> None:
        if frame.type == _WORK:
            self._work(frame, now)
        elif frame.type == _SAVE:
            self.move("save")
            self.save(frame, now)
        elif frame.type == _LOAD:
            self.load_begin(frame, now)
        elif frame.type == _ERROR:
            words = kept(frame.body, ERROR_BYTES)
            self._emit(PeerError(words))
            self.abandon(f"peer sent ERROR: {words}", now)
        elif frame.type in TO_WORKER and self.worker.facts.model.private:
            self._local(frame, now)
        else:
            self._refuse(Fault("DS4D-WORKER-02", text("DS4D-WORKER-02")), frame, now)

    def _refuse(self, fault: Fault, frame: Frame, now: float) -> None:
        self._violate(fault, "header.type", now, at=frame.offset, fatal=True)
        self.abandon(fault.text, now, last_words=error_frame(fault.text))

    def _local(self, frame: Frame, now: float) -> None:
        """Hand a frame of the private dialect out (DS4D-OURS-10 to -17)."""
        name = TO_WORKER[frame.type].name
        values = read_local(TO_WORKER, frame)
        if name in DECODER_ONLY and not self.worker.facts.local_decode:
            values = Fault("DS4D-OURS-17", text("DS4D-OURS-17"))
        if isinstance(values, Fault):
            self._refuse(values, frame, now)
        else:
            self._emit(LocalFrame(name, values))

    def _work(self, frame: Frame, now: float) -> None:
        work: Work | None = None
        fault: Fault | None = truncated()
        if frame.size >= WORK_PART.size:
            # A body of exactly the fixed part is whole before a plan is asked for.
            head = self._head
            if head is None:
                head = read_head(self.worker.facts, frame.size, frame.body)
            work, fault = head.work, judge_work(head, frame.body)
        self._head = None
        if fault is not None:
            self._violate(fault, "WORK", now, at=frame.offset)
            if fault.clause == "DS4D-WORK-62":
                work = None
        self.move("work")
        self.enqueue(work, fault, now)

    def _end(self, end: End, now: float) -> None:
        if end.where == "clean" and self.load is None:
            self.move("end of stream")
            self._reason = "end of stream"
            self.finish(now)
        else:
            # A frame cut short is dropped; those before it are still answered.
            self.abort_load("end of stream")
            clean = self.state == "open"
            self.move("end of stream" if clean else "bad frame")
            self._reason = "end of stream inside a frame"
            self.finish(now)

    # ending

    def abandon(
        self, reason: str, now: float, *, last_words: list[Buf] | None = None
    ) -> None:
        """Drop what is queued, answer what has begun, then close."""
        self.abort_load(reason)
        self.move("bad frame")
        self._reason = reason
        self._last_words = last_words or []
        self.drop_queued()
        self.finish(now)

    def finish(self, now: float) -> None:
        """Close if this connection is ending and owes no answer any more."""
        if self.state not in ("draining", "ending") or self._closed or self.owes:
            return
        self.move("all answered")
        self.end_forwards(self._reason)
        if self._last_words:
            self._emit(Transmit(self._last_words))
        if self.kind == "control":
            self._emit(DropSessions(self.worker.sessions.clear()))
        self._close(self._reason)
        self.worker.wake(self)
        self.worker.release(self, now)

    def _exhausted(self, fault: Fault, now: float) -> None:
        self.abandon(fault.text, now)

    def forward_ended(self, fault: Fault, now: float) -> None:
        """End this connection because a next worker's has ended."""
        self.drop_unanswered()
        self.abandon(fault.text, now)

    def _stalled(self, now: float) -> None:
        self.abandon(text("peer-stalled"), now)

    def _idle_due(self) -> float | None:
        if self.load is not None and not self._intake.inside:
            return self._idle_since + self._limits.stall_s
        quiet = self.state == "open" and self.kind == "data" and not self.owes
        if not quiet or self._limits.idle_s is None or self._intake.inside:
            return None
        return self._idle_since + self._limits.idle_s

    def deadline(self) -> float | None:
        """Return when ``timeout`` wants to be called, if ever."""
        own = super().deadline()
        idle = self._idle_due()
        return own if idle is None else idle if own is None else min(own, idle)

    def timeout(self, now: float) -> None:
        """Tell that the deadline has passed."""
        super().timeout(now)
        due = self._idle_due()
        if due is not None and now >= due:
            words = text("peer-idle", self._limits.idle_s or 0)
            fault = Fault("DS4D-WORKER-35", words)
            if self.load is not None:
                fault = Fault("DS4D-SNAP-71", text("shard-stuck"))
            self._violate(fault, "connection", now, fatal=True)
            self.abandon(fault.text, now)


__all__ = ["TRANSITIONS", "Forwarder", "Kind", "State", "Worker", "WorkerLink"]
