"""Small tp-leaders that command, or judge answers and gates, wrongly."""

from __future__ import annotations

import select
from typing import Any, Final

import numpy as np

from ds4proto.link.ds4t_events import Transmit
from ds4proto.link.ds4t_gates import GateFailed
from ds4proto.link.ds4t_texts import PairFailed
from ds4proto_conformance.mutants import tp_gates as gates
from ds4proto_conformance.mutants.tp_checkpoints import _no_cancel, _unjudged
from ds4proto_conformance.mutants.tp_tools import (
    ACK,
    LOGITS,
    ack_bytes,
    control_in,
    control_out,
    drop,
    frame_bytes,
    gate_in,
    put,
    word,
)
from ds4proto_conformance.peers.faults import Fault, patched
from ds4proto_conformance.peers.tp_leader import SmallTpLeader
from ds4proto_conformance.peers.tp_rank import Over, SmallRank

_CREATE, _SYNC, _EVAL, _STOP, _COMMIT, _CHECKPOINT = 13, 1, 2, 5, 12, 22
_HALF: Final = 64


def _remember(spot: Any, code: int, body: bytes) -> None:
    spot.memory["code"], spot.memory["id"] = code, word(body, 0, 8)


def _delta(spot: Any, _code: int, body: bytes) -> Any:
    known, tokens = body[:8], body[16:]
    held: dict[bytes, bytes] = spot.memory.setdefault("prompts", {})
    before = held.get(known, b"")
    held[known] = tokens
    if before and tokens.startswith(before) and len(tokens) > len(before):
        rest = tokens[len(before) :]
        return known + (len(rest) // 4).to_bytes(4, "little") + bytes(4) + rest
    return None


def _hurry(_spot: Any, code: int, body: bytes) -> Any:
    return [frame_bytes(code, body), frame_bytes(4, body[:8])]


def _any_ack(spot: Any, code: int, body: bytes) -> Any:
    if code in (8, LOGITS) or len(body) != 16:
        waits = spot.memory.get("code") == _CREATE
        return [ack_bytes(spot.memory["id"])] if waits else None
    return None


def _any_session(spot: Any, _code: int, body: bytes) -> bytes:
    return put(body, 0, spot.memory["id"], 8)


def _status(code: int) -> Any:
    """Take any status of one kind of command for 0."""

    def change(spot: Any, _code: int, body: bytes) -> Any:
        if spot.memory.get("code") != code or not word(body, 8):
            return None
        good = frame_bytes(ACK, put(body, 8, 0))
        return [good, frame_bytes(LOGITS, bytes(_HALF))] if code == _SYNC else [good]

    return change


def _remember_commands(spot: Any, code: int, body: bytes) -> None:
    if code != _CHECKPOINT:
        _remember(spot, code, body)


def _clear_reserved(_spot: Any, _code: int, body: bytes) -> bytes:
    return put(body, 12, 0)


def _judge_reserved(_spot: Any, _code: int, body: bytes) -> Any:
    return [frame_bytes(8)] if word(body, 12) else None


def _stays(peer: Any, _spot: Any, event: Any) -> bool:
    if isinstance(event, PairFailed) and event.peer_lost:
        while not peer._stop.wait(0.05):
            pass
        raise Over("stopped")
    return False


def _any_logits(spot: Any, code: int, body: bytes) -> Any:
    if spot.memory.get("code") != _EVAL or code not in (6, LOGITS):
        return None
    return [frame_bytes(LOGITS, body.ljust(_HALF, b"\0")[:_HALF])]


def _no_early() -> Any:
    own = SmallRank._part

    def part(self: Any, name: str, size: int) -> bytes:
        ready, _, _ = select.select([self.control.sock], [], [], 0)
        if ready and not self.data.memory.get("asked"):
            raise Over("tp: a frame came before its gates")
        return own(self, name, size)

    return patched((SmallRank, "_part", part))


def _beyond(_spot: Any, _code: int, body: bytes) -> bytes:
    return put(put(body, 0, 0), 4, 99)


def _swapped() -> Any:
    own = SmallTpLeader.whole

    def whole(self: Any, hidden: Any, half: Any) -> Any:
        found = own(self, hidden, half)
        middle = len(found) // 2
        return np.concatenate((found[middle:], found[:middle]))

    return patched((SmallTpLeader, "whole", whole))


def _destroys() -> Any:
    own = SmallTpLeader.tour

    def tour(self: Any) -> None:
        try:
            own(self)
        except GateFailed:
            self.frames([frame_bytes(14, (1).to_bytes(8, "little"))])
            raise

    return patched((SmallTpLeader, "tour", tour))


def _no_invalidate(_peer: Any, _spot: Any, event: Any) -> bool:
    return isinstance(event, Transmit)


def _ack_meets(_spot: Any, code: int, body: bytes) -> Any:
    """Take an ack in the place of the first checkpoint for that."""
    if _spot.memory.get("code") != _SYNC or _spot.memory.get("met"):
        return None
    _spot.memory["met"] = True
    if code != ACK:
        return None
    start = (1).to_bytes(8, "little") + bytes(8) + (5).to_bytes(4, "little") + bytes(4)
    del body
    return [frame_bytes(_CHECKPOINT, start)]


def _fault(name: str, about: str, category: str = "state", **hooks: Any) -> Fault:
    return Fault(f"tpl-{name}", "tp-leader", category, about, **hooks)


_JUDGED: Final = (
    ("row-magic-unchecked", "row", 0, 4), ("row-layer-unchecked", "row", 4, 6),
    ("row-kind-unchecked", "row", 6, 8), ("row-seq-unchecked", "row", 8, 16),
    ("row-seq-low-half", "row", 12, 16), ("batch-rows-unchecked", "batch", 6, 8),
    ("batch-seq-unchecked", "batch", 8, 16), ("bulk-tag-unchecked", "bulk", 6, 8),
    ("bulk-seq-unchecked", "bulk", 8, 16),
)  # fmt: skip
_NOTED: Final = control_out(_remember_commands)

MUTANTS: Final = (
    *(
        _fault(name, f"judges bytes {first} to {last - 1} of {kind} headers not",
               "gates", received=gate_in(kind, first, last))
        for name, kind, first, last in _JUDGED
    ),
    _fault("session-reused", "gives every session the same id",
           out=control_out(lambda _s, _c, body: put(body, 0, 1, 8), _CREATE)),
    _fault("eval-number-stuck", "numbers every EVAL 1",
           out=control_out(lambda _s, _c, body: put(body, 8, 1, 8), _EVAL)),
    _fault("sync-delta", "sends only the new tokens", out=control_out(_delta, _SYNC)),
    _fault("leaves-without-stop", "closes without STOP",
           out=control_out(lambda *_: drop(), _STOP)),
    _fault("does-not-wait", "commands before the ack came",
           out=control_out(_hurry, _CREATE)),
    _fault("ack-type-unchecked", "takes any frame for an ack", "faults",
           out=_NOTED, received=control_in(_any_ack)),
    _fault("ack-session-unchecked", "takes an ack for any session", "faults",
           out=_NOTED, received=control_in(_any_session, ACK)),
    _fault("ack-status-unchecked", "takes a failed create for done", "faults",
           out=_NOTED, received=control_in(_status(_CREATE), ACK)),
    _fault("sync-status-unchecked", "takes a failed sync for done", "faults",
           out=_NOTED, received=control_in(_status(_SYNC), ACK)),
    _fault("ack-reserved-taken", "does not judge the last word of an ack", "faults",
           received=control_in(_clear_reserved, ACK)),
    _fault("ack-reserved-refused", "judges the last word of an ack before v14",
           "faults", position="v10", received=control_in(_judge_reserved, ACK)),
    _fault("worker-end-ignored", "stays when its worker has gone", "faults",
           event=_stays),
    _fault("logits-unchecked", "takes logits of any length", "faults",
           out=_NOTED, received=control_in(_any_logits)),
    _fault("early-logits-refused", "wants gates before logits", patch=_no_early),
    _fault("count-beyond-block", "replays more than the block",
           out=control_out(_beyond, _COMMIT)),
    _fault("halves-swapped", "takes the worker's logits for the lower half",
           patch=_swapped),
    _fault("cancel-missed", "passes over a cancel of the worker",
           received=_no_cancel(0, 1)),
    _fault("no-invalidate", "keeps a session that was interrupted",
           event=_no_invalidate),
    _fault("checkpoint-unjudged", "takes any checkpoint for its own", "faults",
           patch=_unjudged),
    _fault("ack-for-checkpoint", "takes an ack for a checkpoint", "faults",
           out=_NOTED, received=control_in(_ack_meets)),
    _fault("ffn-first", "sends FFN before ATTN", "gates",
           out=gates.gate_out(gates._other_kind)),
    _fault("row-seq-stuck", "numbers each row gate 1", "gates",
           out=gates.gate_out(gates._stuck)),
    _fault("batch-own-counter", "numbers block gates apart", "gates",
           out=gates.gate_out(gates._own_counter)),
    _fault("destroys-after-failure", "destroys sessions of a failed pair", "gates",
           patch=_destroys),
    _fault("gate-in-one-read", "wants a gate in one piece", "gates",
           patch=gates._one_read),
    _fault("data-end-filled", "fills up a gate that was cut", "gates",
           patch=gates._fill_end),
    _fault("gate-waits-for-ever", "has no gate timeout", "gates",
           patch=gates._for_ever),
)  # fmt: skip
