"""Small ranks that meet at the wrong time, and other answers out of place."""

from __future__ import annotations

import struct
from typing import Any, Final

from ds4proto.link import ds4t_events as say
from ds4proto.link.ds4t_events import CHUNK
from ds4proto_conformance.mutants.tp_flows import _note
from ds4proto_conformance.mutants.tp_leader import _remember_commands
from ds4proto_conformance.mutants.tp_tools import (
    ACK,
    LOGITS,
    ack_bytes,
    control_in,
    control_out,
    drop,
    frame_bytes,
    put,
    word,
)
from ds4proto_conformance.peers.faults import Fault, patched
from ds4proto_conformance.peers.tp_leader import SmallTpLeader
from ds4proto_conformance.peers.tp_worker import SmallTpWorker

_SYNC, _CHECKPOINT, _RESTORE = 1, 22, 23
_HALF: Final = 64
_STRAY: Final = frame_bytes(_CHECKPOINT, struct.pack("<QIiiI", 1, 0, 0, 5, 0))


def _second(rank: Any) -> Any:
    """Wait behind each chunk for the peer's checkpoint, then say the own."""

    def patch() -> Any:
        own = rank.meet

        def meet(self: Any, point: int, current: int, total: int) -> Any:
            while point == CHUNK:
                if isinstance(self.next_event(), say.PeerCheckpoint):
                    break
            return own(self, point, current, total)

        return patched((rank, "meet", meet))

    return patch


def _no_chunk() -> Any:
    own = SmallTpLeader.meet

    def meet(self: Any, point: int, current: int, total: int) -> bool:
        return False if point == CHUNK else own(self, point, current, total)

    return patched((SmallTpLeader, "meet", meet))


def _two_read(spot: Any, _code: int, _body: bytes) -> Any:
    """Lose the frame behind each checkpoint, which is the next checkpoint."""
    spot.memory["met"] = spot.memory.get("met", 0) + 1
    return drop() if spot.memory["met"] % 2 == 0 else None


def _meets_in(kind: type) -> Any:
    def event(peer: Any, spot: Any, found: Any) -> bool:
        if isinstance(found, kind):
            peer.write(spot, _STRAY)
        return False

    return event


def _leader_meets() -> Any:
    own = SmallTpLeader.eval

    def eval_(self: Any, known: int, token: int) -> Any:
        row = own(self, known, token)
        self.write(self.control, _STRAY)
        return row

    return patched((SmallTpLeader, "eval", eval_))


def _stray_behind(_spot: Any, code: int, body: bytes) -> list[bytes]:
    return [frame_bytes(code, body), _STRAY]


def _of_cycle(change: Any) -> Any:
    def out(spot: Any, _code: int, body: bytes) -> Any:
        cycle = isinstance(spot.memory.get("runs"), say.RunMtp)
        return change(body) if cycle else None

    return control_out(out, ACK)


def _take_restore(spot: Any, _code: int, body: bytes) -> list[bytes]:
    spot.sock.sendall(ack_bytes(word(body, 0, 8)))
    return drop()


def _any_logits(spot: Any, code: int, body: bytes) -> Any:
    if spot.memory.get("code") != _SYNC or code not in (6, LOGITS):
        return None
    return [frame_bytes(LOGITS, body.ljust(_HALF, b"\0")[:_HALF])]


def _worker(name: str, about: str, **hooks: Any) -> Fault:
    return Fault(f"tpw-{name}", "tp-worker", "state", about, **hooks)


def _leader(name: str, about: str, **hooks: Any) -> Fault:
    return Fault(f"tpl-{name}", "tp-leader", "state", about, **hooks)


MUTANTS: Final = (
    _worker("second-behind-chunk", "speaks first at the start, second behind a chunk",
            patch=_second(SmallTpWorker)),
    _worker("checkpoint-two-read", "reads two frames at each checkpoint",
            received=control_in(_two_read, _CHECKPOINT)),
    _worker("checkpoint-in-eval", "sends a checkpoint before a token's logits",
            event=_meets_in(say.RunEval)),
    _worker("checkpoint-too-old", "sends a checkpoint to a peer that has none",
            position="v10", event=_meets_in(say.RunSync)),
    _worker("mtp-silent", "answers no GLM_MTP", event=_note,
            out=_of_cycle(lambda _body: drop())),
    _worker("mtp-other-session", "names another session in the ack of GLM_MTP",
            event=_note, out=_of_cycle(lambda body: put(body, 0, word(body, 0) + 1))),
    _worker("mtp-logits", "sends logits behind a GLM_MTP", event=_note,
            out=_of_cycle(lambda body: [frame_bytes(ACK, body),
                                        frame_bytes(LOGITS, bytes(_HALF))])),
    _worker("takes-restore", "acknowledges RESTORE_PAYLOAD",
            received=control_in(_take_restore, _RESTORE)),
    _leader("second-behind-chunk", "waits for our checkpoint behind each chunk",
            patch=_second(SmallTpLeader)),
    _leader("no-chunk-point", "meets at no chunk", patch=_no_chunk),
    _leader("checkpoint-in-eval", "sends a checkpoint behind each token",
            patch=_leader_meets),
    _leader("checkpoint-too-old", "sends a checkpoint to a peer that has none",
            position="v10", out=control_out(_stray_behind, _SYNC)),
    _leader("sync-logits-unchecked", "takes anything for the logits of a sync",
            out=control_out(_remember_commands),
            received=control_in(_any_logits)),
)  # fmt: skip
