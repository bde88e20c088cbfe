"""Where both ranks meet, and who speaks first: checkpoints of workers and leaders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ds4proto.link.ds4t_events import CHUNK, END, KEEP_ALL, OK, START
from ds4proto_conformance.bench.tp_leader import LeaderBench
from ds4proto_conformance.bench.tp_meetings import FIRST
from ds4proto_conformance.bench.tp_wire import ControlFrame
from ds4proto_conformance.bench.tp_worker import RankBench
from ds4proto_conformance.registry import case
from ds4proto_conformance.verdicts import Deviation
from ds4proto_conformance.wire import Ended

_CODE: Final = 22
"""SYNC_CHECKPOINT, known or not in the dialect."""
_ELSEWHERE: Final = "DS4T-CKPT-15"
_SWAPS: Final = "reads our checkpoint before it sends its own (DS4T-CKPT-16)"


def _is_checkpoint(found: ControlFrame | Ended | None) -> bool:
    return isinstance(found, ControlFrame) and found.code == _CODE


@case(
    "tp-worker/checkpoints/first",
    clauses=(FIRST, "DS4T-CKPT-16"),
    role="tp-worker",
    category="state",
    mutants=("tpw-second-behind-chunk", "tpw-checkpoint-two-read"),
    harm="process",
    needs_restart=True,
)
def worker_first(peer: RankBench) -> None:
    """A worker says each checkpoint before it reads ours, at every point alike."""
    peer.needs("checkpoints")
    known, prompt = peer.create(), peer.tokens(5)
    total = len(prompt)
    peer.command("SYNC", session_id=known, tokens=prompt)
    found = peer.control.next()
    swaps = isinstance(found, Ended) and found.how == "silence"
    if swaps:
        peer.checkpoint(START, 0, total)
        found = peer.control.next()
        peer.concept(_SWAPS)
    _same(found, START, 0)
    if not swaps:
        peer.checkpoint(START, 0, total)
    for chunk in peer.plan(known, prompt).chunks:
        peer.gates(peer.chunk(chunk))
        _in_turn(peer, CHUNK, chunk.position + chunk.rows, total, swaps=swaps)
    _in_turn(peer, END, OK, total, swaps=swaps)
    peer.ack(known, OK, FIRST)
    if peer.split:
        peer.logits(FIRST)
    peer.held[known] = list(prompt)


def _in_turn(
    peer: RankBench, point: int, current: int, total: int, *, swaps: bool
) -> None:
    """Meet at one point, in the order in which the first was."""
    if swaps:
        peer.nothing(FIRST, "the order of the first point: ours, then its own")
        peer.checkpoint(point, current, total)
    while True:
        found = peer.control.next()
        if isinstance(found, ControlFrame) and found.values.get("point") == 2:
            words = (found["point"], found["current"], found["total"])
            peer.checkpoint(*words)  # an engine with more progress than we know
            continue
        break
    _same(found, point, current)
    if not swaps:
        peer.checkpoint(point, current, total)


def _same(found: ControlFrame | Ended, point: int, current: int) -> None:
    due = f"a SYNC_CHECKPOINT of point {point} before ours"
    if isinstance(found, Ended) or found.name != "SYNC_CHECKPOINT":
        raise Deviation(FIRST, due, str(found))
    if (found["point"], found["current"]) != (point, current):
        raise Deviation(FIRST, f"{due}, current {current}", str(found))


@case(
    "tp-worker/checkpoints/nowhere-else",
    clauses=(_ELSEWHERE,),
    role="tp-worker",
    category="state",
    params={"command": ("eval", "verify", "batch", "sync")},
    mutants=("tpw-checkpoint-in-eval", "tpw-checkpoint-too-old"),
    harm="process",
    needs_restart=True,
)
def worker_elsewhere(peer: RankBench, p: dict[str, str]) -> None:
    """No other command than a sync has checkpoints, and before v12 none has."""
    known = peer.start()

    def batch() -> None:
        other = peer.start()
        items = [{"session_id": k, "token": 1, "reserved": 0} for k in (known, other)]
        peer.command("EVAL_BATCH", items=items)
        for item in (known, other):
            peer.gates(peer.token())
            peer.held[item].append(1)
        peer.ack(0, OK, _ELSEWHERE)
        for _ in items if peer.split else ():
            peer.logits(_ELSEWHERE)

    run: dict[str, Callable[[], object]] = {
        "sync": lambda: peer.sync(known, (*peer.held[known], *peer.tokens(5))),
        "eval": lambda: peer.eval(known, 1),
        "verify": lambda: peer.verify(known, peer.tokens(3), KEEP_ALL, 0),
        "batch": batch,
    }
    if p["command"] == "sync" and peer.own.rules.checkpoints:
        run["sync"]()
        return
    stray: ControlFrame | Ended | None = None
    try:
        run[p["command"]]()
    except Deviation:
        stray = peer.control.last
        if not _is_checkpoint(stray):
            raise
    else:
        stray = peer.control.quiet(peer.quiet)
    if _is_checkpoint(stray):
        what = f"no checkpoint in {p['command']} of {peer.dialect}"
        raise Deviation(_ELSEWHERE, what, str(stray))


@case(
    "tp-leader/checkpoints/first",
    clauses=(FIRST, "DS4T-CKPT-10"),
    role="tp-leader",
    category="state",
    mutants=("tpl-second-behind-chunk", "tpl-no-chunk-point"),
    harm="process",
    needs_restart=True,
)
def leader_first(peer: LeaderBench) -> None:
    """A leader says each checkpoint of a sync before it reads ours."""
    peer.needs("checkpoints")
    step = peer.until("SYNC")
    peer.exchange(peer.meetings(step))
    peer.finish_sync(step)
    following = next(iter(peer.commands()), None)
    if following is None or following.name == "STOP":
        raise Deviation(FIRST, "the leader to go on behind a sync", str(following))


@case(
    "tp-leader/checkpoints/nowhere-else",
    clauses=(_ELSEWHERE,),
    role="tp-leader",
    category="state",
    mutants=("tpl-checkpoint-in-eval", "tpl-checkpoint-too-old"),
    harm="process",
    needs_restart=True,
)
def leader_elsewhere(peer: LeaderBench) -> None:
    """Behind no other command than a sync does a leader send a checkpoint."""
    before = "hello"
    try:
        for step in peer.commands():
            if _is_checkpoint(peer.control.last):
                raise Deviation(_ELSEWHERE, f"no checkpoint behind {before}", step.name)
            before = step.name
            peer.serve(step)
    except Deviation:
        syncs = before in ("SYNC", "SYNC_MULTIMODAL") and peer.own.rules.checkpoints
        if syncs or not _is_checkpoint(peer.control.last):
            raise
        what = f"no checkpoint in {before} of {peer.dialect}"
        raise Deviation(_ELSEWHERE, what, str(peer.control.last)) from None
