"""Spans of a coordinator's session: another transcript, one answer at a time."""

from __future__ import annotations

from ds4proto_conformance.bench.coordinator import CoordinatorBench
from ds4proto_conformance.cases.coordinator_result import start
from ds4proto_conformance.registry import case
from ds4proto_conformance.verdicts import Deviation, NotApplicable
from ds4proto_conformance.wire import Frame


@case(
    "coordinator/work/other-transcript",
    clauses=("DS4D-COORD-14",),
    role="coordinator",
    category="state",
    mutants=("other-without-reset", "rewinds"),
)
def other_transcript(peer: CoordinatorBench) -> None:
    """A transcript that is no continuation begins at position 0, with RESET."""
    hop = start(peer)
    ends: dict[int, int] = {}

    def elsewhere(work: Frame) -> bool:
        known = ends.get(work["session"])
        ends[work["session"]] = work["pos0"] + work["n_tokens"]
        return known is not None and work["pos0"] != known

    work, _ = hop.until(elsewhere)
    if work is None:
        raise NotApplicable("no session took up another transcript: ask for two")
    if work["pos0"] or not work["flags"] & 4:
        raise Deviation(
            "DS4D-COORD-14",
            "RESET from position 0",
            f"pos0 {work['pos0']}, flags {work['flags']:#x}",
        )


@case(
    "coordinator/work/one-at-a-time",
    clauses=("DS4D-COORD-18",),
    role="coordinator",
    category="state",
    mutants=("runs-ahead",),
)
def one_at_a_time(peer: CoordinatorBench) -> None:
    """A sequential request sends nothing more before its answer is there."""
    hop = start(peer)
    work, _ = hop.decode()
    more = hop.wire.quiet(max(peer.quiet, 0.1))
    if more is not None:
        raise Deviation("DS4D-COORD-18", "nothing before the RESULT", str(more))
    if work["flags"] & 8:
        raise Deviation("DS4D-COORD-18", "a full result asked for", "ACK_ONLY")
