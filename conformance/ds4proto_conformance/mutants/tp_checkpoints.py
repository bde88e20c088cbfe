"""Small tp-workers that keep the checkpoints of a sync wrongly."""

from __future__ import annotations

from typing import Any, Final

from ds4proto.link import ds4t_events as say
from ds4proto.link.ds4t_checkpoint import Meetings
from ds4proto.link.ds4t_events import CHUNK
from ds4proto_conformance.mutants.tp_flows import _note
from ds4proto_conformance.mutants.tp_tools import (
    ACK,
    control_in,
    control_out,
    drop,
    put,
    word,
)
from ds4proto_conformance.peers.faults import Fault, patched
from ds4proto_conformance.peers.tp_worker import SmallTpWorker

_CHECKPOINT: Final = 22


def _no_chunk() -> Any:
    own = SmallTpWorker.meet

    def meet(self: Any, point: int, current: int, total: int) -> bool:
        return False if point == CHUNK else own(self, point, current, total)

    return patched((SmallTpWorker, "meet", meet))


def _less_total(_spot: Any, _code: int, body: bytes) -> Any:
    total = word(body, 16)
    return put(body, 16, total - 5) if total > 5 else None


def _anew(spot: Any, _code: int, body: bytes) -> bytes:
    if word(body, 8) == 0:
        spot.memory["meetings"] = 0
    spot.memory["meetings"] = spot.memory.get("meetings", 0) + 1
    return put(body, 0, spot.memory["meetings"], 8)


def _no_cancel(*points: int) -> Any:
    def change(_spot: Any, _code: int, body: bytes) -> Any:
        here = len(body) == 24 and word(body, 8) in points and word(body, 20) == 1
        return put(body, 20, 0) if here else None

    return control_in(change, _CHECKPOINT)


def _status_ok(_spot: Any, _code: int, body: bytes) -> Any:
    return put(body, 8, 0) if word(body, 8) == 2 else None


def _unjudged() -> Any:
    own = Meetings.judge

    def judge(self: Any, now: float) -> Any:
        mine = self._mine
        if mine is not None and self._theirs is not None:
            self._theirs = {
                **self._theirs, "seq": self._seq, "point": mine.point,
                "current": mine.current, "total": mine.total,
            }  # fmt: skip
        return own(self, now)

    return patched((Meetings, "judge", judge))


def _any_flag(_spot: Any, _code: int, body: bytes) -> Any:
    return put(body, 20, min(word(body, 20), 1)) if len(body) == 24 else None


def _skip_others(spot: Any, code: int, body: bytes) -> Any:
    meets = isinstance(spot.memory.get("runs"), say.RunSync)
    return drop() if meets and (code, len(body)) != (_CHECKPOINT, 24) else None


def _fault(name: str, about: str, **hooks: Any) -> Fault:
    return Fault(f"tpw-{name}", "tp-worker", "state", about, **hooks)


MUTANTS: Final = (
    _fault("no-chunk-point", "meets at no chunk", patch=_no_chunk),
    _fault("total-of-new-part", "counts only the new tokens as total",
           out=control_out(_less_total, _CHECKPOINT)),
    _fault("checkpoint-seq-anew", "numbers the checkpoints of each sync anew",
           out=control_out(_anew, _CHECKPOINT)),
    _fault("cancel-ignored", "passes over a cancel at the start",
           received=_no_cancel(0)),
    _fault("late-cancel-missed", "passes over a cancel behind a chunk",
           received=_no_cancel(1)),
    _fault("cancel-acked-ok", "says status 0 behind a cancel",
           out=control_out(_status_ok, ACK)),
    _fault("checkpoint-unjudged", "takes any checkpoint for its own", patch=_unjudged),
    _fault("cancelled-any", "takes any flag for a cancel",
           received=control_in(_any_flag, _CHECKPOINT)),
    _fault("other-frames-skipped", "passes over other frames during a sync",
           event=_note, received=control_in(_skip_others)),
)  # fmt: skip
