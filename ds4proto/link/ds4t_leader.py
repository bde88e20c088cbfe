"""The leader's control connection as a state machine (sans-IO); see ``ds4t_states``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ds4proto.link import ds4t_events as say
from ds4proto.link.ds4t_answers import answer_to, note, operation_of
from ds4proto.link.ds4t_checkpoint import wrong_frame
from ds4proto.link.ds4t_control import CHECKPOINT, ControlMachine
from ds4proto.link.ds4t_events import (
    INTERRUPTED,
    OK,
    REPLAY,
    Checkpoint,
    Command,
    Top2,
    Transmit,
)
from ds4proto.link.ds4t_identity import TpSettings
from ds4proto.link.ds4t_leader_frames import CommandRules
from ds4proto.link.ds4t_limits import CONTROL_LIMITS, ControlLimits
from ds4proto.link.ds4t_states import LEADER, Leader, Switch
from ds4proto.link.ds4t_texts import LocalProtocolError, PairFailed, failed, text_of
from ds4proto.schema.ds4t_common import DS4T_MAGIC
from ds4proto.schema.problem import Buf
from ds4proto.schema.registry import frame

_READS = frozenset({Leader.SYNC, Leader.MEETING, Leader.ACK, Leader.LOGITS})
_SAYS = frozenset(t.__name__ for t in (*say.Command.__args__, Checkpoint))
_SILENT_AFTER_FAILURE = (say.Rewind, say.Invalidate, say.DestroySession)


class LeaderControl(ControlMachine):
    """Rank 0: commands in, answers out.

    Parameters
    ----------
    settings : TpSettings
    limits : ControlLimits
        Caps and seconds.
    logits_frames : bool
        False where the logits halves cross the queue pair (v9w, feature bit 3, RDMA;
        DS4T-LOGITS-08).

    Notes
    -----
    ``send`` takes commands (and, from v12 on, the own ``Checkpoint`` during a sync)
    and returns what to write. ``events`` yields the answers (``SessionCreated``,
    ``SyncDone`` ...; a status other than 0 comes with its text), ``Checkpoint`` as
    agreed, ``PeerCheckpoint``, ``Transmit`` (the INVALIDATE after a failed sync), and
    ``PairFailed`` at most once. ``receive_data`` never raises; ``send`` raises
    ``LocalProtocolError`` and has then changed nothing.
    """

    def __init__(
        self,
        settings: TpSettings,
        *,
        limits: ControlLimits = CONTROL_LIMITS,
        logits_frames: bool = True,
    ) -> None:
        super().__init__(settings, limits, logits_frames=logits_frames)
        self._state = Leader.IDLE
        self._rules = CommandRules(settings, self.sessions)
        self._command: Any = None
        self._eval_seq = 0
        self._logits_left = 0
        self._logits: list[memoryview | Top2] = []
        dialect = settings.dialect
        self._ack = frame("DS4T.COMMAND_ACK", dialect=dialect)
        name = "DS4T.LOGITS_TOP2" if settings.top2 else "DS4T.LOGITS"
        self._logits_spec = frame(name, dialect=dialect)

    @property
    def state(self) -> Leader:
        """Where the machine is."""
        return self._state

    @property
    def next_session_id(self) -> int:
        """The id that real leaders take next: 1, 2, 3 ..."""
        return self.sessions.next_id

    @property
    def eval_seq(self) -> int:
        """The number of the last EVAL or GLM_MTP (DS4T-EVAL-02)."""
        return self._eval_seq

    def send(self, event: Command | Checkpoint, now: float) -> list[Buf]:
        """Return the frame of a command, and remember which answers are due.

        After a failure only ``Stop`` is sent; ``Rewind``, ``Invalidate`` and
        ``DestroySession`` are dropped (DS4T-FAIL-13).

        Raises
        ------
        LocalProtocolError
            If the command is not due in this state, or breaks a rule.
        """
        if self._state is Leader.FAILED and isinstance(event, _SILENT_AFTER_FAILURE):
            return []
        if isinstance(event, Checkpoint):
            return self._send_checkpoint(event, now)
        if isinstance(event, say.CommitBlock):
            return self._send_verdict(event, now)
        self._require(event)
        if isinstance(event, say.RunEval | say.RunMtp):
            event = replace(event, seq=self._eval_seq + 1)
        name, values = self._rules.build(event)
        buffers = self._build(name, values)
        if isinstance(event, say.RunEval | say.RunMtp):
            self._eval_seq = event.seq
        self._begin(event, now)
        return buffers

    def _require(self, event: object) -> None:
        due = sorted({t.__name__ for t, _ in LEADER[self._state]} & _SAYS)
        if type(event).__name__ not in due:
            raise LocalProtocolError(
                f"{type(event).__name__} is not due in state {self._state.name}; due: "
                f"{', '.join(due) or 'nothing'}"
            )

    def _begin(self, event: Any, now: float) -> None:
        """Note what a command that is about to be written starts."""
        self._command = event
        self._logits = []
        self._logits_left = 0
        switch: Switch = ""
        if isinstance(event, say.RunSync):
            if self._meetings is not None:
                self._meetings.open(len(event.tokens))
                switch = "meet"
        elif isinstance(event, say.RunEval):
            if self._split:
                self._logits_left, switch = 1, "logits"
            else:
                self.sessions.extend(event.session_id, event.token)
        elif isinstance(event, say.Rewind):
            self.sessions.rewind(event.session_id, event.position)
        elif isinstance(event, say.Invalidate):
            self.sessions.invalidate(event.session_id)
        self._go(type(event), switch, now)

    def _go(self, trigger: type, switch: Switch, now: float) -> None:
        self._state = LEADER[self._state][trigger, switch]
        awaits = self._state in (Leader.MEETING, Leader.ACK, Leader.LOGITS)
        self._waiting_since = now if awaits else None
        self._advance(now)

    def _send_checkpoint(self, event: Checkpoint, now: float) -> list[Buf]:
        self._require(event)
        if self._meetings is None:  # pragma: no cover - the table excludes it
            raise LocalProtocolError("this dialect has no checkpoints")
        buffers = self._meetings.send(event)
        self._go(Checkpoint, "", now)
        if not self._meetings.waiting:
            self._meet(now)
        return buffers

    def _send_verdict(self, event: say.CommitBlock, now: float) -> list[Buf]:
        self._require(event)
        drafts = self._command.tokens
        name, values = self._rules.commit(event, len(drafts))
        replay = event.mode == REPLAY
        kept = len(drafts) if event.mode == say.KEEP_ALL else event.token_count
        self.sessions.extend(self._command.session_id, *drafts[:kept])
        split = replay and kept > 0 and self._split
        self._logits_left = int(split)
        self._go(say.CommitBlock, "logits" if split else "", now)
        return self._build(name, values)

    def mark_failed(self, text: str, now: float) -> None:
        """Note that the data plane failed: only ``Stop`` may follow."""
        self._fail(
            failed(
                now,
                "DS4T-FAIL-13",
                text=text,
                phase="gate",
                expected="gates in lockstep",
                found=text,
            )
        )

    @property
    def _over(self) -> bool:
        return self._state in (Leader.STOPPED, Leader.FAILED)

    def _enter_failed(self) -> None:
        self._state = Leader.FAILED

    @property
    def _patience(self) -> float:
        return self._limits.answer

    @property
    def _operation(self) -> str:
        """The words of the running operation (DS4T-ACK-11)."""
        return operation_of(None if self._state is Leader.IDLE else self._command)

    def _late(self, now: float) -> PairFailed:
        waited = f"nothing for {self._patience:g} s; {self._progress()}"
        return self._lost(waited, now)

    def _lost(self, found: str, now: float, *, lost: bool = True) -> PairFailed:
        """Return the failure that fits what was awaited."""
        if self._state in (Leader.SYNC, Leader.MEETING):
            clause, words = "DS4T-CKPT-08", text_of("DS4T-CKPT-08")
            expected = "SYNC_CHECKPOINT"
        elif self._state is Leader.LOGITS:
            sync = isinstance(self._command, say.RunSync)
            clause = "DS4T-SYNC-13" if sync else "DS4T-EVAL-09"
            words, expected = text_of(clause), self._logits_spec.name
        else:
            clause, words = "DS4T-ACK-04", text_of("DS4T-ACK-04", self._operation)
            expected = "COMMAND_ACK"
        return failed(
            now,
            clause,
            text=words,
            phase=self._operation,
            expected=expected,
            found=found,
            next_step="look at the worker's last lines: it prints why it ended",
            peer_lost=lost,
        )

    def _advance(self, now: float) -> None:
        while not self._over:
            self._reader.pump(now)
            if self._reader.ended and self._reader.header is None:
                self._fail(self._lost(f"end of stream after {self._progress()}", now))
                return
            if self._state not in _READS or not self._step(now):
                return

    def _step(self, now: float) -> bool:
        """Use one header or one payload; False when there is none."""
        reader = self._reader
        meets = self._state in (Leader.SYNC, Leader.MEETING)
        kept = meets and self._meetings is not None and not self._meetings.reads
        if reader.header is None or kept:
            return False
        if not reader.opened:
            failure = self._judge_header(now)
            if failure is not None:
                self._fail(failure)
                return True
            reader.keep(now)
        if reader.body is None:
            if reader.ended:
                self._fail(self._lost(f"end of stream after {self._progress()}", now))
            return reader.ended
        body = reader.body
        reader.next(now)
        self._take(body, now)
        return True

    def _judge_header(self, now: float) -> PairFailed | None:
        magic, code, size = self._reader.header or (0, 0, 0)
        plain = magic == DS4T_MAGIC
        if self._state is Leader.ACK:
            fits = code == self._ack.code and size == self._size(self._ack)
            found = f"magic {magic:#010x}, type {code} of {size} bytes"
            return None if plain and fits else self._lost(found, now, lost=False)
        if self._state is Leader.LOGITS:
            wanted = self._settings.logits_bytes
            if self._settings.top2:
                wanted = self._size(self._logits_spec)
            if plain and code == self._logits_spec.code and size == wanted:
                return None
            lost = self._lost(
                f"type {code} of {size} bytes, expected {wanted}", now, lost=False
            )
            if not plain:
                return lost
            return replace(lost, log=(text_of("DS4T-LOGITS-03", code, size),))
        spec = frame(CHECKPOINT, dialect=self._settings.dialect)
        fits = code == spec.code and size == self._size(spec)
        return None if plain and fits else wrong_frame(code, size, now)

    def _size(self, spec: Any) -> int:
        return int(spec.fixed_size(self._settings.dialect))

    def _take(self, body: memoryview, now: float) -> None:
        if self._state is Leader.ACK:
            self._take_ack(self._read(self._ack, body).values, now)
        elif self._state is Leader.LOGITS:
            self._take_logits(body, now)
        elif self._meetings is not None:
            spec = frame(CHECKPOINT, dialect=self._settings.dialect)
            self._meetings.receive(self._read(spec, body).values)
            self._meet(now)

    def _meet(self, now: float) -> None:
        meetings = self._meetings
        if meetings is None:  # pragma: no cover - the table excludes it
            return
        outcome = meetings.judge(now)
        if isinstance(outcome, PairFailed):
            self._fail(outcome)
        elif outcome is None:
            if meetings.early:
                self._events.append(say.PeerCheckpoint(meetings.seen()))
        else:
            self._events.append(outcome)
            self._go(Checkpoint, "end" if meetings.ended else "", now)

    def _take_ack(self, values: dict[str, Any], now: float) -> None:
        found, status = values["session_id"], values["status"]
        command = self._command
        wanted = 0 if isinstance(command, say.RunBatch) else command.session_id
        text = text_of("DS4T-ACK-05", self._operation, found, status)
        reserved = values.get("reserved", 0)
        if found != wanted or (self._settings.rules.ack_reserved and reserved):
            self._fail(
                failed(
                    now,
                    "DS4T-ACK-05" if found != wanted else "DS4T-ACK-08",
                    text=text,
                    phase=self._operation,
                    path="COMMAND_ACK.session_id",
                    expected=f"session {wanted}, reserved 0",
                    found=f"session {found}, reserved {reserved}",
                )
            )
        elif status == OK:
            self._answer(command, OK, "", now)
        else:
            self._refused(command, status, text, now)

    def _refused(self, command: Any, status: int, text: str, now: float) -> None:
        agreed = self._meetings is not None and self._meetings.cancelled
        if isinstance(command, say.RunSync) and status == INTERRUPTED and agreed:
            text = ""
        self._answer(command, status, text, now)
        if isinstance(command, say.RunSync) and command.session_id in self.sessions:
            buffers = self.send(say.Invalidate(command.session_id), now)
            if buffers:
                self._events.append(Transmit(buffers))

    def _answer(self, command: Any, status: int, text: str, now: float) -> None:
        """Go on after an ack: to the logits that are due, or to the answer."""
        due = 0
        if status == OK and self._split:
            if isinstance(command, say.RunSync):
                due = 1
            elif isinstance(command, say.RunBatch | say.RunMixed):
                mixed = isinstance(command, say.RunMixed)
                due = len(command.items) + int(mixed)
        answer = answer_to(command, status, text)
        self._logits_left = due
        if due:
            self._go(type(answer), "logits", now)
            return
        note(self.sessions, command, status)
        self._events.append(answer)
        self._go(type(answer), "", now)

    def _take_logits(self, body: memoryview, now: float) -> None:
        if self._settings.top2:
            v = self._read(self._logits_spec, body).values
            self._logits.append(Top2((v["id0"], v["id1"]), (v["value0"], v["value1"])))
        else:
            self._logits.append(body)
        self._logits_left -= 1
        if self._logits_left:
            self._go(Top2, "more", now)
            return
        command = self._command
        answer = answer_to(command)
        many = isinstance(command, say.RunBatch | say.RunMixed)
        found: Any = tuple(self._logits) if many else self._logits[0]
        note(self.sessions, command)
        self._events.append(replace(answer, logits=found))
        self._go(Top2, "end", now)
