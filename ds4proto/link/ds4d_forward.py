"""The forward connection of a worker: WORK down, RESULT up, first in first out."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from ds4proto.link.ds4d_endpoint import Endpoint, earliest
from ds4proto.link.ds4d_events import Fault, Transmit
from ds4proto.link.ds4d_frames import (
    CODE,
    RESULT_PART,
    TELEMETRY_PART,
    microseconds,
    result_frame,
)
from ds4proto.link.ds4d_intake import BadMagic, End, Frame
from ds4proto.link.ds4d_limits import U32
from ds4proto.link.ds4d_texts import text
from ds4proto.link.ds4d_worker_shared import Shared
from ds4proto.schema.ds4d_result import RESULT
from ds4proto.schema.problem import Buf


class Upstream(Protocol):
    """What a forwarder needs of the connection that owns it."""

    worker: Shared

    def pump(self, now: float) -> None:
        """Begin what can begin."""

    def relayed(self, request: int, frame: list[Buf], now: float) -> None:
        """Take the next worker's answer."""

    def forward_failed(
        self, forward: Forwarder, waiting: list[int], fault: Fault, now: float
    ) -> None:
        """Take a failed dial."""

    def forward_lost(
        self, forward: Forwarder, waiting: list[int], fault: Fault, now: float
    ) -> None:
        """Take the end of the forward connection."""


State = Literal["dialling", "open", "closed"]
TRANSITIONS: Final[dict[tuple[State, str], State]] = {
    ("dialling", "opened"): "open",
    ("dialling", "failed"): "closed",
    ("open", "result"): "open",
    ("open", "lost"): "closed",
    ("dialling", "upstream ended"): "closed",
    ("open", "upstream ended"): "closed",
}
"""What happens to a forward connection."""
_TYPE: Final = CODE[RESULT]


@dataclass(slots=True)
class Pending:
    """One forwarded request without an answer."""

    request: int
    frame: list[Buf]
    record: dict[str, int]
    n_tokens: int
    sent_from: float
    sent_to: float


