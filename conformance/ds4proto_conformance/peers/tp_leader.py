"""A small tp-leader: one tour through the operations, and perhaps one fault."""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence
from typing import Any

import numpy as np

from ds4proto.link import ds4t_events as say
from ds4proto.link.ds4t_events import (
    CHUNK,
    END,
    INTERRUPTED,
    KEEP_ALL,
    OK,
    REPLAY,
    START,
    BatchItem,
)
from ds4proto.link.ds4t_gates import GateFailed
from ds4proto.link.ds4t_leader import LeaderControl
from ds4proto_conformance.peers.faults import NONE, Fault
from ds4proto_conformance.peers.net import HOST, Net
from ds4proto_conformance.peers.tp_engine import F32
from ds4proto_conformance.peers.tp_rank import TICK, Over, SmallRank, Spot

__all__ = ["SmallTpLeader"]


class SmallTpLeader(SmallRank):
    """Rank 0 of a pair; the tester dials it twice."""

    role = "tp-leader"

    def __init__(
        self, net: Net, *, fault: Fault = NONE, coordinator: tuple[str, int] = (HOST, 0)
    ) -> None:
        super().__init__(net, fault=fault, coordinator=coordinator)
        self.machine = LeaderControl(self.settings, limits=self.limits)

    def _live(self) -> None:
        self.hello(self._accept())
        self.data = Spot(self._accept(), "data")
        try:
            self.tour()
        except GateFailed as error:
            self.machine.mark_failed(error.failure.text, 0.0)
            raise Over(error.failure.text) from None

    def _accept(self) -> socket.socket:
        while not self._stop.is_set():
            sock = self._net.accept()
            if sock is not None:
                sock.settimeout(2.0)
                return sock
            select.select([self._net], [], [], TICK)
        raise Over("stopped")

    # operations

    def tour(self) -> None:
        """Run through the operations, then say STOP."""
        first = self.create()
        row = self.sync(first, (1, 2, 3, 4, 5))
        for _ in range(3):
            row = self.eval(first, int(np.argmax(row)))
        self.verify(first, (6, 7, 8), KEEP_ALL, 0)
        self.verify(first, (9, 10, 11), REPLAY, 2)
        second = self.create()
        self.sync(second, (5, 4, 3, 2))
        self.sync(second, (5, 4, 3, 2, 1, 0))
        items = (BatchItem(first, 3), BatchItem(second, 4))
        self.say(say.RunBatch(items))
        for item in items:
            self.engine.eval(item.session_id, item.token)
        self.wait(say.BatchDone)
        self.say(say.Rewind(first, 4))
        self.engine[first].cut(4)
        self.say(say.Invalidate(second))
        self.engine[second].cut(0)
        for known in (first, second):
            self.say(say.DestroySession(known))
            self.wait(say.SessionDestroyed)
            self.engine.destroy(known)
        self.finish()

    def finish(self) -> None:
        """Say STOP."""
        self.say(say.Stop())
        raise Over("done")

    def wait(self, kind: type) -> Any:
        """Return the answer to the last command, which has to be a success."""
        while True:
            found = self.next_event()
            if isinstance(found, kind):
                break
        event: Any = found
        status = getattr(event, "status", OK)
        if status != OK and (status != INTERRUPTED or event.text):
            self.lines.append(event.text)
            self.finish()
        return event

    def create(self) -> int:
        """Open a session."""
        known: int = self.machine.next_session_id
        self.say(say.CreateSession(known, 256))
        self.wait(say.SessionCreated)
        self.engine.create(known, 256)
        return known

    def sync(self, known: int, tokens: Sequence[int]) -> F32:
        """Bring a session to a prompt, again after a cancel; returns all logits."""
        while True:
            row = self._sync(known, tuple(tokens))
            if row is not None:
                return row

    def _sync(self, known: int, tokens: tuple[int, ...]) -> F32 | None:
        total, hidden = len(tokens), None
        self.say(say.RunSync(known, tokens))
        meets = self.settings.rules.checkpoints
        if not (meets and self.meet(START, 0, total)):
            hidden = self.engine.sync(
                known, tokens, lambda at: meets and self.meet(CHUNK, at, total)
            )
        if meets:
            self.meet(END, OK if hidden is not None else INTERRUPTED, total)
        done = self.wait(say.SyncDone)
        if hidden is None or done.status != OK:
            self.engine[known].cut(0)
            return None
        return self.whole(hidden, done.logits)

    def meet(self, point: int, current: int, total: int) -> bool:
        """Say a checkpoint, wait for the worker's; True: both stop."""
        self.say(say.Checkpoint(point, current, total))
        agreed: say.Checkpoint = self.wait(say.Checkpoint)
        return agreed.cancelled

    def whole(self, hidden: F32, half: Any) -> F32:
        """Return all logits of a row: the own half, then the worker's."""
        own = np.frombuffer(self.engine.half(hidden), np.float32)
        if half is None or isinstance(half, say.Top2):
            return own
        return np.concatenate((own, np.frombuffer(half, np.float32)))

    def eval(self, known: int, token: int) -> F32:
        """Decode one token."""
        self.say(say.RunEval(known, token))
        hidden = self.engine.eval(known, token)
        return self.whole(hidden, self.wait(say.EvalDone).logits)

    def verify(
        self, known: int, drafts: tuple[int, ...], mode: int, count: int
    ) -> None:
        """Run a block and say the verdict."""
        self.say(say.RunVerify(known, drafts))
        self.engine.block(known, drafts)
        self.say(say.CommitBlock(mode, count))
        last = self.engine.commit(known, drafts, mode, count)
        if last is not None:
            self.wait(say.BlockCommitted)
