"""The route blob as a worker reads it: ROUTE checks 01 to 15, record by record."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ds4proto.link.ds4d_frames import RETURN_PART, ROUTE_PART
from ds4proto.link.ds4d_limits import MAX_HOST, MAX_PORT
from ds4proto.schema.ds4d_records import ROUTE, ROUTE_RETURN

LOGITS = next(f for f in ROUTE.fields if f.path == "flags").flags[0].value
UPSTREAM = next(f for f in ROUTE_RETURN.fields if f.path == "kind").enum[0].value


@dataclass(frozen=True, slots=True)
class Hop:
    """One record of a route, read and judged."""

    host: str
    port: int
    layer_start: int
    layer_end: int
    logits: bool


def kept_bytes(n_layers: int) -> int:
    """Return how much of a blob can matter: beyond it a fault is certain.

    Slices are contiguous and not empty, so a sound route has at most ``n_layers``
    records (DS4D-ROUTE-41).
    """
    return (n_layers + 1) * (ROUTE_PART.size + MAX_HOST) + RETURN_PART.size + MAX_HOST


@lru_cache(maxsize=16)
def read_route(
    blob: bytes, total: int, count: int, n_layers: int
) -> tuple[Hop, ...] | str:
    """Return the records of a blob, or the clause that its first fault breaks.

    Every WORK of a session carries the same blob, so the last few are remembered.

    Parameters
    ----------
    blob : bytes
        The blob, or its first ``kept_bytes``.
    total : int
        Bytes that the whole blob has.
    count : int
        ``route_count`` of the WORK.
    """
    if not total:
        return "DS4D-ROUTE-15"
    hops: list[Hop] = []
    at = 0
    for _ in range(count):
        if at + ROUTE_PART.size > len(blob):
            return "DS4D-ROUTE-01"
        words = ROUTE_PART.read(blob, at)
        at += ROUTE_PART.size
        after = at + words["host_len"]
        if not 1 <= words["host_len"] <= MAX_HOST or after > len(blob):
            return "DS4D-ROUTE-02"
        host = blob[at:after]
        at = after
        fault = _judge(words, host, hops, n_layers)
        if fault is not None:
            return fault
        hops.append(
            Hop(
                host.decode("utf-8", "surrogateescape"),
                words["port"],
                words["layer_start"],
                words["layer_end"],
                bool(words["flags"] & LOGITS),
            )
        )
    return _judge_return(blob, at, total) or tuple(hops)


def _judge(
    words: dict[str, int], host: bytes, before: list[Hop], n_layers: int
) -> str | None:
    start, end = words["layer_start"], words["layer_end"]
    checks = (
        ("DS4D-ROUTE-03", b"\0" in host),
        ("DS4D-ROUTE-04", not 1 <= words["port"] <= MAX_PORT),
        ("DS4D-ROUTE-05", not start <= end < n_layers),
        ("DS4D-ROUTE-06", words["flags"] & ~LOGITS != 0),
        ("DS4D-ROUTE-07", bool(words["flags"]) and end != n_layers - 1),
        ("DS4D-ROUTE-08", bool(before) and start != before[-1].layer_end + 1),
    )
    return next((clause for clause, broken in checks if broken), None)


def _judge_return(blob: bytes, at: int, total: int) -> str | None:
    if at + RETURN_PART.size > len(blob):
        return "DS4D-ROUTE-09"
    words = RETURN_PART.read(blob, at)
    at += RETURN_PART.size
    after = at + words["host_len"]
    checks = (
        ("DS4D-ROUTE-10", after > total),
        ("DS4D-ROUTE-11", b"\0" in blob[at:after]),
        ("DS4D-ROUTE-12", words["kind"] != UPSTREAM),
        ("DS4D-ROUTE-13", words["host_len"] != 0 or words["port"] != 0),
        ("DS4D-ROUTE-14", after != total),
    )
    return next((clause for clause, broken in checks if broken), None)
