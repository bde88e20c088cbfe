"""One raw DS4D connection: bytes out, frames in, every wait with a deadline."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final, Literal, Self

from ds4proto.link.ds4d_frames import FIXED, HEADER_SIZE, unpack_header
from ds4proto.peer import SocketChannel
from ds4proto.schema.ds4d_common import MAGIC
from ds4proto.schema.ds4d_hello import ERROR, HELLO
from ds4proto.schema.ds4d_result import RESULT
from ds4proto.schema.ds4d_snapshot import (
    SNAPSHOT_BEGIN,
    SNAPSHOT_CHUNK,
    SNAPSHOT_DONE,
)
from ds4proto.schema.ds4d_work import WORK

__all__ = ["Ended", "Seen", "Wire", "seen_of"]

MAX_FRAME: Final = 64 << 20
"""Largest body that is taken from a peer under fire."""
_READ: Final = 1 << 18
_RST: Final = struct.pack("ii", 1, 0)
_SPECS: Final = {
    spec.code: spec
    for spec in (
        HELLO, ERROR, WORK, RESULT, SNAPSHOT_BEGIN, SNAPSHOT_CHUNK, SNAPSHOT_DONE
    )
}  # fmt: skip
Ended = Literal["", "closed", "reset", "silence", "garbage"]


@dataclass(slots=True)
class Seen:
    """One frame of the peer: its fixed part, and whether it refuses.

    ``words`` is empty where the body is too short for them.
    """

    name: str
    size: int
    words: dict[str, Any]
    body: memoryview = field(repr=False)

    @property
    def refuses(self) -> bool:
        """Whether the frame says no."""
        return self.name == "ERROR" or bool(self.words.get("status"))

    @property
    def text(self) -> str:
        """The words of a refusal."""
        if self.name == "ERROR":
            return bytes(self.body).decode("utf-8", "replace")
        spec = RESULT if self.name == "RESULT" else None
        at = FIXED[spec].size if spec is not None else 0
        return bytes(self.body[at:]).decode("utf-8", "replace") if at else ""

    def __str__(self) -> str:
        if self.refuses:
            return f"{self.name} that refuses: {self.text!r}"
        return f"{self.name} of {self.size} bytes"


def seen_of(code: int, body: memoryview) -> Seen:
    """Return what a whole frame says."""
    spec = _SPECS.get(code)
    if spec is None:
        return Seen(f"type {code}", len(body), {}, body)
    part = FIXED.get(spec)
    words = part.read(body) if part is not None and len(body) >= part.size else {}
    return Seen(spec.name, len(body), words, body)


class Wire:
    """One connection.

    Parameters
    ----------
    sock : socket
        Connected; owned from here on.
    """

    def __init__(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        self._sock = sock
        self._buffer = bytearray()
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self.ended: Ended = ""
        self.closed = False

    @classmethod
    def of(cls, channel: SocketChannel) -> Self:
        """Return a connection of the library as a raw one."""
        sock = socket.socket(fileno=os.dup(channel.fileno()))
        channel.close()
        return cls(sock)

    @property
    def usable(self) -> bool:
        """Whether neither side has ended it, as far as is known."""
        return not self.closed and not self.ended

    def send(self, data: bytes, deadline: float) -> bool:
        """Send everything; False where the peer does not take it in time."""
        view = memoryview(data)
        while view:
            try:
                view = view[self._sock.send(view) :]
            except BlockingIOError:
                left = deadline - monotonic()
                if left <= 0 or not select.select([], [self._sock], [], left)[1]:
                    return False
            except OSError:
                return False  # the next read says how it ended
        return True

    def half_close(self) -> None:
        """End our direction."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def close(self, *, reset: bool = False) -> None:
        """Close. With `reset`, the peer sees RST."""
        if self.closed:
            return
        self.closed = True
        if reset:
            with contextlib.suppress(OSError):
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST)
        self._sock.close()

    def frame(self, deadline: float) -> Seen | None:
        """Return the next frame; None where none comes, ``ended`` then says why.

        Silence is not kept as an end: bytes may still come.
        """
        while True:
            found = self._whole()
            if found is not None:
                return found
            if self.ended:
                return None
            if not self._more(deadline):
                return None

    def frames(self, deadline: float) -> Iterator[Seen]:
        """Yield frames until none comes, however fast more of them do."""
        while (seen := self.frame(deadline)) is not None:
            yield seen
            if monotonic() >= deadline:
                return

    def _whole(self) -> Seen | None:
        buffer = self._buffer
        if len(buffer) < HEADER_SIZE:
            return None
        magic, code, size = unpack_header(buffer)
        if magic != MAGIC or size > MAX_FRAME:
            self.ended = "garbage"
            return None
        if len(buffer) < HEADER_SIZE + size:
            return None
        body = memoryview(bytes(buffer[HEADER_SIZE : HEADER_SIZE + size]))
        del buffer[: HEADER_SIZE + size]
        return seen_of(code, body)

    def _more(self, deadline: float) -> bool:
        """Read once; False at an end or at the deadline."""
        while True:
            try:
                data = self._sock.recv(_READ)
            except BlockingIOError:
                left = deadline - monotonic()
                if left <= 0 or not self._poll.poll(left * 1000):
                    return False
                continue
            except OSError:
                self.ended = "reset"
                return False
            if not data:
                self.ended = "closed"
                return False
            self._buffer += data
            return True
