"""Control frames from a stream, judged at the header and read without a copy.

The machine that owns a reader looks at each header first, and says whether the
payload is kept, thrown away, or not read at all. Nothing is reserved before that
(DS4T-CTRL-17). A header stays where it is until the machine wants a frame.
"""

from __future__ import annotations

from typing import Final

from ds4proto.schema.ds4t_common import HEADER
from ds4proto.schema.fast import struct_of
from ds4proto.schema.problem import Buf

_FORM: Final = struct_of(HEADER, "*")
HEADER_BYTES: Final = _FORM.size
_SCRATCH: Final = 1 << 16
MAX_BACKLOG: Final = 1 << 24
"""Bytes held for later while a frame waits to be taken: one prompt of four million
tokens. A leader that runs one command at a time never comes near it."""

Header = tuple[int, int, int]
"""Magic, type, bytes."""


class ControlReader:
    """One direction of a control connection.

    Notes
    -----
    ``header`` is there once 12 bytes have come; then ``keep()`` or ``skip()``, and
    ``body`` once the payload is whole; ``next()`` goes on to the next frame.
    """

    def __init__(self) -> None:
        self._head = bytearray(HEADER_BYTES)
        self._head_view = memoryview(self._head)
        self._target = self._head_view
        self._filled = 0
        self._skip_left = 0
        self._scratch = memoryview(bytearray(_SCRATCH))
        self._backlog = bytearray()
        self._kept: memoryview | None = None
        self.header: Header | None = None
        self.body: memoryview | None = None
        self.ended = False
        self.overrun = False
        self.touched: float | None = None
        """When the last byte of an unfinished frame came."""
        self.offset = 0
        """Bytes taken since the start of the stream."""

    @property
    def partial(self) -> bool:
        """True inside a header or a payload."""
        if self.header is None:
            return self._filled > 0
        return self.body is None and (self._kept is not None or self._skip_left > 0)

    @property
    def got(self) -> int:
        """Bytes of the unfinished header or payload so far."""
        if self.header is not None and self._kept is None:
            return self.header[2] - self._skip_left
        return self._filled

    def get_buffer(self) -> memoryview:
        """Return where to read to; empty while a whole frame waits to be taken."""
        if self._skip_left:
            return self._scratch[: min(self._skip_left, _SCRATCH)]
        if self._waiting:
            return self._scratch[:0]
        return self._target[self._filled :]

    @property
    def _waiting(self) -> bool:
        if self._skip_left:
            return False
        return self.header is not None and (self._kept is None or self.body is not None)

    def buffer_updated(self, nbytes: int, now: float) -> None:
        """Note bytes read into ``get_buffer()``."""
        if nbytes <= 0:
            return
        self.touched = now
        self.offset += nbytes
        if self._skip_left:
            self._skip_left -= nbytes
            if not self._skip_left:
                self.body = self._scratch[:0]
            return
        self._filled += nbytes
        if self._filled < len(self._target):
            return
        if self.header is None:
            magic, code, size = _FORM.unpack(self._head)
            self.header = (magic, code, size)
        else:
            self.body = self._kept

    def feed(self, data: Buf, now: float) -> None:
        """Take bytes by copying them; what cannot be used yet is held, bounded."""
        view = memoryview(data).cast("B")
        if not self._backlog:
            view = view[self._take(view, now) :]
        if len(view):
            self._backlog += view
            self.overrun = len(self._backlog) > MAX_BACKLOG
            self.pump(now)

    def _take(self, view: memoryview, now: float) -> int:
        used = 0
        while used < len(view):
            room = self.get_buffer()
            count = min(len(room), len(view) - used)
            if not count:
                break
            room[:count] = view[used : used + count]
            self.buffer_updated(count, now)
            used += count
        return used

    def pump(self, now: float) -> None:
        """Use bytes that were held, as far as the open frame takes them."""
        if self._backlog and not self._waiting:
            with memoryview(self._backlog) as held:
                used = self._take(held, now)
            del self._backlog[:used]

    def keep(self, now: float) -> None:
        """Reserve the payload that the header announces, and collect it."""
        size = self.header[2] if self.header else 0
        self._kept = self._target = memoryview(bytearray(size))
        self._filled = 0
        if not size:
            self.body = self._kept
        self.pump(now)

    def skip(self, now: float) -> None:
        """Read the payload without keeping it."""
        size = self.header[2] if self.header else 0
        self._skip_left = size
        self._kept = self._scratch[:0]
        if not size:
            self.body = self._kept
        self.pump(now)

    @property
    def opened(self) -> bool:
        """True after ``keep()`` or ``skip()``, until ``next()``."""
        return self._kept is not None

    def next(self, now: float) -> None:
        """Go on to the next frame; the body belongs to whoever took it."""
        self.header = self.body = self._kept = None
        self._target = self._head_view
        self._filled = 0
        self.touched = None
        self.pump(now)

    def rest(self) -> bytes:
        """Return, and forget, the bytes that no frame of this reader has used."""
        head = bytes(self._head_view[: self._filled]) if self.header is None else b""
        if self.header is not None and not self.opened:
            head = bytes(self._head)
        found = head + bytes(self._backlog)
        self._backlog.clear()
        self.next(self.touched or 0.0)
        return found
