"""What the environment says: socket options, queues, prefill, as ds4 reads them."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from ds4proto.link.ds4d_limits import LinkLimits
from ds4proto.link.ds4d_session import (
    MAX_DEPTH,
    MAX_WINDOW,
    PrefillSettings,
    SettingError,
)
from ds4proto.link.ds4d_texts import text
from ds4proto.preflight.options_ds4d import number

_MIB: Final = 1 << 20
Environment = Mapping[str, str]


def _bounded(env: Environment, name: str, low: int, high: int) -> int | None:
    value = number(env.get(name, ""))
    return value if value is not None and low <= value <= high else None


@dataclass(frozen=True, slots=True)
class SocketSettings:
    """Options of every socket (DS4D-OPT-40 to -46).

    Attributes
    ----------
    buffer : int
        Bytes requested for each socket buffer; 0 leaves the system's own.
    send_s : float
        Longest standstill of a send.
    receive_s : float or None
        Longest silence of a connection.
    bind_host : str or None
        Source address of every dial.
    bind_if : str or None
        Interface of every dial; where the system has no such option, dials fail.
    trace, profile : bool
        Log lines about dials, and about decode times.
    """

    buffer: int = 128 * _MIB
    send_s: float = 60.0
    receive_s: float | None = None
    bind_host: str | None = None
    bind_if: str | None = None
    trace: bool = False
    profile: bool = False

    @staticmethod
    def of(env: Environment | None = None) -> SocketSettings:
        """Read the environment; a value out of bounds leaves the default."""
        env = os.environ if env is None else env
        size = _bounded(env, "DS4_DIST_SOCKET_BUFFER_MB", 0, 512)
        return SocketSettings(
            128 * _MIB if size is None else size * _MIB,
            _bounded(env, "DS4_DIST_SOCKET_TIMEOUT_SEC", 1, 3600) or 60.0,
            _bounded(env, "DS4_DIST_SOCKET_RECV_TIMEOUT_SEC", 1, 3600),
            env.get("DS4_DIST_CONNECT_BIND_HOST") or None,
            env.get("DS4_DIST_CONNECT_BIND_IF") or None,
            "DS4_DIST_CONNECT_TRACE" in env,
            "DS4_DIST_DECODE_PROFILE" in env,
        )

    def apply(self, descriptor: int) -> None:
        """Set keep-alive and buffers; failures are ignored, as ds4 ignores them."""
        sock = socket.socket(fileno=os.dup(descriptor))
        try:
            wanted = [(socket.SO_KEEPALIVE, 1)]
            if self.buffer:
                wanted += [
                    (socket.SO_SNDBUF, self.buffer),
                    (socket.SO_RCVBUF, self.buffer),
                ]
            for option, value in wanted:
                try:
                    sock.setsockopt(socket.SOL_SOCKET, option, value)
                except OSError:
                    continue
        finally:
            sock.close()


def prefill_settings(
    prefill_cap: int,
    *,
    chunk: int | None = None,
    window: int | None = None,
    bits: int = 32,
    env: Environment | None = None,
) -> PrefillSettings:
    """Return how spans become chunks: options first, then the environment.

    Raises
    ------
    SettingError
        For a chunk or window in the environment that no request can run with
        (DS4D-OPT-47, -48).
    """
    env = os.environ if env is None else env
    if chunk is None:
        chunk = _positive(env, "DS4_DIST_PREFILL_CHUNK")
    if window is None:
        window = _positive(env, "DS4_DIST_PREFILL_WINDOW")
        if window is not None and window > MAX_WINDOW:
            raise SettingError(text("DS4D-OPT-48", window))
    depth = _bounded(env, "DS4_DIST_PREFILL_SEND_DEPTH", 1, MAX_DEPTH)
    return PrefillSettings(
        prefill_cap,
        chunk,
        window,
        2 if depth is None else depth,
        ack_only="DS4_DIST_DISABLE_PREFILL_ACK_ONLY" not in env,
        pipeline="DS4_DIST_DISABLE_PREFILL_PIPELINE" not in env,
        bits=bits,
    )


def _positive(env: Environment, name: str) -> int | None:
    words = env.get(name)
    if words is None:
        return None
    value = number(words)
    if not value:
        raise SettingError(text("option", name, words))
    return value


def worker_limits(limits: LinkLimits, env: Environment | None = None) -> LinkLimits:
    """Return a worker's limits with the queue and window of the environment."""
    env = os.environ if env is None else env
    depth = _bounded(env, "DS4_DIST_WORKER_PREFETCH_DEPTH", 1, 8)
    if "DS4_DIST_DISABLE_WORKER_PREFETCH" in env:
        depth = 1
    window = _bounded(env, "DS4_DIST_WORKER_FORWARD_WINDOW", 1, 64)
    return replace(
        limits,
        queue_depth=depth or limits.queue_depth,
        forward_window=window or limits.forward_window,
    )
