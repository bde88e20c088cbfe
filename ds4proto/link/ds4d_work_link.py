"""The coordinator's end of the first hop: WORK out, RESULT in, checked in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from ds4proto.link.ds4d_endpoint import Endpoint, LocalProtocolError, earliest
from ds4proto.link.ds4d_events import (
    Drained,
    Fault,
    RemoteError,
    ResultReceived,
    TransportError,
)
from ds4proto.link.ds4d_facts import ModelFacts
from ds4proto.link.ds4d_frames import (
    CODE,
    RESULT_PART,
    TELEMETRY_PART,
    pack_tokens,
    read_telemetry,
    work_frame,
)
from ds4proto.link.ds4d_intake import BadMagic, End, Frame
from ds4proto.link.ds4d_limits import DEFAULT, MESSAGE_BYTES, LinkLimits
from ds4proto.link.ds4d_result_checks import Asked, judge_result
from ds4proto.link.ds4d_texts import kept, text
from ds4proto.schema.ds4d_result import RESULT
from ds4proto.schema.problem import Buf

State = Literal["idle", "waiting", "draining", "dead"]
TRANSITIONS: Final[dict[tuple[State, str], State]] = {
    ("idle", "work"): "waiting",
    ("waiting", "work"): "waiting",
    ("waiting", "answer"): "waiting",
    ("waiting", "last answer"): "idle",
    ("waiting", "drain"): "draining",
    ("draining", "answer"): "draining",
    ("draining", "last answer"): "idle",
    ("idle", "lost"): "dead",
    ("waiting", "lost"): "dead",
    ("draining", "lost"): "dead",
}
"""States of the first hop's connection."""
_TYPE: Final = CODE[RESULT]


@dataclass(slots=True)
class Pending:
    """One WORK without an answer."""

    request: int
    asked: Asked
    sent: float


