"""Watching a DS4D connection in tests: turns in, events out."""

from collections.abc import Sequence
from typing import Any

from ds4proto.link.events import Direction, Event
from ds4proto.link.observer import StreamObserver, open_observer
from tests.link.streams import accounted, ds4d

Turn = tuple[Direction, bytes]
UP: Direction = "a>b"
DOWN: Direction = "b>a"


def observe(
    turns: Sequence[Turn], **options: Any
) -> tuple[StreamObserver, list[Event]]:
    first: dict[Direction, bytes] = {}
    for direction, data in turns:
        first[direction] = (first.get(direction, b"") + data)[:512]
    observer = open_observer(first, **options)
    assert observer is not None
    events: list[Event] = []
    for direction, data in turns:
        events += observer.feed(direction, data, 0.0)
    for direction in (UP, DOWN):
        events += observer.feed(direction, None, 0.0)
    assert accounted(events) == sum(len(data) for _, data in turns)
    return observer, events


def state(name: str, **changes: Any) -> bytes:
    values = {
        "model_id": 0,
        "session": 77,
        "request": 1 << 63,
        "token_hash": 9,
        "token_count": 2,
        "layer_start": 3,
        "layer_end": 7,
    }
    if name == "SNAPSHOT_BEGIN":
        values |= {"token_count": 0, "payload_size": 6}
        return ds4d(name, **({"tokens": (), "message": ""} | values | changes))
    return ds4d(name, **(values | changes))
