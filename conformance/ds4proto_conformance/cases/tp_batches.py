"""Batches of a tp-worker, and prompts and tokens that it has to refuse."""

from __future__ import annotations

from typing import Any

from ds4proto.link.plan import Chunk
from ds4proto_conformance.bench.tp_worker import RankBench, Trace
from ds4proto_conformance.cases.tp_flows import flow, unequal
from ds4proto_conformance.verdicts import Deviation
from ds4proto_conformance.wire import Ended


@flow("batch", "DS4T-BATCH-06", "DS4T-ACK-10", "DS4T-BATCH-08", "DS4T-FLOW-14",
      params={"count": (2, 3)}, mutants=["batch-ack-id", "batch-reversed"])  # fmt: skip
def batch(peer: RankBench, p: dict[str, Any]) -> None:
    """A batch runs item by item; its ack names session 0, its logits keep the order."""
    prompts = [peer.tokens(4) for _ in range(p["count"])]
    single: list[Trace] = []
    ids: list[int] = []
    for number, prompt in enumerate(prompts):
        for alone in (True, False):
            known = peer.create()
            peer.sync(known, prompt)
            if alone:
                single.append(peer.eval(known, number))
            else:
                ids.append(known)
    items = [{"session_id": k, "token": n, "reserved": 0} for n, k in enumerate(ids)]
    peer.command("EVAL_BATCH", items=items)
    for number, known in enumerate(ids):
        partials = peer.gates(peer.token())
        unequal("DS4T-BATCH-08", f"item {number} as a token of its own",
                partials, single[number].partials)  # fmt: skip
        peer.held[known].append(number)
    peer.ack(0, 0, "DS4T-BATCH-06")
    for one in single if peer.split else ():
        found = peer.logits("DS4T-BATCH-06")
        unequal("DS4T-BATCH-06", "logits in item order", found, one.logits[0])


@flow("batch-unknown", "DS4T-BATCH-05", ends=True, mutants=["batch-unknown-silent"])
def batch_unknown(peer: RankBench) -> None:
    """A batch with an unknown session: status 1 for session 0, no gate, the end."""
    known = peer.start()
    items = [{"session_id": k, "token": 1, "reserved": 0} for k in (known, known + 9)]
    peer.command("EVAL_BATCH", items=items)
    peer.ack(0, 1, "DS4T-BATCH-05")
    peer.refused("DS4T-BATCH-05")


@flow("mixed", "DS4T-MIXED-05", "DS4T-MIXED-04", "DS4T-PLAN-23", "DS4T-FLOW-15",
      mutants=["mixed-ack-zero", "mixed-items-first"])  # fmt: skip
def mixed(peer: RankBench) -> None:
    """A mixed batch prefills in one chunk, then decodes; logits in that order."""
    prefill, decode = peer.start(), peer.start()
    prompt = (*peer.held[prefill], *peer.tokens(6))
    items = [{"session_id": decode, "token": 3, "reserved": 0}]
    peer.command("MIXED_BATCH", prefill_session_id=prefill, tokens=prompt, items=items)
    peer.gates(peer.chunk(Chunk(len(peer.held[prefill]), 6)))
    peer.gates(peer.token())
    peer.ack(prefill, 0, "DS4T-MIXED-04")
    peer.held[prefill] = list(prompt)
    if not peer.split:
        return
    first = peer.logits("DS4T-MIXED-05")
    peer.logits("DS4T-MIXED-05")
    peer.held[decode].append(3)
    again = peer.sync(prefill, prompt)
    unequal("DS4T-MIXED-05", "the prefill's logits first", [first], again.logits)


@flow("mixed-unknown", "DS4T-MIXED-09", ends=True, mutants=["mixed-unknown-silent"])
def mixed_unknown(peer: RankBench) -> None:
    """A mixed batch with an unknown session: status 1, no gate, the end."""
    known = peer.start()
    items = [{"session_id": known + 9, "token": 1, "reserved": 0}]
    prompt = (*peer.held[known], 1, 2, 3, 4)
    peer.command("MIXED_BATCH", prefill_session_id=known, tokens=prompt, items=items)
    peer.ack(known, 1, "DS4T-MIXED-09")
    peer.refused("DS4T-MIXED-09")


@flow("prompt-length", "DS4T-SYNC-04", "DS4T-SYNC-05", "DS4T-SYNC-09", ends=True,
      params={"tokens": (0, 8, 9)}, mutants=["empty-prompt-ok", "failed-sync-goes-on"],
      category="limits")  # fmt: skip
def prompt_length(peer: RankBench, p: dict[str, Any]) -> None:
    """An empty prompt, or one that fills the context: status 1, then the end."""
    known, prompt = peer.create(8), peer.tokens(p["tokens"])
    refused_sync(peer, known, prompt, "DS4T-SYNC-04" if not prompt else "DS4T-SYNC-05")


def refused_sync(
    peer: RankBench, known: int, prompt: tuple[int, ...], clause: str
) -> None:
    """Send a prompt that no engine takes; a failure comes, or checkpoints first."""
    peer.command("SYNC", session_id=known, tokens=prompt)
    found = peer.control.next()
    while not isinstance(found, Ended) and found.name == "SYNC_CHECKPOINT":
        values = {k: found[k] for k in ("point", "current", "total")}
        peer.checkpoint(**values)
        found = peer.control.next()
    if (
        isinstance(found, Ended)
        or found.name != "COMMAND_ACK"
        or found["status"] in (0, 2)
    ):
        raise Deviation(clause, "an ack with status 1", str(found))
    peer.refused("DS4T-SYNC-09", "the worker to end behind a failed sync")


@flow("prompt-range", "DS4T-ROBUST-12", ends=True, params={"off": (0, 1 << 24, -1)},
      mutants=["any-token"], category="limits")  # fmt: skip
def prompt_range(peer: RankBench, p: dict[str, Any]) -> None:
    """A token outside the vocabulary never reaches the embedding: status 1, the end."""
    bad = -1 if p["off"] < 0 else peer.identity.n_vocab + p["off"]
    refused_sync(peer, peer.create(), (1, bad, 2), "DS4T-ROBUST-12")


@flow("eval-range", "DS4T-ROBUST-12", "DS4T-EVAL-07", "DS4T-FAIL-11", ends=True,
      params={"fault": ("range", "room")},
      mutants=["any-eval-token", "eval-failure-acked"],
      category="limits")  # fmt: skip
def eval_range(peer: RankBench, p: dict[str, Any]) -> None:
    """A token that cannot be run ends the worker without a frame."""
    known = peer.start(7, ctx=8)
    if p["fault"] == "room":
        peer.eval(known, 1)
    peer.eval_only(known, 1 if p["fault"] == "room" else peer.identity.n_vocab)
    peer.refused("DS4T-EVAL-07")
