"""A small tp-worker that runs prefills, tokens and blocks; faults at its gates."""

from __future__ import annotations

import math
import socket
import struct
import sys
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from ds4proto.link import ds4t_events as say
from ds4proto.link.ds4t_gate_state import GateFailed
from ds4proto.link.ds4t_gates import GateLink
from ds4proto.link.ds4t_texts import PairFailed
from ds4proto.link.plan import (
    PlannedGate,
    PlanOptions,
    plan_sync,
    sync_gates,
    token_gates,
    verify_gates,
)
from ds4proto.link.schedule import Schedule
from ds4proto_fuzz.mutants.small_tp_worker import SmallTpWorker
from ds4proto_fuzz.tp.lockstep import GATE

__all__ = ["GATED"]


class Gated(SmallTpWorker):
    """A rank 1 whose partials are all zero."""

    def __init__(self, leader: tuple[str, int]) -> None:
        super().__init__(leader)
        self._schedule = Schedule.from_hello(self.settings.identity.words())
        self._link = GateLink(self.settings)
        self._news: deque[Any] = deque()
        self._data: Any = None
        self._known = 0
        self.own_header = b""

    def gate(self, planned: PlannedGate, header: bytes) -> bytes:
        """Return what the machine gets of the header of a gate."""
        del planned
        return header

    def partial(self, planned: PlannedGate, data: bytes) -> None:
        """Take note of the peer's rows."""

    # commands

    def serve(self, control: socket.socket, gates: socket.socket) -> None:
        """Run commands until the pair ends."""
        self._data = gates
        while True:
            self._run(control, self._next(control))

    def _next(self, control: socket.socket) -> Any:
        while not self._news:
            data = control.recv(1 << 16)
            self.machine.receive_data(data or None, 0.0)
            for event in self.machine.events():
                if isinstance(event, say.Transmit):
                    control.sendall(b"".join(map(bytes, event.buffers)))
                else:
                    self._news.append(event)
        event = self._news.popleft()
        if isinstance(event, PairFailed | say.Stop):
            sys.exit(f"ends: {event}")
        return event

    def _say(self, control: socket.socket, event: Any) -> None:
        control.sendall(b"".join(map(bytes, self.machine.send(event, 0.0))))

    def _run(self, control: socket.socket, event: Any) -> None:
        half = bytes(self.settings.logits_bytes)
        try:
            if isinstance(event, say.CreateSession):
                self._say(control, say.SessionCreated(event.session_id))
            elif isinstance(event, say.DestroySession):
                self._say(control, say.SessionDestroyed(event.session_id))
            elif isinstance(event, say.RunSync):
                self._sync(control, event)
                self._say(control, say.SyncDone(event.session_id, say.OK, half))
            elif isinstance(event, say.RunEval):
                self._gates(token_gates(self._schedule))
                self._say(control, say.EvalDone(event.session_id, half))
            elif isinstance(event, say.RunBatch):
                for _ in event.items:
                    self._gates(token_gates(self._schedule))
                self._say(control, say.BatchDone(say.OK, (half,) * len(event.items)))
            elif isinstance(event, say.RunVerify):
                self._gates(verify_gates(len(event.tokens), self._schedule))
                self._say(control, say.BlockRun())
                self._known = event.session_id
            elif isinstance(event, say.CommitBlock):
                half = half if event.mode == say.REPLAY else b""
                self._say(control, say.BlockCommitted(self._known, half))
        except GateFailed as error:
            self._say(control, say.EngineFailed("tp: gate transport failed"))
            sys.exit(str(error))

    def _sync(self, control: socket.socket, event: say.RunSync) -> None:
        total = len(event.tokens)
        self._meet(control, say.Checkpoint(say.START, 0, total))
        plan = plan_sync((), event.tokens, 256, PlanOptions())
        self._gates(sync_gates(plan, self._schedule, PlanOptions()))
        self._meet(control, say.Checkpoint(say.CHUNK, total, total))
        self._meet(control, say.Checkpoint(say.END, say.OK, total))

    def _meet(self, control: socket.socket, mine: say.Checkpoint) -> None:
        while not isinstance(self._next(control), say.PeerCheckpoint):
            pass
        self._say(control, mine)
        self._news.extend(self.machine.events())
        while not isinstance(self._next(control), say.Checkpoint):
            pass

    # gates

    def _gates(self, gates: Iterable[PlannedGate]) -> None:
        for planned in gates:
            size = 4 * planned.rows * self.settings.identity.n_embd
            own, peer = memoryview(bytes(size)), memoryview(bytearray(size))
            if planned.kind == "row":
                kind = int(planned.gate == "FFN")
                self._link.begin_row(planned.layer, kind, own, peer, 0.0)
            elif planned.kind == "batch":
                self._link.begin_batch(planned.layer, planned.rows, own, peer, 0.0)
            else:
                self._link.begin_bulk(planned.layer, own, peer, 0.0)
            views = b"".join(map(bytes, self._link.send_views))
            self.own_header = views[: GATE.size]
            self._data.sendall(views)
            self._link.sent(len(views), 0.0)
            header = self.gate(planned, self._exactly(GATE.size))
            self._feed(header)
            self._feed(self._exactly(size))
            self.partial(planned, bytes(peer))

    def _exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            more = self._data.recv(size - len(found))
            if not more:
                self._link.abort("the data connection ended", 0.0)
            found += more
        return found

    def _feed(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            place = self._link.receive_view
            part = view[: len(place)]
            place[: len(part)] = part
            self._link.received(len(part), 0.0)
            view = view[len(part) :]


class AnySeq(Gated):
    """A gate is taken whatever its number is, but for the first."""

    about = "takes a gate of another number, but for the first"
    kind = "silent accept"
    _count = 0

    def gate(self, planned: PlannedGate, header: bytes) -> bytes:
        """Put the right number there."""
        del planned
        self._count += 1
        magic, layer, word, seq = GATE.unpack(header)
        if self._count > 1:
            seq = GATE.unpack(self.own_header)[3]
        return GATE.pack(magic, layer, word, seq)


class CrashNan(Gated):
    """A NaN in the partial of a token ends the process."""

    about = "asserts that the partials of a token are finite"
    kind = "crash"

    def partial(self, planned: PlannedGate, data: bytes) -> None:
        """Look at them."""
        if planned.kind == "row":
            values = struct.unpack(f"<{len(data) // 4}f", data)
            assert math.isfinite(sum(values)), "not finite"


class WaitsInBlock(Gated):
    """A batch gate that does not fit is read again and again."""

    about = "waits for another gate where one of a block does not fit"
    kind = "hang"

    def gate(self, planned: PlannedGate, header: bytes) -> bytes:
        """Wait for one that fits."""
        while planned.kind == "batch" and header != self.own_header:
            header = header[1:] + self._exactly(1)
        return header


GATED: Final[dict[str, type[SmallTpWorker]]] = {
    "gates": Gated,
    "any-gate-number": AnySeq,
    "crash-nan-partial": CrashNan,
    "waits-in-block": WaitsInBlock,
}
