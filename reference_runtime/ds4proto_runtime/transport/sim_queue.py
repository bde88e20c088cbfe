"""Queue pairs of the simulated provider: states, packet numbers, credits, retries.

Messages, not packets, are the unit: a message is delivered whole or not at all. What
happens in each case was seen on soft-RoCE; the differences of other hardware are
switches of the device.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from ds4proto.link.rdma_attributes import MTU_BYTES, RNR_MILLISECONDS, QpAttributes
from ds4proto_runtime.transport.sim_parts import (
    Message,
    Missed,
    Receive,
    Route,
    SimMemory,
)
from ds4proto_runtime.transport.verbs import (
    PSN_MASK,
    Completion,
    Lost,
    Memory,
    Post,
    Status,
    VerbsError,
)

if TYPE_CHECKING:
    from ds4proto_runtime.transport.sim import SimDevice

_Call = TypeVar("_Call", bound=Callable[..., Any])
State = Literal["RESET", "INIT", "RTR", "RTS", "ERR"]
_Answer = Literal["ack", "rnr", "remote", "nothing"]
ENDLESS = 7
"""rnr_retry 7 never gives up; retry_cnt 7 does not on soft-RoCE."""
_ACK_SECONDS = 4.096e-6


def _locked(call: _Call) -> _Call:
    """Let a live fabric catch up first, and keep other threads out."""

    @wraps(call)
    def locked(self: SimQueuePair, *args: Any, **words: Any) -> Any:
        fabric = self.device.fabric
        with fabric.lock:
            fabric.pump()
            return call(self, *args, **words)

    return cast(_Call, locked)


@dataclass(slots=True, eq=False)
class SimQueuePair:
    """One queue pair; see ``verbs.QueuePair``."""

    device: SimDevice
    attributes: QpAttributes
    number: int
    granted: tuple[int, int]
    cq_entries: int
    ordinal: int
    """Which queue pair of its device it is, from 1."""
    state: State = "RESET"
    route: Route = field(default_factory=Route)
    receives: deque[Receive] = field(default_factory=deque)
    overflowed: int = 0
    """Completions that found the queue full; a real provider does not tell."""
    _queue: deque[Completion] = field(default_factory=deque)
    _out: deque[Message] = field(default_factory=deque)
    _expected: int = 0
    _next: int = 0
    _busy: bool = False
    _sent: int = 0
    _posted: int = 0
    _raised: int = 0
    _late: dict[int, float] = field(default_factory=dict)
    _missed: list[Missed] = field(default_factory=list)
    _stopped: bool = False

    # -- states ------------------------------------------------------------------

    def _need(self, call: Literal["INIT", "RTR", "RTS"], state: State) -> None:
        if self.device.takes_fault(call):
            raise VerbsError(call, errno.EINVAL, f"port of {self.device.name} is stale")
        if self.state != state:
            raise VerbsError(call, errno.EINVAL, f"the queue pair is in {self.state}")

    @_locked
    def to_init(self) -> None:
        """RESET to INIT."""
        self._need("INIT", "RESET")
        self.state = "INIT"

    @_locked
    def to_rtr(
        self, *, qpn: int, psn: int, gid: bytes, lid: int, gid_index: int, mtu: int
    ) -> None:
        """INIT to RTR."""
        del lid
        self._need("RTR", "INIT")
        if mtu not in MTU_BYTES or mtu > self.device.active_mtu:
            raise VerbsError("RTR", errno.EINVAL, f"path MTU {mtu} is out of range")
        entry = self.device.entry(gid_index)
        if entry is None or entry.zero:
            raise VerbsError("RTR", errno.EINVAL, f"GID index {gid_index} is empty")
        self.route = Route(qpn, bytes(gid), gid_index, mtu)
        self._expected = psn & PSN_MASK
        self.state = "RTR"

    @_locked
    def to_rts(self, *, psn: int) -> None:
        """RTR to RTS."""
        self._need("RTS", "RTR")
        self._next = psn & PSN_MASK
        self.state = "RTS"

    @_locked
    def to_error(self) -> None:
        """Flush what is posted."""
        if self.state == "ERR":
            return
        self.state = "ERR"
        for message in self._out:
            self._complete(Completion(message.wr_id, "WR_FLUSH_ERR", False))
        self._out.clear()
        while self.receives:
            wr_id = self.receives.popleft().post.wr_id
            self._complete(Completion(wr_id, "WR_FLUSH_ERR", True))

    @_locked
    def close(self) -> None:
        """Destroy it."""
        self.device.fabric.forget(self)
        if self in self.device.pairs:
            self.device.pairs.remove(self)
        self.state = "RESET"
        self._queue.clear()
        self._out.clear()
        self.receives.clear()

    # -- requests ----------------------------------------------------------------

    @_locked
    def post_receives(self, memory: Memory, posts: Sequence[Post]) -> None:
        """Post receives in order."""
        assert isinstance(memory, SimMemory)
        if self.state == "RESET":
            raise VerbsError("post_recv", errno.EINVAL, "the queue pair is in RESET")
        limit = min(self.granted[1], self.device.accepts[1])
        for done, post in enumerate(posts):
            if len(self.receives) >= limit:
                raise VerbsError("post_recv", errno.ENOMEM, done=done)
            self._posted += 1
            delay = self.device.late_receives.get(self._posted)
            if delay is not None:
                self._late[self._posted] = delay
            for missed in self._missed:
                if missed.late is None:
                    missed.late = self.device.fabric.now - missed.time
                    missed.wr_id = post.wr_id
            if self.state == "ERR":
                self._complete(Completion(post.wr_id, "WR_FLUSH_ERR", True))
            else:
                self.receives.append(Receive(self._posted, post, memory))

    @_locked
    def post_sends(self, memory: Memory, posts: Sequence[Post]) -> None:
        """Post SENDs in order."""
        assert isinstance(memory, SimMemory)
        if self.state not in ("RTS", "ERR"):
            raise VerbsError(
                "post_send", errno.EINVAL, f"the queue pair is in {self.state}"
            )
        limit = min(self.granted[0], self.device.accepts[0])
        last = len(posts) - 1
        for done, post in enumerate(posts):
            if len(self._out) >= limit:
                raise VerbsError("post_send", errno.ENOMEM, done=done)
            signalled = self.attributes.signal_all or done == last
            self._sent += 1
            end = post.offset + post.length
            data = bytes(memory.view[post.offset : end])
            message = Message(self._sent, post.wr_id, data, signalled)
            if self.state == "ERR":
                self._complete(Completion(post.wr_id, "WR_FLUSH_ERR", False))
            elif not memory.holds(post):
                self._complete(Completion(post.wr_id, "LOC_QP_OP_ERR", False))
                self.to_error()
            else:
                self._out.append(message)
                self._pump()

    @_locked
    def poll(self, most: int = 16) -> list[Completion]:
        """Take completions."""
        count = min(most, len(self._queue))
        return [self._queue.popleft() for _ in range(count)]

    def evidence(self) -> tuple[Lost, ...]:
        """Return the messages that were dropped here for want of a receive."""
        return tuple(Lost(m.number, m.why, m.late, m.wr_id) for m in self._missed)

    def counters(self) -> dict[str, int]:
        """Return what a port would have counted."""
        found = {
            "rnr_nak_retry": sum(m.refusals for m in self._out),
            "local_ack_timeout": sum(m.repeats for m in self._out),
        }
        return {name: count for name, count in found.items() if count}

    # -- sending -----------------------------------------------------------------

    @property
    def _reliable(self) -> bool:
        return self.attributes.qp_type == "RC"

    def _complete(self, entry: Completion) -> None:
        self._raised += 1
        if self._raised in self.device.lost_completions:
            return
        if len(self._queue) >= min(self.cq_entries, self.device.cq_holds):
            self.overflowed += 1
            return
        self._queue.append(entry)

    def _packets(self, message: Message) -> int:
        size = MTU_BYTES[self.route.mtu]
        return max(1, -(-len(message.data) // size))

    def _pump(self) -> None:
        """Send what may go: everything on UC, one message at a time on RC."""
        if not self._out or (self._reliable and self._busy):
            return
        fabric = self.device.fabric
        message = self._out[0] if self._reliable else self._out.popleft()
        message.psn = self._next
        self._next = (self._next + self._packets(message)) & PSN_MASK
        if self._reliable:
            self._busy = True
            self._transmit(message)
            return
        copies = 2 if self._packets(message) == 1 else 0  # seen on soft-RoCE
        fabric.carry(self, len(message.data), lambda: self._arrive(message), copies)
        fabric.after(fabric.latency, lambda: self._sent_one(message))

    def _sent_one(self, message: Message) -> None:
        if self.state != "RTS":
            return
        if message.signalled:
            self._complete(Completion(message.wr_id, "SUCCESS", False))

    def _transmit(self, message: Message) -> None:
        fabric = self.device.fabric

        def arrived() -> None:
            if self.state == "RTS":
                self._answered(message, self._arrive(message))

        if not fabric.carry(self, len(message.data), arrived, 1):
            self._again(message)

    def _answered(self, message: Message, answer: _Answer) -> None:
        fabric = self.device.fabric
        if answer == "nothing" or not fabric.answer_passes(self):
            self._again(message)
        elif answer == "rnr":
            fabric.after(fabric.latency, lambda: self._refused(message))
        else:
            fabric.after(fabric.latency, lambda: self._acked(message, answer))

    def _acked(self, message: Message, answer: _Answer) -> None:
        if self.state != "RTS":
            return
        self._busy = False
        if answer == "remote":
            self._fail(message, "REM_OP_ERR")
            return
        self._out.popleft()
        if message.signalled:
            self._complete(Completion(message.wr_id, "SUCCESS", False))
        self._pump()

    def _refused(self, message: Message) -> None:
        if self.state != "RTS":
            return
        message.refusals += 1
        limit = self.attributes.rnr_retry
        if limit != ENDLESS and message.refusals > limit:
            self._fail(message, "RNR_RETRY_EXC_ERR")
            return
        peer = self.device.fabric.peer_of(self)
        timer = self.attributes if peer is None else peer.attributes
        wait = RNR_MILLISECONDS[timer.min_rnr_timer] / 1e3
        self.device.fabric.note_rnr(wait)
        self.device.fabric.after(wait, lambda: self._repeat(message))

    def _again(self, message: Message) -> None:
        """Nothing was acknowledged: wait, then repeat or give up."""
        if self.attributes.timeout == 0:
            return
        wait = _ACK_SECONDS * 2**self.attributes.timeout
        self.device.fabric.after(wait, lambda: self._timed_out(message))

    def _timed_out(self, message: Message) -> None:
        if self.state != "RTS":
            return
        message.repeats += 1
        limit = self.attributes.retry_cnt
        endless = limit == ENDLESS and self.device.endless_retry
        if not endless and message.repeats > limit:
            self._fail(message, "RETRY_EXC_ERR")
        else:
            self._repeat(message)

    def _repeat(self, message: Message) -> None:
        if self.state == "RTS":
            self._transmit(message)

    def _fail(self, message: Message, status: Status) -> None:
        self._complete(Completion(message.wr_id, status, False))
        self._out.popleft()
        self.to_error()

    # -- receiving ---------------------------------------------------------------

    def _arrive(self, message: Message) -> _Answer:
        """Deliver a message of this queue pair to its peer; return the answer."""
        peer = self.device.fabric.peer_of(self)
        if peer is None or peer.state not in ("RTR", "RTS"):
            return "nothing"
        return peer._take(message, self._packets(message))

    def _take(self, message: Message, packets: int) -> _Answer:
        if self._reliable:
            behind = (self._expected - message.psn) & PSN_MASK
            if 0 < behind < 1 << 23:
                return "ack"  # a duplicate: acknowledged, not delivered
            if behind:
                return "nothing"  # a gap: refused until the sender gives up
        if self._stopped:
            return "nothing"
        receive = self._visible(message)
        if receive is None:
            return "rnr" if self._reliable else "nothing"
        self._expected = (message.psn + packets) & PSN_MASK
        wr_id, offset, length = receive.post
        if len(message.data) > length or not receive.memory.holds(receive.post):
            self._complete(Completion(wr_id, "LOC_QP_OP_ERR", True))
            self.to_error()
            return "remote"
        end = offset + len(message.data)
        receive.memory.view[offset:end] = message.data
        self._complete(Completion(wr_id, "SUCCESS", True, len(message.data)))
        return "ack"

    def _visible(self, message: Message) -> Receive | None:
        now = self.device.fabric.now
        if not self.receives:
            if not self._reliable:
                self._missed.append(
                    Missed(message.number, now, "no receive was posted")
                )
                self._stopped = self.device.uc_stops
            return None
        first = self.receives[0]
        delay = self._late.get(first.number)
        if delay is None:
            return self.receives.popleft()
        if delay > 0:  # negative: released already, at that time
            self._late[first.number] = -(now + delay)
            if not self._reliable:
                wr_id = first.post.wr_id
                why = "no receive was posted"
                self._missed.append(Missed(message.number, now, why, delay, wr_id))
                self._stopped = self.device.uc_stops
            return None
        if now < -delay:
            return None
        del self._late[first.number]
        return self.receives.popleft()
