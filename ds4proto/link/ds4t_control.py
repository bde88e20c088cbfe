"""What both control machines share: the reader, the event queue, the one failure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ds4proto.link.ds4t_checkpoint import Meetings
from ds4proto.link.ds4t_identity import TpSettings
from ds4proto.link.ds4t_limits import ControlLimits
from ds4proto.link.ds4t_reader import MAX_BACKLOG, ControlReader
from ds4proto.link.ds4t_sessions import Sessions
from ds4proto.link.ds4t_texts import PairFailed, failed
from ds4proto.link.events import Event
from ds4proto.schema.declare import FrameSpec
from ds4proto.schema.problem import Buf
from ds4proto.schema.registry import Reading, build, frame, read_body

CHECKPOINT: Final = "DS4T.SYNC_CHECKPOINT"


class ControlMachine(ABC):
    """One rank's control connection; ``LeaderControl`` and ``WorkerControl`` extend it.

    Attributes
    ----------
    sessions : Sessions
        What each session holds, as the frames tell.
    """

    def __init__(
        self, settings: TpSettings, limits: ControlLimits, *, logits_frames: bool
    ) -> None:
        self._settings = settings
        self._limits = limits
        self._split = settings.vocabulary_split and logits_frames
        self._reader = ControlReader()
        self._events: deque[Event] = deque()
        self._meetings = (
            Meetings(settings.dialect) if settings.rules.checkpoints else None
        )
        self._waiting_since: float | None = None
        self._failure: PairFailed | None = None
        self.sessions = Sessions()

    @property
    def failure(self) -> PairFailed | None:
        """Why the pair is over, if it is."""
        return self._failure

    @property
    def bytes_received(self) -> int:
        """Bytes of the peer since the hello."""
        return self._reader.offset

    def receive_data(self, data: Buf | None, now: float) -> None:
        """Take bytes of the peer; None is the end of the stream, or a reset."""
        if data is None:
            self._reader.ended = True
        elif not self._over:
            self._reader.feed(data, now)
            if self._reader.overrun:
                self._fail(self._overrun(now))
        self._advance(now)

    def get_buffer(self) -> memoryview:
        """Return where the next bytes may be read to, without a copy.

        Empty while a whole frame waits for this rank: read nothing then.
        """
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int, now: float) -> None:
        """Note that ``nbytes`` were read into ``get_buffer()``; 0 is the end."""
        if nbytes <= 0:
            self.receive_data(None, now)
            return
        self._reader.buffer_updated(nbytes, now)
        self._advance(now)

    def events(self) -> Iterator[Event]:
        """Yield what the bytes so far mean, in their order."""
        while self._events:
            yield self._events.popleft()

    def deadline(self) -> float | None:
        """Return when ``timeout`` is due, None while nothing is awaited."""
        if self._over:
            return None
        stall = self._reader.touched if self._reader.partial else None
        times = []
        if stall is not None:
            times.append(stall + self._limits.stall)
        if self._waiting_since is not None:
            times.append(self._waiting_since + self._patience)
        return min(times, default=None)

    def timeout(self, now: float) -> None:
        """Fail the pair because what was awaited did not come."""
        due = self.deadline()
        if due is not None and now >= due:
            self._fail(self._late(now))

    @property
    @abstractmethod
    def _over(self) -> bool:
        """The machine takes no more bytes."""

    @property
    @abstractmethod
    def _patience(self) -> float:
        """Seconds that may pass in the present state."""

    @abstractmethod
    def _late(self, now: float) -> PairFailed:
        """Return the failure for a missed deadline."""

    @abstractmethod
    def _advance(self, now: float) -> None:
        """Use the bytes that are there, as far as the state allows."""

    @abstractmethod
    def _enter_failed(self) -> None:
        """Go to the state FAILED."""

    def _fail(self, failure: PairFailed) -> None:
        if self._failure is None:
            self._failure = failure
            self._waiting_since = None
            self._enter_failed()
            self._events.append(failure)

    def _overrun(self, now: float) -> PairFailed:
        return failed(
            now,
            "DS4T-CTRL-17",
            text="tp: control channel closed",
            phase="control",
            expected=f"at most {MAX_BACKLOG} bytes ahead of the running command",
            found="more",
            next_step="the peer sends without waiting for answers",
        )

    def _progress(self) -> str:
        """Say how much of the frame in hand has come."""
        reader = self._reader
        if reader.header is None:
            return f"{reader.got} of 12 header bytes"
        _, code, size = reader.header
        return f"{reader.got} of {size} payload bytes of a frame of type {code}"

    def _build(self, name: str, values: Mapping[str, Any]) -> list[Buf]:
        dialect = self._settings.dialect
        return build(frame(name, dialect=dialect), values, dialect=dialect)

    def _read(self, spec: FrameSpec, body: memoryview) -> Reading:
        return read_body(spec, body, dialect=self._settings.dialect)
