"""Local decode of the private dialect: its frames read and built, the asking side.

The answering side is the worker's connection, which hands such frames out as
``LocalFrame`` (clauses DS4D-OURS-10 to -17).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final, Literal

from ds4proto.link.ds4d_endpoint import Endpoint, LocalProtocolError, earliest
from ds4proto.link.ds4d_events import Fault, LocalReply, TransportError
from ds4proto.link.ds4d_frames import CODE
from ds4proto.link.ds4d_intake import BadMagic, End, Frame
from ds4proto.link.ds4d_limits import DEFAULT, ERROR_BYTES, LinkLimits
from ds4proto.link.ds4d_texts import kept, text
from ds4proto.schema.declare import FrameSpec
from ds4proto.schema.ds4d_hello import ERROR
from ds4proto.schema.ds4d_private import DIALECT
from ds4proto.schema.ds4d_private_frames import (
    KV_CHECK,
    KV_FETCH,
    KV_INCREMENT,
    KV_RETURN,
    LOCAL_ANSWER,
    LOCAL_GENERATE,
    LOCAL_TOKENS,
)
from ds4proto.schema.problem import Buf
from ds4proto.schema.registry import build, read_body


def _codes(*specs: FrameSpec) -> dict[int, FrameSpec]:
    return {spec.code: spec for spec in specs if spec.code is not None}


TO_WORKER: Final = _codes(KV_INCREMENT, KV_RETURN, KV_FETCH, KV_CHECK, LOCAL_GENERATE)
"""What a worker of the dialect takes, by type number."""
FROM_WORKER: Final = _codes(KV_RETURN, LOCAL_TOKENS, LOCAL_ANSWER)
"""What answers it."""
DECODER_ONLY: Final = frozenset({"KV_INCREMENT", "KV_FETCH", "KV_CHECK"}) | {
    "LOCAL_GENERATE"
}
"""Frames for a worker that holds the whole model (DS4D-OURS-17)."""

State = Literal["idle", "waiting", "dead"]


def local_frame(spec: FrameSpec, **values: Any) -> list[Buf]:
    """Return one frame of the dialect; lengths are filled in."""
    return build(spec, values, dialect=DIALECT)


def logits_hash(logits: Buf) -> int:
    """Return the 64 bits that stand for f32 logits in KV_CHECK (DS4D-OURS-14)."""
    return int.from_bytes(hashlib.blake2b(logits, digest_size=8).digest(), "big")


def read_local(specs: Mapping[int, FrameSpec], frame: Frame) -> dict[str, Any] | Fault:
    """Return the values of a frame of the dialect, or its first fault."""
    spec = specs[frame.type]
    if not frame.whole:
        return Fault("DS4D-FRAME-13", f"{spec.name} of {frame.size} bytes is too large")
    reading = read_body(spec, frame.body, dialect=DIALECT)
    for problem in reading.problems:
        words = f"{problem.path}: expected {problem.expected}, found {problem.found}"
        return Fault(problem.clause, words, "remote")
    return reading.values


class LocalClient(Endpoint):
    """Asks one worker, one request at a time.

    Events: ``LocalReply``, ``TransportError``, ``Close``.
    """

    def __init__(self, *, limits: LinkLimits = DEFAULT) -> None:
        super().__init__(limits)
        self.state: State = "idle"
        self._until: float | None = None

    def ask(self, now: float, seconds: float) -> None:
        """Tell that a request leaves; its next answer is due within ``seconds``.

        Raises
        ------
        LocalProtocolError
            On a dead connection.
        """
        if self.state == "dead":
            raise LocalProtocolError("no request on a connection that is dead")
        self.state, self._until = "waiting", now + seconds
        self._intake.touch(now)

    def answered(self) -> None:
        """Tell that the last reply was the end of the request."""
        if self.state == "waiting":
            self.state, self._until = "idle", None

    def failed(self, reason: str, now: float) -> None:
        """Tell that a read or write failed."""
        self._lose(Fault("DS4D-RESULT-02", text("read-header", reason)), now)

    def _reading(self) -> bool:
        return self.state == "waiting"

    def _plan(self, type_: int, size: int, head: memoryview) -> int:
        if type_ == CODE[ERROR]:
            return min(size, ERROR_BYTES)
        legal = type_ in FROM_WORKER and size <= self._limits.max_body
        return size if legal else len(head)

    def _item(self, item: Any, now: float) -> None:
        if isinstance(item, BadMagic):
            self._lose(Fault("DS4D-FRAME-01", text("DS4D-FRAME-01", item.magic)), now)
        elif isinstance(item, End):
            self._lose(Fault("DS4D-RESULT-01", text("DS4D-RESULT-01")), now)
        elif isinstance(item, Frame):
            self._frame(item, now)

    def _frame(self, frame: Frame, now: float) -> None:
        if frame.type == CODE[ERROR]:
            words = kept(frame.body, ERROR_BYTES)
            self._lose(Fault("DS4D-ERROR-01", words, "remote"), now)
            return
        if frame.type not in FROM_WORKER:
            self._lose(Fault("DS4D-RESULT-03", text("DS4D-RESULT-03")), now)
            return
        values = read_local(FROM_WORKER, frame)
        if isinstance(values, Fault):
            self._lose(values, now)
        else:
            self._emit(LocalReply(FROM_WORKER[frame.type].name, values))

    def _lose(self, fault: Fault, now: float) -> None:
        if self.state == "dead":
            return
        self.state, self._until = "dead", None
        self._violate(fault, "local decode", now, fatal=True)
        self._emit(TransportError(fault))
        self._close(fault.text)

    def _stalled(self, now: float) -> None:
        self._lose(Fault("DS4D-FRAME-13", text("peer-stalled")), now)

    def deadline(self) -> float | None:
        """Return when ``timeout`` wants to be called, if ever."""
        return earliest(super().deadline(), self._until)

    def timeout(self, now: float) -> None:
        """Tell that the deadline has passed."""
        super().timeout(now)
        if self._until is not None and now >= self._until:
            words = "the worker did not answer a local decode request in time"
            self._lose(Fault("DS4D-RESULT-51", words), now)
