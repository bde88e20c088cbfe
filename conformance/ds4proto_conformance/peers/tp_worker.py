"""A small tp-worker: the library's machine, the tiny model, and perhaps one fault."""

from __future__ import annotations

from typing import Any

import numpy as np

from ds4proto.link import ds4t_events as say
from ds4proto.link.ds4t_events import CHUNK, END, FAILED, INTERRUPTED, OK, START
from ds4proto.link.ds4t_gates import TRANSPORT, GateFailed
from ds4proto.link.ds4t_worker import WorkerControl
from ds4proto_conformance.peers.faults import NONE, Fault
from ds4proto_conformance.peers.net import HOST, Net
from ds4proto_conformance.peers.tp_engine import F32
from ds4proto_conformance.peers.tp_rank import Over, SmallRank, Spot

__all__ = ["SmallTpWorker"]


class SmallTpWorker(SmallRank):
    """Rank 1 of a pair; dials the tester twice."""

    role = "tp-worker"

    def __init__(
        self, net: Net, *, fault: Fault = NONE, coordinator: tuple[str, int] = (HOST, 0)
    ) -> None:
        super().__init__(net, fault=fault, coordinator=coordinator)
        self.machine = WorkerControl(self.settings, limits=self.limits)
        self.drafts: tuple[int, ...] = ()

    def _live(self) -> None:
        self.hello(self._net.dial(*self._coordinator))
        sock = self._net.dial(*self._coordinator)
        sock.settimeout(2.0)
        self.data = Spot(sock, "data")
        while True:
            command = self.next_event()
            if isinstance(command, say.Stop):
                raise Over("tp worker: leader finished")
            try:
                answer = self.answer(command)
            except GateFailed:
                self._failed(TRANSPORT)
            else:
                if answer is not None:
                    self.say(answer)

    def _failed(self, text: str) -> None:
        self.say(say.EngineFailed(text))
        self.next_event()
        raise Over(text)

    def answer(self, command: Any) -> Any:
        """Run a command and return its answer, None where there is none."""
        engine = self.engine
        match command:
            case say.CreateSession(known, ctx):
                engine.create(known, ctx)
                return say.SessionCreated(known)
            case say.DestroySession(known):
                engine.destroy(known)
                return say.SessionDestroyed(known)
            case say.RunSync():
                return self.sync(command)
            case say.RunEval(known, token):
                return say.EvalDone(known, self.half(engine.eval(known, token)))
            case say.RunBatch(items):
                rows = [engine.eval(i.session_id, i.token) for i in items]
                return say.BatchDone(OK, tuple(map(self.half, rows)))
            case say.RunMixed(known, tokens, items):
                rows = engine.mixed(known, tokens, items)
                return say.MixedDone(known, OK, tuple(map(self.half, rows)))
            case say.RunVerify(known, drafts):
                return self.verify(known, drafts)
            case say.RunMtp(known, token, _limit):
                engine.eval(known, token)
                self.machine.sessions.extend(known, token)
                return say.MtpDone(known)
            case say.Rewind(known, position):
                engine[known].cut(position)
            case say.Invalidate(known):
                engine[known].cut(0)
        return None

    def half(self, row: F32) -> memoryview:
        """Return the logits of a row, rank 1's half."""
        return self.engine.half(row)

    def sync(self, command: say.RunSync) -> Any:
        """Prefill, with the meetings of the dialect."""
        known, tokens = command.session_id, command.tokens
        if not self.settings.rules.checkpoints:
            row = self.engine.sync(known, tokens)
            assert row is not None
            return say.SyncDone(known, OK, self.half(row))
        total = len(tokens)
        hidden, status = None, INTERRUPTED
        if not self.meet(START, 0, total):
            hidden = self.engine.sync(
                known, tokens, lambda at: self.meet(CHUNK, at, total)
            )
            status = OK if hidden is not None else INTERRUPTED
        self.meet(END, status, total)
        if hidden is None:
            self.engine[known].cut(0)
            return say.SyncDone(known, status or FAILED)
        return say.SyncDone(known, OK, self.half(hidden))

    def meet(self, point: int, current: int, total: int) -> bool:
        """Say a checkpoint and wait for the leader's; True: both stop."""
        self.say(say.Checkpoint(point, current, total))
        while True:
            event = self.next_event()
            if isinstance(event, say.Checkpoint):
                return event.cancelled

    def verify(self, known: int, drafts: tuple[int, ...]) -> Any:
        """Run a draft block and its verdict."""
        self.engine.block(known, drafts)
        self.say(say.BlockRun())
        verdict = self.next_event()
        last = self.engine.commit(known, drafts, verdict.mode, verdict.token_count)
        return say.BlockCommitted(known, None if last is None else self.half(last))


def values(data: bytes) -> F32:
    """Return the f32 values of a payload."""
    found: F32 = np.frombuffer(data, np.float32)
    return found