class WorkLink(Endpoint):
    """One connection that carries WORK to a first hop and its RESULTs back.

    Events: ``ResultReceived``, ``RemoteError``, ``Drained``, ``TransportError``,
    ``Close``, ``Violation``.

    Parameters
    ----------
    model : ModelFacts
    has_head : bool
        Whether this side can finish a hidden state itself.
    initial : bytes
        ``Registration.trailing_data``: read as the head of the first RESULT.
    """

    def __init__(
        self,
        model: ModelFacts,
        *,
        has_head: bool = True,
        limits: LinkLimits = DEFAULT,
        initial: bytes = b"",
    ) -> None:
        super().__init__(limits)
        self.model = model
        self.has_head = has_head
        self.state: State = "idle"
        self._pending: deque[Pending] = deque()
        self._discarded = 0
        self._heard = 0.0
        self._intake.feed(initial, 0.0)

    @property
    def pending(self) -> int:
        """WORK frames without an answer."""
        return len(self._pending)

    def work(
        self,
        values: Mapping[str, Any],
        now: float,
        *,
        pipelined: bool = False,
        last: bool = True,
        route_logits: bool = True,
    ) -> list[Buf]:
        """Return the buffers of one WORK and await its RESULT.

        Parameters
        ----------
        values : mapping
            Fixed part by wire name (sizes are filled in), ``tokens`` as ids,
            ``hidden`` as wire bytes, ``route_blob`` as bytes.
        pipelined, last : bool
            Whether the chunk is one of several in flight, and the last of them.
        route_logits : bool
            Whether the last route record has the logits flag.

        Raises
        ------
        LocalProtocolError
            While draining, or on a dead connection.
        """
        if self.state not in ("idle", "waiting"):
            raise LocalProtocolError(f"no WORK on a connection that is {self.state}")
        frame = work_frame(
            values,
            pack_tokens(values["tokens"]),
            values["hidden"],
            values["route_blob"],
        )
        if not self._pending:
            self._heard = now
            self._intake.touch(now)
        asked = Asked(
            values["request"],
            values["result_hash"],
            values["n_tokens"],
            pipelined,
            last,
            route_logits,
            self.has_head,
        )
        self._pending.append(Pending(values["request"], asked, now))
        self._move("work")
        return frame

    def drain(self) -> None:
        """Discard the RESULT of every WORK already sent; ``Drained`` follows."""
        if self.state == "waiting":
            self._discarded = 0
            self._move("drain")
        elif self.state == "idle":
            self._emit(Drained(0))
        else:
            raise LocalProtocolError(
                f"nothing to drain: the connection is {self.state}"
            )

    def failed(self, reason: str, now: float) -> None:
        """Tell that a read or write failed (RESULT check 2)."""
        self._lose(Fault("DS4D-RESULT-02", text("read-header", reason)), now)

    def peer_closed(self, now: float) -> None:
        """Tell that the idle connection was found closed (DS4D-HELLO-35)."""
        self._lose(Fault("DS4D-RESULT-01", text("DS4D-RESULT-01")), now)

    # frames

    def _reading(self) -> bool:
        return self.state in ("waiting", "draining")

    def _move(self, cause: str) -> None:
        self.state = TRANSITIONS[self.state, cause]

    def _plan(self, type_: int, size: int, head: memoryview) -> int:
        if type_ != _TYPE or size < RESULT_PART.size:
            return 0
        if len(head) < RESULT_PART.size:
            return RESULT_PART.size
        words = RESULT_PART.read(head)
        if self.state == "draining" or self._metadata(words, size) is not None:
            return len(head)
        if words["status"]:
            message = min(words["payload_bytes"], MESSAGE_BYTES)
            return RESULT_PART.size + words["telemetry_bytes"] + message
        return size

    def _metadata(self, words: Mapping[str, int], size: int) -> Fault | None:
        """Return what RESULT checks 4 and 5, and our cap, say of a fixed part."""
        records = words["telemetry_count"] * TELEMETRY_PART.size
        rest = size - RESULT_PART.size - words["telemetry_bytes"]
        if words["telemetry_bytes"] != records or words["payload_bytes"] != rest:
            return _fault("DS4D-RESULT-04")
        pending = self._pending[0]
        if words["request"] != pending.request:
            return _fault("DS4D-RESULT-05")
        largest = max(
            self.model.logits_bytes,
            self.model.largest_hidden(pending.asked.n_tokens),
        )
        many = words["telemetry_count"] > self._limits.max_telemetry
        if many or (not words["status"] and words["payload_bytes"] > largest):
            return Fault("DS4D-RESULT-50", text("payload-large"))
        return None

    def _item(self, item: Any, now: float) -> None:
        if isinstance(item, BadMagic):
            words = text("DS4D-RESULT-02", item.magic)
            self._lose(Fault("DS4D-RESULT-02", words), now)
        elif isinstance(item, End):
            self._lose(_fault("DS4D-RESULT-01"), now)
        elif isinstance(item, Frame):
            self._frame(item, now)

    def _frame(self, frame: Frame, now: float) -> None:
        if frame.type != _TYPE or frame.size < RESULT_PART.size:
            self._lose(_fault("DS4D-RESULT-03"), now)
            return
        words = RESULT_PART.read(frame.body)
        fault = self._metadata(words, frame.size)
        if fault is not None:
            self._lose(fault, now)
            return
        pending = self._pending.popleft()
        self._heard = now
        if self.state == "draining":
            self._discarded += 1
            self._answered()
            if not self._pending:
                self._emit(Drained(self._discarded))
            return
        at = RESULT_PART.size + words["telemetry_bytes"]
        count = words["telemetry_count"]
        telemetry = read_telemetry(frame.body, RESULT_PART.size, count)
        payload = frame.body[at:]
        if words["status"]:
            said = kept(payload, MESSAGE_BYTES) or text("DS4D-RESULT-06")
            remote = Fault("DS4D-RESULT-06", said, "remote")
            self._answered()
            self._emit(RemoteError(pending.request, remote, words["status"], telemetry))
            return
        fault = judge_result(self.model, pending.asked, words)
        if fault is not None:
            self._pending.appendleft(pending)
            self._lose(fault, now)
            return
        self._answered()
        self._emit(
            ResultReceived(
                pending.request,
                words["result_kind"],
                payload,
                words["payload_bits"] or 32,
                telemetry,
                now - pending.sent,
            )
        )

    def _answered(self) -> None:
        self._move("answer" if self._pending else "last answer")

    def _lose(self, fault: Fault, now: float) -> None:
        if self.state == "dead":
            return
        self._move("lost")
        self._pending.clear()
        self._violate(fault, "RESULT", now, fatal=True)
        self._emit(TransportError(fault))
        self._close(fault.text)

    # time

    def _stalled(self, now: float) -> None:
        self._lose(Fault("DS4D-FRAME-13", text("peer-stalled")), now)

    def _due(self) -> float | None:
        if not self._pending or self._limits.result_s is None:
            return None
        return max(self._heard, self._pending[0].sent) + self._limits.result_s

    def deadline(self) -> float | None:
        """Return when ``timeout`` wants to be called, if ever."""
        return earliest(super().deadline(), self._due())

    def timeout(self, now: float) -> None:
        """Tell that the deadline has passed."""
        super().timeout(now)
        due = self._due()
        if due is not None and now >= due:
            words = text("worker-silent", self._limits.result_s)
            self._lose(Fault("DS4D-RESULT-51", words), now)


def _fault(clause: str) -> Fault:
    return Fault(clause, text(clause))
