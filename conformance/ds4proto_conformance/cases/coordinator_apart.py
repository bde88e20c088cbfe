"""Coordinators that send WORK over a connection of their own."""

from __future__ import annotations

from ds4proto_conformance.bench.apart import ApartWire
from ds4proto_conformance.bench.coordinator import CoordinatorBench
from ds4proto_conformance.cases.coordinator_result import start
from ds4proto_conformance.registry import case
from ds4proto_conformance.verdicts import Deviation, NotApplicable

_TURNS = 3


@case(
    "coordinator/dialect/work-apart",
    clauses=("DS4D-DIALECT-37",),
    role="coordinator",
    category="state",
    mutants=("apart-and-on-control",),
)
def work_apart(peer: CoordinatorBench) -> None:
    """Where WORK comes on a connection of its own, that of the registration is silent.

    The coordinator dials the port that the HELLO announced.
    """
    if not peer.apart:
        raise NotApplicable("WORK comes on the connection that registered")
    hop = start(peer)
    wire = hop.wire
    for _ in range(_TURNS):
        hop.answer(hop.work("DS4D-DIALECT-37"))
    if not isinstance(wire, ApartWire) or not wire.apart:
        raise Deviation(
            "DS4D-DIALECT-37",
            "WORK on the connection that the coordinator opened",
            "WORK on the connection that registered",
        )
    stray = wire.control.quiet(peer.quiet)
    if stray is not None:
        raise Deviation(
            "DS4D-DIALECT-37", "silence on the connection that registered", str(stray)
        )
