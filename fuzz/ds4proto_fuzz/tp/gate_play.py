"""Gates with a tp-worker under fire: in step with it, up to the one that is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from typing import TYPE_CHECKING, Final

from ds4proto.link.ds4t_events import START
from ds4proto_fuzz.case import Case, Step
from ds4proto_fuzz.ds4d.wire import Seen
from ds4proto_fuzz.effect import Effect
from ds4proto_fuzz.tp.lockstep import GATE
from ds4proto_fuzz.tp.wire import TpWire

if TYPE_CHECKING:
    from ds4proto_fuzz.tp.pair import PairTarget

__all__ = ["play_gates"]

_PIECES: Final = 24
_SLICE: Final = 0.02
_CLAUSE: Final = "DS4T-GATE-50"
Shown = tuple[Effect | None, str]


def play_gates(target: PairTarget, case: Case, turn: int) -> Shown:
    """Give a case to a pair; every step but the last gate is sound."""
    reached = "nothing"
    last = max((n for n, s in enumerate(case.steps) if s.on == "data"), default=-1)
    for number, step in enumerate(case.steps):
        data = step.varied(turn)
        if number == last:
            more = b"".join(later.varied(turn) for later in case.steps[last + 1 :])
            return _gate(target, step, data, last=True, more=more)
        if step.on == "data":
            effect, reached = _gate(target, step, data)
        else:
            effect, reached = _command(target, step, data)
        if effect is not None or reached not in ("passed", "answered"):
            return effect, reached
    return None, reached


def _wires(target: PairTarget) -> tuple[TpWire, TpWire]:
    assert target.control is not None
    assert target.data is not None
    return target.control, target.data


def _command(target: PairTarget, step: Step, data: bytes) -> Shown:
    """Send a sound command; where it ends something, take what answers it."""
    control, _ = _wires(target)
    control.send(data, target.soon())
    if step.then != "wait":
        return None, "passed"
    done = False
    while not done:
        seen = control.frame(target.soon())
        if seen is None:
            what = f"a sound {step.name} is to be acknowledged"
            if control.ended:
                return target.died(what), "no answer"
            return Effect("hang", "no acknowledgement where one is due"), "no answer"
        if seen.name == "COMMAND_ACK":
            if seen.words.get("status"):
                return None, "refused"  # an engine may refuse
            done = step.name == "SESSION_CREATE" or not target.split
        else:
            done = seen.name.startswith("LOGITS")
    return None, "answered"


def _gate(
    target: PairTarget,
    step: Step,
    data: bytes,
    *,
    last: bool = False,
    more: bytes = b"",
) -> Shown:
    """Answer one gate; what follows tells whether it passed.

    Parameters
    ----------
    more : bytes
        What a leader says on the control connection when it has.
    """
    control, wire = _wires(target)
    theirs = wire.take(len(step.base), target.soon())
    if len(theirs) < len(step.base):
        return None, "no gate"  # the engine has refused, or plans otherwise
    if theirs[: GATE.size] != step.base[: GATE.size]:
        return None, "another plan"  # thresholds are not on the wire
    if step.then == "drip":
        for part in _pieces(data):
            wire.send(part, target.soon())
    else:
        wire.send(data, target.soon())
    if step.then == "half-close":
        wire.half_close()
    if not last:
        return None, "passed"
    control.send(more, target.soon())
    seen = "" if len(data) > len(step.base) else _goes_on(target)
    led = {"gate": "went on", "answer": "went on"}.get(seen, seen or "no sign")
    return _judged(target, step, data, seen), led


def _pieces(data: bytes) -> Iterator[bytes]:
    for at in range(min(_PIECES, len(data))):
        yield data[at : at + 1]
    yield data[_PIECES:]


def _judged(target: PairTarget, step: Step, data: bytes, seen: str) -> Effect | None:
    size = len(step.base)
    if len(data) > size:
        return target.accident()  # read as the next gate, if there is one
    sound = len(data) == size and data[: GATE.size] == step.base[: GATE.size]
    if sound and seen == "ended":
        return target.died("a gate was sound")
    if sound and not seen:
        return Effect("hang", "nothing follows a gate that was sound")
    if not sound and seen == "gate":
        text = "the next gate behind one that does not fit"
        return Effect("silent accept", text, step.how, _CLAUSE)
    if not sound and seen == "answer":
        text = "an answer behind a gate that does not fit"
        return Effect("silent accept", text, step.how, _CLAUSE)
    if not sound and not seen:
        return Effect("hang", "waits for ever on a gate that does not fit")
    return target.accident()


def _meets(seen: Seen) -> bool:
    """Tell whether a frame is the rank's own word at the start of a prefill."""
    return seen.name == "SYNC_CHECKPOINT" and seen.words.get("point") == START


def _goes_on(target: PairTarget) -> str:
    """Return what comes first: ``gate``, ``answer``, ``ended``, or nothing.

    A rank that gives up may say so in a frame: a refusal is an end.
    """
    control, wire = _wires(target)
    end = target.soon()
    while monotonic() < end:
        if len(wire.take(GATE.size, monotonic() + _SLICE)) == GATE.size:
            return "gate"
        seen = control.frame(monotonic() + _SLICE)
        if seen is not None and not _meets(seen):
            return "ended" if seen.words.get("status") else "answer"
        if control.ended:
            return "ended"
    return ""
