"""Results of parsers as values that outlive their buffers and compare by content."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ds4proto.link.events import Event, FrameReceived

__all__ = ["lasting", "lasting_events"]


def lasting(value: Any) -> Any:
    """Return ``value`` with views as bytes, tuples as lists and NaN as a word."""
    if isinstance(value, memoryview | bytearray):
        return bytes(value)
    if isinstance(value, dict):
        return {name: lasting(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [lasting(inner) for inner in value]
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    return value


def lasting_events(events: Iterable[Event]) -> list[Any]:
    """Return events as tuples and texts that do not hold on to what was fed."""
    return [_event(event) for event in events]


def _event(event: Event) -> Any:
    if not isinstance(event, FrameReceived):
        return event
    return (
        event.spec.full_name,
        event.dialect,
        event.direction,
        event.stream_offset,
        event.length,
        lasting(event.fields),
        event.problems,
        event.missing,
    )
