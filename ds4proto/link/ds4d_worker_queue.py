"""WORK on one connection of a worker: queue, evaluation, answers in their order."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ds4proto.link.ds4d_endpoint import Endpoint, LocalProtocolError
from ds4proto.link.ds4d_events import Fault, Transmit
from ds4proto.link.ds4d_forward import Forwarder, Pending
from ds4proto.link.ds4d_frames import (
    TELEMETRY_PART,
    microseconds,
    refusal_frame,
    result_frame,
    work_frame,
)
from ds4proto.link.ds4d_sessions import WorkerSession, judge_session
from ds4proto.link.ds4d_work_checks import Work
from ds4proto.link.ds4d_worker_events import (
    EvaluateWork,
    KvOrder,
    OpenForward,
    ResetSession,
    Want,
    WorkEvaluated,
    WorkFailed,
)
from ds4proto.link.ds4d_worker_shared import Shared
from ds4proto.schema.ds4d_result import ACK, HIDDEN_STATE, LOGITS
from ds4proto.schema.ds4d_work import (
    ACK_ONLY,
    INPUT_HC,
    KV_SPANS,
    OUTPUT_LOGITS,
    RESET_SESSION,
)
from ds4proto.schema.problem import Buf

_KINDS = {"ack": ACK, "hidden": HIDDEN_STATE, "logits": LOGITS}


@dataclass(slots=True)
class Slot:
    """The place of one answer; answers leave in the order of their WORK."""

    request: int
    answer: list[Buf] | None = None


@dataclass(slots=True)
class Evaluation:
    """The WORK that is with the engine."""

    work: Work
    slot: Slot
    session: WorkerSession
    want: Want


class Queue(Endpoint):
    """The evaluating half of a worker's connection (see ``ds4d_worker``)."""

    def __init__(self, worker: Shared) -> None:
        super().__init__(worker.limits)
        self.worker = worker
        self._queue: deque[tuple[Work | None, Fault | None]] = deque()
        self._slots: deque[Slot] = deque()
        self._evaluation: Evaluation | None = None
        self._forwards: dict[tuple[str, int], Forwarder] = {}
        self._pumping = self._again = False

    # for the reading half

    @property
    def queue_full(self) -> bool:
        """True while no further WORK may be read."""
        return len(self._queue) >= self._limits.queue_depth

    @property
    def owes(self) -> bool:
        """True while an answer is still due or a snapshot is being sent."""
        return bool(self._queue or self._slots or self._evaluation)

    def enqueue(self, work: Work | None, fault: Fault | None, now: float) -> None:
        """Take one WORK, judged as far as its frame alone allows."""
        self._queue.append((work, fault))
        self.pump(now)

    def drop_queued(self) -> None:
        """Forget WORK that has not begun."""
        self._queue.clear()

    def drop_unanswered(self) -> None:
        """Forget the answers that a lost next worker leaves open."""
        now_evaluated = self._evaluation.slot if self._evaluation else None
        self._slots = deque(
            s for s in self._slots if s.answer is not None or s is now_evaluated
        )
        self._flush()

    def drop_everything(self) -> None:
        """Forget all answers: the connection cannot take them."""
        self._queue.clear()
        self._slots.clear()

    def end_forwards(self, reason: str) -> None:
        """End the connections to next workers."""
        for forward in self._forwards.values():
            forward.end(reason)
        self._forwards.clear()

    def finish(self, now: float) -> None:
        """Close if nothing is owed any more."""
        raise NotImplementedError

    def snapshot_waiting(self, now: float) -> bool:
        """Serve a snapshot that waits for the lock; it goes before queued WORK."""
        raise NotImplementedError

    # evaluation

    def pump(self, now: float) -> None:
        """Begin what can begin; calls from inside are taken up by the outer one."""
        self._again = True
        if self._pumping:
            return
        self._pumping = True
        try:
            while self._again:
                self._again = False
                while not self.snapshot_waiting(now) and self._queue:
                    if self._evaluation is not None or not self._begin(now):
                        break
                self._read(now)
        finally:
            self._pumping = False
        self.worker.wake(self)
        self.finish(now)

    def _begin(self, now: float) -> bool:
        work, fault = self._queue[0]
        if fault is None and work is not None:
            forward = None if work.last else self._forward_of(work)
            if forward is not None and forward.full:
                return False
            if not self.worker.acquire(self):
                return False
        self._queue.popleft()
        slot = Slot(work.fields["request"] if work is not None else 0)
        self._slots.append(slot)
        if fault is None and work is not None:
            fault = self._start(work, slot)
            if fault is None:
                return True
            self._violate(fault, "WORK", now)
            self.worker.release(self, now)
        if fault is not None:
            self._answer(slot, refusal_frame(slot.request, fault.text))
            if fault.clause == "DS4D-WORK-62":
                self._exhausted(fault, now)
        return True

    def _exhausted(self, fault: Fault, now: float) -> None:
        raise NotImplementedError

    def _start(self, work: Work, slot: Slot) -> Fault | None:
        """Judge a WORK against its session, and hand it to the engine."""
        f = work.fields
        session = self.worker.sessions.create(f["session"])
        if isinstance(session, Fault):
            return session
        if f["flags"] & RESET_SESSION:
            session.empty()
            self._emit(ResetSession(f["session"]))
        cap = self.worker.facts.prefill_cap
        fault = judge_session(session, f["prefix_hash"], f["pos0"], f["n_tokens"], cap)
        if fault is not None:
            return fault
        want: Want = "forward"
        if work.last:
            want = "hidden"
            if f["flags"] & ACK_ONLY:
                want = "ack"
            elif f["flags"] & OUTPUT_LOGITS:
                want = "logits"
        self._evaluation = Evaluation(work, slot, session, want)
        self._emit(
            EvaluateWork(
                f["session"],
                f["request"],
                f["pos0"],
                work.tokens,
                work.hidden,
                work.bits,
                want,
                _kv_order(work),
            )
        )
        return None

    def _take(self) -> Evaluation:
        if self._evaluation is None:
            raise LocalProtocolError("no WORK of this connection is being evaluated")
        taken, self._evaluation = self._evaluation, None
        return taken

    def evaluated(self, event: WorkEvaluated, now: float) -> None:
        """Take the engine's answer: reply, or forward it."""
        due = self._evaluation
        if due is not None:
            _check_size(due, len(memoryview(event.payload).cast("B")))
        done = self._take()
        work = done.work
        done.session.hash = work.fields["result_hash"]
        done.session.count += work.fields["n_tokens"]
        record = _record(work, event)
        if done.want == "forward":
            self._forward(work, event, record, now)
        else:
            kind = _KINDS[done.want]
            bits = {ACK: 0, HIDDEN_STATE: work.bits, LOGITS: 32}[kind]
            answer = result_frame(
                work.fields["request"],
                result_hash=work.fields["result_hash"],
                kind=kind,
                bits=bits,
                telemetry=TELEMETRY_PART.build(record),
                payload=event.payload,
            )
            self._answer(done.slot, answer)
        self.worker.release(self, now)
        self.pump(now)

    def refused_by_engine(self, event: WorkFailed, now: float) -> None:
        """Pass the engine's words up (WORK check 27)."""
        done = self._take()
        if event.touched:
            done.session.dropped = True
        fault = Fault("DS4D-WORK-27", event.text, "remote")
        self._violate(fault, "WORK", now)
        self._answer(done.slot, refusal_frame(done.slot.request, event.text))
        self.worker.release(self, now)
        self.pump(now)

    # answers

    def _answer(self, slot: Slot, frame: list[Buf]) -> None:
        slot.answer = frame
        self._flush()

    def _flush(self) -> None:
        while self._slots and self._slots[0].answer is not None:
            first = self._slots.popleft()
            self._emit(Transmit(first.answer or [], first.request))
        self.worker.wake(self)

    def _answer_request(self, request: int, frame: list[Buf]) -> None:
        for slot in self._slots:
            if slot.request == request and slot.answer is None:
                self._answer(slot, frame)
                return

    # forwarding

    def _forward_of(self, work: Work) -> Forwarder | None:
        hop = work.hops[work.fields["route_index"] + 1]
        return self._forwards.get((hop.host, hop.port))

    def _forward(
        self, work: Work, event: WorkEvaluated, record: dict[str, int], now: float
    ) -> None:
        hop = work.hops[work.fields["route_index"] + 1]
        key = (hop.host, hop.port)
        forward = self._forwards.get(key)
        if forward is None:
            forward = self._forwards[key] = Forwarder(self, *key)
            self._emit(OpenForward(forward, *key))
        flags = work.fields["flags"] | INPUT_HC
        flags = flags | OUTPUT_LOGITS if hop.logits else flags & ~OUTPUT_LOGITS
        fixed = {
            **work.fields,
            "layer_start": hop.layer_start,
            "layer_end": hop.layer_end,
            "route_index": work.fields["route_index"] + 1,
            "flags": flags,
            "input_hc_bits": work.bits,
        }
        frame = work_frame(fixed, work.token_wire, event.payload, work.blob)
        n_tokens = work.fields["n_tokens"]
        request = work.fields["request"]
        forward.submit(Pending(request, frame, record, n_tokens, now, now))

    def relayed(self, request: int, frame: list[Buf], now: float) -> None:
        """Take the next worker's answer, with our record appended."""
        self._answer_request(request, frame)
        self.pump(now)

    def forward_failed(
        self, forward: Forwarder, waiting: list[int], fault: Fault, now: float
    ) -> None:
        """Answer what waited for a dial; this connection stays open (FWD-09)."""
        self._forwards.pop((forward.host, forward.port), None)
        for request in waiting:
            self._answer_request(request, refusal_frame(request, fault.text))
        self.pump(now)

    def forward_lost(
        self, forward: Forwarder, waiting: list[int], fault: Fault, now: float
    ) -> None:
        """Answer what the next worker still owed, then close."""
        self._forwards.pop((forward.host, forward.port), None)
        if self.worker.policy == "upstream":
            waiting = waiting[:1]
        for request in waiting:
            self._answer_request(request, refusal_frame(request, fault.text))
        self.forward_ended(fault, now)

    def forward_ended(self, fault: Fault, now: float) -> None:
        """End this connection because a next worker's has ended."""
        raise NotImplementedError


def _kv_order(work: Work) -> KvOrder | None:
    f, last = work.fields, work.hops[-1]
    if not f["flags"] & KV_SPANS:
        return None
    return KvOrder(last.host, last.port, f["prefix_hash"], f["result_hash"])


def _check_size(due: Evaluation, size: int) -> None:
    model, work = due.work.facts.model, due.work
    hidden = model.hidden_bytes(work.fields["n_tokens"], work.bits)
    wanted = {"ack": 0, "logits": model.logits_bytes}.get(due.want, hidden)
    if size != wanted:
        raise LocalProtocolError(
            f"engine answer to {due.want}: expected {wanted} bytes, found {size}"
        )


def _record(work: Work, event: WorkEvaluated) -> dict[str, int]:
    f = work.fields
    return {
        "layer_start": f["layer_start"],
        "layer_end": f["layer_end"],
        "route_index": f["route_index"],
        "pos0": f["pos0"],
        "n_tokens": f["n_tokens"],
        "eval_usec": microseconds(event.elapsed),
        "downstream_wait_usec": 0,
        "forward_send_usec": 0,
        "input_bytes": f["token_bytes"] + f["input_hc_bytes"],
        "output_bytes": len(memoryview(event.payload).cast("B")),
    }
