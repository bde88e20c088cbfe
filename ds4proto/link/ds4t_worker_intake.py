"""The reading half of a worker: headers judged, frames turned into commands."""

from __future__ import annotations

from typing import Any, Final

from ds4proto.link import ds4t_events as say
from ds4proto.link.ds4t_answers import note, operation_of
from ds4proto.link.ds4t_checkpoint import wrong_frame
from ds4proto.link.ds4t_control import CHECKPOINT, ControlMachine
from ds4proto.link.ds4t_events import FAILED, Checkpoint, Transmit
from ds4proto.link.ds4t_identity import TpSettings
from ds4proto.link.ds4t_limits import ControlLimits
from ds4proto.link.ds4t_states import WORKER, Switch, Worker
from ds4proto.link.ds4t_texts import PairFailed, failed, text_of
from ds4proto.link.ds4t_verdict import verdict_of
from ds4proto.link.ds4t_worker_frames import ack_frame
from ds4proto.link.ds4t_worker_rules import (
    CommandJudge,
    Refusal,
    accepted_types,
    invalid,
)
from ds4proto.link.events import Violation
from ds4proto.schema.declare import FrameSpec
from ds4proto.schema.ds4t_answers import RDMA_POSTED, RDMA_WARM
from ds4proto.schema.ds4t_common import DS4T_MAGIC
from ds4proto.schema.problem import Buf, Problem
from ds4proto.schema.registry import frame

_READS: Final = frozenset({Worker.COMMAND, Worker.SYNC, Worker.MEETING, Worker.VERDICT})
_SYNCS: Final = frozenset({"SYNC", "SYNC_MULTIMODAL"})
_WARM_UP_TYPES: Final = (RDMA_WARM.code, RDMA_POSTED.code)
_WARM_UP: Final = (
    "a frame of the RDMA warm-up: DS4_TP_DISABLE_RDMA_WARMUP is set on this side alone"
)


