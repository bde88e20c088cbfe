"""Live endpoints: the ``--peer`` grammar, channels with deadlines, sessions, recording.

This is the only package of the library that opens sockets. Names are loaded on first
use, so importing it costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ds4proto.peer.api import (
        Address,
        Buf,
        Channel,
        ChannelName,
        Clock,
        Role,
        Session,
    )
    from ds4proto.peer.errors import ExposureError, PeerError, PeerLost, PeerSpecError
    from ds4proto.peer.grammar import GRAMMAR, parse_peer

_HOME = {
    "Address": "api",
    "Buf": "api",
    "Channel": "api",
    "ChannelName": "api",
    "Clock": "api",
    "Role": "api",
    "Session": "api",
    "ExposureError": "errors",
    "PeerError": "errors",
    "PeerLost": "errors",
    "PeerSpecError": "errors",
    "GRAMMAR": "grammar",
    "parse_peer": "grammar",
}

__all__ = [
    "GRAMMAR",
    "Address",
    "Buf",
    "Channel",
    "ChannelName",
    "Clock",
    "ExposureError",
    "PeerError",
    "PeerLost",
    "PeerSpecError",
    "Role",
    "Session",
    "parse_peer",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
