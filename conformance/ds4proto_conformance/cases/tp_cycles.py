"""A tp-worker's GLM_MTP cycle, and a command that came only later."""

from __future__ import annotations

import select
from typing import Final

from ds4proto.schema.ds4t_common import DS4B_MAGIC, DS4T_MAGIC
from ds4proto.schema.ds4t_gates import BULK_TAG, MAX_ROWS
from ds4proto.schema.registry import frame_of_code
from ds4proto_conformance.bench.tp_wire import GATE, ControlFrame
from ds4proto_conformance.bench.tp_worker import RankBench
from ds4proto_conformance.registry import case
from ds4proto_conformance.verdicts import Deviation, NotApplicable
from ds4proto_conformance.wire import Ended

_GLANCE: Final = 0.02
_RESTORE: Final = 23
_ROWS: Final = 3
"""Rows of a bulk gate in a cycle, at most: the token and its drafts."""


@case(
    "tp-worker/flows/mtp-cycle",
    clauses=("DS4T-MTP-03", "DS4T-FLOW-17"),
    role="tp-worker",
    category="state",
    params={"limit": (1, 2)},
    mutants=("tpw-mtp-silent", "tpw-mtp-other-session", "tpw-mtp-logits"),
    harm="process",
    needs_restart=True,
)
def mtp_cycle(peer: RankBench, p: dict[str, int]) -> None:
    """A cycle is answered by one ack of its session and nothing else.

    Which gates it has depends on the model: each one that comes is answered. Status 1
    says that there is no such cycle, and then the worker ends.
    """
    peer.needs("mtp")
    known = peer.start()
    seq = peer.next_eval()
    peer.command("GLM_MTP", session_id=known, seq=seq, token=1, limit=p["limit"])
    found = _answer(peer)
    if isinstance(found, Ended) or found.name != "COMMAND_ACK":
        raise Deviation("DS4T-MTP-03", "a COMMAND_ACK", str(found))
    if found["session_id"] != known:
        raise Deviation("DS4T-MTP-03", f"an ack for session {known}", str(found))
    if found["status"] not in (0, 1):
        raise Deviation("DS4T-MTP-03", "status 0 or 1", str(found))
    if found["status"]:
        peer.note("status 1: no such cycle here")
        peer.refused("DS4T-MTP-03", "the worker to end behind status 1", gates=True)
        return
    peer.nothing("DS4T-MTP-03", "one ack, and nothing behind it")
    peer.command("INVALIDATE", session_id=known)  # how far it got is the engine's
    peer.held[known] = []


def _answer(peer: RankBench) -> ControlFrame | Ended:
    """Exchange the gates that come until a frame does; return that."""
    left = 2 * peer.patience
    while True:
        found = peer.control.quiet(_GLANCE)
        if found is not None:
            return found
        if _readable(peer):
            _mirror(peer)
            continue
        left -= _GLANCE
        if left <= 0:
            return Ended("silence")


def _mirror(peer: RankBench) -> None:
    """Take the worker's next gate and send ours for it."""
    head = peer.data.take(GATE.size)
    if isinstance(head, Ended):
        return
    row = peer.identity.n_embd * 4
    if head.magic == DS4T_MAGIC:
        kind, size = "row", row
    elif head.magic == DS4B_MAGIC and head.third == BULK_TAG:
        kind, size = "bulk", row
    elif head.magic == DS4B_MAGIC:
        kind, size = "batch", min(head.third, MAX_ROWS) * row
    else:
        raise Deviation("DS4T-MTP-03", "a gate, or the ack", str(head))
    due = peer.next_seq(kind)
    if head.seq != due:
        raise Deviation("DS4T-SEQ-02", f"{kind} gate {due}", f"gate {head.seq}")
    peer.data.take_payload(size)
    # A bulk gate does not say its rows: they come at once, and then it is our turn.
    while kind == "bulk" and size <= _ROWS * row and _readable(peer, peer.quiet):
        peer.data.take_payload(row)
        size += row
    own = GATE.pack(head.magic, head.layer, head.third, head.seq) + bytes(size)
    peer.data.push(own)


def _readable(peer: RankBench, seconds: float = 0.0) -> bool:
    return bool(select.select([peer.data.channel], [], [], seconds)[0])


@case(
    "tp-worker/control/restore-early",
    clauses=("DS4T-RESTORE-04", "DS4T-CTRL-02"),
    role="tp-worker",
    category="limits",
    mutants=("tpw-takes-restore",),
    harm="process",
    needs_restart=True,
)
def restore_early(peer: RankBench) -> None:
    """Before v15 RESTORE_PAYLOAD is an unknown command: the worker ends."""
    if frame_of_code("DS4T", _RESTORE, dialect=peer.dialect) is not None:
        raise NotApplicable(f"{peer.dialect} has RESTORE_PAYLOAD")
    known = peer.start()
    peer.raw(_RESTORE, known.to_bytes(8, "little") + bytes(8))
    peer.refused("DS4T-RESTORE-04")
