"""Snapshots on one connection of a worker: save and load, one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ds4proto.link.ds4d_endpoint import LocalProtocolError
from ds4proto.link.ds4d_events import Fault, Transmit
from ds4proto.link.ds4d_frames import CODE
from ds4proto.link.ds4d_intake import Frame
from ds4proto.link.ds4d_snapshot_server import (
    CHUNK_PART,
    LOAD_PART,
    SAVE_PART,
    Load,
    begin_frame,
    chunk_frame,
    chunk_sound,
    done_frame,
    full_chunks,
    judge_load,
    judge_save,
    refusing_begin,
)
from ds4proto.link.ds4d_texts import text
from ds4proto.link.ds4d_worker_events import (
    LoadAborted,
    LoadData,
    LoadStarted,
    RestoreShard,
    SaveShard,
    ShardFailed,
    ShardRestored,
    ShardSaved,
)
from ds4proto.link.ds4d_worker_queue import Queue
from ds4proto.link.ds4d_worker_shared import Shared
from ds4proto.schema.ds4d_snapshot import SNAPSHOT_CHUNK
from ds4proto.schema.problem import Buf


class Snapshots(Queue):
    """The snapshot half of a worker's connection (see ``ds4d_worker``)."""

    state: str

    def __init__(self, worker: Shared) -> None:
        super().__init__(worker)
        self.load: Load | None = None
        self._job: dict[str, int] | Load | None = None
        self._save_faulty = False
        self._job_open = False
        self._sending: Iterator[list[Buf]] | None = None

    @property
    def owes(self) -> bool:
        """True while an answer is still due or a snapshot is being sent."""
        busy = self._job is not None or self._save_faulty or self._sending is not None
        return busy or super().owes

    def move(self, cause: str) -> None:
        """Change the state as the table says."""
        raise NotImplementedError

    def abandon(
        self, reason: str, now: float, *, last_words: list[Buf] | None = None
    ) -> None:
        """Drop what is queued, answer what has begun, then close."""
        raise NotImplementedError

    def drop_everything(self) -> None:
        """Forget all answers: the connection cannot take them."""
        super().drop_everything()
        self._sending = None
        if not self._job_open:
            self._job = None
            self._save_faulty = False

    # save

    def save(self, frame: Frame, now: float) -> None:
        """Take a save request; it waits for the lock if it must."""
        if frame.whole and frame.size == SAVE_PART.size:
            self._job = SAVE_PART.read(frame.body)
        else:
            self._save_faulty = True
        self.pump(now)

    def snapshot_waiting(self, now: float) -> bool:
        """Serve a snapshot that waits for the lock; it goes before queued WORK."""
        if self._job is None and not self._save_faulty:
            return False
        if self._job_open:
            return True
        if self._evaluation is not None or not self.worker.acquire(self):
            return True
        if isinstance(self._job, Load):
            words = self._job.words
            full = self.worker.sessions.room(words["session"])
            if full is not None:
                self._emit(LoadAborted(full.text))
                self._violate(full, "snapshot load", now)
                self._settle([done_frame(words["request"], full.text)], now)
                return False
            self._job_open = True
            self._emit(
                RestoreShard(words["session"], words["request"], self._job.tokens)
            )
            return True
        fault = judge_save(self.worker.facts, self.worker.sessions, self._job)
        if fault is None and self._job is not None:
            job = self._job
            self._job_open = True
            self._emit(SaveShard(job["session"], job["request"], job["token_count"]))
            return True
        if fault is not None:
            self._refuse_save(fault, now)
        return self._job is not None or self._save_faulty

    def _refuse_save(self, fault: Fault, now: float) -> None:
        words = self._job if isinstance(self._job, dict) else None
        self._violate(fault, "SNAPSHOT_SAVE_REQ", now)
        frame = refusing_begin(self.worker.facts, words, fault.text)
        self._settle([frame], now)

    def _settle(self, frames: list[list[Buf]], now: float) -> None:
        """Answer the snapshot, give the lock back and read on."""
        for frame in frames:
            self._emit(Transmit(frame))
        self._job = None
        self._save_faulty = self._job_open = False
        self.move("snapshot answered")
        self.worker.release(self, now)

    def snapshot_answered(
        self, event: ShardSaved | ShardRestored | ShardFailed, now: float
    ) -> None:
        """Take the engine's answer to SaveShard or RestoreShard."""
        job = self._job
        if not self._job_open or job is None:
            raise LocalProtocolError("no snapshot of this connection is open")
        if isinstance(job, Load):
            self._restored(job, event, now)
        elif isinstance(event, ShardSaved):
            if not self._mute:
                self._sending = self._shard_frames(job, event)
            self._settle([], now)
        elif isinstance(event, ShardFailed):
            self._refuse_save(Fault("DS4D-SNAP-06", event.text, "remote"), now)
        else:
            raise LocalProtocolError("a save is open, not a load")
        self.pump(now)

    def _shard_frames(
        self, words: dict[str, int], saved: ShardSaved
    ) -> Iterator[list[Buf]]:
        yield begin_frame(words, saved.size)
        for pieces in full_chunks(saved.pieces, saved.size):
            yield chunk_frame(words["request"], pieces)
        yield done_frame(words["request"])

    def events(self) -> Iterator[Any]:
        """Yield what has to be done, in order; a shard is drawn on as it leaves."""
        while True:
            yield from super().events()
            if self._sending is None:
                return
            frame = next(self._sending, None)
            if frame is None:
                self._sending = None
                self.finish(self._now)
            else:
                yield Transmit(frame)

    # load

    def load_begin(self, frame: Frame, now: float) -> None:
        """Take the head of a load."""
        if frame.size < LOAD_PART.size:
            fault = Fault("DS4D-SNAP-11", "SNAPSHOT_LOAD_BEGIN is too short")
            self._violate(fault, "SNAPSHOT_LOAD_BEGIN", now, fatal=True)
            self.abandon(fault.text, now)
            return
        load, fault2 = judge_load(
            self.worker.facts, self._limits, frame.size, frame.body
        )
        if fault2 is not None:
            self._refuse_load(load, fault2, now)
            return
        self.move("load begin")
        self.load = load
        words = load.words
        self._emit(LoadStarted(words["session"], words["request"], load.missing))
        self._maybe_restore(load, now)

    def chunk(self, frame: Frame, now: float) -> None:
        """Take what has to be the next chunk of the load."""
        load = self.load
        if load is None:
            return
        if frame.type != CODE[SNAPSHOT_CHUNK] or frame.size < CHUNK_PART.size:
            self._refuse_load(load, _fault("DS4D-SNAP-19"), now)
            return
        request = load.words["request"]
        if not chunk_sound(request, load.missing, frame.size, frame.body):
            self._refuse_load(load, _fault("DS4D-SNAP-20"), now)
            return
        data = frame.body[CHUNK_PART.size :]
        load.missing -= len(data)
        load.empty = 0 if len(data) else load.empty + 1
        if load.empty > self._limits.max_empty_chunks:
            fault = Fault("DS4D-SNAP-71", text("shard-stuck"), "remote")
            self._refuse_load(load, fault, now)
            return
        self.move("chunk")
        self._emit(LoadData(data))
        self._maybe_restore(load, now)

    def _maybe_restore(self, load: Load, now: float) -> None:
        if load.missing == 0:
            self.move("last chunk")
            self.load = None
            self._job = load
            self.pump(now)

    def abort_load(self, reason: str) -> None:
        """Throw an unfinished load away."""
        if self.load is not None:
            self.load = None
            self._emit(LoadAborted(reason))

    def _refuse_load(self, load: Load, fault: Fault, now: float) -> None:
        self._violate(fault, "snapshot load", now, fatal=load.missing > 0)
        self._emit(Transmit(done_frame(load.words["request"], fault.text)))
        if load.missing > 0:
            self.abandon(fault.text, now)
        else:
            self.move("load refused")

    def _restored(
        self, job: Load, event: ShardSaved | ShardRestored | ShardFailed, now: float
    ) -> None:
        words = job.words
        if isinstance(event, ShardFailed):
            found = self.worker.sessions.get(words["session"])
            if found is not None and event.touched:
                found.dropped = True
            fault = Fault("DS4D-SNAP-21", event.text, "remote")
            self._violate(fault, "snapshot load", now)
            self._settle([done_frame(words["request"], event.text)], now)
            return
        session = self.worker.sessions.create(words["session"])
        if isinstance(session, Fault):
            self._settle([done_frame(words["request"], session.text)], now)
            return
        session.hash, session.count = words["token_hash"], words["token_count"]
        session.dropped = False
        self._settle([done_frame(words["request"])], now)


def _fault(clause: str) -> Fault:
    return Fault(clause, text(clause), "remote")
