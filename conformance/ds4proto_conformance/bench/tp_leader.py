"""We play the worker: the vocabulary of cases for tp-leaders.

A leader acts by itself. We answer every command as a worker without an engine does,
judge what comes, and at one place do something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from ds4proto.link.ds4t_events import END, KEEP_ALL, REPLAY
from ds4proto.link.plan import PlannedGate, token_gates
from ds4proto.peer import PeerLost
from ds4proto.schema.registry import frame, to_bytes
from ds4proto_conformance.bench.base import Connections
from ds4proto_conformance.bench.drive import Driver
from ds4proto_conformance.bench.tp import TpBench
from ds4proto_conformance.bench.tp_meetings import FIRST, MISSING
from ds4proto_conformance.bench.tp_plan import Step, command_gates
from ds4proto_conformance.bench.tp_wire import ControlFrame, DataWire, gate_bytes
from ds4proto_conformance.settings import Settings
from ds4proto_conformance.verdicts import Deviation, NotApplicable
from ds4proto_conformance.wire import Ended

__all__ = ["LeaderBench", "Step"]

_WORK: Final = frozenset(
    {
        "EVAL",
        "VERIFY",
        "EVAL_BATCH",
        "MIXED_BATCH",
        "GLM_MTP",
    }
)
_LAST: Final = 400
"""Commands that we answer at most."""


class LeaderBench(TpBench):
    """A tp-leader under test."""

    ours = "tp-worker"

    def __init__(self, connections: Connections, settings: Settings) -> None:
        super().__init__(connections, settings)
        self.held: dict[int, list[int]] = {}
        self.contexts: dict[int, int] = {}
        self.used: set[int] = set()
        self._meeting = self._evals = 0
        self.fixed_half: bytes | None = None
        self._driver = Driver(settings.drive)

    # meeting

    def accepted(self, clause: str) -> None:
        """Take it that the leader takes our data connection and commands something."""
        try:
            channel = self.connections.channel("data", deadline=self._soon())
        except PeerLost as error:
            raise Deviation(clause, "a data connection", str(error)) from None
        self._data_in_use = DataWire(
            channel, self.transcript, self.patience, self.budget.wait
        )
        self._driver.start()
        told = self.settings
        found = self.control.next(told.wait(told.connect) if told.drive else None)
        if isinstance(found, Ended):
            raise Deviation(clause, "the hello accepted, a command", str(found))
        self._ahead = found

    _ahead: ControlFrame | None = None

    def turned_down(self, clause: str) -> None:
        """Take it that a hello was refused: an end, and no command."""
        self.refused(clause, "the leader to refuse the hello and close")

    def close(self) -> None:
        """End the run, and the command that drove it."""
        super().close()
        self._driver.close()

    # frames

    def answer(self, name: str, **values: Any) -> None:
        """Send a frame of a worker."""
        spec = frame(f"DS4T.{name}", dialect=self.dialect)
        data = to_bytes(spec, values, dialect=self.dialect)
        self.control.send(data, f"DS4T.{name}", values)

    def raw(self, code: int, body: bytes = b"") -> None:
        """Send a frame of any type."""
        head = self.hello_bytes[:4] + code.to_bytes(4, "little")
        data = head + len(body).to_bytes(4, "little") + body
        self.control.send(data, f"type {code}")

    def ack(self, known: int, status: int = 0) -> None:
        """Send COMMAND_ACK."""
        self.answer("COMMAND_ACK", session_id=known, status=status)

    def half(self) -> bytes:
        """Return a half of the logits."""
        if self.fixed_half is not None:
            return self.fixed_half
        import numpy as np

        count = self.identity.n_vocab // 2
        rng = np.random.default_rng(self._evals + 1)
        return bytes(rng.uniform(-1, 1, count).astype(np.float32).tobytes())

    def logits(self, body: bytes | None = None) -> None:
        """Send LOGITS, where they are due."""
        if not self.split:
            return
        if self.own.top2:
            half = self.identity.n_vocab // 2
            self.raw(
                18,
                half.to_bytes(4, "little")
                + (half + 1).to_bytes(4, "little")
                + bytes(8),
            )
            return
        self.raw(10, self.half() if body is None else body)

    # commands

    def commands(self) -> Iterator[Step]:
        """Yield the leader's commands, judged, until it stops or ends.

        Raises
        ------
        Deviation
            A command breaks a clause, or none comes.
        """
        self.pair()
        for number in range(_LAST):
            found = self._ahead or self.control.next()
            self._ahead = None
            if isinstance(found, Ended):
                if found.how == "silence":
                    raise Deviation("DS4T-FLOW-01", "a command, or STOP", str(found))
                return
            step = self.step(found, number)
            yield step
            if step.name == "STOP":
                self.control.closed("DS4T-STOP-03", "the end behind STOP")
                return

    def step(self, found: ControlFrame, number: int) -> Step:
        """Judge a command and find its gates."""
        for problem in found.problems:
            raise Deviation(problem.clause, problem.expected, problem.found)
        spec = (
            frame(f"DS4T.{found.name}", dialect=self.dialect)
            if found.values or (found.name in ("STOP",))
            else None
        )
        if spec is not None and "tp-leader" not in spec.sender:
            raise Deviation("DS4T-CTRL-25", "a command", str(found))
        step = Step(found.name, found.values, number)
        if step.name == "SESSION_CREATE":
            if not step.known or step.known in self.used:
                raise Deviation("DS4T-SESSION-07", "a new id, not 0", str(found))
            self.used.add(step.known)
        elif step.known and step.known not in self.held:
            raise Deviation(
                "DS4T-SESSION-07", f"sessions {sorted(self.held)}", str(found)
            )
        if step.name in ("EVAL", "GLM_MTP"):
            self._evals += 1
            if found["seq"] != self._evals:
                raise Deviation("DS4T-EVAL-02", f"number {self._evals}", str(found))
        step.gates = list(self._gates(step))
        return step

    def _gates(self, step: Step) -> Iterator[PlannedGate]:
        known = step.known
        return command_gates(
            step.name,
            step.values,
            self.held.get(known, []),
            self.contexts.get(known, 0),
            self.schedule,
            self.plan_options,
            self.identity.model_id,
        )

    def exchange(self, planned: Iterable[PlannedGate]) -> None:
        """Exchange gates in order and judge those of the leader."""
        for gate in planned:
            seq, rows = self.next_seq(gate.kind), self.partial(gate)
            own = gate_bytes(gate.kind, gate.layer, self.third(gate), seq) + rows
            self.judge_gate(gate, seq, self.data.exchange(own, len(rows)))

    def wrong_gate(self, gate: PlannedGate, **lies: int) -> None:
        """Send one gate with a wrong header and judge the leader's own."""
        seq, rows = self.next_seq(gate.kind), self.partial(gate)
        own = gate_bytes(gate.kind, gate.layer, self.third(gate), seq, **lies) + rows
        found = self.data.exchange(own, len(rows))
        # A reset on unread bytes takes the peer's own gate with it: a refusal too.
        if not (isinstance(found, Ended) and found.how == "reset"):
            self.judge_gate(gate, seq, found)

    def push_gate(self, gate: PlannedGate) -> None:
        """Send one gate as it is due, without reading the leader's."""
        seq = self.next_seq(gate.kind)
        head = gate_bytes(gate.kind, gate.layer, self.third(gate), seq)
        self.data.send(head + self.partial(gate), "gate, ahead")

    def serve(self, step: Step) -> None:
        """Answer a command as a worker does."""
        name, values = step.name, step.values
        if name in ("SYNC", "SYNC_MULTIMODAL"):
            self.exchange(self.meetings(step))
            self.finish_sync(step)
        elif name == "VERIFY":
            self.exchange(step.gates)
            self.verdict(step)
        elif name in _WORK:
            self.exchange(step.gates)
            if name != "EVAL":
                self.ack(step.known)
            count = len(values.get("items", ())) + (name == "MIXED_BATCH")
            for _ in range(1 if name == "EVAL" else count):
                self.logits()
            self.noted(step)
        elif name in ("SESSION_CREATE", "SESSION_DESTROY"):
            self.ack(step.known)
            self.noted(step)
        else:
            self.noted(step)

    def noted(self, step: Step) -> None:
        """Bring our view of the sessions up to date."""
        values, known = step.values, step.known
        if step.name == "SESSION_CREATE":
            self.held[known], self.contexts[known] = [], values["ctx_size"]
        elif step.name == "SESSION_DESTROY":
            self.held.pop(known, None)
        elif step.name in ("SYNC", "SYNC_MULTIMODAL", "MIXED_BATCH"):
            self.held[known] = list(values["tokens"])
        elif step.name == "EVAL":
            self.held[known].append(values["token"])
        elif step.name == "REWIND":
            del self.held[known][max(values["position"], 0) :]
        elif step.name == "INVALIDATE":
            self.held[known] = []
        for item in values.get("items", ()):
            self.held[item["session_id"]].append(item["token"])

    def meetings(self, step: Step, cancel: int | None = None) -> Iterator[PlannedGate]:
        """Yield the gates of a sync, with the checkpoints between them.

        Parameters
        ----------
        cancel : int, optional
            Point at which we wish to stop.
        """
        if not self.own.rules.checkpoints:
            yield from step.gates
            return
        due = iter(step.gates)
        total = len(step.values["tokens"])
        agreed = self.meet(0, total, cancel)
        per_layer = len(self.schedule.ffn_layers)
        bulk = [g for g in step.gates if g.kind == "bulk"]
        stop = agreed
        if not stop:
            swaps = sum(g.gate == "ATTN" for g in bulk)
            chunks = max(0, (len(bulk) - swaps) // max(per_layer, 1))
            size = len(bulk) // chunks if chunks else 0
            for _ in range(chunks):
                for _ in range(size):
                    yield next(due)
                stop = self.meet(1, total, cancel)
                if stop:
                    break
            if not stop:
                yield from due
        self.meet(END, total, cancel, stopped=stop)

    def meet(
        self, point: int, total: int, cancel: int | None, *, stopped: bool = False
    ) -> bool:
        """Answer the leader's checkpoints up to one point."""
        while True:
            found = self.control.next()
            if isinstance(found, Ended) or found.name != "SYNC_CHECKPOINT":
                silent = isinstance(found, Ended) and found.how == "silence"
                clause = FIRST if silent else MISSING[point]
                due = f"a SYNC_CHECKPOINT of point {point} before ours"
                raise Deviation(clause, due, str(found))
            self._meeting += 1
            seen = (found["seq"], found["total"])
            if seen != (self._meeting, total):
                clause = "DS4T-CKPT-02" if seen[0] != self._meeting else "DS4T-CKPT-04"
                raise Deviation(
                    clause, f"checkpoint {self._meeting}, total {total}", str(found)
                )
            if found["cancelled"] > 1:
                raise Deviation("DS4T-CKPT-05", "cancelled 0 or 1", str(found))
            reached = found["point"]
            if point == 0 and (reached, found["current"]) != (0, 0):
                raise Deviation("DS4T-CKPT-09", "point 0, current 0", str(found))
            if reached == END and point != END:
                raise Deviation(
                    "DS4T-CKPT-10", "a point 1 behind the chunk", str(found)
                )
            if reached == END and found["current"] != (2 if stopped else 0):
                due = "code 2 behind an agreed cancel" if stopped else "code 0"
                raise Deviation("DS4T-CKPT-13", due, str(found))
            wish = int(cancel == reached)
            values = {k: found[k] for k in ("seq", "point", "current", "total")}
            self.answer("SYNC_CHECKPOINT", **values, cancelled=wish)
            if reached == point:
                return bool(wish or found["cancelled"])

    def finish_sync(self, step: Step) -> None:
        """Acknowledge a sync."""
        self.ack(step.known)
        self.logits()
        self.noted(step)

    def verdict(self, step: Step) -> None:
        """Take the verdict on a block and follow it."""
        found = self.control.frame("VERIFY_COMMIT", "DS4T-VERIFY-06")
        drafts = step.values["tokens"]
        mode, count = found["mode"], found["token_count"]
        if mode == KEEP_ALL:
            kept = len(drafts)
        elif 0 <= count <= len(drafts):
            kept = count
        else:
            raise Deviation("DS4T-VERIFY-08", f"0 to {len(drafts)}", str(found))
        if mode == REPLAY:
            for _ in range(kept):
                self.exchange(token_gates(self.schedule))
            if kept:
                self.logits()
        self.held[step.known] += drafts[:kept]

    # for the cases

    def until(self, name: str, count: int = 1) -> Step:
        """Serve the leader up to a command of a type, and return that unanswered.

        Raises
        ------
        NotApplicable
            It never comes.
        """
        for step in self.commands():
            if step.name == name:
                count -= 1
                if not count:
                    return step
            self.serve(step)
        raise NotApplicable(f"the leader never sends {name}; see --drive")

    def no_more_work(
        self, clause: str, *, failed: bool = False, also: str = ""
    ) -> None:
        """Take it that the leader runs nothing further: it stops, or ends.

        Parameters
        ----------
        failed : bool
            The pair is marked failed: only STOP may come.
        also : str
            A frame that may still be on its way.
        """
        self.spent = True
        allowed = (
            {"STOP"} if failed else {"STOP", "SESSION_DESTROY", "INVALIDATE", "REWIND"}
        )
        while True:
            found = self.control.next()
            if isinstance(found, Ended):
                if found.how == "silence":
                    raise Deviation(clause, "the leader to stop or end", str(found))
                return
            if found.name not in allowed | {also}:
                raise Deviation(
                    clause, f"nothing but {', '.join(sorted(allowed))}", str(found)
                )
