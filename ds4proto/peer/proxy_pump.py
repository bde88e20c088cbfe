"""One direction of a proxied connection: read, edit, hold back, pass on.

Without rules a pump is one thread that copies from socket to socket through one
buffer. A delay or a rate puts a bounded queue and a second thread between.
"""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final

from ds4proto.peer.api import Buf, Clock
from ds4proto.peer.channel import SocketChannel
from ds4proto.peer.clock import SYSTEM_CLOCK
from ds4proto.peer.errors import PeerLost
from ds4proto.peer.proxy_faults import Rule
from ds4proto.peer.proxy_frames import FrameEditor
from ds4proto.peer.proxy_record import Track
from ds4proto.printable import counted

__all__ = ["Pump"]

_BUFFER: Final = 1 << 19
_LOOK_S: Final = 0.5
"""Longest wait before a pump looks whether it is to stop."""
_SEND_S: Final = 600.0
_QUEUE: Final = 256
_SLICE: Final = 64 << 10
_SMALL: Final = 32 << 10
_BUFFERS: Final = 6
"""Buffers of a pump that records: those not in its hands wait to be written."""
Deliver = Callable[[Buf], None]


class Pump:
    """Moves the bytes of one direction until its end.

    Parameters
    ----------
    source, target : SocketChannel
    rules : sequence of Rule
        Those that hold for this direction.
    seed : int
    editor : FrameEditor or None
    track : Track or None
        Is given every buffer just before it is passed on.
    up : bool
        The direction, for the record.
    stop : threading.Event
    note : callable
        Told in words of every fault that was injected.
    """

    def __init__(
        self,
        source: SocketChannel,
        target: SocketChannel,
        rules: Sequence[Rule],
        *,
        seed: int,
        editor: FrameEditor | None,
        track: Track | None,
        up: bool,
        stop: threading.Event,
        note: Callable[[str], None],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._source, self._target = source, target
        self._editor, self._track, self._up = editor, track, up
        self._stop, self._note, self._clock = stop, note, clock
        self._draw = random.Random(seed)
        self._delays = [r for r in rules if r.kind == "delay"]
        self._rates = [r for r in rules if r.kind == "rate"]
        self._borders = sorted(
            (r for r in rules if r.kind in ("cut", "stall", "flip")),
            key=lambda r: r.size,
        )
        # A buffer that is recorded is read again only once it was written.
        self._pool: SimpleQueue[bytearray] = SimpleQueue()
        self._buffer = bytearray(_BUFFER)
        self._lent = False
        for _ in range(_BUFFERS - 1 if track is not None else 0):
            self._pool.put(bytearray(_BUFFER))
        self.moved = 0
        self.ended = ""
        """``fin``, ``rst``, ``cut``, ``stall`` or ``stopped`` once it is over."""

    def run(self) -> None:
        """Move everything; returns when the direction is over."""
        if self._delays or self._rates:
            self._run_late()
        else:
            self._run(self._deliver)

    def _run(self, deliver: Deliver) -> None:
        view = memoryview(self._buffer)
        while True:
            if self._lent:
                free = self._free_buffer()
                if free is None:
                    self.ended = self.ended or "stopped"
                    return
                self._buffer, self._lent = free, False
                view = memoryview(self._buffer)
            try:
                count = self._source.recv_into(
                    view, deadline=self._clock.now() + _LOOK_S
                )
            except PeerLost as lost:
                if lost.kind == "timeout":
                    if self._stop.is_set():
                        self.ended = self.ended or "stopped"
                        return
                    continue
                self.ended = self.ended or "rst"
                return
            if not count:
                if self._editor is not None and (rest := self._editor.rest()):
                    self._through(rest, deliver)
                self.ended = self.ended or "fin"
                return
            if not self._edited(view[:count], deliver):
                return

    def _free_buffer(self) -> bytearray | None:
        """Return a buffer that was written; None where the proxy stops before."""
        while True:
            with suppress(Empty):
                return self._pool.get(timeout=_LOOK_S)
            if self._stop.is_set():
                return None

    def _edited(self, data: memoryview, deliver: Deliver) -> bool:
        if self._editor is None:
            return self._through(data, deliver)
        parts = self._editor.feed(data)
        if self._editor.raw:
            self._editor = None
        return all(self._through(part, deliver) for part in parts)

    def _through(self, data: Buf, deliver: Deliver) -> bool:
        """Pass bytes on as far as cuts and stalls let them; False where they end."""
        while self._borders and self.moved + len(data) > self._borders[0].size:
            rule = self._borders.pop(0)
            if rule.size < self.moved:
                continue
            room = rule.size - self.moved
            view = memoryview(data)
            if rule.kind == "flip":
                changed = bytearray(view)
                changed[room] ^= 0xFF
                data = changed
                self._note(f"inverted the byte at offset {rule.size}")
                continue
            if room:
                deliver(view[:room])
                self.moved += room
            return self._over(rule)
        self.moved += len(data)
        if self.ended:
            return False
        deliver(data)
        return not self.ended

    def _over(self, rule: Rule) -> bool:
        self._note(f"{rule.kind} after {counted(self.moved, 'byte')}")
        if rule.kind == "stall":
            self.ended = "stall"
            while not self._stop.wait(_LOOK_S) and self._source.alive():
                continue
            return False
        self.ended = "cut reset" if rule.reset else "cut"
        return False

    def _deliver(self, data: Buf) -> None:
        if self._track is not None:
            # Before it is sent, so that an answer never stands before its question.
            self._to_record(data)
        try:
            self._target.send([data], deadline=self._clock.now() + _SEND_S)
        except PeerLost:
            self.ended = self.ended or "rst"

    def _to_record(self, data: Buf) -> None:
        assert self._track is not None
        whole = isinstance(data, memoryview) and data.obj is self._buffer
        if not whole:
            self._track.bytes(self._up, data)  # ours alone: nobody changes it
        elif len(data) < _SMALL or self._lent or self._delays or self._rates:
            self._track.bytes(self._up, bytes(data))
        else:
            lent = self._buffer
            self._lent = True
            self._track.bytes(self._up, data, lambda: self._pool.put(lent))

    def _run_late(self) -> None:
        """Put time between reading and passing on."""
        waiting: queue.Queue[tuple[float, bytes] | None] = queue.Queue(_QUEUE)

        def take(data: Buf) -> None:
            view = memoryview(data)
            for at in range(0, len(view), _SLICE):
                piece = bytes(view[at : at + _SLICE])
                waiting.put((self._due(), piece))

        sender = threading.Thread(
            target=self._send_late, args=(waiting,), name="late sender", daemon=True
        )
        sender.start()
        try:
            self._run(take)
        finally:
            waiting.put(None)
            sender.join()

    def _due(self) -> float:
        extra = sum(r.seconds + r.jitter * self._draw.random() for r in self._delays)
        return self._clock.now() + extra

    def _send_late(self, waiting: queue.Queue[tuple[float, bytes] | None]) -> None:
        free = 0.0
        while (item := waiting.get()) is not None:
            due, piece = item
            # One after the other: jitter never changes the order.
            now = self._clock.now()
            free = max(free, now)
            for rule in self._rates:
                free += len(piece) / rule.size
            until = max(due, free)
            if until > now and self.ended != "rst":
                self._pause(until)
            if self.ended != "rst":
                self._deliver(piece)

    def _pause(self, until: float) -> None:
        while (left := until - self._clock.now()) > 0 and not self._stop.is_set():
            self._clock.sleep(min(left, _LOOK_S))
