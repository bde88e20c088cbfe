"""Sockets of a pair: their options, who is at the other end, who is knocking."""

from __future__ import annotations

import os
import select
import socket
from contextlib import suppress
from time import monotonic
from typing import Any, Final

from ds4proto.link.ds4t_hello import HelloExchange
from ds4proto.link.ds4t_identity import TpSettings
from ds4proto.link.events import Violation
from ds4proto.peer import SocketChannel
from ds4proto.peer.connect import set_buffers

KEEPALIVE: Final = ((("TCP_KEEPIDLE", "TCP_KEEPALIVE"), 10),
                    (("TCP_KEEPINTVL",), 5), (("TCP_KEEPCNT",), 4))  # fmt: skip
"""Options that show a peer whose machine vanished; socket names differ by system."""


def take_socket(channel: SocketChannel, buffers: int | None) -> socket.socket:
    """Return the socket of a channel, prepared as ranks do; the channel is closed."""
    sock = socket.socket(fileno=os.dup(channel.fileno()))
    channel.close()
    sock.setblocking(False)
    with suppress(OSError):
        set_buffers(sock, buffers)
    with suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for names, value in KEEPALIVE:
            code = next((getattr(socket, n) for n in names if hasattr(socket, n)), None)
            if code is not None:
                sock.setsockopt(socket.IPPROTO_TCP, code, value)
    return sock


def origin_of(sock: socket.socket) -> str:
    """Return the address at the other end, ``gone`` where there is none any more."""
    try:
        return str(sock.getpeername()[0])
    except OSError:
        return "gone"


class Knocking:
    """One client of a leader that has not said a whole hello yet."""

    def __init__(
        self,
        sock: socket.socket,
        settings: TpSettings,
        limit: float,
        greet_after: float = 0.0,
    ) -> None:
        self.sock = sock
        self.hello = HelloExchange(settings, seconds=limit)
        self.origin = origin_of(sock)
        self._own = self.hello.start(monotonic())
        self._greet = monotonic() + greet_after
        if not greet_after:  # else in ``read``, behind those who knocked before
            self.greet()

    @property
    def greeted(self) -> bool:
        """Whether the own hello is out."""
        return not self._own

    def greet(self, *, now: bool = False) -> None:
        """Write the own hello when it is time."""
        if self._own and (now or monotonic() >= self._greet):
            with suppress(OSError):  # gone already: the next read says so
                self.sock.sendmsg(self._own)
            self._own = []

    def read(self) -> Any:
        """Take all that has come; return HelloAgreed, PairFailed or None.

        All of it: whoever knocks later must not be greeted, as time goes by, while a
        worker's hello lies here half read.
        """
        now = monotonic()
        self.greet()
        more = True
        while more:
            more = self._read_once(now)
            for event in self.hello.events():
                if not isinstance(event, Violation):
                    return event
        return None

    def _read_once(self, now: float) -> bool:
        """Read up to the next judgement; return whether more may be there."""
        try:
            wanted = self.hello.wanted
            data = self.sock.recv(wanted) if wanted else b""
        except (BlockingIOError, InterruptedError):
            due = self.hello.deadline()
            if due is not None and now >= due:
                self.hello.timeout(now)
            return False
        except OSError:
            data = b""
        self.greet(now=bool(data))
        self.hello.receive_data(data or None, now)
        return bool(data)


def peek(sock: socket.socket) -> bytes | None:
    """Return the next 16 bytes without taking them, b"" at the end, None for none."""
    try:
        return sock.recv(16, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except (BlockingIOError, InterruptedError):
        return None
    except OSError:
        return b""


def ended(sock: socket.socket) -> bool:
    """Tell whether the other end has closed, even behind bytes that nobody has read.

    Where the system has no POLLRDHUP the end shows once those bytes are read.
    """
    if peek(sock) == b"":
        return True
    if not hasattr(select, "POLLRDHUP"):
        return False
    poller = select.poll()
    poller.register(sock, select.POLLRDHUP)
    return bool(poller.poll(0))
