"""The coordinator's snapshot connections: one save or one load each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from ds4proto.link.ds4d_endpoint import Endpoint, LocalProtocolError, earliest
from ds4proto.link.ds4d_events import (
    Fault,
    ShardData,
    ShardStarted,
    SnapshotDone,
    SnapshotFailed,
    Transmit,
)
from ds4proto.link.ds4d_frames import CODE, TOKEN_BYTES, framed, pack_tokens
from ds4proto.link.ds4d_intake import BadMagic, End, Frame
from ds4proto.link.ds4d_limits import DEFAULT, MESSAGE_BYTES, LinkLimits
from ds4proto.link.ds4d_snapshot_server import (
    BEGIN_PART,
    CHUNK_PART,
    DONE_PART,
    LOAD_PART,
    SAVE_PART,
    chunk_frame,
    chunk_sound,
    full_chunks,
)
from ds4proto.link.ds4d_texts import kept, text
from ds4proto.schema.ds4d_snapshot import (
    SNAPSHOT_BEGIN,
    SNAPSHOT_CHUNK,
    SNAPSHOT_DONE,
    SNAPSHOT_LOAD_BEGIN,
    SNAPSHOT_SAVE_REQ,
)
from ds4proto.schema.problem import Buf

State = Literal["begin", "chunks", "done", "sending", "over"]
TRANSITIONS: Final[dict[tuple[State, str], State]] = {
    # save
    ("begin", "accepted"): "chunks",
    ("chunks", "chunk"): "chunks",
    ("chunks", "last chunk"): "done",
    # load
    ("sending", "all sent"): "done",
    ("sending", "stopped"): "done",
    # both
    ("done", "completed"): "over",
    ("begin", "failed"): "over",
    ("chunks", "failed"): "over",
    ("done", "failed"): "over",
    ("sending", "failed"): "over",
}
"""States of a snapshot connection, by what is awaited."""

_CLOSED: Final[Mapping[State, str]] = {
    "begin": "DS4D-SNAP-42",
    "chunks": "DS4D-SNAP-43",
    "done": "DS4D-SNAP-44",
    "sending": "DS4D-SNAP-44",
}
_WRONG: Final[Mapping[State, str]] = {
    "begin": "DS4D-SNAP-31",
    "chunks": "DS4D-SNAP-35",
    "done": "DS4D-SNAP-37",
    "sending": "DS4D-SNAP-37",
}
_AWAITED: Final = {
    "begin": (CODE[SNAPSHOT_BEGIN], BEGIN_PART),
    "chunks": (CODE[SNAPSHOT_CHUNK], CHUNK_PART),
    "done": (CODE[SNAPSHOT_DONE], DONE_PART),
}


@dataclass(frozen=True, slots=True)
class ShardKey:
    """Which shard: model, session, request, hash and length, slice."""

    model_id: int
    session: int
    request: int
    token_hash: int
    token_count: int
    layer_start: int
    layer_end: int


class _Client(Endpoint):
    """What save and load share: the end of the transfer, times, failure."""

    state: State

    def __init__(self, key: ShardKey, now: float, limits: LinkLimits) -> None:
        super().__init__(limits)
        self.key = key
        self._missing = 0
        self._empty = 0
        self._heard = now

    def _reading(self) -> bool:
        return self.state in _AWAITED

    def _move(self, cause: str) -> None:
        self.state = TRANSITIONS[self.state, cause]

    def failed(self, reason: str, now: float) -> None:
        """Tell that dialling, reading or writing failed."""
        if self.state != "over":
            self._fail(Fault("DS4D-SNAP-44", reason), now)

    def _plan(self, type_: int, size: int, head: memoryview) -> int:
        if self.state not in _AWAITED:
            return len(head)
        code, part = _AWAITED[self.state]
        if type_ != code or size < part.size:
            return 0
        if len(head) < part.size:
            return part.size
        if self.state == "chunks":
            sound = chunk_sound(self.key.request, self._missing, size, head)
            return size if sound else len(head)
        tail = part.read(head)["message_bytes"]
        most = MESSAGE_BYTES
        if self.state == "begin":
            tail += part.read(head)["token_bytes"]
            most += TOKEN_BYTES * self.key.token_count
        return part.size + min(tail, most)

    def _item(self, item: Any, now: float) -> None:
        self._heard = now
        if isinstance(item, End):
            self._fail(_fault(_CLOSED[self.state]), now)
        elif isinstance(item, BadMagic):
            words = text("DS4D-FRAME-01", item.magic)
            self._fail(Fault("DS4D-FRAME-01", words), now)
        elif isinstance(item, Frame):
            code, part = _AWAITED[self.state]
            if item.type != code or item.size < part.size:
                self._fail(_fault(_WRONG[self.state]), now)
            else:
                self._frame(item, part.read(item.body), now)

    def _frame(self, frame: Frame, words: Mapping[str, int], now: float) -> None:
        """Take the awaited frame; the end of a transfer is the same for both."""
        if words["message_bytes"] > frame.size - DONE_PART.size:
            self._fail(_fault("DS4D-SNAP-38"), now)
        elif words["request"] != self.key.request:
            self._fail(_fault("DS4D-SNAP-39"), now)
        elif words["status"]:
            end = DONE_PART.size + words["message_bytes"]
            said = kept(frame.body[DONE_PART.size : end], MESSAGE_BYTES)
            words_ = said or text("DS4D-SNAP-40")
            self._fail(Fault("DS4D-SNAP-40", words_, "remote"), now)
        else:
            self._move("completed")
            self._emit(SnapshotDone())
            self._close("snapshot complete")

    def _fail(self, fault: Fault, now: float) -> None:
        if self.state == "over":
            return
        self._move("failed")
        self._violate(fault, "snapshot", now, fatal=True)
        self._emit(SnapshotFailed(fault))
        self._close(fault.text)

    def _stalled(self, now: float) -> None:
        self._fail(Fault("DS4D-FRAME-13", text("peer-stalled")), now)

    def _due(self) -> float | None:
        if self.state not in _AWAITED or self._limits.result_s is None:
            return None
        return self._heard + self._limits.result_s

    def deadline(self) -> float | None:
        """Return when ``timeout`` wants to be called, if ever."""
        return earliest(super().deadline(), self._due())

    def timeout(self, now: float) -> None:
        """Tell that the deadline has passed."""
        super().timeout(now)
        due = self._due()
        if due is not None and now >= due:
            words = text("worker-silent", self._limits.result_s)
            self._fail(Fault("DS4D-RESULT-51", words), now)


class SaveClient(_Client):
    """Asks one worker for its shard.

    Events: ``Transmit`` (first), ``ShardStarted``, ``ShardData``, then
    ``SnapshotDone`` or ``SnapshotFailed``, and ``Close``. A failure disturbs neither
    route nor sessions (DS4D-SNAP-47).
    """

    def __init__(
        self, key: ShardKey, *, now: float, limits: LinkLimits = DEFAULT
    ) -> None:
        super().__init__(key, now, limits)
        self.state = "begin"
        self._emit(
            Transmit(
                framed(SNAPSHOT_SAVE_REQ, (SAVE_PART.build(asdict(key)),)), key.request
            )
        )

    def _frame(self, frame: Frame, words: Mapping[str, int], now: float) -> None:
        if self.state == "begin":
            self._begin(frame, words, now)
        elif self.state == "chunks":
            self._chunk(frame, now)
        else:
            super()._frame(frame, words, now)

    def _begin(self, frame: Frame, words: Mapping[str, int], now: float) -> None:
        fault = self._judge_begin(frame, words)
        if fault is not None:
            self._fail(fault, now)
            return
        self._missing = words["payload_size"]
        self._move("accepted")
        self._emit(ShardStarted(self._missing))

    def _judge_begin(self, frame: Frame, words: Mapping[str, int]) -> Fault | None:
        """Return what a SNAPSHOT_BEGIN breaks (SNAP 32 to 34 and 41, in order)."""
        room = frame.size - BEGIN_PART.size
        if (
            words["token_bytes"] != TOKEN_BYTES * words["token_count"]
            or words["token_bytes"] + words["message_bytes"] > room
        ):
            return _fault("DS4D-SNAP-32")
        if words["status"]:
            at = BEGIN_PART.size + words["token_bytes"]
            message = frame.body[at : at + words["message_bytes"]]
            said = kept(message, MESSAGE_BYTES) or text("DS4D-SNAP-33")
            return Fault("DS4D-SNAP-33", said, "remote")
        mine = asdict(self.key)
        counts = (0, mine.pop("token_count"))
        same = all(words[name] == value for name, value in mine.items())
        if not same or words["token_count"] not in counts:
            return _fault("DS4D-SNAP-34")
        if not words["payload_size"]:
            return _fault("DS4D-SNAP-41")
        if words["payload_size"] > self._limits.max_shard:
            return Fault("DS4D-SNAP-75", text("shard-large"))
        return None

    def _chunk(self, frame: Frame, now: float) -> None:
        if not chunk_sound(self.key.request, self._missing, frame.size, frame.body):
            self._fail(_fault("DS4D-SNAP-36"), now)
            return
        data = frame.body[CHUNK_PART.size :]
        self._missing -= len(data)
        self._empty = 0 if len(data) else self._empty + 1
        if self._empty > self._limits.max_empty_chunks:
            self._fail(Fault("DS4D-SNAP-75", text("shard-stuck")), now)
            return
        self._move("chunk" if self._missing else "last chunk")
        self._emit(ShardData(data))


class LoadClient(_Client):
    """Pushes one shard to one worker.

    ``Transmit`` brings LOAD_BEGIN; then call ``chunks`` for each piece and write what
    it returns. Nothing is read before all has been sent (DS4D-SNAP-62). Ends with
    ``SnapshotDone`` or ``SnapshotFailed``, and ``Close``.
    """

    def __init__(
        self,
        key: ShardKey,
        tokens: Sequence[int],
        size: int,
        *,
        now: float,
        limits: LinkLimits = DEFAULT,
    ) -> None:
        super().__init__(key, now, limits)
        self.state = "sending"
        self._missing = size
        wire = pack_tokens(tokens)
        fixed = {
            **asdict(key),
            "payload_size": size,
            "status": 0,
            "token_bytes": len(wire),
            "message_bytes": 0,
        }
        frame = framed(SNAPSHOT_LOAD_BEGIN, (LOAD_PART.build(fixed), wire))
        self._emit(Transmit(frame, key.request))
        if not size:
            self._move("all sent")

    def chunks(self, data: Buf, now: float) -> list[Buf]:
        """Return the frames that carry ``data``, at most 8 MiB each.

        Give pieces of whole multiples of 8 MiB, so that every chunk but the last is
        full (DS4D-SNAP-57).

        Raises
        ------
        LocalProtocolError
            If there is more data than was announced.
        """
        if self.state != "sending" or len(data) > self._missing:
            raise LocalProtocolError(
                f"shard data of {len(data)} bytes while {self._missing} are due"
            )
        frames: list[Buf] = []
        for pieces in full_chunks((data,), len(data)):
            frames += chunk_frame(self.key.request, pieces)
        self._missing -= len(data)
        self._heard = now
        if not self._missing:
            self._move("all sent")
            self._read(now)
        return frames

    def stopped(self, now: float) -> None:
        """Tell that a write failed: a refusal that the peer sent is still read."""
        if self.state == "sending":
            self._move("stopped")
            self._read(now)


def _fault(clause: str) -> Fault:
    return Fault(clause, text(clause))
