"""What a tp-leader commands, and what it makes of answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from ds4proto_conformance.bench.tp_leader import LeaderBench, Step
from ds4proto_conformance.cases.tp_checkpoints import OF_WORD
from ds4proto_conformance.registry import case
from ds4proto_conformance.verdicts import Deviation, NotApplicable

Body = Callable[..., None]


def leading(
    name: str,
    *clauses: str,
    mutants: Sequence[str],
    params: Mapping[str, Sequence[Any]] | None = None,
    category: Literal["state", "faults", "gates", "limits"] = "state",
    smoke: bool = False,
) -> Callable[[Body], Body]:
    """Declare a case; each one needs a run of the leader for itself."""
    return case(
        f"tp-leader/{name}",
        clauses=clauses,
        role="tp-leader",
        category=category,
        params=params,
        mutants=tuple(f"tpl-{mutant}" for mutant in mutants),
        harm="process",
        needs_restart=True,
        smoke=smoke,
    )


@leading("control/run", "DS4T-SESSION-07", "DS4T-EVAL-02", "DS4T-CTRL-25",
         "DS4T-FLOW-12",
         mutants=["session-reused", "eval-number-stuck"], smoke=True)  # fmt: skip
def run(peer: LeaderBench) -> None:
    """A whole run holds to ids, numbers, lengths and the gates of each command."""
    for step in peer.commands():
        peer.serve(step)


@leading("control/whole-prefix", "DS4T-SYNC-03", "DS4T-PLAN-05", mutants=["sync-delta"])
def whole_prefix(peer: LeaderBench) -> None:
    """SYNC carries the whole prompt: its gates are those of the whole prompt."""
    for step in peer.commands():
        try:
            peer.serve(step)
        except Deviation as error:
            if step.name != "SYNC":
                raise
            due = "the gates of the prompt in SYNC, the whole of it"
            raise Deviation("DS4T-SYNC-03", due, error.found) from None


@leading("control/stop", "DS4T-STOP-03", mutants=["leaves-without-stop"])
def stop(peer: LeaderBench) -> None:
    """A leader says STOP before it closes."""
    last = ""
    for step in peer.commands():
        peer.serve(step)
        last = step.name
    if last != "STOP":
        raise Deviation("DS4T-STOP-03", "STOP, then the end", f"an end behind {last!r}")


@leading("control/waits", "DS4T-FLOW-01", mutants=["does-not-wait"])
def waits(peer: LeaderBench) -> None:
    """Nothing is commanded before every answer to the last command has come."""
    step = peer.until("SESSION_CREATE")
    found = peer.control.quiet(peer.quiet)
    if found is not None:
        raise Deviation("DS4T-FLOW-01", "nothing before the ack", str(found))
    peer.serve(step)


@leading("control/ack-type", "DS4T-ACK-04", "DS4T-ACK-01", "DS4T-CTRL-26",
         params={"as": ("sync-ack", "short", "long", "logits")},
         mutants=["ack-type-unchecked"], category="faults")  # fmt: skip
def ack_type(peer: LeaderBench, p: dict[str, Any]) -> None:
    """Another frame in the place of an ack fails the operation."""
    step = peer.until("SESSION_CREATE")
    known = step.known.to_bytes(8, "little")
    body = {"sync-ack": (8, b""), "short": (17, known + bytes(4)),
            "long": (17, known + bytes(12)),
            "logits": (10, bytes(16))}[p["as"]]  # fmt: skip
    peer.raw(*body)
    peer.no_more_work("DS4T-ACK-04")


@leading("control/ack-session", "DS4T-ACK-05", "DS4T-ROBUST-21",
         params={"off": (1, 1 << 32)},
         mutants=["ack-session-unchecked"], category="faults")  # fmt: skip
def ack_session(peer: LeaderBench, p: dict[str, Any]) -> None:
    """An ack for another session is refused."""
    step = peer.until("SESSION_CREATE")
    peer.ack(step.known + p["off"])
    peer.no_more_work("DS4T-ACK-05")
    peer.said("DS4T-ACK-05", "session create", step.known + p["off"], 0)


@leading("control/ack-status", "DS4T-ACK-06", "DS4T-SESSION-14",
         params={"status": (1, 7, -(1 << 31))}, mutants=["ack-status-unchecked"],
         category="faults")  # fmt: skip
def ack_status(peer: LeaderBench, p: dict[str, Any]) -> None:
    """A status other than 0 fails the operation."""
    step = peer.until("SESSION_CREATE")
    peer.ack(step.known, p["status"])
    peer.no_more_work("DS4T-ACK-06")
    peer.said("DS4T-ACK-05", "session create", step.known, p["status"])


@leading("control/sync-status", "DS4T-SYNC-14", "DS4T-SYNC-10",
         params={"status": (1, 2)},
         mutants=["sync-status-unchecked"], category="faults")  # fmt: skip
def sync_status(peer: LeaderBench, p: dict[str, Any]) -> None:
    """A failed sync is a failure, and so is status 2 that nobody agreed on."""
    step = peer.until("SYNC")
    peer.exchange(peer.meetings(step))
    peer.ack(step.known, p["status"])
    peer.no_more_work("DS4T-SYNC-14")


@leading(
    "control/ack-reserved",
    "DS4T-ACK-08",
    mutants=["ack-reserved-taken"],
    category="faults",
)
def ack_reserved(peer: LeaderBench) -> None:
    """From v14 on the last word of an ack has to be 0."""
    peer.needs("ack_reserved")
    step = peer.until("SESSION_CREATE")
    peer.raw(17, step.known.to_bytes(8, "little") + bytes(4) + b"\1\0\0\0")
    peer.no_more_work("DS4T-ACK-08")


@leading("control/ack-reserved-old", "DS4T-ACK-09", mutants=["ack-reserved-refused"])
def ack_reserved_old(peer: LeaderBench) -> None:
    """Before v14 the last word of an ack is not judged."""
    peer.has_not("ack_reserved")
    step = peer.until("SESSION_CREATE")
    peer.raw(17, step.known.to_bytes(8, "little") + bytes(4) + b"\1\0\0\0")
    peer.noted(step)
    following = next(iter(peer.commands()), None)
    if following is None or following.name == "STOP":
        raise Deviation("DS4T-ACK-09", "the leader to go on", str(following))


@leading("control/worker-gone", "DS4T-FAIL-14", "DS4T-FAIL-04", "DS4T-FAIL-15",
         params={"at": ("SESSION_CREATE", "SYNC", "EVAL")},
         mutants=["worker-end-ignored"],
         category="faults")  # fmt: skip
def worker_gone(peer: LeaderBench, p: dict[str, Any]) -> None:
    """The end of the worker ends the leader, whatever it waits for."""
    step = peer.until(p["at"])
    if step.gates and p["at"] == "EVAL":
        peer.exchange(step.gates)
    peer.data.half_close()
    peer.control.half_close()
    peer.no_more_work("DS4T-FAIL-14", also="SYNC_CHECKPOINT")


@leading("control/logits-wrong", "DS4T-LOGITS-03", "DS4T-EVAL-09",
         params={"as": ("short", "long", "hash")}, mutants=["logits-unchecked"],
         category="faults")  # fmt: skip
def logits_wrong(peer: LeaderBench, p: dict[str, Any]) -> None:
    """Another frame where logits are due fails the token."""
    if not peer.split or peer.own.top2:
        raise NotApplicable("no LOGITS frames in this pair")
    step = peer.until("EVAL")
    peer.exchange(step.gates)
    half = peer.half()
    peer.raw(*{"short": (10, half[:-4]), "long": (10, half + bytes(4)),
               "hash": (6, bytes(16))}[p["as"]])  # fmt: skip
    peer.no_more_work("DS4T-LOGITS-03")


@leading(
    "control/logits-early",
    "DS4T-LOGITS-07",
    "DS4T-FLOW-04",
    mutants=["early-logits-refused"],
)
def logits_early(peer: LeaderBench) -> None:
    """Logits may come before the gates of their token."""
    step = peer.until("EVAL")
    peer.logits()
    peer.exchange(step.gates)
    peer.noted(step)
    following = next(iter(peer.commands()), None)
    if following is None or following.name == "STOP":
        raise Deviation("DS4T-LOGITS-07", "the leader to go on", str(following))


@leading("control/logits-used", "DS4T-LOGITS-02", "DS4T-FLOW-20", "DS4T-SPLIT-05",
         mutants=["halves-swapped"])  # fmt: skip
def logits_used(peer: LeaderBench) -> None:
    """Our logits are the upper half: the best of them names the next token."""
    import numpy as np

    if not peer.split or peer.own.top2:
        raise NotApplicable("no LOGITS frames in this pair")
    middle = peer.identity.n_vocab // 2
    best, seen = 3, ""
    hot = np.full(middle, -1.0, np.float32)
    hot[best] = 1e6
    peer.fixed_half = hot.tobytes()
    before: Step | None = None
    for step in peer.commands():
        follows = before is not None and before.name in ("SYNC", "EVAL")
        if step.name == "EVAL" and follows and before and before.known == step.known:
            if step.values["token"] == middle + best:
                seen = "used"
            elif step.values["token"] == best:
                raise Deviation(
                    "DS4T-LOGITS-02", f"token {middle + best}", f"token {best}"
                )
        peer.serve(step)
        before = step
    if not seen:
        raise NotApplicable("the leader's tokens do not follow its logits")


@leading(
    "control/verdict",
    "DS4T-VERIFY-06",
    "DS4T-VERIFY-08",
    mutants=["count-beyond-block"],
)
def verdict(peer: LeaderBench) -> None:
    """A block is followed by its verdict, with a count inside the block."""
    peer.serve(peer.until("VERIFY"))
    peer.serve(peer.until("VERIFY"))


@leading("checkpoints/cancel", "DS4T-CKPT-07", "DS4T-CKPT-13", "DS4T-SYNC-10",
         params={"at": (0, 1)}, mutants=["cancel-missed", "no-invalidate"])  # fmt: skip
def cancel(peer: LeaderBench, p: dict[str, Any]) -> None:
    """A cancel of the worker stops the sync; INVALIDATE follows its ack."""
    peer.needs("checkpoints")
    step = peer.until("SYNC")
    peer.exchange(peer.meetings(step, p["at"]))
    peer.ack(step.known, 2)
    found = peer.control.frame("INVALIDATE", "DS4T-SYNC-10")
    if found["session_id"] != step.known:
        raise Deviation("DS4T-SYNC-10", f"INVALIDATE of {step.known}", str(found))


@leading("checkpoints/wrong-words", "DS4T-CKPT-04", "DS4T-CKPT-02", "DS4T-CKPT-05",
         "DS4T-ROBUST-17",
         params={"word": ("seq", "point", "current", "total", "cancelled")},
         mutants=["checkpoint-unjudged"], category="faults")  # fmt: skip
def wrong_words(peer: LeaderBench, p: dict[str, Any]) -> None:
    """A checkpoint that differs in any word fails the pair."""
    peer.needs("checkpoints")
    step = peer.until("SYNC")
    found = peer.control.frame("SYNC_CHECKPOINT", "DS4T-CKPT-09")
    values = {k: found[k] for k in ("seq", "point", "current", "total", "cancelled")}
    values[p["word"]] += 2
    peer.answer("SYNC_CHECKPOINT", **values)
    for gate in step.gates:
        peer.push_gate(gate)
    peer.no_more_work(OF_WORD[p["word"]], failed=True)


@leading(
    "checkpoints/another-frame",
    "DS4T-CKPT-08",
    mutants=["ack-for-checkpoint"],
    category="faults",
)
def another_frame(peer: LeaderBench) -> None:
    """An ack in the place of a checkpoint fails the pair."""
    peer.needs("checkpoints")
    step = peer.until("SYNC")
    peer.control.frame("SYNC_CHECKPOINT", "DS4T-CKPT-09")
    peer.ack(step.known)
    for gate in step.gates:
        peer.push_gate(gate)
    peer.no_more_work("DS4T-CKPT-08", failed=True)
