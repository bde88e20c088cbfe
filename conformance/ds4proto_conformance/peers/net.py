"""Connections of a small peer: by TCP, or by socket pairs inside one process."""

from __future__ import annotations

import array
import contextlib
import fcntl
import queue
import socket
import termios
import threading
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from ds4proto.peer import SYSTEM_CLOCK, PeerLost
from ds4proto.peer.api import Address, ChannelName
from ds4proto.peer.channel import SocketChannel

__all__ = ["LoopSession", "Net", "PairChannel", "PairNet", "TcpNet"]

HOST: Final = "127.0.0.1"
_DATA_PORT: Final = 7
"""Port number that stands for the tester's data port inside one process."""
_PEER_PORT: Final = 9
_GLANCE: Final = 0.0005
Ends = tuple[socket.socket, socket.socket]
"""Both ends of a pair: the tester's, the peer's."""


class Net(Protocol):
    """How a small peer reaches others, and is reached."""

    port: int

    def dial(self, host: str, port: int) -> socket.socket:
        """Return a connection, or raise ``OSError``."""

    def accept(self) -> socket.socket | None:
        """Return a connection that waits, if one does."""

    def fileno(self) -> int:
        """Descriptor that is readable while a connection waits."""

    def close(self) -> None:
        """Stop."""


class TcpNet:
    """Over the loopback interface."""

    def __init__(self, listen: tuple[str, int] = (HOST, 0)) -> None:
        family = socket.AF_INET6 if ":" in listen[0] else socket.AF_INET
        self._listener = socket.create_server(listen, family=family, backlog=64)
        self._listener.setblocking(False)
        self.port = int(self._listener.getsockname()[1])

    def dial(self, host: str, port: int) -> socket.socket:
        """Return a connection, or raise ``OSError``."""
        made = socket.create_connection((host, port), timeout=5)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def accept(self) -> socket.socket | None:
        """Return a connection that waits, if one does."""
        try:
            made, _ = self._listener.accept()
        except BlockingIOError:
            return None
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def fileno(self) -> int:
        """Descriptor that is readable while a connection waits."""
        return self._listener.fileno()

    def close(self) -> None:
        """Stop."""
        self._listener.close()


class PairNet:
    """Over socket pairs; the other side is a `LoopSession`."""

    def __init__(self) -> None:
        self.port = _PEER_PORT
        self.to_peer: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
        self.control: queue.SimpleQueue[Ends] = queue.SimpleQueue()
        self.data: queue.SimpleQueue[Ends] = queue.SimpleQueue()
        self._wake, self._bell = socket.socketpair()
        self._wake.setblocking(False)
        self.stopped = threading.Event()

    def dial(self, _host: str, port: int) -> socket.socket:
        """Return a connection to the tester; port 1 refuses, as on a real host."""
        if self.stopped.is_set() or port == 1:
            raise ConnectionRefusedError(111, "Connection refused")
        ours, theirs = socket.socketpair()
        (self.data if port == _DATA_PORT else self.control).put((theirs, ours))
        return ours

    def accept(self) -> socket.socket | None:
        """Return a connection that waits, if one does."""
        with contextlib.suppress(BlockingIOError):
            self._wake.recv(1)
        with contextlib.suppress(queue.Empty):
            return self.to_peer.get_nowait()
        return None

    def ring(self) -> None:
        """Wake the peer."""
        with contextlib.suppress(OSError):
            self._bell.send(b"!")

    def fileno(self) -> int:
        """Descriptor that is readable while a connection waits."""
        return self._wake.fileno()

    def close(self) -> None:
        """Stop."""
        self.stopped.set()
        self._wake.close()
        self._bell.close()
        self.drop_untaken()

    def drop_untaken(self) -> None:
        """Close the connections that nobody took."""
        with contextlib.suppress(queue.Empty):
            while True:
                self.to_peer.get_nowait().close()
        for waiting in (self.control, self.data):
            with contextlib.suppress(queue.Empty):
                while True:
                    waiting.get_nowait()[0].close()


