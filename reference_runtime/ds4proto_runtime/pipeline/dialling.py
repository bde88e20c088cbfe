"""Dialling and listening as the pipeline does it, in ds4's words."""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Callable
from math import inf
from typing import Final

from ds4proto.errors import Ds4ProtoError, ExitCode
from ds4proto.link.ds4d_texts import text
from ds4proto.peer import (
    DS4D_DIAL,
    Listener,
    PeerLost,
    Recorder,
    SocketChannel,
    dial,
    exposure_warning,
    listen,
)
from ds4proto_runtime.pipeline.line import now, tapped
from ds4proto_runtime.pipeline.settings import SocketSettings

_BOUND_IF: Final = {
    socket.AF_INET: (socket.IPPROTO_IP, 25),
    socket.AF_INET6: (socket.IPPROTO_IPV6, 125),
}
"""IP_BOUND_IF and IPV6_BOUND_IF of macOS, which Python has no names for."""
REDIAL_S: Final = 1.0
"""A worker dials again so long after its control connection ended (DS4D-WORKER-23)."""


def dial_reason(
    host: str, port: int, error: PeerLost | OSError
) -> tuple[str, str, bool]:
    """Return ds4's text for a failed dial, its reason, and whether it was resolving."""
    resolving = False
    reason = getattr(error, "strerror", "") or str(error)
    if isinstance(error, PeerLost):
        reason, _, tries = error.reason.partition(", ")
        resolving = tries.startswith("0 ")
        reason = reason or error.kind
    key = "DS4D-WORKER-25" if resolving else "DS4D-FWD-09"
    return text(key, host, port, reason), reason, resolving


class CoordinatorUnreachable(Ds4ProtoError):
    """No coordinator was reached within the time that the user gave."""

    exit_code = ExitCode.PEER_LOST


class Redials:
    """A worker's dials that fail, one after the other: told ever more rarely.

    ds4 dials for ever and says so each time; so does this, except that it is said at
    the first failure, the second, the fourth and so on, and whenever the reason
    changes.

    Parameters
    ----------
    limit_s : float or None
        Seconds of failures after which ``give_up`` holds; None never.
    """

    def __init__(self, log: Callable[[str], None], limit_s: float | None) -> None:
        self._log, self._limit_s = log, limit_s
        self._words = ""
        self._count = 0
        self._since: float | None = None

    def begun(self) -> None:
        """Tell that a dial begins; the time of failures runs from the first one's."""
        if self._since is None:
            self._since = now()

    def failed(self, words: str) -> None:
        """Tell that it failed."""
        self._count = self._count + 1 if words == self._words else 1
        self._words = words
        if self._count == 1:
            self._log(f"{words}; trying again")
        elif not self._count & (self._count - 1):
            waited = now() - (self._since or now())
            self._log(f"{words}, {self._count} times in {waited:.0f} s; trying again")

    def reached(self) -> None:
        """Tell that it succeeded."""
        self._words, self._count, self._since = "", 0, None

    @property
    def until(self) -> float | None:
        """When to give up, None for never."""
        if self._since is None or self._limit_s is None:
            return None
        return self._since + self._limit_s

    @property
    def give_up(self) -> bool:
        """Whether the limit leaves no time for another try."""
        until = self.until
        return until is not None and now() + DS4D_DIAL.interval >= until

    def error(self) -> CoordinatorUnreachable:
        """Return what to end with."""
        words = self._words or "no coordinator"
        return CoordinatorUnreachable(
            f"{words} within --dial-limit {self._limit_s:g} s:"
            " start the coordinator, or correct --coordinator"
        )


def connect(
    host: str,
    port: int,
    sockets: SocketSettings,
    *,
    recorder: Recorder | None,
    log: Callable[[str], None],
    bind_host: str | None = None,
    alive: Callable[[], bool] | None = None,
    until: float | None = None,
    phase: str,
) -> SocketChannel:
    """Dial as ds4 does: 200 tries, 25 ms apart, if ``until`` does not come first.

    Raises
    ------
    PeerLost, OSError
        See ``dial_reason`` for ds4's text.
    """
    prepare = None
    if sockets.bind_if is not None:
        prepare = interface_option(sockets.bind_if)
    started = now()
    channel = dial(
        host,
        port,
        deadline=min(started + sockets.send_s, until or inf),
        retry=DS4D_DIAL,
        bind_host=bind_host or sockets.bind_host,
        prepare=prepare,
        alive=alive,
        phase=phase,
    )
    if sockets.trace:
        took = now() - started
        log(f"connected to {host}:{port} from {channel.local[0]} in {took:.3f} s")
    sockets.apply(channel.fileno())
    return tapped(channel, recorder, opened_by_us=True)


def interface_option(name: str) -> Callable[[socket.socket], None]:
    """Return what binds a socket to an interface, before it connects.

    Raises
    ------
    OSError
        The interface or, as everywhere but on macOS, the option does not exist: every
        dial fails then (DS4D-OPT-44). The text names the variable.
    """
    said = f"DS4_DIST_CONNECT_BIND_IF={name}"
    if sys.platform != "darwin":
        raise OSError(
            errno.ENOTSUP,
            f"{os.strerror(errno.ENOTSUP)} ({said}: this system has no such option;"
            " unset it, or give the interface's address in DS4_DIST_CONNECT_BIND_HOST)",
        )
    try:
        index = socket.if_nametoindex(name)
    except OSError as error:
        raise OSError(errno.ENXIO, f"{os.strerror(errno.ENXIO)} ({said})") from error

    def bind(sock: socket.socket) -> None:
        level, option = _BOUND_IF[sock.family]
        sock.setsockopt(level, option, index)

    return bind


def bound_listener(address: tuple[str, int], log: Callable[[str], None]) -> Listener:
    """Listen; off the loopback interface a line says that nothing is authenticated.

    Raises
    ------
    ListenError
        The address cannot be bound; the text names it.
    """
    warning = exposure_warning(address[0])
    if warning is not None:
        log(warning)
    return listen(*address, allow_remote=True)
