"""A channel over a stream socket: non-blocking calls, deadlines, no copies."""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Final, NoReturn

from ds4proto.peer.api import Address, Buf, Clock
from ds4proto.peer.clock import SYSTEM_CLOCK
from ds4proto.peer.errors import LossKind, PeerLost
from ds4proto.peer.tap import Tap

_KINDS: Final[Mapping[int, LossKind]] = {
    errno.ECONNRESET: "reset",
    errno.ECONNABORTED: "reset",
    errno.EPIPE: "reset",
    errno.ECONNREFUSED: "refused",
    errno.ETIMEDOUT: "timeout",
    errno.EHOSTUNREACH: "unreachable",
    errno.ENETUNREACH: "unreachable",
    errno.EADDRNOTAVAIL: "unreachable",
}
_FREE: Final = nullcontext()
_RST_ON_CLOSE: Final = struct.pack("ii", 1, 0)
_READ: Final = select.POLLIN | select.POLLHUP | select.POLLERR
_WRITE: Final = select.POLLOUT | select.POLLERR


def _iov_max() -> int:
    try:
        limit = os.sysconf("SC_IOV_MAX")
    except (ValueError, OSError):
        limit = 0
    # POSIX promises 16; -1 means "no limit", where the common value is safe.
    return limit if limit >= 16 else 1024


IOV_MAX: Final = _iov_max()


class SocketChannel:
    """A `Channel` over a connected stream socket, which it owns.

    Parameters
    ----------
    sock
        Connected; made non-blocking here, TCP_NODELAY is set where it applies.
    clock
        Source of the time that deadlines refer to.
    tap
        Told of every byte that crosses; None costs nothing.
    phase
        First words for error texts; assign `phase` as the conversation moves on.
    label
        Name of the peer for error texts; default: its address.
    output
        Gives the last output of the peer's process for error texts.

    One thread may send while another reads. After a failed send, bytes that the peer
    sent before can still be read: drain before judging.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        clock: Clock = SYSTEM_CLOCK,
        tap: Tap | None = None,
        phase: str = "connected",
        label: str = "",
        output: Callable[[], str] | None = None,
    ) -> None:
        sock.setblocking(False)
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._clock = clock
        self.tap = tap
        self._order = threading.Lock()
        self._local = _address(sock.getsockname())
        self._remote = _address(_peer_name(sock))
        self._label = label or show_address(self._remote)
        self._output = output
        self._sent = 0
        self._received = 0
        self._closed = False
        self._ended = False
        self.phase = phase
        self._readable = self._poller(_READ)
        self._writable = self._poller(_WRITE)
        self._both = self._poller(_READ | _WRITE)

    def _poller(self, events: int) -> select.poll:
        poller = select.poll()
        poller.register(self._sock, events)
        return poller

    @property
    def local(self) -> Address:
        """Own address."""
        return self._local

    @property
    def remote(self) -> Address:
        """The peer's address."""
        return self._remote

    @property
    def sent(self) -> int:
        """Bytes handed to the kernel so far."""
        return self._sent

    @property
    def received(self) -> int:
        """Bytes read so far."""
        return self._received

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def fileno(self) -> int:
        """Return the descriptor, -1 after `close`."""
        return -1 if self._closed else self._sock.fileno()

    def send(self, bufs: Sequence[Buf], *, deadline: float) -> None:
        """Send all buffers in order; see `Channel.send`."""
        pending = _Pending(bufs)
        start = self._clock.now()
        while pending.left:
            done = self._try_send(pending, pending.left)
            if pending.left and not done:
                self._wait(self._writable, deadline, start, pending.done)

    def recv_into(self, buf: bytearray | memoryview, *, deadline: float) -> int:
        """Read at least one byte, 0 at the end of the peer's stream."""
        view = memoryview(buf).cast("B")
        if not len(view):
            raise ValueError("recv_into needs a buffer of at least one byte")
        if self._ended:
            return 0
        start = self._clock.now()
        while (got := self._try_recv(view, 0)) is None:
            self._wait(self._readable, deadline, start, 0)
        return got

    def recv_exact(self, buf: bytearray | memoryview, *, deadline: float) -> None:
        """Fill `buf`; the end of the stream before that raises `PeerLost`."""
        view = memoryview(buf).cast("B")
        at = 0
        start = self._clock.now()
        while at < len(view):
            got = 0 if self._ended else self._try_recv(view[at:], at)
            if got is None:
                self._wait(self._readable, deadline, start, at)
            elif not got:
                self._lose("closed", at, start, f"{at} of {len(view)} bytes came")
            else:
                at += got

    def exchange(
        self,
        send_bufs: Sequence[Buf],
        recv_view: bytearray | memoryview,
        *,
        deadline: float,
        idle: float | None = None,
    ) -> None:
        """Send all buffers and fill `recv_view`, both at once.

        Neither side can block the other, however small the socket buffers are, which a
        send followed by a read cannot promise once both payloads exceed them.

        Parameters
        ----------
        send_bufs
            What goes out, in order.
        recv_view
            Writable; filled to its end.
        deadline
            Absolute time at which the whole exchange fails.
        idle
            Longest standstill in both directions, seconds.
        """
        pending = _Pending(send_bufs)
        view = memoryview(recv_view).cast("B")
        size = len(view)
        at = 0
        start = moved = self._clock.now()
        while pending.left or at < size:
            progress = self._try_send(pending, at) if pending.left else 0
            if at < size:
                rest = view[at:] if at else view
                got = 0 if self._ended else self._try_recv(rest, at)
                if got == 0:
                    self._lose("closed", at, start, f"{at} of {size} bytes came")
                if got:
                    at += got
                    progress += got
            if progress:
                moved = 0.0 if idle is None else self._clock.now()
                continue
            limit = deadline if idle is None else min(deadline, moved + idle)
            if at >= size:
                poller = self._writable
            else:
                poller = self._both if pending.left else self._readable
            self._wait(poller, limit, start, at)

    def shutdown_send(self) -> None:
        """End our direction; the peer reads an end of stream after our last byte."""
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            return  # the peer was faster; the next read says how
        if self.tap is not None:
            self.tap.finished(sent_by_us=True)

    def close(self, *, reset: bool = False) -> None:
        """Close. With `reset`, the peer sees RST, not FIN."""
        if self._closed:
            return
        self._closed = True
        if reset and self._sock.family != socket.AF_UNIX:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST_ON_CLOSE)
        self._sock.close()
        if self.tap is not None:
            self.tap.closed(reset=reset, by_us=True)

    def alive(self) -> bool:
        """Whether the peer has neither ended its stream nor reset the connection."""
        if self._closed or self._ended:
            return False
        try:
            return bool(self._sock.recv(1, socket.MSG_PEEK))
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False

    def lost(
        self,
        kind: LossKind,
        *,
        partial: int = 0,
        waited: float | None = None,
        reason: str = "",
    ) -> PeerLost:
        """Return (not raise) a `PeerLost` that tells this channel's state."""
        return PeerLost(
            kind,
            phase=self.phase,
            address=self._label,
            sent=self._sent,
            received=self._received,
            partial=partial,
            waited=waited,
            reason=reason,
            output=self._output() if self._output is not None else "",
        )

    def _try_send(self, pending: _Pending, partial: int) -> int:
        # a tap sees bytes before another thread shows it the answer to them
        with self._order if self.tap is not None else _FREE:
            try:
                done = self._sock.sendmsg(pending.head())
            except (BlockingIOError, InterruptedError):
                return 0
            except OSError as error:
                self._fail(error, partial)
            self._sent += done
            if self.tap is not None:
                self.tap.sent(pending.head(), done)
        pending.advance(done)
        return done

    def _try_recv(self, view: memoryview, partial: int) -> int | None:
        """Return bytes read, 0 at the end of the stream, None if nothing is there."""
        try:
            got = self._sock.recv_into(view)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            self._fail(error, partial)
        if got:
            self._received += got
            if self.tap is not None:
                with self._order:
                    self.tap.received(view[:got])
        else:
            self._ended = True
            if self.tap is not None:
                self.tap.finished(sent_by_us=False)
        return got

    def _wait(
        self, poller: select.poll, deadline: float, start: float, done: int
    ) -> None:
        left = deadline - self._clock.now()
        if left <= 0 or (
            not self._clock.wait(poller, left) and self._clock.now() >= deadline
        ):
            self._lose("timeout", done, start)

    def _fail(self, error: OSError, partial: int) -> NoReturn:
        kind = loss_kind(error)
        if kind == "reset" and self.tap is not None:
            self.tap.closed(reset=True, by_us=False)
        self._lose(kind, partial, None, error.strerror or str(error))

    def _lose(
        self, kind: LossKind, partial: int, start: float | None, reason: str = ""
    ) -> NoReturn:
        if self._closed:
            kind, reason = "closed", "this side closed the channel before"
        waited = None if start is None else self._clock.now() - start
        raise self.lost(kind, partial=partial, waited=waited, reason=reason)


