"""Frames of a byte stream, as a worker has to read them."""

from __future__ import annotations

from typing import Any

from ds4proto_conformance.bench.worker import WorkerBench
from ds4proto_conformance.registry import case
from ds4proto_conformance.verdicts import Deviation
from ds4proto_conformance.wire import Ended


@case(
    "worker/framing/split",
    clauses=("DS4D-FRAME-06", "DS4D-FRAME-03"),
    role="worker",
    category="framing",
    params={"sizes": ((1,), (11, 1, 80), (12, 7), (13, 1000)), "bits": (32, 16, 8)},
    mutants=("split-header",),
    smoke=True,
)
def split(peer: WorkerBench, p: dict[str, Any]) -> None:
    """A WORK that arrives in pieces is served like one that arrives whole."""
    work = peer.make(2, bits=p["bits"])
    peer.data.send_pieces(work.frame(), p["sizes"])
    peer.answer(work).served("DS4D-FRAME-06")
