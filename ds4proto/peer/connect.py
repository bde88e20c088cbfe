"""Dialling and listening, with retry rules as data and the loopback rule."""

from __future__ import annotations

import errno
import ipaddress
import itertools
import math
import os
import select
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ds4proto.peer.api import Address, Clock
from ds4proto.peer.channel import SocketChannel, loss_kind, show_address
from ds4proto.peer.clock import SYSTEM_CLOCK
from ds4proto.peer.errors import ExposureError, ListenError, PeerLost

NO_AUTHENTICATION: Final = (
    "These protocols have no authentication and no encryption: whoever reaches this "
    "port can run work, read and overwrite sessions. Keep it on a private network."
)
"""One line for whoever leaves the loopback interface."""

LIVENESS_PERIOD: Final = 0.1
"""Seconds between two looks at a peer's process while waiting for a connection."""

_PORTS: Final = range(20_000, 32_000)
_APART: Final = 7919
"""Ports between the first draws of two processes whose numbers follow each other."""
_drawn: Final = itertools.count()
_Resolved = list[tuple[int, int, int, str, Any]]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a dial is tried again, as ds4 does it.

    Attributes
    ----------
    name : str
    interval : float
        Seconds between two tries.
    attempts : int or None
        Tries in all; None = until the window or deadline. At least one is made.
    window : float or None
        Seconds from the first try after which no further one is made.
    retried : frozenset of int
        Error numbers that are worth another try; anything else ends at once.
    """

    name: str
    interval: float
    attempts: int | None
    window: float | None
    retried: frozenset[int] = frozenset(
        {errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT,
         errno.EADDRNOTAVAIL}
    )  # fmt: skip

    def scaled(self, factor: float) -> RetryPolicy:
        """Return the policy stretched in time by `factor`."""
        attempts = self.attempts and max(1, math.ceil(self.attempts * factor))
        window = None if self.window is None else self.window * factor
        return replace(self, attempts=attempts, window=window)


ONCE: Final = RetryPolicy("once", 0.0, 1, None)
DS4D_DIAL: Final = RetryPolicy("ds4d", 0.025, 200, None)
"""Every dial of the pipeline protocol: 200 tries, 25 ms apart (DS4D connections)."""
DS4T_INTERVAL: Final = 0.2


def ds4t_dial(seconds: float) -> RetryPolicy:
    """Return the tensor-parallel worker's rule: 200 ms apart, up to `seconds`."""
    return RetryPolicy("ds4t", DS4T_INTERVAL, None, seconds)


UNTIL_DEADLINE: Final = RetryPolicy("until the deadline", 0.05, None, None)
"""For a peer that we started: it may take its time to load a model."""


def dial(
    host: str,
    port: int,
    *,
    deadline: float,
    retry: RetryPolicy = ONCE,
    clock: Clock = SYSTEM_CLOCK,
    alive: Callable[[], bool] | None = None,
    bind_host: str | None = None,
    prepare: Callable[[socket.socket], None] | None = None,
    phase: str = "dialling",
    **channel: Any,
) -> SocketChannel:
    """Connect to a peer.

    Parameters
    ----------
    host, port
        Every address of `host` is tried in turn.
    deadline
        Absolute time.
    retry
        When to try again.
    alive
        Asked between tries; a peer's process that ended stops the dialling.
    bind_host
        Own address to dial from.
    prepare
        Called with each socket before it connects, to set options.
    channel
        Further arguments of `SocketChannel`.

    Raises
    ------
    PeerLost
        ``refused``, ``timeout``, ``unreachable`` or ``exited``; counts the tries.
    """
    start = clock.now()
    label = show_address((host, port))

    def lost(error: OSError | None, tries: int) -> PeerLost:
        kind = "timeout" if error is None else loss_kind(error)
        text = "no answer" if error is None else error.strerror or str(error)
        return PeerLost(
            "unreachable" if kind == "closed" else kind,
            phase=phase,
            address=label,
            waited=clock.now() - start,
            reason=f"{text}, {tries} {'try' if tries == 1 else 'tries'}",
        )

    try:
        found = _resolve(host, port, deadline, clock)
    except OSError as error:
        raise lost(error, 0) from None
    tries = 0
    while True:
        tries += 1
        outcome = _try_all(found, deadline, clock, bind_host, prepare)
        if isinstance(outcome, socket.socket):
            channel.setdefault("phase", "connected")
            channel.setdefault("label", label)
            return SocketChannel(outcome, clock=clock, **channel)
        now = clock.now()
        spent = retry.attempts is not None and tries >= retry.attempts
        late = retry.window is not None and now + retry.interval > start + retry.window
        fatal = outcome is not None and outcome.errno not in retry.retried
        if alive is not None and not alive():
            raise PeerLost("exited", phase=phase, address=label, waited=now - start)
        if spent or late or fatal or now + retry.interval >= deadline:
            raise lost(outcome, tries)
        clock.sleep(retry.interval)


def _try_all(
    found: _Resolved,
    deadline: float,
    clock: Clock,
    bind_host: str | None,
    prepare: Callable[[socket.socket], None] | None,
) -> socket.socket | OSError | None:
    """Return a connected socket, the last error, or None if time ran out."""
    last: OSError | None = None
    for family, kind, proto, _, address in found:
        sock = socket.socket(family, kind, proto)
        try:
            sock.setblocking(False)
            if prepare is not None:
                prepare(sock)
            if bind_host is not None:
                sock.bind((bind_host, 0))
            code = _connect(sock, address, deadline, clock)
            # Dialling a free port of the ephemeral range can connect to itself.
            if code == 0 and sock.getsockname() == sock.getpeername():
                code = errno.ECONNREFUSED
        except OSError as error:
            code = error.errno or errno.EIO
        if code == 0:
            return sock
        sock.close()
        if code is None:
            return None
        last = OSError(code, os.strerror(code))
    return last