class _Pending:
    """Buffers still to be sent; only one that was cut in the middle is sliced."""

    __slots__ = ("_bufs", "_next", "done", "left")

    def __init__(self, bufs: Sequence[Buf]) -> None:
        self._bufs = list(bufs)
        self._next = 0
        self.done = 0
        self.left = sum([memoryview(b).nbytes for b in self._bufs])

    def head(self) -> Sequence[Buf]:
        """Return what the next call may send, at most IOV_MAX buffers."""
        if not self._next and len(self._bufs) <= IOV_MAX:
            return self._bufs
        return self._bufs[self._next : self._next + IOV_MAX]

    def advance(self, count: int) -> None:
        """Note that `count` bytes went out."""
        self.left -= count
        self.done += count
        while self.left and count:
            view = memoryview(self._bufs[self._next]).cast("B")
            if count < len(view):
                self._bufs[self._next] = view[count:]
                return
            count -= len(view)
            self._next += 1


def loss_kind(error: OSError) -> LossKind:
    """Return the kind of loss that a socket error stands for."""
    return _KINDS.get(error.errno or 0, "closed")


def _peer_name(sock: socket.socket) -> object:
    try:
        return sock.getpeername()
    except OSError:
        return None  # gone before we looked; the first read says how


def _address(name: object) -> Address:
    if isinstance(name, tuple) and len(name) >= 2:
        return (str(name[0]), int(name[1]))
    return ("local", 0)


def show_address(address: Address) -> str:
    """Return ``host:port``, with brackets around an IPv6 host."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
