"""Who may say what, and when: sans-IO framing, observers and the lockstep plan.

Names are loaded on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ds4proto.link.events import (
        Direction,
        Ended,
        Event,
        FrameReceived,
        Link,
        Observer,
        Skipped,
        Violation,
    )
    from ds4proto.link.framing import Framer
    from ds4proto.link.limits import Limits
    from ds4proto.link.observer import open_observer
    from ds4proto.link.pair import TpPair
    from ds4proto.link.sink import Sink, SinkFactory

_HOMES = {
    "Direction": "events",
    "Ended": "events",
    "Event": "events",
    "FrameReceived": "events",
    "Framer": "framing",
    "Limits": "limits",
    "Link": "events",
    "Observer": "events",
    "Sink": "sink",
    "SinkFactory": "sink",
    "Skipped": "events",
    "TpPair": "pair",
    "Violation": "events",
    "open_observer": "observer",
}

__all__ = [
    "Direction",
    "Ended",
    "Event",
    "FrameReceived",
    "Framer",
    "Limits",
    "Link",
    "Observer",
    "Sink",
    "SinkFactory",
    "Skipped",
    "TpPair",
    "Violation",
    "open_observer",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
