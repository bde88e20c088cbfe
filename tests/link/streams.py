"""Streams built from the schemas, and ways to feed them."""

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ds4proto.codec.token_hash import TOKEN_HASH_START, token_hash
from ds4proto.link.events import Ended, Event, FrameReceived, Skipped, Violation
from ds4proto.schema import frame, to_bytes

ROUTE = [
    {"port": 21101, "layer_start": 3, "layer_end": 5, "flags": 0, "host": "10.0.0.2"},
    {"port": 21102, "layer_start": 6, "layer_end": 7, "flags": 1, "host": "::1"},
]
HELLO = {
    "model_id": 0,
    "quant_bits": 2,
    "layer_start": 3,
    "layer_end": 7,
    "has_output": 1,
    "ctx_size": 256,
    "n_layers": 8,
    "listen_port": 5555,
    "model_name": "Toy V4",
}


def ds4d(name: str, dialect: str = "upstream", **values: Any) -> bytes:
    """Return one DS4D frame."""
    return to_bytes(frame(f"DS4D.{name}", dialect=dialect), values, dialect=dialect)


def ds4t(name: str, dialect: str = "v10", **values: Any) -> bytes:
    """Return one DS4T or DS4B frame; ``name`` may carry the protocol."""
    full = name if "." in name else f"DS4T.{name}"
    return to_bytes(frame(full, dialect=dialect), values, dialect=dialect)


def work(request: int = 1, hidden: bytes = bytes(512), **changes: Any) -> bytes:
    """Return a WORK of two tokens that keeps every rule of section 9.2."""
    tokens = changes.pop("tokens", (5, 6))
    prefix = changes.pop("prefix_hash", TOKEN_HASH_START)
    values: dict[str, Any] = {
        "model_id": 0,
        "session": 77,
        "request": request,
        "prefix_hash": prefix,
        "result_hash": token_hash(tokens, prefix),
        "pos0": 0,
        "layer_start": 3,
        "layer_end": 5,
        "flags": 1,
        "input_hc_bits": 32,
        "tokens": tokens,
        "hidden": hidden,
        "route": ROUTE,
        "route_index": 0,
        "route_return": {},
    }
    return ds4d("WORK", **(values | changes))


def telemetry(n_tokens: int = 2, pos0: int = 0, **changes: Any) -> list[dict[str, int]]:
    """Return the two records that answer ``work``, the last hop first."""
    last = {
        "layer_start": 6,
        "layer_end": 7,
        "route_index": 1,
        "pos0": pos0,
        "n_tokens": n_tokens,
        "eval_usec": 9,
        "downstream_wait_usec": 0,
        "forward_send_usec": 0,
        "input_bytes": 520,
        "output_bytes": 1024,
    }
    own = last | {
        "layer_start": 3,
        "layer_end": 5,
        "route_index": 0,
        "downstream_wait_usec": 5,
        "output_bytes": 512,
    }
    return [last, own | changes]


def result(request: int = 1, **changes: Any) -> bytes:
    """Return the RESULT with logits that answers ``work``."""
    values: dict[str, Any] = {
        "request": request,
        "result_hash": token_hash((5, 6)),
        "status": 0,
        "result_kind": 2,
        "payload_bits": 32,
        "telemetry": telemetry(),
        "payload": bytes(1024),
    }
    return ds4d("RESULT", **(values | changes))


class KeepSink:
    """Keeps what it gets, and counts how it came."""

    def __init__(self) -> None:
        self.bytes = bytearray()
        self.missing = 0
        self.largest = 0

    def write(self, view: memoryview) -> None:
        self.bytes += view
        self.largest = max(self.largest, len(view))

    def gap(self, nbytes: int) -> None:
        self.missing += nbytes
        self.bytes += bytes(nbytes)

    def close(self) -> tuple[str, bytes, int]:
        return ("kept", bytes(self.bytes), self.missing)


def plain(events: Iterable[Event]) -> list[Any]:
    """Return events with payloads as bytes, comparable after their buffers died."""
    return [_plain(event) for event in events]


def _plain(value: Any) -> Any:
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, FrameReceived):
        return (
            value.spec.full_name,
            value.dialect,
            value.direction,
            value.stream_offset,
            value.length,
            _plain(value.fields),
            value.problems,
            value.missing,
        )
    return value


def accounted(events: Iterable[Event]) -> int:
    """Return the bytes that the events account for."""
    return sum(e.length for e in events if isinstance(e, FrameReceived | Skipped))


def contiguous(events: Iterable[Event]) -> bool:
    """Tell whether frames and skipped runs follow each other without a seam."""
    at = 0
    for event in events:
        if isinstance(event, FrameReceived | Skipped):
            if event.stream_offset != at:
                return False
            at += event.length
        elif isinstance(event, Ended) and event.stream_offset != at:
            return False
    return True


def names(events: Iterable[Event]) -> list[str]:
    """Return the names of the frames, violations by clause, skips by reason."""
    found = []
    for event in events:
        if isinstance(event, FrameReceived):
            found.append(event.spec.name)
        elif isinstance(event, Violation):
            found.append(event.problem.clause)
        elif isinstance(event, Skipped):
            found.append(event.reason)
    return found


def problems(events: Iterable[Event]) -> list[str]:
    """Return the clauses that frames and violations cite."""
    found = []
    for event in events:
        if isinstance(event, FrameReceived):
            found += [problem.clause for problem in event.problems]
        elif isinstance(event, Violation):
            found.append(event.problem.clause)
    return found


def pieces(data: bytes, seed: int) -> Iterator[bytes]:
    """Cut ``data`` at random places: single bytes, headers, large pieces."""
    chance = random.Random(seed)
    at = 0
    while at < len(data):
        size = chance.choice((1, 2, 5, 12, 13, 100, 1000, 40_000))
        yield data[at : at + size]
        at += size


def feed_all(
    feed: Callable[[bytes | None], Iterable[Event]], parts: Iterable[bytes]
) -> list[Any]:
    """Feed parts and the end; return plain events."""
    found: list[Any] = []
    for part in parts:
        found += plain(feed(part))
    return found + plain(feed(None))
