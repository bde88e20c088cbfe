"""Ends of a pair for which its RDMA ports are the likely cause."""

from __future__ import annotations

from typing import Final

from ds4proto.trace.diagnosis.finding import Finding, proof
from ds4proto.trace.diagnosis.spread import ms
from ds4proto.trace.diagnosis.tp_ends import GaveUp, PairEnds
from ds4proto.trace.diagnosis.tp_gates import PairRun, Token

__all__ = ["IDLE", "no_queue_pair", "stale_link"]

IDLE: Final = 60.0
"""Seconds without a command from which an RDMA port may have gone to sleep."""


def stale_link(
    run: PairRun, token: Token, gave_up: GaveUp, ends: PairEnds, file: str
) -> Finding:
    """Tell a command over RDMA that failed after a long pause."""
    row = token.row
    wait = max(0.0, gave_up.time - row.time)
    return Finding(
        "rdma.stale-link", "severe", "likely",
        f"{row.type} {row.fields.get('seq', '')} came after the pair had stood idle "
        f"for {ms(run.pause)}, and was the first over RDMA since: it did not end, and "
        f"the {gave_up.rank} {gave_up.how} {ms(wait)} later. An RDMA port that stops "
        "working while it is idle looks like this, and so does a rank that was killed; "
        "the gate timeout is not the cause",
        {"idle_s": round(run.pause, 3)},
        (proof(row, file, "first after the pause"), *ends.proof(gave_up)),
        "look at the last lines of the other rank first; then "
        "start the pair again, which sets the queue pairs up anew; if that fails too, "
        "take the port down and up on both machines (ds4proto preflight shows its "
        "state); a gate now and then keeps it awake",
        run.number, file,
    )  # fmt: skip


def no_queue_pair(
    run: PairRun, gave_up: GaveUp, quiet: float, ends: PairEnds, file: str
) -> Finding:
    """Tell a pair that ended between RDMA_INFO and RDMA_READY."""
    return Finding(
        "rdma.no-queue-pair", "severe", "likely",
        f"both ranks exchanged RDMA_INFO, and the {gave_up.rank} {gave_up.how} "
        f"{ms(max(0.0, quiet))} after the hellos, before RDMA_READY: its queue pair "
        "did not come up",
        {"time_s": round(gave_up.time, 6)},
        (*(proof(row, file) for row in run.infos.values()), *ends.proof(gave_up)),
        "compare GIDs, link layer and MTU of both RDMA_INFO; a port that worked "
        "before and stood idle since is taken down and up again; --transport tcp does "
        "without",
        run.number, file,
    )  # fmt: skip
