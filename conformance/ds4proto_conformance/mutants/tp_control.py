"""Small tp-workers that take or answer control frames wrongly."""

from __future__ import annotations

from typing import Any, Final

from ds4proto.link import ds4t_events as say
from ds4proto.link.ds4t_limits import ControlLimits
from ds4proto.link.ds4t_texts import PairFailed
from ds4proto.link.ds4t_worker_rules import Refusal
from ds4proto.link.limits import Limits
from ds4proto_conformance.mutants.tp_tools import (
    ACK,
    ack_bytes,
    control_in,
    control_out,
    drop,
    frame_bytes,
    hang_up,
    judged,
    put,
    refused,
    refused_frame,
    word,
)
from ds4proto_conformance.peers.faults import Fault, patched
from ds4proto_conformance.peers.tp_rank import Over, SmallRank

_SIZES: Final = {2: 24, 3: 16, 4: 8, 13: 16, 14: 8}
_HUGE: Final = 1 << 40
_PATIENT: Final = ControlLimits(caps=Limits(unknown=_HUGE), stall=60.0, answer=60.0)


def _skip(*codes: int) -> Any:
    return control_in(lambda *_: drop(), *codes)


def _skip_unknown(_spot: Any, code: int, _body: bytes) -> Any:
    return drop() if code == 0 or code > 23 else None


def _cut_long(_spot: Any, code: int, body: bytes) -> bytes:
    return body[: _SIZES[code]]


def _fill_short(_spot: Any, code: int, body: bytes) -> Any:
    return body.ljust(_SIZES[code], b"\0")


