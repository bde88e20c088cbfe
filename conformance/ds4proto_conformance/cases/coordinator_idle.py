"""A coordinator between requests: early bytes, workers that come back, odd answers."""

from __future__ import annotations

from typing import Any

from ds4proto.schema.ds4d_result import HIDDEN_STATE
from ds4proto_conformance.bench.coordinator import CoordinatorBench
from ds4proto_conformance.cases.coordinator_prefill import chunks
from ds4proto_conformance.registry import case
from ds4proto_conformance.verdicts import Deviation, NotApplicable
from ds4proto_conformance.wire import Frame


@case(
    "coordinator/hello/early-bytes-wait",
    clauses=("DS4D-COORD-45",),
    role="coordinator",
    category="state",
    params={"early": (b"\xa5" * 12, b"DS4D\0\0\0\x63\0\0\0\0")},
    mutants=("reads-early",),
)
def early(peer: CoordinatorBench, p: dict[str, Any]) -> None:
    """Bytes that come too early stay unread until a request looks for its answer."""
    wire = peer.dial("early")
    wire.send(peer.hello() + p["early"])
    peer.drive()
    found = wire.next(patience=2 * peer.patience)
    if not isinstance(found, Frame) or found.name != "WORK":
        raise Deviation("DS4D-COORD-45", "a WORK, the early bytes unread", str(found))


@case(
    "coordinator/hello/comes-back",
    clauses=("DS4D-OPT-55", "DS4D-HELLO-31"),
    role="coordinator",
    category="state",
    params={"times": (1, 3)},
    mutants=("refuses-returned",),
)
def comes_back(peer: CoordinatorBench, p: dict[str, Any]) -> None:
    """A worker that dropped its idle connection registers anew and is given work."""
    for _ in range(p["times"]):
        old = peer.register("before")
        old.wire.half_close()
        # Registrations may be handled side by side: the old one has to be over.
        while isinstance(old.wire.quiet(peer.quiet), Frame):
            pass
        old.wire.close()
    hop = peer.register("again")
    peer.drive()
    hop.work("DS4D-OPT-55")


@case(
    "coordinator/prefill/hidden-for-the-last",
    clauses=("DS4D-RESULT-38",),
    role="coordinator",
    category="faults",
    mutants=("takes-hidden-at-the-end",),
)
def hidden_last(peer: CoordinatorBench) -> None:
    """A hidden state where the route ends in logits is a transport error."""
    hop, found = chunks(peer)
    if found[-1]["flags"] & 8:
        raise NotApplicable("the prefill did not come to its last chunk")
    hop.answer(found[-1], kind=HIDDEN_STATE)
    hop.given_up("DS4D-RESULT-38")
