"""Live endpoints: the ``--peer`` grammar, channels with deadlines, sessions, recording.

This is the only package of the library that opens sockets. Names are loaded on first
use, so importing it costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ds4proto.peer.api import (
        ROLES,
        Address,
        Buf,
        Channel,
        ChannelName,
        Clock,
        Role,
        Session,
    )
    from ds4proto.peer.channel import SocketChannel
    from ds4proto.peer.clock import SYSTEM_CLOCK, SystemClock
    from ds4proto.peer.connect import (
        DS4D_DIAL,
        NO_AUTHENTICATION,
        ONCE,
        Listener,
        RetryPolicy,
        dial,
        ds4t_dial,
        exposure_warning,
        listen,
    )
    from ds4proto.peer.errors import ExposureError, PeerError, PeerLost, PeerSpecError
    from ds4proto.peer.grammar import GRAMMAR, PeerSpec, parse_peer
    from ds4proto.peer.process import PeerProcess, spawn
    from ds4proto.peer.recording import Recorder
    from ds4proto.peer.session import PeerSession, open_peer

_HOMES = {
    "api": "ROLES Address Buf Channel ChannelName Clock Role Session",
    "channel": "SocketChannel",
    "clock": "SYSTEM_CLOCK SystemClock",
    "connect": "DS4D_DIAL NO_AUTHENTICATION ONCE Listener RetryPolicy dial ds4t_dial"
    " exposure_warning listen",
    "errors": "ExposureError PeerError PeerLost PeerSpecError",
    "grammar": "GRAMMAR PeerSpec parse_peer",
    "process": "PeerProcess spawn",
    "recording": "Recorder",
    "session": "PeerSession open_peer",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "DS4D_DIAL",
    "GRAMMAR",
    "NO_AUTHENTICATION",
    "ONCE",
    "ROLES",
    "SYSTEM_CLOCK",
    "Address",
    "Buf",
    "Channel",
    "ChannelName",
    "Clock",
    "ExposureError",
    "Listener",
    "PeerError",
    "PeerLost",
    "PeerProcess",
    "PeerSession",
    "PeerSpec",
    "PeerSpecError",
    "Recorder",
    "RetryPolicy",
    "Role",
    "Session",
    "SocketChannel",
    "SystemClock",
    "dial",
    "ds4t_dial",
    "exposure_warning",
    "listen",
    "open_peer",
    "parse_peer",
    "spawn",
]


def __getattr__(name: str) -> Any:
    """Load a public name from the module that holds it."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
