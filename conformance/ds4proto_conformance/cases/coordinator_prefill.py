"""Pipelined prefill of a coordinator: chunks, window, ACK_ONLY, refusals."""

from __future__ import annotations

from itertools import pairwise

from ds4proto_conformance.bench.coordinator import CoordinatorBench, Hop
from ds4proto_conformance.cases.coordinator_result import start
from ds4proto_conformance.cases.coordinator_work import same
from ds4proto_conformance.registry import case
from ds4proto_conformance.verdicts import Deviation, NotApplicable
from ds4proto_conformance.wire import Frame


def chunks(peer: CoordinatorBench, *, answer: bool = True) -> tuple[Hop, list[Frame]]:
    """Return the chunks of a pipelined prefill, answered or not."""
    hop = start(peer)
    work, _ = hop.until(lambda w: w["flags"] & 8)
    if work is None:
        raise NotApplicable(
            "no pipelined prefill: give the peer a chunk below its prompt"
        )
    found = [work]
    while found[-1]["flags"] & 8:
        if answer:
            hop.answer(found[-1])
        more = hop.wire.next()
        if not isinstance(more, Frame) and answer:
            raise Deviation("DS4D-COORD-23", "chunks up to the last", str(more))
        if not isinstance(more, Frame):
            break
        found.append(more)
    return hop, found


@case(
    "coordinator/prefill/ack-only",
    clauses=("DS4D-COORD-23",),
    role="coordinator",
    category="state",
    mutants=("last-chunk-ack", "first-chunk-full"),
)
def ack_only(peer: CoordinatorBench) -> None:
    """Every chunk but the last asks for an ACK."""
    hop, found = chunks(peer)
    more = hop.wire.quiet(peer.quiet)
    if isinstance(more, Frame):
        raise Deviation(
            "DS4D-COORD-23",
            "ACK_ONLY on all chunks but the last",
            "a chunk behind the one without it",
        )
    marks = [bool(work["flags"] & 8) for work in found]
    if marks != [True] * (len(marks) - 1) + [False] or len(marks) < 2:
        raise Deviation(
            "DS4D-COORD-23", "ACK_ONLY on all chunks but the last", str(marks)
        )


@case(
    "coordinator/prefill/reset-once",
    clauses=("DS4D-COORD-12", "DS4D-COORD-24"),
    role="coordinator",
    category="state",
    mutants=("reset-every-chunk",),
)
def reset_once(peer: CoordinatorBench) -> None:
    """RESET is on the first chunk alone; ids and positions follow each other."""
    _, found = chunks(peer)
    for before, work in pairwise(found):
        if work["flags"] & 4:
            raise Deviation(
                "DS4D-COORD-12", "RESET on the first chunk alone", "a second"
            )
        same(
            "DS4D-COORD-24",
            work,
            request=before["request"] + 1,
            pos0=before["pos0"] + before["n_tokens"],
            prefix_hash=before["result_hash"],
        )


@case(
    "coordinator/prefill/window",
    clauses=("DS4D-COORD-21", "DS4D-COORD-22"),
    role="coordinator",
    category="limits",
    mutants=("window-open", "window-1"),
)
def window(peer: CoordinatorBench) -> None:
    """Not more chunks are unanswered than the window says, and more than one."""
    hop = start(peer)
    work, _ = hop.until(lambda w: w["flags"] & 8)
    if work is None:
        raise NotApplicable(
            "no pipelined prefill: give the peer a chunk below its prompt"
        )
    found = [work]
    while found[-1]["flags"] & 8:
        more = hop.wire.quiet(max(peer.quiet, 0.15))
        if not isinstance(more, Frame):
            break
        found.append(more)
    limit = max(2, min(8, found[0]["route_count"] + 2))
    if not 2 <= len(found) <= limit:
        raise Deviation(
            "DS4D-COORD-22", f"2 to {limit} chunks in flight", str(len(found))
        )


@case(
    "coordinator/prefill/logits-for-a-chunk",
    clauses=("DS4D-RESULT-37",),
    role="coordinator",
    category="state",
    mutants=("wants-ack",),
)
def logits_chunk(peer: CoordinatorBench) -> None:
    """Full logits are taken for a chunk that asked for an ACK."""
    from ds4proto.schema.ds4d_result import LOGITS

    hop = start(peer)
    work, _ = hop.until(lambda w: w["flags"] & 8)
    if work is None:
        raise NotApplicable(
            "no pipelined prefill: give the peer a chunk below its prompt"
        )
    hop.answer(work, kind=LOGITS)
    more = work
    while more["flags"] & 8:  # all of them: some were sent before our answer
        more = hop.work("DS4D-RESULT-37")
        if more["session"] != work["session"] or more["flags"] & 4:
            raise Deviation("DS4D-RESULT-37", "the next chunk", "a replay")
        hop.answer(more)
    hop.work("DS4D-RESULT-37")


@case(
    "coordinator/prefill/ack-for-the-last",
    clauses=("DS4D-RESULT-36",),
    role="coordinator",
    category="faults",
    mutants=("takes-last-ack",),
)
def ack_last(peer: CoordinatorBench) -> None:
    """An ACK for the last chunk is a transport error."""
    from ds4proto.schema.ds4d_result import ACK

    hop, found = chunks(peer)
    hop.answer(found[-1], kind=ACK)
    hop.given_up("DS4D-RESULT-36")


@case(
    "coordinator/prefill/other-hash",
    clauses=("DS4D-RESULT-39",),
    role="coordinator",
    category="faults",
    mutants=("takes-prefill-hash",),
)
def other_hash(peer: CoordinatorBench) -> None:
    """A chunk answered with another hash is a transport error."""
    hop, found = chunks(peer)
    hop.answer(found[-1], result_hash=3)
    hop.given_up("DS4D-RESULT-39")


@case(
    "coordinator/prefill/refused-chunk",
    clauses=("DS4D-COORD-34", "DS4D-COORD-38"),
    role="coordinator",
    category="faults",
    mutants=("replays-before-drained", "drops-on-remote-error"),
)
def refused_chunk(peer: CoordinatorBench) -> None:
    """A refused chunk: the rest is drained, then all is replayed on the connection."""
    hop = start(peer)
    work, _ = hop.until(lambda w: w["flags"] & 8)
    if work is None:
        raise NotApplicable(
            "no pipelined prefill: give the peer a chunk below its prompt"
        )
    owed = []
    while True:
        more = hop.wire.quiet(max(peer.quiet, 0.15))
        if not isinstance(more, Frame):
            break
        owed.append(more)
    hop.fail(work)
    early = hop.wire.quiet(max(peer.quiet, 0.15)) if owed else None
    if isinstance(early, Frame) and early["flags"] & 4:
        raise Deviation("DS4D-COORD-38", "no replay while answers are due", "a replay")
    for chunk in owed:
        hop.answer(chunk)
    replay = hop.work("DS4D-COORD-34")
    if replay["pos0"] or not replay["flags"] & 4:
        raise Deviation(
            "DS4D-COORD-34",
            "RESET from position 0",
            f"pos0 {replay['pos0']}, flags {replay['flags']:#x}",
        )