class Forwarder(Endpoint):
    """One connection to the next worker, owned by one upstream connection.

    It arrives in an ``OpenForward`` event. Events: ``Transmit``, ``Close``,
    ``Violation``. What it hears goes up through its upstream link, which then is
    among ``Worker.woken()``.
    """

    def __init__(self, upstream: Upstream, host: str, port: int) -> None:
        super().__init__(upstream.worker.limits)
        self.upstream = upstream
        self.host, self.port = host, port
        self.state: State = "dialling"
        self._pending: deque[Pending] = deque()

    # for the upstream link

    @property
    def full(self) -> bool:
        """True while no further request may be evaluated for it."""
        if self.state == "dialling":
            return bool(self._pending)
        return len(self._pending) >= self._limits.forward_window

    @property
    def pending(self) -> int:
        """Requests without an answer."""
        return len(self._pending)

    def submit(self, pending: Pending) -> None:
        """Forward one request, at once or when the dial has succeeded."""
        self._pending.append(pending)
        if self.state == "open":
            self._emit(Transmit(pending.frame, pending.request))
            pending.frame = []
        self._wake()

    def end(self, reason: str) -> None:
        """End this connection because the upstream one has ended."""
        if self.state != "closed":
            self._move("upstream ended")
            self._pending.clear()
            self._close(reason)
            self._wake()

    # for the caller

    def opened(self, now: float) -> None:
        """Tell that the dial succeeded."""
        if self.state == "closed":
            return
        self._move("opened")
        for pending in self._pending:
            pending.sent_from = pending.sent_to = now
            self._emit(Transmit(pending.frame, pending.request))
            pending.frame = []
        self._wake()
        self.upstream.pump(now)

    def failed(self, reason: str, now: float, *, resolving: bool = False) -> None:
        """Tell that the dial failed; ``reason`` is the system's own text."""
        if self.state == "closed":
            return
        key = "DS4D-WORKER-25" if resolving else "DS4D-FWD-09"
        fault = Fault(key, text(key, self.host, self.port, reason), "remote")
        self._move("failed")
        self._violate(fault, "forward", now)
        self._close(fault.text)
        waiting = [p.request for p in self._pending]
        self._pending.clear()
        self._wake()
        self.upstream.forward_failed(self, waiting, fault, now)

    def written(self, request: int, started: float, finished: float) -> None:
        """Tell when the ``Transmit`` of a request was written, for telemetry."""
        for pending in self._pending:
            if pending.request == request:
                pending.sent_from, pending.sent_to = started, finished

    def broken(self, now: float) -> None:
        """Tell that a write failed (DS4D-FWD-19)."""
        self._lose("DS4D-FWD-19", now)

    # frames

    def _move(self, cause: str) -> None:
        self.state = TRANSITIONS[self.state, cause]

    def _wake(self) -> None:
        self.upstream.worker.wake(self)

    def _reading(self) -> bool:
        return self.state == "open"

    def _plan(self, type_: int, size: int, kept: memoryview) -> int:
        if type_ != _TYPE or size < RESULT_PART.size:
            return 0
        if len(kept) < RESULT_PART.size:
            return RESULT_PART.size
        return size if self._fault(RESULT_PART.read(kept), size) is None else len(kept)

    def _fault(self, words: dict[str, int], size: int) -> str | None:
        """Return the clause that the fixed part of a RESULT breaks."""
        step = TELEMETRY_PART.size
        lengths = words["telemetry_bytes"] + words["payload_bytes"]
        if (
            words["telemetry_bytes"] != step * words["telemetry_count"]
            or lengths != size - RESULT_PART.size
            or not self._pending
            or words["request"] != self._pending[0].request
        ):
            return "DS4D-FWD-14"
        if words["telemetry_bytes"] + step > U32:
            return "DS4D-FWD-16"
        if size + step > U32:
            return "DS4D-FWD-17"
        model = self.upstream.worker.facts.model
        largest = max(
            model.logits_bytes,
            model.largest_hidden(self._pending[0].n_tokens),
            self._limits.max_message,
        )
        if (
            words["payload_bytes"] > largest
            or words["telemetry_count"] > self._limits.max_telemetry
        ):
            return "DS4D-FWD-24"
        return None

    def _item(self, item: Any, now: float) -> None:
        if isinstance(item, Frame):
            self._frame(item, now)
        elif isinstance(item, BadMagic):
            self._lose("DS4D-FWD-10" if self._pending else "DS4D-FWD-15", now)
        elif isinstance(item, End):
            self._lose(self._cut(item), now)

    def _cut(self, end: End) -> str:
        if end.where != "body":
            return "DS4D-FWD-10" if self._pending else "DS4D-FWD-11"
        if end.type != _TYPE:
            return "DS4D-FWD-12"
        return "DS4D-FWD-13" if end.got < RESULT_PART.size else "DS4D-FWD-18"

    def _frame(self, frame: Frame, now: float) -> None:
        if not self._pending:
            self._lose("DS4D-FWD-15", now)
            return
        if frame.type != _TYPE or frame.size < RESULT_PART.size:
            self._lose("DS4D-FWD-12", now)
            return
        words = RESULT_PART.read(frame.body)
        fault = self._fault(words, frame.size)
        if fault is not None:
            self._lose(fault, now)
            return
        pending = self._pending.popleft()
        record = {
            **pending.record,
            "downstream_wait_usec": microseconds(frame.began - pending.sent_to),
            "forward_send_usec": microseconds(pending.sent_to - pending.sent_from),
        }
        at = RESULT_PART.size + words["telemetry_bytes"]
        buffers = result_frame(
            words["request"],
            result_hash=words["result_hash"],
            status=words["status"],
            kind=words["result_kind"],
            bits=words["payload_bits"],
            telemetry=bytes(frame.body[RESULT_PART.size : at])
            + TELEMETRY_PART.build(record),
            payload=frame.body[at:],
        )
        self.upstream.relayed(pending.request, buffers, now)

    def _lose(self, clause: str, now: float) -> None:
        """Give the connection up; ``clause`` says what goes up, and if anything."""
        if self.state == "closed":
            return
        silent = ("DS4D-FWD-11", "DS4D-FWD-15", "DS4D-FWD-18")
        words = "next worker connection ended"
        if clause == "DS4D-FWD-24":
            words = text("DS4D-FWD-14")
        elif clause == "DS4D-FWD-22":
            words = text("next-silent", self._limits.forward_s)
        elif clause not in silent:
            words = text(clause)
        fault = Fault(clause, words)
        self._move("lost" if self.state == "open" else "failed")
        self._violate(fault, "forward", now, fatal=True)
        waiting = [] if clause in silent else [p.request for p in self._pending]
        self._pending.clear()
        self._close(words)
        self._wake()
        self.upstream.forward_lost(self, waiting, fault, now)

    # time

    def _stalled(self, now: float) -> None:
        self._lose("DS4D-FWD-22", now)

    def _answer_due(self) -> float | None:
        if not self._pending or self.state != "open" or self._limits.forward_s is None:
            return None
        return self._pending[0].sent_to + self._limits.forward_s

    def deadline(self) -> float | None:
        """Return when ``timeout`` wants to be called, if ever."""
        return earliest(super().deadline(), self._answer_due())

    def timeout(self, now: float) -> None:
        """Tell that the deadline has passed."""
        super().timeout(now)
        due = self._answer_due()
        if due is not None and now >= due:
            self._lose("DS4D-FWD-22", now)
