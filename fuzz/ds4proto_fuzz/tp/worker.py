"""A tp-worker under fire: we lead the pair."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from ds4proto.link import ds4t_events as say
from ds4proto.link.ds4t_events import Transmit
from ds4proto.link.ds4t_texts import PairFailed
from ds4proto.link.ds4t_worker import WorkerControl
from ds4proto.link.events import Violation
from ds4proto.peer import PeerLost
from ds4proto_fuzz.case import Case, Step
from ds4proto_fuzz.ds4d.wire import Seen
from ds4proto_fuzz.effect import Effect
from ds4proto_fuzz.target import Outcome, Settings
from ds4proto_fuzz.tp.cases import STATES, WorkerCases
from ds4proto_fuzz.tp.gate_cases import GATE_STATES
from ds4proto_fuzz.tp.gate_play import play_gates
from ds4proto_fuzz.tp.pair import PairTarget, hello_verdict
from ds4proto_fuzz.tp.wire import TpWire, control_frame

__all__ = ["STATES", "TpWorkerTarget", "due_of"]

Answer = tuple[int, int] | bytes
_GLANCE: Final = 0.05
_PIECES: Final = 24
_RUNS: Final = (say.RunSync, say.RunEval, say.RunBatch, say.RunMixed, say.RunVerify,
                say.RunMtp)  # fmt: skip


class TpWorkerTarget(PairTarget):
    """Rank 1 under fire; it dials us twice, and lives as long as its pair."""

    ours = "tp-leader"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._cases: WorkerCases | None = None
        self._machine: WorkerControl | None = None
        self._early: Seen | None = None

    def meet(self) -> None:
        """Accept the control connection and read the hello; ours is not sent yet."""
        self._accept_control()
        self._cases = WorkerCases(self.hello, self.dialect, self.own_hello())

    def _accept_control(self) -> None:
        assert self.session is not None
        channel = self.session.channel(
            "control", fresh=True, deadline=self._soon(self.settings.connect)
        )
        self.control = TpWire.of(channel)
        self.data = self._machine = None
        self.read_hello(self.control)

    def _fresh(self, *, paired: bool) -> None:
        """Have a pair in the state that a case begins with."""
        if (
            self.control is None
            or not self.control.usable
            or not self.alive()
            or (not paired and self.data is not None)
        ):
            self.start()
        if paired and self.data is None:
            assert self.control is not None
            self.control.send(self.own_hello(), self._soon())
            if not self._dialled(self.patience * 3):
                raise self._not_met("no data connection behind a sound hello")

    def _dialled(self, patience: float) -> bool:
        """Accept the data connection, if the worker dials for one."""
        assert self.session is not None
        try:
            channel = self.session.accept(deadline=self._soon(patience), data=False)
        except PeerLost:
            return False
        self.data = TpWire.of(channel)
        self._machine = WorkerControl(self.rank("tp-worker"))
        return True

    def make(self, seed: int, index: int) -> Case:
        """Return one case."""
        assert self._cases is not None
        return self._cases.make(seed, index)

    def once(self, case: Case, turn: int, *, sure: bool) -> Outcome:
        """Give the steps of a case to the peer once."""
        del sure
        first_is_hello = bool(case.steps) and case.steps[0].name == "HELLO"
        self._fresh(paired=not first_is_hello)
        self.meter.settle()
        if first_is_hello:
            effect, reached = self._hello(case.steps[0], turn)
        elif case.state in GATE_STATES:
            effect, reached = play_gates(self, case, turn)
        else:
            effect, reached = self._commands(case, turn)
        effect = self.meter.jump() or effect
        if reached != "answered" or effect is not None:
            self.over()
        return Outcome(effect, reached)

    # hello

    def _hello(self, step: Step, turn: int) -> tuple[Effect | None, str]:
        assert self.control is not None
        data = step.varied(turn)
        end: list[bytes | None] = [None] if step.then == "half-close" else []
        verdict = hello_verdict(self.rank("tp-worker"), [data, *end])
        self.control.send(data, self._soon())
        if step.then == "half-close":
            self.control.half_close()
        word, _, clause = verdict.partition(" ")
        if word == "agreed":
            if not self._dialled(self.patience):
                return self.died("a hello is sound"), "agreed"
            # Surplus bytes are the head of a command; the pair has a past then.
            plain = not step.then and len(data) == len(self.own_hello())
            return None, "answered" if plain else "agreed"
        if word == "waiting":
            seen = self.control.frame(self._soon(_GLANCE))
            if seen is not None:
                return Effect("silent accept", "a frame before a whole hello"), word
            return None, "waiting for more"
        return self.ending(clause, "a hello that has to be refused"), "refused"

    # commands

    def _commands(self, case: Case, turn: int) -> tuple[Effect | None, str]:
        for step in case.steps:
            effect, reached = self._command(step, step.varied(turn))
            if effect is not None or reached not in ("answered", "runs"):
                return effect, reached
        return None, reached

    def _command(self, step: Step, data: bytes) -> tuple[Effect | None, str]:
        wire, machine = self.control, self._machine
        assert wire is not None
        assert machine is not None
        if step.then == "drip":
            for at in range(min(_PIECES, len(data))):
                wire.send(data[at : at + 1], self._soon())
            wire.send(data[_PIECES:], self._soon())
        else:
            wire.send(data, self._soon())
        machine.receive_data(data, 0.0)
        if step.then == "half-close":
            wire.half_close()
            machine.receive_data(None, 0.0)
        answers, end, runs = due_of(machine, self.dialect)
        self._early = None
        for wanted in answers:
            if isinstance(wanted, bytes):
                effect = self._meet(wanted)
            else:
                effect = self._ack(wanted)
            if effect is not None:
                return effect, "answered"
        if end is not None:
            what = "what ends the pair"
            return self.ending(end, what), "ended"
        if runs:
            return None, "runs"
        if machine.deadline() is not None:
            seen = wire.frame(self._soon(_GLANCE))
            if seen is not None:
                text = f"{seen.name} before a frame is whole"
                return Effect("silent accept", text, str(seen)), "waiting for more"
            return None, "waiting for more"
        return None, "answered"

    def _meet(self, frame: bytes) -> Effect | None:
        """Answer a checkpoint of a refused prompt in its own words.

        Whether a real worker of v12 or v14 acknowledges at once is not settled: an
        acknowledgement here is kept for ``_ack``.
        """
        assert self.control is not None
        if self._early is not None:
            return None
        seen = self.control.frame(self._soon())
        if seen is None:
            if self.control.ended:
                return self.accident()  # ended instead of refused
            return Effect("hang", "no checkpoint where one is due")
        if seen.name == "COMMAND_ACK":
            self._early = seen
        elif seen.name == "SYNC_CHECKPOINT":
            with suppress(PeerLost):
                self.control.send(frame, self._soon())
        else:
            return Effect("wrong answer", f"{seen.name} where a checkpoint is due")
        return None

    def _ack(self, wanted: tuple[int, int]) -> Effect | None:
        assert self.control is not None
        early, self._early = self._early, None
        seen = early or self.control.frame(self._soon())
        if seen is None:
            if self.control.ended:
                if wanted[1]:  # ended instead of refused
                    return self.accident()
                return self.died("an acknowledgement is due")
            return Effect("hang", "no acknowledgement where one is due")
        if seen.name != "COMMAND_ACK":
            return Effect("wrong answer", f"{seen.name} where COMMAND_ACK is due")
        return _judged(seen, wanted)


def due_of(
    machine: WorkerControl, dialect: str
) -> tuple[list[Answer], str | None, bool]:
    """Return what is due in order, the clause of an end, whether an engine runs.

    Due are acknowledgements (session, status), and checkpoints of a refused prompt,
    as frames: the machine has been answered in the same words.
    """
    answers: list[Answer] = []
    end, clause, runs = None, "", False
    again = True
    while again:
        again = False
        for event in machine.events():
            if isinstance(event, Violation):
                clause = event.problem.clause
            elif isinstance(event, Transmit):
                frame = b"".join(map(bytes, event.buffers))
                if control_frame(frame, dialect).name == "COMMAND_ACK":
                    answers.append(_words(frame, dialect))
                    continue
                answers.append(frame)
                if machine.failure is None:
                    machine.receive_data(frame, 0.0)
                    again = True
            elif isinstance(event, say.CreateSession | say.DestroySession):
                done: Any = say.SessionCreated
                if isinstance(event, say.DestroySession):
                    done = say.SessionDestroyed
                frames = machine.send(done(event.session_id), 0.0)
                answers.append(_words(b"".join(map(bytes, frames)), dialect))
                again = True
            elif isinstance(event, PairFailed):
                end = event.problem.clause or clause or "DS4T-CTRL-02"
            elif isinstance(event, say.Stop):
                end = "DS4T-STOP-01"
            elif isinstance(event, _RUNS):
                runs = True
    return answers, end, runs


def _words(frame: bytes, dialect: str) -> tuple[int, int]:
    """Return session and status of an acknowledgement."""
    seen = control_frame(frame, dialect)
    return int(seen.words["session_id"]), int(seen.words["status"])


def _judged(seen: Seen, wanted: tuple[int, int]) -> Effect | None:
    known, status = seen.words.get("session_id"), seen.words.get("status")
    if status == 0 and wanted[1]:
        return Effect("silent accept", "status 0 for what has to be refused", str(seen))
    if status and not wanted[1]:
        return Effect("wrong answer", "refuses a sound command", str(seen))
    if known != wanted[0]:
        text = f"due {wanted[0]}, came {known}"
        return Effect("wrong answer", "another session in the ack", text)
    return None
