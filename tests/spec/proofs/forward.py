"""Forwarding: what the next worker's end and lengths beyond reason lead to."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from ds4proto.link import ds4d_forward
from ds4proto.link.ds4d_forward import Forwarder
from ds4proto.link.ds4d_frames import RESULT_PART
from ds4proto.link.ds4d_limits import U32
from tests.link.ds4d.build import result
from tests.link.ds4d.test_forward import Chain
from tests.spec.proving import proof
from tests.spec.removing import without_check

FIXED = 12 + 40
"""Header and fixed part of a RESULT."""


def sure(clause: str) -> Any:
    """Give every loss of the next worker the same clause."""
    return patch.object(Forwarder, "_cut", lambda _self, _end: clause)


@proof(
    "DS4D-FWD-13", "an end inside a RESULT taken for an idle one", sure("DS4D-FWD-11")
)
def an_end_inside_the_fixed_part_is_told_upstream() -> None:
    for cut in (12, 13, FIXED - 1):
        chain = Chain()
        chain.hear(result(1)[:cut])
        chain.hear(None)
        assert chain.said == ["next worker closed while returning RESULT"]
        assert chain.closed


def filled(self: Any, clause: str, now: float) -> None:
    """Answer with zeros where the next worker's bytes are missing."""
    if clause == "DS4D-FWD-18":
        self.upstream.relayed(self._pending[0].request, [result(1)], now)
    real_lose(self, clause, now)


real_lose = Forwarder._lose


@proof(
    "DS4D-FWD-18",
    "the missing bytes filled with zeros",
    patch.object(Forwarder, "_lose", filled),
)
def an_end_inside_the_payload_is_not_filled_up() -> None:
    data = result(1, result_kind=2, payload=bytes(1024))
    for cut in (FIXED, FIXED + 1, len(data) - 1):
        chain = Chain()
        chain.hear(data[:cut])
        chain.hear(None)
        assert chain.said == []
        assert chain.closed


@proof(
    "DS4D-FWD-19",
    "a failed write passed over",
    patch.object(Forwarder, "broken", lambda _self, _now: None),
)
def a_failed_write_of_the_forwarded_work_is_told_upstream() -> None:
    chain = Chain(requests=2)
    chain.down.broken(0.0)
    chain.host.settle(chain.down)
    assert chain.said == ["failed to forward distributed work"] * 2
    assert chain.closed


def judged(telemetry: int, payload: int) -> str | None:
    """Return the clause under which a RESULT of these lengths is refused."""
    chain = Chain()
    words = dict.fromkeys(RESULT_PART.names, 0)
    words |= {
        "request": 1,
        "telemetry_count": telemetry,
        "telemetry_bytes": 40 * telemetry,
        "payload_bytes": payload,
    }
    return chain.down._fault(words, 40 + 40 * telemetry + payload)


@proof(
    "DS4D-FWD-16",
    "the check left out",
    lambda: without_check(ds4d_forward, "DS4D-FWD-16"),
)
@proof(
    "DS4D-FWD-17",
    "the check left out",
    lambda: without_check(ds4d_forward, "DS4D-FWD-17"),
)
def a_record_that_makes_the_lengths_overflow_is_refused() -> None:
    most = U32 // 40
    assert judged(most, 0) == "DS4D-FWD-16"
    assert judged(most - 1, 0) == "DS4D-FWD-17"
    assert judged(0, U32 - 40) == "DS4D-FWD-17"
    assert judged(0, U32 - 80) not in ("DS4D-FWD-16", "DS4D-FWD-17")
    assert judged(1, 1024) is None
