"""We play the leader: the vocabulary of cases for tp-workers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ds4proto.link.ds4t_events import CHUNK, END, KEEP_ALL, OK, REPLAY, START
from ds4proto.link.plan import (
    Chunk,
    PlannedGate,
    SyncPlan,
    chunk_gates,
    plan_sync,
    token_gates,
    verify_gates,
)
from ds4proto.peer import PeerLost
from ds4proto.schema.registry import frame, to_bytes
from ds4proto_conformance.bench.base import Connections
from ds4proto_conformance.bench.tp_meetings import MeetingBench, Trace
from ds4proto_conformance.bench.tp_wire import ControlFrame, DataWire, gate_bytes
from ds4proto_conformance.settings import Settings
from ds4proto_conformance.verdicts import Deviation
from ds4proto_conformance.wire import Ended

__all__ = ["RankBench", "Trace"]

CTX = 256


class RankBench(MeetingBench):
    """A tp-worker under test.

    Attributes
    ----------
    held : mapping
        Tokens of each session that we opened, as both ranks have to hold them.
    """

    ours = "tp-leader"

    def __init__(self, connections: Connections, settings: Settings) -> None:
        super().__init__(connections, settings)
        self.held: dict[int, list[int]] = {}
        self._contexts: dict[int, int] = {}
        self._last_id = self._eval_seq = 0

    # meeting

    def accepted(self, clause: str) -> None:
        """Take it that the worker dials again, which it does behind a good hello."""
        wire = self._dials_again(self.patience)
        if wire is None:
            found = self.control.quiet(self.quiet)
            raise Deviation(clause, "the hello accepted: a data connection", str(found))
        self._data_in_use = wire

    def _dials_again(self, patience: float) -> DataWire | None:
        self.budget.wait("the data connection of the worker")
        try:
            channel = self.connections.accept(
                deadline=self.after(patience), phase="waiting for data", data=False
            )
        except PeerLost:
            return None
        return DataWire(channel, self.transcript, self.patience, self.budget.wait)

    def after(self, seconds: float) -> float:
        """Return a deadline so many seconds from now."""
        return self._soon() - self.settings.wait(self.settings.connect) + seconds

    def turned_down(self, clause: str) -> None:
        """Take it that a hello was refused: an end, and no data connection.

        Raises
        ------
        Deviation
            The worker answers, stays or dials again.
        """
        self.refused(clause, "the worker to refuse the hello and close")
        wire = self._dials_again(0.02)
        if wire is not None:
            wire.close()
            raise Deviation(clause, "no data connection", "the worker dials again")

    def refused(self, clause: str, what: str = "", *, gates: bool = False) -> None:
        """Take it that the worker ends without a frame, and without a gate.

        Parameters
        ----------
        gates : bool
            Gates of the command may have come before.
        """
        super().refused(clause, what)
        if gates or not self.paired:
            return
        found = self.data.take(16, patience=0.02)
        if not isinstance(found, Ended):
            due = "an end without a gate: the command is not run"
            raise Deviation(clause, due, str(found))

    # frames

    def frame(self, name: str, **values: Any) -> bytes:
        """Return a command frame; lengths follow unless they are given."""
        spec = frame(f"DS4T.{name}", dialect=self.dialect)
        return to_bytes(spec, values, dialect=self.dialect)

    def command(self, name: str, **values: Any) -> None:
        """Send a command."""
        self.pair()
        self.control.send(self.frame(name, **values), f"DS4T.{name}", values)

    def raw(self, code: int, body: bytes = b"", *, size: int | None = None) -> None:
        """Send a frame of any type; `size` may lie."""
        self.pair()
        head = self.frame("STOP")[:4] + code.to_bytes(4, "little")
        told = len(body) if size is None else size
        self.control.send(head + told.to_bytes(4, "little") + body, f"type {code}")

    def ack(
        self, known: int, status: int | None, clause: str = "DS4T-ACK-02"
    ) -> ControlFrame:
        """Take the next frame for an ack of this session.

        Parameters
        ----------
        status : int or None
            None: any but 0.
        """
        found = self.control.frame("COMMAND_ACK", clause)
        if found["session_id"] != known:
            raise Deviation("DS4T-ACK-10", f"session {known} in the ack", str(found))
        if found["status"] != status and (status is not None or found["status"] == OK):
            due = "another than 0" if status is None else status
            raise Deviation(clause, f"status {due}", str(found))
        return found

    def logits(self, clause: str) -> bytes:
        """Take the next frame for LOGITS, where they are due."""
        top2 = self.own.top2
        found = self.control.frame("LOGITS_TOP2" if top2 else "LOGITS", clause)
        if not top2 and len(found.body) != self.own.logits_bytes:
            due = f"{self.own.logits_bytes} bytes of LOGITS"
            raise Deviation("DS4T-LOGITS-01", due, str(found))
        return found.body

    def nothing(self, clause: str, what: str) -> None:
        """Take it that nothing comes for a moment."""
        found = self.control.quiet(self.quiet)
        if found is not None:
            raise Deviation(clause, what, str(found))

    # operations

    def tokens(self, count: int = 5) -> tuple[int, ...]:
        """Return token ids that exist."""
        top = min(self.identity.n_vocab, 1 << 15)
        return tuple(self.rng.randrange(top) for _ in range(count))

    def fresh_id(self) -> int:
        """Return an id that was never used."""
        self._last_id += 1
        return self._last_id

    def create(self, ctx: int = CTX, **lies: int) -> int:
        """Open a session and return its id."""
        known = self.fresh_id()
        self.command("SESSION_CREATE", session_id=known, ctx_size=ctx, **lies)
        self.ack(known, OK, "DS4T-SESSION-03")
        self.held[known], self._contexts[known] = [], ctx
        return known

    def destroy(self, known: int) -> None:
        """Close a session."""
        self.command("SESSION_DESTROY", session_id=known)
        self.ack(known, OK, "DS4T-SESSION-08")
        del self.held[known]

    def start(self, count: int = 5, ctx: int = CTX) -> int:
        """Return a session that holds some tokens."""
        known = self.create(ctx)
        self.sync(known, self.tokens(count))
        return known

    def gate(
        self, gate: PlannedGate, salt: int = 0, payload: bytes | None = None
    ) -> bytes:
        """Exchange one gate and return the worker's rows."""
        seq = self.next_seq(gate.kind)
        rows = self.partial(gate, salt) if payload is None else payload
        own = gate_bytes(gate.kind, gate.layer, self.third(gate), seq) + rows
        found = self.data.exchange(own, len(rows))
        return self.judge_gate(gate, seq, found).payload

    def gates(self, planned: Iterable[PlannedGate], salt: int = 0) -> list[bytes]:
        """Exchange gates in order."""
        return [self.gate(gate, salt) for gate in planned]

    def wrong_gate(self, gate: PlannedGate, **lies: int) -> None:
        """Send one gate with a wrong header, payload and all, and read the peer's."""
        seq = self.next_seq(gate.kind)
        rows = self.partial(gate)
        own = gate_bytes(gate.kind, gate.layer, self.third(gate), seq, **lies) + rows
        found = self.data.exchange(own, len(rows))
        # A reset on unread bytes takes the peer's own gate with it: a refusal too.
        if not (isinstance(found, Ended) and found.how == "reset"):
            self.judge_gate(gate, seq, found)

    def token(self) -> list[PlannedGate]:
        """Return the row gates of one token."""
        return list(token_gates(self.schedule))

    def plan(self, known: int, prompt: Sequence[int]) -> SyncPlan:
        """Return what a sync has to do."""
        model = self.identity.model_id
        ctx = self._contexts[known]
        return plan_sync(
            self.held[known], prompt, ctx, self.plan_options, model_id=model
        )

    def chunk(self, chunk: Chunk) -> list[PlannedGate]:
        """Return the gates of one prefill chunk."""
        model = self.identity.model_id
        return list(
            chunk_gates(chunk, self.schedule, self.plan_options, model_id=model)
        )

    def sync(
        self, known: int, prompt: Sequence[int], *, salt: int = 0, **lies: int
    ) -> Trace:
        """Bring a session to a prompt on both ranks."""
        plan = self.plan(known, prompt)
        self.command("SYNC", session_id=known, tokens=tuple(prompt), **lies)
        trace, total = Trace(), len(prompt)
        self.meet(START, 0, total, trace)
        for chunk in plan.chunks:
            trace.partials += self.gates(self.chunk(chunk), salt)
            self.meet(CHUNK, chunk.position + chunk.rows, total, trace)
        for _ in range(plan.single_tokens):
            trace.partials += self.gates(self.token(), salt)
        self.meet(END, OK, total, trace)
        self.ack(known, OK, "DS4T-SYNC-06")
        if self.split:
            trace.logits.append(self.logits("DS4T-SYNC-07"))
        self.held[known] = list(prompt)
        return trace

    def next_eval(self) -> int:
        """Return the number of the next token that runs by itself, and count it."""
        self._eval_seq += 1
        return self._eval_seq

    def eval_only(self, known: int, token: int, **lies: int) -> None:
        """Send EVAL, no gates."""
        reserved = lies.pop("reserved", 0)  # unnamed padding before v10
        values = {"session_id": known, "seq": self.next_eval(), "token": token, **lies}
        frame = self.frame("EVAL", **values)
        self.pair().send(
            frame[:-4] + reserved.to_bytes(4, "little"), "DS4T.EVAL", values
        )

    def eval(self, known: int, token: int, *, salt: int = 0, **lies: int) -> Trace:
        """Decode one token on both ranks."""
        self.eval_only(known, token, **lies)
        trace = Trace(self.gates(self.token(), salt))
        if self.split:
            trace.logits.append(self.logits("DS4T-EVAL-06"))
        self.held[known].append(token)
        return trace

    def block(self, known: int, drafts: Sequence[int]) -> Trace:
        """Run a draft block up to its verdict."""
        self.command("VERIFY", session_id=known, tokens=tuple(drafts))
        return Trace(self.gates(verify_gates(len(drafts), self.schedule)))

    def verify(self, known: int, drafts: Sequence[int], mode: int, count: int) -> Trace:
        """Run a draft block and its verdict."""
        trace = self.block(known, drafts)
        self.command("VERIFY_COMMIT", mode=mode, token_count=count)
        kept = len(drafts) if mode == KEEP_ALL else min(max(count, 0), len(drafts))
        if mode == REPLAY:
            for _ in range(kept):
                trace.partials += self.gates(self.token())
            if kept and self.split:
                trace.logits.append(self.logits("DS4T-VERIFY-13"))
        self.held[known] += drafts[:kept]
        return trace

    def holds(self, known: int, clause: str) -> None:
        """Take it that a session holds what it should: its prompt costs no gate."""
        self.command("SYNC", session_id=known, tokens=tuple(self.held[known]))
        total = len(self.held[known])
        try:
            self.meet(START, 0, total, Trace())
            self.meet(END, OK, total, Trace())
            self.ack(known, OK, clause)
        except Deviation as error:
            due = f"{total} tokens held, a sync of them without gates"
            raise Deviation(clause, due, error.found) from None
        if self.split:
            self.logits(clause)

    def check_alive(self) -> None:
        """Take it that the pair still works: a token with its gates, then an end."""
        if self.spent or not self.paired:
            return
        known = self.start(2)
        self.eval(known, 1)
        for session in list(self.held):
            self.destroy(session)