def _connect(
    sock: socket.socket, address: Any, deadline: float, clock: Clock
) -> int | None:
    code = sock.connect_ex(address)
    if code not in (errno.EINPROGRESS, errno.EWOULDBLOCK):
        return code
    poller = select.poll()
    poller.register(sock, select.POLLOUT)
    while not clock.wait(poller, deadline - clock.now()):
        if clock.now() >= deadline:
            return None
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


def _resolve(host: str, port: int, deadline: float, clock: Clock) -> _Resolved:
    if _is_address(host) or host == "localhost":
        return _lookup(host, port)
    # The resolver has no deadline of its own, so it gets a thread that we can leave.
    answer: list[_Resolved | OSError] = []

    def ask() -> None:
        try:
            answer.append(_lookup(host, port))
        except OSError as error:
            answer.append(error)

    thread = threading.Thread(target=ask, name="resolver", daemon=True)
    thread.start()
    thread.join(max(0.0, min(deadline - clock.now(), threading.TIMEOUT_MAX)))
    if not answer:
        raise OSError(errno.ETIMEDOUT, "the resolver did not answer")
    if isinstance(answer[0], OSError):
        raise answer[0]
    return answer[0]


def _lookup(host: str, port: int) -> _Resolved:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a label that is empty or over 63 bytes
        raise OSError(errno.EINVAL, f"not a host name: {error}") from None
    return [(int(f), int(k), proto, name, addr) for f, k, proto, name, addr in found]


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether every address of `host` is a loopback address."""
    try:
        found = _lookup(host, 0)
    except OSError:
        return False
    return all(
        ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback
        for *_, address in found
    )


def exposure_warning(host: str) -> str | None:
    """Return `NO_AUTHENTICATION` if `host` is not loopback, None if it is."""
    return None if is_loopback(host) else NO_AUTHENTICATION


class Listener:
    """A listening socket that hands out channels. Use as a context manager."""

    def __init__(self, sock: socket.socket, clock: Clock) -> None:
        self._sock = sock
        self._clock = clock
        self._poller = select.poll()
        self._poller.register(sock, select.POLLIN)
        name = sock.getsockname()
        self.address: Address = (str(name[0]), int(name[1]))

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def accept(
        self,
        *,
        deadline: float,
        phase: str = "waiting for a connection",
        alive: Callable[[], bool] | None = None,
        **channel: Any,
    ) -> SocketChannel:
        """Wait for the next connection.

        Raises
        ------
        PeerLost
            ``timeout``, or ``exited`` if `alive` says that the peer's process ended.
        """
        start = self._clock.now()
        while True:
            try:
                sock, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                pass
            else:
                channel.setdefault("phase", "connected")
                return SocketChannel(sock, clock=self._clock, **channel)
            now = self._clock.now()
            lost: dict[str, Any] = {
                "phase": phase,
                "address": show_address(self.address),
                "waited": now - start,
            }
            if alive is not None and not alive():
                raise PeerLost("exited", **lost)
            if now >= deadline:
                raise PeerLost("timeout", reason="nobody connected", **lost)
            step = deadline - now
            self._clock.wait(
                self._poller, step if alive is None else min(step, LIVENESS_PERIOD)
            )

    def close(self) -> None:
        """Stop listening. Idempotent."""
        self._sock.close()


def set_buffers(sock: socket.socket, size: int | None) -> None:
    """Request send and receive buffers of `size` bytes; the kernel may round."""
    if size is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)


def listen(
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    backlog: int = 64,
    allow_remote: bool = False,
    clock: Clock = SYSTEM_CLOCK,
    buffers: int | None = None,
) -> Listener:
    """Listen on the first address of `host` that can be bound.

    Parameters
    ----------
    host, port
        Port 0 lets the system choose; read `Listener.address`.
    allow_remote
        Needed for any address that is not loopback.
    buffers
        Send and receive buffer of the connections, bytes; None = the system's choice.

    Raises
    ------
    ExposureError
        `host` is not loopback and `allow_remote` is not given.
    ListenError
        The address cannot be bound; an ``OSError``.
    """
    if not allow_remote and not is_loopback(host):
        raise ExposureError(
            f"{host!r} is not a loopback address. {NO_AUTHENTICATION} "
            "Next: listen on 127.0.0.1, or allow remote peers explicitly"
        )
    problem = OSError(errno.EADDRNOTAVAIL, "the name has no address")
    found: _Resolved = []
    try:
        found = _lookup(host, port)
    except OSError as error:
        problem = error
    for family, kind, proto, _, address in found:
        sock = socket.socket(family, kind, proto)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            set_buffers(sock, buffers)  # connections inherit them
            sock.setblocking(False)
            sock.bind(address)
            sock.listen(backlog)
        except OSError as error:
            sock.close()
            problem = error
            continue
        return Listener(sock, clock)
    raise ListenError(host, port, problem)


def free_ports(count: int, host: str = "127.0.0.1") -> Sequence[int]:
    """Return `count` different ports that were free a moment ago.

    They lie below those that a system hands out by itself (from 32768 on Linux, from
    49152 on macOS), so that no other connection takes one before it is used.
    """
    found: list[int] = []
    problem = OSError(errno.EADDRINUSE, "no port is free")
    for _ in _PORTS:
        if len(found) == count:
            return found
        port = _PORTS[(os.getpid() * _APART + next(_drawn)) % len(_PORTS)]
        try:
            socket.create_server((host, port)).close()
            found.append(port)
        except OSError as error:
            problem = error
    raise problem
