"""Recording beside the traffic: a thread writes what the pumps have handed over.

A pump hands its whole buffer over and takes another one, so that nothing is copied
and a slow disk holds up traffic only once all buffers are under way. Times are those
of the hand-over, which comes before the bytes are passed on, and the order of the
record is the order of the hand-overs.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import BinaryIO, Final

from ds4proto.pcap import CaptureWriteError
from ds4proto.peer.api import Address, Buf
from ds4proto.peer.recording import Recorder
from ds4proto.peer.tap import Tap

__all__ = ["BackgroundRecorder"]

_MOST_WAITING: Final = 2048
_NAP_S: Final = 0.001
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
        self._queue: SimpleQueue[tuple[int, Act | None]] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="record", daemon=True)
        self._thread.start()

    def connection(self, client: Address, server: Address) -> Track:
        """Begin recording one connection."""
        track = Track(self)

        def begin() -> None:
            track.tap = self._recorder.connection(client, server, opened_by_us=True)

        self.hand_over(begin)
        return track

    def hand_over(self, act: Act) -> None:
        """Have something written, with the time of now."""
        while self._queue.qsize() > _MOST_WAITING and self._thread.is_alive():
            time.sleep(_NAP_S)  # the disk is slower than the traffic
        self._queue.put((time.time_ns(), act))

    def close(self) -> None:
        """Write what waits, and finish the file. Idempotent."""
        if self._thread.is_alive():
            self._queue.put((0, None))
            self._thread.join()

    def _work(self) -> None:
        while True:
            self._now, act = self._queue.get()
            try:
                if act is None:
                    self._recorder.close()
                    return
                act()
            except (CaptureWriteError, ValueError) as error:
                if not self._failed:
                    self._failed = True
                    self._lost(str(error))
                if act is None:
                    return

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

        self._recorder.hand_over(act)

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
