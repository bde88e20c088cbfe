"""One connection of the runtime: frames leave whole and in order, bytes come in."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from ds4proto.peer import PeerLost, SocketChannel
from ds4proto.peer.clock import SYSTEM_CLOCK
from ds4proto.peer.recording import Recorder
from ds4proto.schema.problem import Buf
from ds4proto_runtime.pipeline import activations
from ds4proto_runtime.pipeline.settings import SocketSettings

LARGE: Final = 1 << 18
"""Frames from this size on are written by a thread of the line's own."""
LINGER_S: Final = 1.0
"""How long what still comes is read away behind our end of stream."""
LINGER_BYTES: Final = 1 << 24
SLICE_S: Final = 1.0
"""Longest wait between two looks at the machine's deadline."""

now: Final = SYSTEM_CLOCK.now
Written = Callable[[int, float, float], None]
_CLOSE: Final = object()


class Line:
    """A channel, and the frames that wait to leave on it.

    Any thread may ``put`` and ``flush``; whoever flushes writes for all, so that the
    order is that of ``put`` and nobody waits for a lock. Large frames go to a thread
    of the line's own, so that the next chunk is evaluated while the last one leaves.

    Parameters
    ----------
    channel : SocketChannel
    sockets : SocketSettings
    on_written : callable, optional
        Told request, start and end of each write.
    on_broken : callable
        Told once, with a reason, that a write failed.
    """

    def __init__(
        self,
        channel: SocketChannel,
        sockets: SocketSettings,
        *,
        on_broken: Callable[[str], None],
        on_written: Written | None = None,
    ) -> None:
        self.channel = channel
        self.resume = threading.Event()
        self.ended = threading.Event()
        """Set once our direction has ended, or the connection is gone."""
        self._sockets = sockets
        self._on_broken, self._on_written = on_broken, on_written
        self._queue: deque[tuple[Any, int | None]] = deque()
        self._writing = threading.Lock()
        self._broken = False
        self._to_writer = False
        self._writer: threading.Thread | None = None
        self._wake = threading.Condition()

    # out

    def put(self, buffers: Sequence[Buf], request: int | None = None) -> None:
        """Queue a frame; ``flush`` sends it."""
        large = sum(map(len, buffers)) >= LARGE
        self._queue.append((buffers, request))
        if large:
            self._to_writer = True

    def put_close(self) -> None:
        """Queue the end of our direction."""
        self._queue.append((_CLOSE, None))

    def flush(self) -> None:
        """Write what is queued, or have it written."""
        if self._to_writer and threading.current_thread() is not self._writer:
            with self._wake:
                if self._writer is None:
                    self._writer = threading.Thread(
                        target=self._write_large, name="writer", daemon=True
                    )
                    self._writer.start()
                self._wake.notify()
            return
        self._drain()

    def _write_large(self) -> None:
        while not self.ended.is_set():
            with self._wake:
                if not self._queue:
                    self._to_writer = False
                    self._wake.wait(SLICE_S)
            self._drain()

    def _drain(self) -> None:
        while self._queue:
            if not self._writing.acquire(blocking=False):
                return  # the one who writes looks once more before it leaves
            try:
                while self._queue:
                    self._write(*self._queue.popleft())
            finally:
                self._writing.release()

    def _write(self, buffers: Any, request: int | None) -> None:
        if buffers is _CLOSE:
            self.channel.shutdown_send()
            self.ended.set()
            self.resume.set()
        if self._broken or self.ended.is_set():
            return
        started = now()
        try:
            activations.write(buffers, self._send)
        except PeerLost as error:
            self._broken = True
            self._on_broken(error.reason or error.kind)
            return
        if self._on_written is not None and request is not None:
            self._on_written(request, started, now())

    def _send(self, buffers: Sequence[Buf]) -> None:
        self.channel.send(buffers, deadline=now() + self._sockets.send_s)

    # in

    def linger(self) -> None:
        """Read away what comes behind our end of stream, then close.

        Closing with unread bytes would reset the connection, and a reset can destroy
        the last frame on its way to the peer.
        """
        self.ended.wait(self._sockets.send_s if self._queue else 0)
        until, scratch, left = now() + LINGER_S, bytearray(65536), LINGER_BYTES
        try:
            while left > 0 and (got := self.channel.recv_into(scratch, deadline=until)):
                left -= got
        except PeerLost:
            pass
        self.close()

    def close(self) -> None:
        """Close the connection; the writer ends with it. Idempotent."""
        self.ended.set()
        with self._wake:
            self._wake.notify_all()
        self.resume.set()
        self.channel.close()


def tapped(
    channel: SocketChannel, recorder: Recorder | None, *, opened_by_us: bool
) -> SocketChannel:
    """Attach a recorder to a channel that has carried nothing yet."""
    if recorder is not None:
        channel.tap = recorder.connection(
            channel.local, channel.remote, opened_by_us=opened_by_us
        )
    return channel
