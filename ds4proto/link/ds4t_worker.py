"""The worker's control connection as a state machine (sans-IO); see ``ds4t_states``."""

from __future__ import annotations

from typing import Any, Final

from ds4proto.link import ds4t_events as say
from ds4proto.link.ds4t_answers import note, operation_of
from ds4proto.link.ds4t_events import (
    FAILED,
    INTERRUPTED,
    OK,
    Answer,
    BlockRun,
    Checkpoint,
    EngineFailed,
)
from ds4proto.link.ds4t_identity import TpSettings
from ds4proto.link.ds4t_limits import CONTROL_LIMITS, ControlLimits
from ds4proto.link.ds4t_states import WORKER, Worker
from ds4proto.link.ds4t_texts import LocalProtocolError, failed
from ds4proto.link.ds4t_worker_frames import logits_frames
from ds4proto.link.ds4t_worker_intake import WorkerIntake
from ds4proto.schema.problem import Buf

_RUNS: Final[dict[Worker, str]] = {
    Worker.EVAL: "tp worker eval: ",
    Worker.SYNC: "tp worker sync: ",
    Worker.MEETING: "tp worker sync: ",
    Worker.BATCH: "tp worker batch: ",
    Worker.MIXED: "tp worker batch: ",
    Worker.MTP: "tp worker GLM MTP: ",
    Worker.BLOCK: "tp worker verify: ",
    Worker.VERDICT: "tp worker verify: ",
    Worker.COMMIT: "tp worker verify: ",
}
_ACKED: Final = frozenset(
    {Worker.CREATE, Worker.DESTROY, Worker.SYNC, Worker.MEETING, Worker.BATCH,
     Worker.MIXED, Worker.MTP}
)  # fmt: skip


class WorkerControl(WorkerIntake):
    """Rank 1: commands out, answers in.

    Parameters
    ----------
    settings : TpSettings
    limits : ControlLimits
        Caps and seconds.
    vision : bool
        The engine can take image embeddings.
    engine_rules : bool
        Apply the rules that real engines add (tokens inside the vocabulary, distinct
        sessions ...); False leaves them to the caller's engine.
    logits_frames : bool
        As for ``LeaderControl``.

    Notes
    -----
    ``events`` yields the commands to run (``CreateSession``, ``RunSync`` ...),
    ``Stop``, ``Transmit`` for frames that the machine answers by itself,
    ``Checkpoint`` as agreed, ``PeerCheckpoint``, ``Violation`` and, at most once,
    ``PairFailed``. ``send`` takes the answer of the engine and returns what to write.
    """

    def __init__(
        self,
        settings: TpSettings,
        *,
        limits: ControlLimits = CONTROL_LIMITS,
        vision: bool = True,
        engine_rules: bool = True,
        logits_frames: bool = True,
    ) -> None:
        super().__init__(
            settings,
            limits=limits,
            vision=vision,
            engine_rules=engine_rules,
            logits_frames=logits_frames,
        )

    def send(
        self, event: Answer | Checkpoint | BlockRun | EngineFailed, now: float
    ) -> list[Buf]:
        """Return the frames that say the engine's answer; may be none.

        A failure also queues ``PairFailed``: write the frames, then close.

        Raises
        ------
        LocalProtocolError
            If the answer is not due in this state, or its logits do not fit.
        """
        if isinstance(event, EngineFailed):
            return self._engine_failed(event, now)
        due = sorted({t.__name__ for t, _ in WORKER[self._state]})
        if type(event).__name__ not in due or self._state is Worker.COMMAND:
            raise LocalProtocolError(
                f"{type(event).__name__} is not due in state {self._state.name}; due: "
                f"{', '.join(due) or 'nothing'}"
            )
        if isinstance(event, Checkpoint):
            return self._send_checkpoint(event, now)
        if isinstance(event, BlockRun):
            self._go(BlockRun, "", now)
            return []
        if isinstance(event, say.EvalDone | say.BlockCommitted):
            due_logits = isinstance(event, say.EvalDone) or self._replayed
            buffers = self._logits([event.logits] if due_logits else [])
            if isinstance(event, say.EvalDone):
                note(self.sessions, self._command)
            self._go(type(event), "", now)
            return buffers
        return self._acknowledge(event, now)

    @property
    def _replayed(self) -> bool:
        verdict = self._verdict
        return bool(verdict and verdict.mode == say.REPLAY and verdict.token_count)

    def _send_checkpoint(self, event: Checkpoint, now: float) -> list[Buf]:
        if self._meetings is None:
            raise LocalProtocolError(
                f"dialect {self._settings.dialect} has no checkpoints"
            )
        buffers = self._meetings.send(event)
        self._go(Checkpoint, "", now)
        if not self._meetings.waiting:
            self._meet(now)
        return buffers

    def _acknowledge(self, event: Any, now: float) -> list[Buf]:
        status = event.status
        sync = isinstance(event, say.SyncDone)
        if sync and self._meetings is not None:
            self._meetings.refuse_status(status)
        elif sync and status == INTERRUPTED:
            raise LocalProtocolError("status 2 exists from v12 on (DS4T-SYNC-14)")
        logits: list[Any] = []
        if status == OK and sync:
            logits = [event.logits]
        elif status == OK and isinstance(event, say.BatchDone | say.MixedDone):
            logits = list(event.logits)
            wanted = len(self._command.items) + int(isinstance(event, say.MixedDone))
            if self._split and len(logits) != wanted:
                raise LocalProtocolError(
                    f"{wanted} logits entries are due, found {len(logits)}"
                )
        frames = self._logits(logits)
        known = 0 if isinstance(event, say.BatchDone) else event.session_id
        buffers = self._ack(known, status) + frames
        note(self.sessions, self._command, status)
        fatal = status not in (OK, INTERRUPTED) and not isinstance(
            event, say.SessionCreated | say.SessionDestroyed
        )
        if fatal:
            prefix = _RUNS[self._state]
            words = "failed" if prefix == "tp worker batch: " else event.text
            self._end(prefix + (words or f"failed with status {status}"), now)
        else:
            self._go(type(event), "", now)
        return buffers

    def _engine_failed(self, event: EngineFailed, now: float) -> list[Buf]:
        if self._state not in _RUNS and self._state not in _ACKED:
            raise LocalProtocolError(
                f"no operation runs in state {self._state.name} that could fail"
            )
        buffers: list[Buf] = []
        if self._state in _ACKED:
            batch = isinstance(self._command, say.RunBatch)
            known = 0 if batch else self._command.session_id
            status = event.status if event.status not in (OK, INTERRUPTED) else FAILED
            buffers = self._ack(known, status)
        if self._state in (Worker.CREATE, Worker.DESTROY):
            # the worker goes on: status 1 of a create is not fatal
            self._state = Worker.COMMAND
            self._advance(now)
            return buffers
        prefix = _RUNS[self._state]
        words = "failed" if prefix == "tp worker batch: " else event.text
        self._end(prefix + words, now)
        return buffers

    def _end(self, text: str, now: float) -> None:
        self._fail(
            failed(
                now,
                "DS4T-FAIL-11",
                text=text,
                phase=operation_of(self._command),
                expected="the operation to succeed",
                found=text,
            )
        )

    def _logits(self, entries: list[Any]) -> list[Buf]:
        """Return one frame per entry; none where logits are not split."""
        return logits_frames(self._settings, entries) if self._split else []