class WorkerIntake(ControlMachine):
    """What a worker does with bytes; ``WorkerControl`` adds what it says."""

    def __init__(
        self,
        settings: TpSettings,
        *,
        limits: ControlLimits,
        vision: bool,
        engine_rules: bool,
        logits_frames: bool,
    ) -> None:
        super().__init__(settings, limits, logits_frames=logits_frames)
        self._state = Worker.COMMAND
        self._command: Any = None
        self._verdict: say.CommitBlock | None = None
        self._accepted = accepted_types(settings.dialect)
        self._commit = frame("DS4T.VERIFY_COMMIT", dialect=settings.dialect)
        self._meeting = (
            frame(CHECKPOINT, dialect=settings.dialect) if self._meetings else None
        )
        self._judge = CommandJudge(
            settings,
            self.sessions,
            limits,
            vision=vision,
            engine_rules=engine_rules,
        )
        self._refusal: Refusal | None = None
        self._unfit: Refusal | None = None

    @property
    def state(self) -> Worker:
        """Where the machine is."""
        return self._state

    def _ack(self, session_id: int, status: int) -> list[Buf]:
        return ack_frame(self._settings, session_id, status)

    def _go(self, trigger: type, switch: Switch, now: float) -> None:
        self._state = WORKER[self._state][trigger, switch]
        awaits = self._state in (Worker.MEETING, Worker.VERDICT)
        self._waiting_since = now if awaits else None
        self._advance(now)

    @property
    def _over(self) -> bool:
        return self._state in (Worker.STOPPED, Worker.FAILED)

    def _enter_failed(self) -> None:
        self._state = Worker.FAILED

    @property
    def _patience(self) -> float:
        verdict = self._state is Worker.VERDICT
        return self._limits.verdict if verdict else self._limits.answer

    def _late(self, now: float) -> PairFailed:
        return self._lost(f"silence; {self._progress()}", now)

    def _lost(self, found: str, now: float) -> PairFailed:
        inside = self._reader.header is not None
        clause = "DS4T-CTRL-04" if inside else "DS4T-CTRL-06"
        prefix, log, expected = "", (), "a whole command frame"
        text = text_of(clause)
        if self._state is Worker.VERDICT:
            clause = "DS4T-ROBUST-16"
            prefix, text = "tp worker verify: ", text_of(clause)
            expected = "VERIFY_COMMIT"
        elif self._state is Worker.MEETING:
            clause = "DS4T-CKPT-08"
            prefix, text = "tp worker sync: ", text_of(clause)
            expected = "SYNC_CHECKPOINT"
        return failed(
            now,
            clause,
            text=prefix + text,
            phase=operation_of(self._command),
            expected=expected,
            found=found,
            next_step="look at the leader's last lines; it says STOP when all is well",
            log=log,
            peer_lost=True,
        )

    def _advance(self, now: float) -> None:
        while not self._over:
            self._reader.pump(now)
            if self._reader.ended and self._reader.header is None:
                self._fail(self._lost(f"end of stream, {self._progress()}", now))
                return
            if self._state not in _READS or not self._step(now):
                return

    def _step(self, now: float) -> bool:
        """Use one header or one payload; False when there is none to use."""
        reader = self._reader
        if reader.header is None or self._between_checkpoints:
            return False
        if not reader.opened and not self._open(now):
            return True
        if reader.body is None:
            if reader.ended:
                self._fail(self._lost(f"end of stream, {self._progress()}", now))
            return reader.ended
        body, (_, code, size) = reader.body, reader.header
        reader.next(now)
        self._take(code, size, body, now)
        return True

    @property
    def _between_checkpoints(self) -> bool:
        """The next frame is not for this state: leave it where it is."""
        if self._state not in (Worker.SYNC, Worker.MEETING):
            return False
        return self._meetings is None or not self._meetings.reads

    def _open(self, now: float) -> bool:
        """Judge a header; True when its payload is being read."""
        magic, code, size = self._reader.header or (0, 0, 0)
        if self._state is Worker.VERDICT:
            if magic == DS4T_MAGIC and (code, size) == self._shape(self._commit):
                self._reader.keep(now)
                return True
            log = (text_of("DS4T-VERIFY-07", code, size),)
            missing = "tp worker verify: " + text_of("DS4T-VERIFY-06")
            self._refuse(
                Refusal("DS4T-VERIFY-07", missing, found=f"type {code}, {size} bytes"),
                now,
                log=log,
            )
            return False
        if self._state is not Worker.COMMAND:
            if magic == DS4T_MAGIC and (code, size) == self._shape(self._meeting):
                self._reader.keep(now)
                return True
            self._fail(wrong_frame(code, size, now))
            return False
        if magic != DS4T_MAGIC:
            self._refuse(
                Refusal(
                    "DS4T-CTRL-01",
                    text_of("DS4T-CTRL-01"),
                    found=f"magic {magic:#010x}",
                ),
                now,
            )
            return False
        return self._open_command(code, size, now)

    def _shape(self, spec: FrameSpec | None) -> tuple[int | None, int]:
        if spec is None:  # pragma: no cover - the table excludes it
            return None, 0
        return spec.code, spec.fixed_size(self._settings.dialect)

    def _open_command(self, code: int, size: int, now: float) -> bool:
        """Apply the caps before anything is reserved (DS4T-CTRL-17, DS4T-ROBUST-03)."""
        caps, dialect = self._limits.caps, self._settings.dialect
        spec = self._accepted.get(code)
        self._refusal = None
        if spec is None:
            hint = _WARM_UP if code in _WARM_UP_TYPES else "not a command"
            self._refusal = invalid(code, size, hint, "DS4T-CTRL-02")
        elif not spec.tails(dialect) and size != spec.fixed_size(dialect):
            want = spec.fixed_size(dialect)
            self._refusal = invalid(code, size, f"{spec.name} has {want} bytes")
        elif size > caps.body(spec.full_name):
            cap = caps.body(spec.full_name)
            self._refuse(
                invalid(code, size, f"more than the cap of {cap}", "DS4T-CTRL-17"), now
            )
            return False
        if self._refusal is None:
            self._reader.keep(now)
        elif size > caps.unknown:
            self._refuse(self._refusal, now)
            return False
        else:
            # real workers read a refused frame to its end (DS4T-CTRL-16)
            self._reader.skip(now)
        return True

    def _take(self, code: int, size: int, body: memoryview, now: float) -> None:
        if self._state is Worker.VERDICT:
            self._take_verdict(self._read(self._commit, body).values, now)
        elif self._state is not Worker.COMMAND:
            self._take_checkpoint(body, now)
        elif self._refusal is not None:
            self._refuse(self._refusal, now)
        else:
            spec = self._accepted[code]
            reading = self._read(spec, body)
            outcome = self._judge.judge(spec, reading, size)
            if isinstance(outcome, Refusal):
                if spec.name in _SYNCS and outcome.ack is not None:
                    self._refuse_prompt(outcome, reading.values, now)
                else:
                    self._refuse(outcome, now)
            else:
                self._run(outcome, now)

    def _run(self, command: Any, now: float) -> None:
        self._command = command
        if isinstance(command, say.Rewind):
            left = self.sessions.rewind(command.session_id, command.position)
            command = say.Rewind(command.session_id, left)
        elif isinstance(command, say.Invalidate):
            self.sessions.invalidate(command.session_id)
        elif isinstance(command, say.RunSync) and self._meetings is not None:
            self._meetings.open(len(command.tokens))
        self._events.append(command)
        self._go(type(command), "", now)

    def _refuse(self, refusal: Refusal, now: float, log: tuple[str, ...] = ()) -> None:
        if refusal.ack is not None:
            self._events.append(Transmit(self._ack(refusal.ack, FAILED)))
        if not refusal.ends:
            problem = Problem(
                refusal.clause, "command", None, None, "a sound request", refusal.found
            )
            self._events.append(Violation(now, problem, fatal=False))
            return
        self._fail(
            failed(
                now,
                refusal.clause,
                text=refusal.text,
                phase="command",
                expected="a command that this worker accepts",
                found=refusal.found,
                log=log,
            )
        )

    def _refuse_prompt(
        self, refusal: Refusal, values: dict[str, Any], now: float
    ) -> None:
        """Refuse what an engine would refuse: inside the checkpoints of that sync.

        Where the dialect has them, START comes before any work, and END says how it
        ended (DS4T-CKPT-09, -11); the machine says both by itself.
        """
        if self._meetings is None:
            self._refuse(refusal, now)
            return
        tokens = values["tokens"]
        self._unfit = refusal
        self._command = say.RunSync(values["session_id"], tokens)
        self._meetings.open(len(tokens))
        self._go(say.RunSync, "", now)
        self._meet_unfit(Checkpoint(say.START, 0, len(tokens), False), now)

    def _meet_unfit(self, mine: Checkpoint, now: float) -> None:
        meetings = self._meetings
        if meetings is None or self._over:
            return
        self._events.append(Transmit(meetings.send(mine)))
        self._go(Checkpoint, "", now)
        if not meetings.waiting and not self._over:
            self._meet(now)

    def _met_unfit(self, agreed: Checkpoint, refusal: Refusal, now: float) -> None:
        """Go on after a checkpoint of a refused prompt: to END, then to the ack."""
        self._go(Checkpoint, "", now)
        if agreed.point != say.END:
            # a cancel agreed at START comes first: the prompt was never looked at
            code = say.OK if agreed.cancelled else FAILED
            self._meet_unfit(Checkpoint(say.END, code, agreed.total, False), now)
            return
        self._unfit = None
        if agreed.cancelled:
            known = self._command.session_id
            self._events.append(Transmit(self._ack(known, say.INTERRUPTED)))
            note(self.sessions, self._command, say.INTERRUPTED)
        else:
            self._refuse(refusal, now)
        if not self._over:
            self._go(say.SyncDone, "", now)

    def _take_verdict(self, values: dict[str, Any], now: float) -> None:
        drafts = self._command.tokens
        outcome = verdict_of(values, len(drafts), self._settings.rules.prefix_commit)
        if isinstance(outcome, Refusal):
            self._refuse(outcome, now)
            return
        self._verdict = outcome
        kept = len(drafts) if outcome.mode == say.KEEP_ALL else outcome.token_count
        self.sessions.extend(self._command.session_id, *drafts[:kept])
        self._events.append(outcome)
        self._go(say.CommitBlock, "", now)

    def _take_checkpoint(self, body: memoryview, now: float) -> None:
        if self._meetings is not None and self._meeting is not None:
            self._meetings.receive(self._read(self._meeting, body).values)
            self._meet(now)

    def _meet(self, now: float) -> None:
        meetings = self._meetings
        if meetings is None:  # pragma: no cover - the table excludes it
            return
        outcome = meetings.judge(now)
        if isinstance(outcome, PairFailed):
            self._fail(outcome)
        elif outcome is None:
            if meetings.early and self._unfit is None:
                self._events.append(say.PeerCheckpoint(meetings.seen()))
        elif self._unfit is not None:
            self._met_unfit(outcome, self._unfit, now)
        else:
            self._events.append(outcome)
            self._go(Checkpoint, "", now)
