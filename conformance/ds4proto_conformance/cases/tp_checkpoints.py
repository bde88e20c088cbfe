"""Checkpoints of a sync as a tp-worker has to keep them, where the dialect has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ds4proto.link.ds4t_events import CHUNK, END, INTERRUPTED, START
from ds4proto_conformance.bench.tp_worker import RankBench, Trace
from ds4proto_conformance.registry import case
from ds4proto_conformance.verdicts import Deviation
from ds4proto_conformance.wire import part

Body = Callable[..., None]
OF_WORD: Final[Mapping[str, str]] = {
    "seq": "DS4T-CKPT-02",
    "point": "DS4T-CKPT-03",
    "current": "DS4T-CKPT-04",
    "total": "DS4T-CKPT-04",
    "cancelled": "DS4T-CKPT-05",
}
"""Word of a checkpoint -> the clause that a rank breaks which lets it pass."""


def meeting(
    name: str,
    *clauses: str,
    mutants: Sequence[str],
    params: Mapping[str, Sequence[Any]] | None = None,
    ends: bool = False,
) -> Callable[[Body], Body]:
    """Declare a case; one that ends the worker needs a fresh one."""
    return case(
        f"tp-worker/checkpoints/{name}",
        clauses=clauses,
        role="tp-worker",
        category="state",
        params=params,
        mutants=tuple(f"tpw-{mutant}" for mutant in mutants),
        harm="process" if ends else "none",
        needs_restart=ends,
    )


@meeting("points", "DS4T-CKPT-09", "DS4T-CKPT-10", "DS4T-CKPT-11", "DS4T-CKPT-01",
         mutants=["no-chunk-point", "total-of-new-part"])  # fmt: skip
def points(peer: RankBench) -> None:
    """A sync meets at its start, behind each chunk and at its end."""
    peer.needs("checkpoints")
    known = peer.start()
    trace = peer.sync(known, (*peer.held[known], *peer.tokens(5)))
    due = [(START, 0), (CHUNK, 10), (END, 0)]
    seen = [point for point in trace.checkpoints if point in due]
    if seen != due:
        raise Deviation("DS4T-CKPT-10", f"the points {due}", str(trace.checkpoints))


@meeting("numbers", "DS4T-CKPT-02", mutants=["checkpoint-seq-anew"])
def numbers(peer: RankBench) -> None:
    """Checkpoints are numbered over the whole connection, not over one sync."""
    peer.needs("checkpoints")
    known = peer.start(4)
    peer.holds(known, "DS4T-CKPT-02")
    peer.start(5)


@meeting("cancel-at-start", "DS4T-CKPT-07", "DS4T-CKPT-12", "DS4T-CKPT-13",
         "DS4T-CKPT-17",
         mutants=["cancel-ignored", "cancel-acked-ok"])  # fmt: skip
def cancel_at_start(peer: RankBench) -> None:
    """A cancel at the start: no gate, end with code 2, ack with status 2, no logits."""
    peer.needs("checkpoints")
    cancelled(peer, peer.create(), peer.tokens(5), START)


@meeting(
    "cancel-in-between", "DS4T-CKPT-13", "DS4T-SYNC-09", mutants=["late-cancel-missed"]
)
def cancel_in_between(peer: RankBench) -> None:
    """A cancel behind a chunk stops the sync there; the session starts anew."""
    peer.needs("checkpoints")
    known, prompt = peer.create(), peer.tokens(5)
    cancelled(peer, known, prompt, CHUNK)
    peer.sync(known, prompt)


def cancelled(peer: RankBench, known: int, prompt: tuple[int, ...], at: int) -> None:
    """Cancel a sync at a point, and take it that the worker agrees."""
    peer.command("SYNC", session_id=known, tokens=prompt)
    total, trace = len(prompt), Trace()
    peer.meet(START, 0, total, trace, cancel=at == START)
    if at == CHUNK:
        peer.gates(peer.chunk(peer.plan(known, prompt).chunks[0]))
        peer.meet(CHUNK, total, total, trace, cancel=True)
    try:
        peer.meet(END, INTERRUPTED, total, trace)
        peer.ack(known, INTERRUPTED, "DS4T-CKPT-17")
    except Deviation as error:
        due = "END with code 2 and status 2 behind an agreed cancel"
        raise Deviation("DS4T-CKPT-13", due, error.found) from None
    peer.nothing("DS4T-SYNC-07", "no LOGITS behind a cancel")
    peer.command("INVALIDATE", session_id=known)
    peer.held[known] = []


@meeting("wrong-words", "DS4T-CKPT-04", "DS4T-CKPT-03", "DS4T-ROBUST-17", ends=True,
         params={"word": ("seq", "point", "current", "total", "cancelled")},
         mutants=["checkpoint-unjudged", "cancelled-any"])  # fmt: skip
def wrong_words(peer: RankBench, p: dict[str, Any]) -> None:
    """A checkpoint that differs in any word ends the worker."""
    peer.needs("checkpoints")
    known, prompt = peer.create(), peer.tokens(5)
    peer.command("SYNC", session_id=known, tokens=prompt)
    lies = {"seq": 2, "point": 1, "current": 1, "total": 6, "cancelled": 2}
    values = {"point": START, "current": 0, "total": 5, p["word"]: lies[p["word"]]}
    peer.checkpoint(**values)
    ends_meeting(peer, OF_WORD[p["word"]])


@meeting("another-frame", "DS4T-CKPT-08", ends=True,
         params={"frame": ("EVAL", "STOP", "short")},
         mutants=["other-frames-skipped"])  # fmt: skip
def another_frame(peer: RankBench, p: dict[str, Any]) -> None:
    """Another frame in the place of a checkpoint ends the worker."""
    peer.needs("checkpoints")
    known = peer.create()
    peer.command("SYNC", session_id=known, tokens=peer.tokens(5))
    part(peer.control.channel, peer.patience)  # behind the command, not with it
    if p["frame"] == "EVAL":
        peer.eval_only(known, 1)
    else:
        peer.raw(*((22, bytes(20)) if p["frame"] == "short" else (5, b"")))
    ends_meeting(peer, "DS4T-CKPT-08")


def ends_meeting(peer: RankBench, clause: str) -> None:
    """Take it that the worker ends, perhaps behind a checkpoint of its own."""
    peer.spent = True
    found = peer.control.next()
    if getattr(found, "name", "") == "SYNC_CHECKPOINT":
        peer.refused(clause)
    elif getattr(found, "how", "silence") == "silence":
        raise Deviation(clause, "the worker to end", str(found))
    elif hasattr(found, "name"):
        raise Deviation(clause, "an end without a frame", str(found))
