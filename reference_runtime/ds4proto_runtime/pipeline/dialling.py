"""Dialling and listening as the pipeline does it, in ds4's words."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Final

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


def connect(
    host: str,
    port: int,
    sockets: SocketSettings,
    *,
    recorder: Recorder | None,
    log: Callable[[str], None],
    bind_host: str | None = None,
    alive: Callable[[], bool] | None = None,
    phase: str,
) -> SocketChannel:
    """Dial as ds4 does: 200 tries, 25 ms apart; set the socket's options.

    Raises
    ------
    PeerLost, OSError
        See ``dial_reason`` for ds4's text.
    """
    if sockets.bind_if is not None:
        # ds4 knows one system's option for this; elsewhere its dials fail, as here.
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
    started = now()
    channel = dial(
        host,
        port,
        deadline=started + sockets.send_s,
        retry=DS4D_DIAL,
        bind_host=bind_host or sockets.bind_host,
        alive=alive,
        phase=phase,
    )
    if sockets.trace:
        took = now() - started
        log(f"connected to {host}:{port} from {channel.local[0]} in {took:.3f} s")
    sockets.apply(channel.fileno())
    return tapped(channel, recorder, opened_by_us=True)


def bound_listener(address: tuple[str, int], log: Callable[[str], None]) -> Listener:
    """Listen; off the loopback interface a line says that nothing is authenticated.

    Raises
    ------
    OSError
        The address cannot be bound; the text names it.
    """
    warning = exposure_warning(address[0])
    if warning is not None:
        log(warning)
    try:
        return listen(*address, allow_remote=True)
    except OSError as error:
        reason = error.strerror or str(error)
        where = f"{address[0]}:{address[1]}"
        raise OSError(error.errno, f"cannot listen on {where}: {reason}") from None