class PairChannel(SocketChannel):
    """The tester's end of a socket pair; it can tell what the peer has read.

    Parameters
    ----------
    other : socket
        The peer's end.
    """

    def __init__(self, sock: socket.socket, other: socket.socket) -> None:
        super().__init__(sock, label="peer in a thread")
        self._other = other

    def wait_read(self, deadline: float) -> bool:
        """Wait until the peer has read all that was sent; False: it did not."""
        while self._unread():
            if SYSTEM_CLOCK.now() > deadline:
                return False
            SYSTEM_CLOCK.sleep(_GLANCE)
        return True

    def _unread(self) -> bool:
        number = self._other.fileno()
        if number < 0:
            return False
        size = array.array("i", [0])
        try:
            fcntl.ioctl(number, termios.FIONREAD, size)
        except OSError:
            return False
        return bool(size[0])


class LoopSession:
    """The tester's side of a `PairNet`: the connections of a bench.

    Parameters
    ----------
    tester_listens : bool
        True for a worker, which dials us; False for a coordinator, which we dial.

    Attributes
    ----------
    ask : callable or None
        Makes the peer ``save`` or ``load``, where it can.
    """

    def __init__(
        self, net: PairNet, thread: threading.Thread, *, tester_listens: bool
    ) -> None:
        self._net, self._thread = net, thread
        self._tester_listens = tester_listens
        self._control: SocketChannel | None = None
        self.ask: Callable[[str], None] | None = None
        self._made: list[SocketChannel] = []

    def close(self) -> None:
        """Close every connection of the tester's side that is still open."""
        for channel in self._made:
            channel.close()
        self._made.clear()

    def _channel(self, sock: socket.socket, other: socket.socket) -> SocketChannel:
        made = PairChannel(sock, other)
        self._made.append(made)
        return made

    @property
    def address(self) -> Address:
        """Where the peer is met."""
        return HOST, 0

    def channel(
        self,
        name: ChannelName,
        *,
        deadline: float | None = None,
        port: int | None = None,
        fresh: bool = False,
    ) -> SocketChannel:
        """Return the named connection."""
        if name == "data":
            return self.dial(port or 0, deadline=deadline)
        if self._control is None or fresh:
            made = (
                self._take(self._net.control, deadline, "waiting for control")
                if self._tester_listens
                else self.dial(0, deadline=deadline)
            )
            self._control = made
        return self._control

    def accept(
        self, *, deadline: float | None = None, phase: str = "", data: bool = True
    ) -> SocketChannel:
        """Accept one more connection."""
        which = self._net.data if data else self._net.control
        return self._take(which, deadline, phase)

    def dial(
        self, port: int, *, deadline: float | None = None, host: str | None = None
    ) -> SocketChannel:
        """Dial the peer; nothing has to be awaited, and there is one host."""
        del deadline, host
        if not self._thread.is_alive():
            raise PeerLost("refused", phase=f"dialling {port}", address="thread")
        ours, theirs = socket.socketpair()
        self._net.to_peer.put(theirs)
        self._net.ring()
        return self._channel(ours, theirs)

    def data_address(self) -> Address:
        """Where the peer can dial us."""
        return HOST, _DATA_PORT

    def alive(self) -> bool:
        """Whether the peer's thread runs."""
        return self._thread.is_alive()

    def output(self) -> str:
        """Return nothing: a thread prints nothing."""
        return ""

    def _take(
        self,
        which: queue.SimpleQueue[Ends],
        deadline: float | None,
        phase: str,
    ) -> SocketChannel:
        wait = 5.0 if deadline is None else max(0.0, deadline - SYSTEM_CLOCK.now())
        try:
            return self._channel(*which.get(timeout=wait))
        except queue.Empty:
            raise PeerLost(
                "timeout", phase=phase, address="thread", waited=wait
            ) from None


@contextlib.contextmanager
def threaded(
    net: PairNet,
    run: Callable[[], None],
    stop: Callable[[], None],
    *,
    tester_listens: bool,
) -> Iterator[LoopSession]:
    """Run a small peer in a thread while the block lasts."""
    thread = threading.Thread(target=run, name="small peer", daemon=True)
    thread.start()
    session = LoopSession(net, thread, tester_listens=tester_listens)
    try:
        yield session
    finally:
        session.close()
        stop()
        net.ring()
        thread.join(5.0)
        net.close()
