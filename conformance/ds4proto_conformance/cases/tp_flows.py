"""Commands of a tp-worker from end to end: sync, eval, verify, batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from ds4proto.link.ds4t_events import KEEP_ALL, KEEP_PREFIX, REPLAY, START
from ds4proto_conformance.bench.tp_worker import RankBench, Trace
from ds4proto_conformance.registry import case
from ds4proto_conformance.verdicts import Deviation

Body = Callable[..., None]


def flow(
    name: str,
    *clauses: str,
    mutants: Sequence[str],
    params: Mapping[str, Sequence[Any]] | None = None,
    ends: bool = False,
    category: Literal["state", "limits", "determinism"] = "state",
    smoke: bool = False,
) -> Callable[[Body], Body]:
    """Declare a case; one that ends the worker needs a fresh one."""
    return case(
        f"tp-worker/flows/{name}",
        clauses=clauses,
        role="tp-worker",
        category=category,
        params=params,
        mutants=tuple(f"tpw-{mutant}" for mutant in mutants),
        harm="process" if ends else "none",
        needs_restart=ends,
        smoke=smoke,
    )


def unequal(clause: str, what: str, one: Any, two: Any) -> None:
    """Take it that two traces are equal."""
    if one != two:
        raise Deviation(clause, what, "they differ")


@flow("sync", "DS4T-SYNC-06", "DS4T-SYNC-07", "DS4T-LOGITS-01", "DS4T-FLOW-12",
      params={"tokens": (1, 3, 5)},
      mutants=["ack-before-gates", "logits-short", "logits-first"],
      smoke=True)  # fmt: skip
def sync(peer: RankBench, p: dict[str, Any]) -> None:
    """A sync is acknowledged behind its last gate, then come the logits."""
    known, prompt = peer.create(), peer.tokens(p["tokens"])
    plan = peer.plan(known, prompt)
    planned = [g for chunk in plan.chunks for g in peer.chunk(chunk)]
    peer.command("SYNC", session_id=known, tokens=prompt)
    trace = Trace()
    peer.meet(START, 0, len(prompt), trace)
    peer.gates(planned[:-1])
    peer.nothing("DS4T-SYNC-06", "no ack before the last gate")
    peer.gates(planned[-1:])
    peer.meet(1, len(prompt), len(prompt), trace)
    peer.meet(3, 0, len(prompt), trace)
    peer.ack(known, 0, "DS4T-SYNC-06")
    if peer.split:
        peer.logits("DS4T-SYNC-07")
    peer.held[known] = list(prompt)


@flow(
    "sync-again",
    "DS4T-SYNC-08",
    "DS4T-PLAN-02",
    mutants=["same-prompt-runs", "same-prompt-silent"],
)
def sync_again(peer: RankBench) -> None:
    """The prompt that is held costs no gate; ack and the same logits come again."""
    known, prompt = peer.create(), peer.tokens(5)
    first = peer.sync(known, prompt)
    again = peer.sync(known, prompt)
    unequal("DS4T-SYNC-08", "the logits of the same prompt", first.logits, again.logits)


@flow("sync-goes-on", "DS4T-PLAN-03", "DS4T-PLAN-04", params={"more": (1, 3, 4, 9)},
      mutants=["resume-in-bulk", "resume-from-zero"])  # fmt: skip
def sync_goes_on(peer: RankBench, p: dict[str, Any]) -> None:
    """Behind a prefix up to three tokens run one by one, from four on in one chunk."""
    known = peer.start()
    peer.sync(known, (*peer.held[known], *peer.tokens(p["more"])))
    peer.eval(known, 1)


@flow(
    "sync-elsewhere",
    "DS4T-PLAN-01",
    params={"kept": (0, 3)},
    mutants=["prefix-guessed"],
)
def sync_elsewhere(peer: RankBench, p: dict[str, Any]) -> None:
    """Another prompt, or a shorter one, is prefilled from the start."""
    known = peer.start(6)
    prompt = tuple(peer.held[known][: p["kept"]])
    if not prompt:
        prompt = tuple(t ^ 1 for t in peer.held[known])
    found = peer.sync(known, prompt)
    fresh = peer.create()
    unequal("DS4T-PLAN-01", "the partials of a fresh session", found.partials,
            peer.sync(fresh, prompt).partials)  # fmt: skip


@flow(
    "eval",
    "DS4T-EVAL-06",
    "DS4T-ACK-03",
    mutants=["eval-acked", "eval-silent"],
    smoke=True,
)
def evaluation(peer: RankBench) -> None:
    """A token is answered by its logits alone, behind the last gate."""
    known = peer.start()
    peer.eval(known, 3)
    peer.nothing("DS4T-EVAL-06", "nothing behind the logits")


@flow(
    "eval-number",
    "DS4T-EVAL-03",
    params={"seq": (0, (1 << 64) - 1)},
    mutants=["eval-number-judged"],
)
def eval_number(peer: RankBench, p: dict[str, Any]) -> None:
    """The number in EVAL is not judged."""
    known = peer.start()
    peer.eval(known, 1, seq=p["seq"])
    peer.eval(known, 2, seq=p["seq"])


@flow(
    "same-twice",
    "DS4T-SPLIT-06",
    "DS4T-LOGITS-02",
    mutants=["sessions-mixed"],
    category="determinism",
)
def same_twice(peer: RankBench) -> None:
    """Two sessions with the same tokens show the same partials and logits."""
    prompt, traces = peer.tokens(6), []
    for _ in range(2):
        known = peer.create()
        peer.sync(known, prompt)
        other = peer.start(3)
        peer.eval(other, 2)
        one = peer.eval(known, 1)
        traces.append((one.partials, one.logits, peer.eval(known, 2).logits))
    unequal("DS4T-SPLIT-06", "equal partials and logits", *traces)


@flow("invalidate", "DS4T-SESSION-10", mutants=["invalidate-ignored"])
def invalidate(peer: RankBench) -> None:
    """Behind INVALIDATE the same prompt is prefilled as in an empty session."""
    known, prompt = peer.create(), peer.tokens(5)
    first = peer.sync(known, prompt)
    peer.command("INVALIDATE", session_id=known)
    peer.held[known] = []
    again = peer.sync(known, prompt)
    unequal(
        "DS4T-SESSION-10",
        "the partials of an empty session",
        first.partials,
        again.partials,
    )


@flow(
    "rewind",
    "DS4T-SESSION-11",
    "DS4T-PLAN-05",
    params={"to": (2, 6)},
    mutants=["rewind-ignored", "rewind-one-short"],
)
def rewind(peer: RankBench, p: dict[str, Any]) -> None:
    """Behind REWIND a session goes on as if the later tokens had never been."""
    known, prompt = peer.create(), peer.tokens(7)
    peer.sync(known, prompt)
    peer.command("REWIND", session_id=known, position=p["to"])
    peer.held[known] = list(prompt[: p["to"]])
    tail = peer.tokens(4)
    peer.sync(known, (*prompt[: p["to"]], *tail))
    peer.holds(known, "DS4T-SESSION-11")


@flow("verify-keep-all", "DS4T-VERIFY-09", "DS4T-VERIFY-05", "DS4B-BATCH-06",
      params={"rows": (1, 5, 8)},
      mutants=["verify-acked", "keep-all-undone"])  # fmt: skip
def keep_all(peer: RankBench, p: dict[str, Any]) -> None:
    """Mode 1 keeps the whole block, without a frame."""
    known = peer.start()
    peer.verify(known, peer.tokens(p["rows"]), KEEP_ALL, 0)
    peer.nothing("DS4T-VERIFY-05", "no answer to a block that is kept")
    peer.holds(known, "DS4T-VERIFY-09")


@flow("verify-replay", "DS4T-VERIFY-08", "DS4T-VERIFY-13",
      params={"count": (0, 2, 5, 99, -3)},
      mutants=["replay-silent", "replay-keeps-block"])  # fmt: skip
def replay(peer: RankBench, p: dict[str, Any]) -> None:
    """Mode 0 undoes the block and replays its first drafts, as many as it has."""
    known = peer.start()
    peer.verify(known, peer.tokens(5), REPLAY, p["count"])
    peer.nothing("DS4T-VERIFY-13", "one LOGITS for a replay, none without")
    peer.holds(known, "DS4T-VERIFY-08")


@flow(
    "verify-prefix",
    "DS4T-VERIFY-10",
    params={"count": (1, 4)},
    mutants=["prefix-keeps-all"],
)
def prefix(peer: RankBench, p: dict[str, Any]) -> None:
    """Mode 2 keeps a prefix of the block, without replay."""
    peer.needs("prefix_commit")
    known = peer.start()
    peer.verify(known, peer.tokens(5), KEEP_PREFIX, p["count"])
    peer.nothing("DS4T-VERIFY-13", "no LOGITS for a prefix")
    peer.holds(known, "DS4T-VERIFY-10")


@flow(
    "verify-old-modes",
    "DS4T-VERIFY-12",
    params={"mode": (2, 9, -1)},
    mutants=["old-modes-judged"],
)
def old_modes(peer: RankBench, p: dict[str, Any]) -> None:
    """Before modes existed any number but 0 keeps the whole block."""
    peer.has_not("prefix_commit")
    known, drafts = peer.start(), peer.tokens(4)
    peer.block(known, drafts)
    peer.command("VERIFY_COMMIT", mode=p["mode"], token_count=2)
    peer.held[known] += drafts
    peer.holds(known, "DS4T-VERIFY-12")


@flow("verify-prefix-bounds", "DS4T-VERIFY-10", "DS4T-VERIFY-11", ends=True,
      params={"verdict": ((2, 0), (2, 5), (2, 3), (3, 1), (-1, 1))},
      mutants=["prefix-unbounded", "any-mode"], category="limits")  # fmt: skip
def prefix_bounds(peer: RankBench, p: dict[str, Any]) -> None:
    """A prefix has 1 to n - 1 tokens and at most 4; v14 has no fourth mode."""
    peer.needs("prefix_commit")
    mode, count = p["verdict"]
    if mode not in (0, 1, 2) and peer.dialect != "v14":
        peer.has_not("prefix_commit")
    known, drafts = peer.start(), peer.tokens(3 if count == 3 else 6)
    peer.block(known, drafts)
    peer.command("VERIFY_COMMIT", mode=mode, token_count=count)
    peer.refused("DS4T-VERIFY-10")


@flow("verify-size", "DS4T-VERIFY-02", ends=True, params={"rows": (0, 17, 40)},
      mutants=["any-block-size"], category="limits")  # fmt: skip
def verify_size(peer: RankBench, p: dict[str, Any]) -> None:
    """A block has 1 to 16 drafts; any other ends the worker without a frame."""
    peer.command("VERIFY", session_id=peer.start(), tokens=peer.tokens(p["rows"]))
    peer.refused("DS4T-VERIFY-02")
    peer.said("DS4T-VERIFY-02", p["rows"])


@flow("verify-draft-range", "DS4T-VERIFY-03", ends=True,
      params={"off": (0, 1 << 20, -1)},
      mutants=["any-draft"], category="limits")  # fmt: skip
def draft_range(peer: RankBench, p: dict[str, Any]) -> None:
    """A draft outside the vocabulary ends the worker without a frame."""
    bad = -1 if p["off"] < 0 else peer.identity.n_vocab + p["off"]
    peer.command("VERIFY", session_id=peer.start(), tokens=(1, bad, 2))
    peer.refused("DS4T-VERIFY-03")


@flow(
    "verify-room",
    "DS4T-VERIFY-04",
    ends=True,
    mutants=["block-beyond-context"],
    category="limits",
)
def verify_room(peer: RankBench) -> None:
    """A block that does not fit the context ends the worker without a frame."""
    known = peer.start(6, ctx=8)
    peer.command("VERIFY", session_id=known, tokens=(1, 2, 3))
    peer.refused("DS4T-VERIFY-04")


@flow("verdict-missing", "DS4T-VERIFY-07", "DS4T-ROBUST-16", ends=True,
      params={"frame": ("EVAL", "short", "STOP")},
      mutants=["verdict-guessed"])  # fmt: skip
def verdict_missing(peer: RankBench, p: dict[str, Any]) -> None:
    """Another frame in the place of the verdict ends the worker."""
    known = peer.start()
    peer.block(known, (1, 2, 3))
    if p["frame"] == "EVAL":
        peer.eval_only(known, 1)
    else:
        peer.raw(*((12, bytes(4)) if p["frame"] == "short" else (5, b"")))
    peer.refused("DS4T-VERIFY-07")