def _count_again(_spot: Any, _code: int, body: bytes) -> Any:
    return put(body, 8, (len(body) - 16) // 4) if len(body) >= 16 else None


def _ack_empty(spot: Any, code: int, body: bytes) -> Any:
    empty = not word(body, 0) if code == 15 else not (word(body, 8) and word(body, 12))
    if not empty:
        return None
    spot.sock.sendall(ack_bytes(0 if code == 15 else word(body, 0, 8)))
    return drop()


def _any_magic(spot: Any, data: bytes) -> bytes:
    if spot.kind == "control" and len(data) >= 12 and data[:4] != b"T4SD":
        return b"T4SD" + data[4:]
    return data


def _one_read(spot: Any, data: bytes) -> bytes:
    return hang_up(spot) if spot.kind == "control" and len(data) < 12 else data


def _first_only(spot: Any, data: bytes) -> bytes:
    if spot.kind != "control" or len(data) < 12:
        return data
    return data[: 12 + word(data, 8)]


def _wrong_end(_peer: Any, _spot: Any, event: Any) -> bool:
    if isinstance(event, PairFailed) and event.problem.clause == "DS4T-CTRL-04":
        raise Over("tp worker: tp: control channel closed")
    return False


def _stays(peer: Any, _spot: Any, event: Any) -> bool:
    if isinstance(event, PairFailed) and event.problem.clause == "DS4T-CTRL-06":
        while not peer._stop.wait(0.05):
            pass
        raise Over("stopped")
    return False


def _cut_id(_spot: Any, _code: int, body: bytes) -> bytes:
    return put(body, 4, 0)


def _takes(clause: str) -> Any:
    """Create a session that should be refused for this clause."""

    def change(_judge: Any, _name: str, values: dict[str, Any], outcome: Any) -> Any:
        if not refused(outcome, clause):
            return outcome
        return say.CreateSession(values["session_id"], max(1, values["ctx_size"]))

    return judged(change)


def _destroy_all(_judge: Any, _name: str, values: dict[str, Any], outcome: Any) -> Any:
    if refused(outcome, "DS4T-SESSION-08"):
        return say.DestroySession(values["session_id"])
    return outcome


def _rewind_nothing(_judge: Any, name: str, _values: Any, outcome: Any) -> Any:
    if refused(outcome, "DS4T-CTRL-05") and name in ("REWIND", "INVALIDATE"):
        return Refusal(outcome.clause, outcome.text, ends=False)
    return outcome


def _keep_destroyed(peer: Any, _spot: Any, event: Any) -> bool:
    if not isinstance(event, say.DestroySession):
        return False
    peer.say(say.SessionDestroyed(event.session_id))
    peer.machine.sessions.create(event.session_id, 256)
    return True


def _acks(*kinds: type) -> Any:
    """Acknowledge commands that have no ack."""

    def event(peer: Any, spot: Any, event: Any) -> bool:
        if isinstance(event, kinds):
            peer.write(spot, ack_bytes(getattr(event, "session_id", 0)))
        return False

    return event


def _clear_reserved(_spot: Any, _code: int, body: bytes) -> Any:
    return put(body, 20, 0) if len(body) == 24 else None


def _wants_zero(at: int) -> Any:
    def change(_spot: Any, _code: int, body: bytes) -> Any:
        return refused_frame() if len(body) >= at + 4 and word(body, at) else None

    return change


def _any_limit(_spot: Any, _code: int, body: bytes) -> Any:
    return put(body, 20, 1)


def _images(width_alone: bool) -> Any:
    """Take a frame with wrong images for one without any."""

    def change(_spot: Any, _code: int, body: bytes) -> Any:
        n = word(body, 8)
        if width_alone and word(body, 16 + 4 * n + 8) == 16:
            return None
        return [frame_bytes(1, put(body[: 16 + 4 * n], 12, 0))]

    return control_in(change, 18)


def _gives_up() -> Any:
    own = SmallRank._pump
    quiet: dict[int, tuple[int, int]] = {}

    def pump(self: Any) -> None:
        own(self)
        got = self.machine.bytes_received
        before, turns = quiet.get(id(self), (-1, 0))
        turns = turns + 1 if got == before else 0
        quiet[id(self)] = got, turns
        if turns >= 2 and not self.engine.sessions == {}:
            raise Over("tp worker: no command came")

    return patched((SmallRank, "_pump", pump))


def _fault(name: str, about: str, category: str = "framing", **hooks: Any) -> Fault:
    return Fault(f"tpw-{name}", "tp-worker", category, about, **hooks)


MUTANTS: Final = (
    _fault("unknown-skipped", "passes over types that it does not know",
           received=control_in(_skip_unknown)),
    _fault("answers-skipped", "passes over frames that are no commands",
           received=_skip(6, 7, 8, 9, 10, 17, 19, 20)),
    _fault("newer-types-skipped", "passes over frames of later dialects",
           position="v7", received=_skip(18, 21)),
    _fault("long-taken", "cuts what is too long",
           received=control_in(_cut_long, *_SIZES)),
    _fault("short-filled", "fills up what is too short",
           received=control_in(_fill_short, *_SIZES)),
    _fault("stop-any-size", "stops whatever the payload",
           received=control_in(lambda *_: b"", 5)),
    _fault("count-from-length", "takes the token count from the length",
           received=control_in(_count_again, 1, 11)),
    _fault("empty-batch-acked", "acknowledges batches of nothing", "limits",
           received=control_in(_ack_empty, 15, 16)),
    _fault("control-magic-unchecked", "takes any magic", received=_any_magic),
    _fault("frame-in-one-read", "wants a header in one piece", received=_one_read),
    _fault("first-frame-only", "keeps the first frame of a segment",
           received=_first_only),
    _fault("cut-payload-text", "calls a cut payload a closed channel", "faults",
           event=_wrong_end),
    _fault("eof-ignored", "stays when its leader has gone", "faults", event=_stays),
    _fault("no-cap", "waits for any length", "limits", settings=lambda _: _PATIENT),
    _fault("ack-id-cut", "keeps half of a session id", "state",
           out=control_out(_cut_id, ACK)),
    _fault("id-zero-taken", "creates session 0", "state",
           patch=_takes("DS4T-SESSION-04")),
    _fault("context-zero-taken", "creates sessions without a context", "limits",
           patch=_takes("DS4T-SESSION-05")),
    _fault("second-create-wins", "creates a session again", "state",
           patch=_takes("DS4T-SESSION-06")),
    _fault("context-unbounded", "promises any context", "limits",
           patch=_takes("DS4T-ROBUST-13")),
    _fault("destroy-always-ok", "destroys what it does not hold", "state",
           patch=judged(_destroy_all)),
    _fault("unknown-rewind-ignored", "passes over a rewind of nothing", "state",
           patch=judged(_rewind_nothing)),
    _fault("destroyed-still-there", "keeps what it destroyed", "state",
           event=_keep_destroyed),
    _fault("stop-acked", "acknowledges STOP", "state", event=_acks(say.Stop)),
    _fault("rewind-acked", "acknowledges REWIND and INVALIDATE", "state",
           event=_acks(say.Rewind, say.Invalidate)),
    _fault("eval-reserved-taken", "does not judge the last word of EVAL",
           received=control_in(_clear_reserved, 2)),
    _fault("eval-reserved-refused", "judges the last word of EVAL before v10",
           position="v7", received=control_in(_wants_zero(20), 2)),
    _fault("sync-reserved-refused", "judges the reserved word of SYNC",
           received=control_in(_wants_zero(12), 1)),
    _fault("mtp-any-limit", "takes any limit of GLM_MTP", "limits",
           received=control_in(_any_limit, 21)),
    _fault("image-width-unchecked", "takes images of any width", "limits",
           received=_images(True)),
    _fault("images-unchecked", "takes any image record", "limits",
           received=_images(False)),
    _fault("idle-gives-up", "leaves when no command comes", "faults", patch=_gives_up),
)  # fmt: skip
