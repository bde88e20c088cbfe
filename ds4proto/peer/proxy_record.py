"""Recording beside the traffic: a thread writes what the pumps have handed over.

A pump hands its whole buffer over and takes another one, so that nothing is copied
and a slow disk holds up traffic only once all buffers are under way. Times are those
of the hand-over, which comes before the bytes are passed on, and the order of the
record is the order of the hand-overs.

While small messages come and go, nobody wakes the thread: it looks by itself every
millisecond, so that a message is not held up by a change of threads. Large ones wake
it, and so does the first one after a silence.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import BinaryIO, Final

from ds4proto.pcap import CaptureWriteError
from ds4proto.peer.api import Address, Buf
from ds4proto.peer.recording import Recorder
from ds4proto.peer.tap import Tap

__all__ = ["BackgroundRecorder"]

_MOST_WAITING: Final = 2048
_NAP_S: Final = 0.001
_IDLE_NAPS: Final = 50
"""Naps without work after which the thread sleeps until it is woken."""
_CLOSE_S: Final = 30.0
"""How long the last packets may take: a pipe may have a reader that does not read."""
_LARGE: Final = 32 << 10
"""Bytes that wake the thread at once: their buffer is wanted back."""
Act = Callable[[], None]


class BackgroundRecorder:
    """A `Recorder` with a thread of its own; never raises after it was made.

    Parameters
    ----------
    target : path or binary stream
    lost : callable
        Told once why the recording ended early.

    Raises
    ------
    CaptureWriteError, OSError
        Where the file cannot be created.
    """

    def __init__(
        self, target: str | os.PathLike[str] | BinaryIO, lost: Callable[[str], None]
    ) -> None:
        self._now = time.time_ns()
        self._recorder = Recorder(target, time_ns=lambda: self._now)
        self._lost = lost
        self._failed = False
        self._queue: deque[tuple[int, Act | None]] = deque()
        # Held while there is nothing to wake for; an Event costs ten times as much.
        self._wake = threading.Lock()
        self._wake.acquire()
        self._asleep = False
        self._thread = threading.Thread(target=self._work, name="record", daemon=True)
        self._thread.start()

    def connection(self, client: Address, server: Address) -> Track:
        """Begin recording one connection."""
        track = Track(self)

        def begin() -> None:
            track.tap = self._recorder.connection(client, server, opened_by_us=True)

        self.hand_over(begin)
        return track

    def hand_over(self, act: Act, *, size: int = 0) -> None:
        """Have something of that many bytes written, with the time of now."""
        while len(self._queue) > _MOST_WAITING and self._thread.is_alive():
            time.sleep(_NAP_S)  # the disk is slower than the traffic
        self._queue.append((time.time_ns(), act))
        if self._asleep or size >= _LARGE:
            self._rouse()

    def _rouse(self) -> None:
        with suppress(RuntimeError):  # another thread was faster
            if self._wake.locked():
                self._wake.release()

    def close(self) -> None:
        """Write what waits, and finish the file; give up where nothing takes it.

        Idempotent.
        """
        if self._thread.is_alive():
            self._queue.append((0, None))
            self._rouse()
            self._thread.join(_CLOSE_S)
        if self._thread.is_alive() and not self._failed:
            self._failed = True
            self._lost(f"the last packets could not be written in {_CLOSE_S:g} s")

    def _work(self) -> None:
        while True:
            while self._queue:
                self._now, act = self._queue.popleft()
                if not self._do(act):
                    return
            self._nap()

    def _nap(self) -> None:
        """Return once there may be something to write."""
        for _ in range(_IDLE_NAPS):
            self._wake.acquire(timeout=_NAP_S)
            if self._queue:
                return
        self._asleep = True
        if not self._queue:  # whoever adds to it from here on sees that we sleep
            self._wake.acquire()
        self._asleep = False

    def _do(self, act: Act | None) -> bool:
        """Write one thing; False after the last."""
        try:
            if act is None:
                self._recorder.close()
                return False
            act()
        except (CaptureWriteError, ValueError) as error:
            if not self._failed:
                self._failed = True
                self._lost(str(error))
        return act is not None

    @property
    def failed(self) -> bool:
        """Whether the recording ended early."""
        return self._failed


class Track:
    """One connection in the record."""

    def __init__(self, recorder: BackgroundRecorder) -> None:
        self._recorder = recorder
        self.tap: Tap | None = None

    def bytes(self, up: bool, data: Buf, done: Act | None = None) -> None:
        """Record bytes of one direction; `done` is called once they are written."""

        def act() -> None:
            try:
                if self.tap is None or self._recorder.failed:
                    return
                if up:
                    self.tap.sent([data], len(data))
                else:
                    self.tap.received(memoryview(data))
            finally:
                if done is not None:
                    done()

        self._recorder.hand_over(act, size=len(data))

    def ended(self, up: bool, how: str) -> None:
        """Record how a direction ended."""

        def act() -> None:
            if self.tap is None or self._recorder.failed:
                return
            if how in ("rst", "cut reset"):
                self.tap.closed(reset=True, by_us=up)
            elif how in ("fin", "cut"):
                self.tap.finished(sent_by_us=up)

        self._recorder.hand_over(act)
