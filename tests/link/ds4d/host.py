"""Runs a worker machine with the toy engine, without a socket or a clock."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

from ds4proto.link.ds4d_events import Close, Transmit
from ds4proto.link.ds4d_facts import WorkerFacts
from ds4proto.link.ds4d_forward import Forwarder
from ds4proto.link.ds4d_limits import DEFAULT, LinkLimits
from ds4proto.link.ds4d_worker import Worker, WorkerLink
from ds4proto.link.ds4d_worker_events import (
    DropSessions,
    EvaluateWork,
    LoadAborted,
    LoadData,
    LoadStarted,
    OpenForward,
    ResetSession,
    RestoreShard,
    SaveShard,
    ShardFailed,
    ShardRestored,
    ShardSaved,
    WorkEvaluated,
    WorkFailed,
)
from tests.link.ds4d import toy


class Host:
    """One worker process with its engine; records what it writes and says."""

    def __init__(
        self,
        facts: WorkerFacts,
        *,
        limits: LinkLimits = DEFAULT,
        policy: str = "safe",
        hold: bool = False,
        stub: bool = False,
    ) -> None:
        self.worker = Worker(facts, limits=limits, policy=policy)  # type: ignore[arg-type]
        self.slices: dict[int, toy.Slice] = {}
        self.wrote: dict[Any, bytearray] = defaultdict(bytearray)
        self.closed: dict[Any, str] = {}
        self.said: list[tuple[Any, Any]] = []
        self.dials: list[OpenForward] = []
        self.pipes: dict[Forwarder, tuple[Host, WorkerLink]] = {}
        self.held: deque[tuple[WorkerLink, Any]] = deque()
        self.hold = hold
        self.stub = stub
        self.refuse: str | None = None
        self.now = 0.0
        self._loads: dict[WorkerLink, bytearray] = {}

    def open(self, kind: str = "data") -> WorkerLink:
        return self.worker.open(kind, self.now)  # type: ignore[arg-type]

    def give(self, link: WorkerLink | Forwarder, data: bytes | None) -> None:
        """Feed what the machine is willing to read, then let everything happen."""
        link.receive_data(data, self.now)
        self.settle(link)

    def settle(self, *machines: Any) -> None:
        todo = list(machines)
        while todo:
            for machine in todo:
                for event in machine.events():
                    self._take(machine, event)
            todo = self.worker.woken()

    def release(self) -> None:
        """Answer the oldest engine request that is held back."""
        link, event = self.held.popleft()
        self._engine(link, event)
        self.settle(link)

    def _take(self, machine: Any, event: Any) -> None:
        self.said.append((machine, event))
        if isinstance(event, Transmit):
            assert machine not in self.closed, "bytes after Close"
            for part in event.buffers:
                self.wrote[machine] += part
        elif isinstance(event, Close):
            assert machine not in self.closed, "closed twice"
            self.closed[machine] = event.reason
        elif isinstance(event, ResetSession):
            self._slice(event.session).reset()
        elif isinstance(event, DropSessions):
            for session in event.sessions:
                self.slices.pop(session, None)
        elif isinstance(event, OpenForward):
            self.dials.append(event)
        elif isinstance(event, LoadStarted):
            self._loads[machine] = bytearray()
        elif isinstance(event, LoadData):
            self._loads[machine] += event.data
        elif isinstance(event, LoadAborted):
            del self._loads[machine]
        elif isinstance(event, EvaluateWork | SaveShard | RestoreShard):
            if self.hold:
                self.held.append((machine, event))
            else:
                self._engine(machine, event)

    def _slice(self, session: int) -> toy.Slice:
        facts = self.worker.facts
        if session not in self.slices:
            self.slices[session] = toy.Slice(facts.layer_start, facts.layer_end)
        return self.slices[session]

    def _engine(self, link: WorkerLink, event: Any) -> None:
        if isinstance(event, EvaluateWork):
            link.send(self._evaluate(event), self.now)
        elif isinstance(event, SaveShard):
            data = self._slice(event.session).shard()
            link.send(ShardSaved([data[:7], data[7:]], len(data)), self.now)
        else:
            data = bytes(self._loads.pop(link))
            kept = toy.Slice(link.worker.facts.layer_start, link.worker.facts.layer_end)
            fault = kept.load(data, len(event.tokens))
            if fault is None:
                self.slices[event.session] = kept
                link.send(ShardRestored(), self.now)
            else:
                link.send(ShardFailed(fault), self.now)

    def _evaluate(self, event: EvaluateWork) -> WorkEvaluated | WorkFailed:
        if self.refuse is not None:
            return WorkFailed(self.refuse, touched=True)
        count = len(event.tokens)
        if self.stub:  # zeros of the right size
            model = self.worker.facts.model
            size = {"ack": 0, "logits": model.logits_bytes}
            rows = model.hidden_bytes(count, event.bits)
            return WorkEvaluated(bytes(size.get(event.want, rows)))
        hidden = None
        if event.hidden is not None:
            hidden = toy.unpack(event.hidden, event.bits, count)
        rows = self._slice(event.session).run(event.tokens, hidden)
        if event.want == "ack":
            return WorkEvaluated(b"")
        if event.want == "logits":
            return WorkEvaluated(toy.logits(rows[-1]).tobytes())
        return WorkEvaluated(toy.pack(rows, event.bits))
