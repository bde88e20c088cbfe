"""What came beside what was due: an effect, or nothing."""

from __future__ import annotations

from collections.abc import Sequence

from ds4proto_fuzz.ds4d.oracle import Due, Expectation
from ds4proto_fuzz.ds4d.wire import Ended, Seen
from ds4proto_fuzz.effect import Effect

__all__ = ["judge", "spoilt"]

_EQUAL = ("request", "result_hash", "result_kind", "payload_bits", "payload_bytes")
_IDS = ("request",)
_RELAYED = ("request", "status", "result_kind", "payload_bits", "payload_bytes",
            "telemetry_count")  # fmt: skip


def judge(due: Expectation, seen: Sequence[Seen], ended: Ended) -> Effect | None:
    """Return what is wrong, if anything.

    A refusal in other words, a close instead of a refusal, and answers that a close
    has overtaken are right.
    """
    if ended == "garbage":
        return Effect("wrong answer", "bytes that are no DS4D frame")
    if due.closed and not due.loose:
        return _ending(due, seen, ended)
    for found, wanted in zip(seen, due.frames, strict=False):
        effect = _one(wanted, found)
        if effect is not None and not due.loose:
            return effect
    if len(seen) > len(due.frames):
        return _surplus(due, seen[len(due.frames)])
    if len(seen) < len(due.frames):
        return _missing(due, due.frames[len(seen)], ended)
    return None


def _ending(due: Expectation, seen: Sequence[Seen], ended: Ended) -> Effect | None:
    """Judge answers of which a close may have overtaken any."""
    left = list(due.frames)
    for found in seen:
        effects = [_one(wanted, found) for wanted in left]
        if None in effects:
            del left[: effects.index(None) + 1]
        elif effects and not found.refuses:
            return effects[0]
        elif not effects and not found.refuses:
            return _surplus(due, found)
    if ended == "silence":
        return Effect(
            "silent accept",
            "the connection stays open after what ends it",
            clause=due.clause,
        )
    return None


def _one(wanted: Due, found: Seen) -> Effect | None:
    due = wanted.frame
    if due.refuses and not found.refuses:
        if wanted.either:
            return None
        return Effect(
            "silent accept",
            f"{found.name} that serves what {wanted.clause} forbids",
            str(found),
            wanted.clause,
        )
    if found.refuses and not due.refuses:
        if wanted.either:
            return None
        return Effect("wrong answer", f"refuses a sound frame with {found.name}",
                      found.text)  # fmt: skip
    if due.name != found.name:
        if due.refuses:
            return None  # a refusal of another kind
        return Effect("wrong answer", f"{found.name} where {due.name} is due")
    if wanted.relayed:
        return _relayed(due, found)
    names = _IDS if due.refuses else _EQUAL
    for name in names if due.words else ():
        if found.words.get(name) != due.words.get(name):
            return Effect(
                "wrong answer",
                f"{name} of {found.name} is wrong",
                f"due {due.words.get(name)}, came {found.words.get(name)}",
            )
    return None


def _relayed(due: Seen, found: Seen) -> Effect | None:
    """Compare an answer of the next hop with what the next hop said."""
    clause = "DS4D-FWD-08"
    for name in _RELAYED:
        if found.words.get(name) != due.words[name]:
            text = f"due {due.words[name]}, came {found.words.get(name)}"
            what = f"{name} of a relayed RESULT is wrong"
            return Effect("wrong answer", what, text, clause)
    size = due.words["payload_bytes"]
    if found.body[len(found.body) - size :] != due.body[len(due.body) - size :]:
        return Effect("wrong answer", "the payload of a relayed RESULT differs", "",
                      clause)  # fmt: skip
    return None


def _surplus(due: Expectation, found: Seen) -> Effect | None:
    if found.refuses or due.loose:
        return None  # refused before it was whole
    what = "behind what ends the connection" if due.closed else "that nothing asked for"
    return Effect("silent accept", f"{found.name} {what}", str(found), due.clause)


def _missing(due: Expectation, wanted: Due, ended: Ended) -> Effect | None:
    if ended == "silence":
        if due.loose:
            return None
        what = "refusal" if wanted.frame.refuses else wanted.frame.name
        return Effect("hang", f"no answer where a {what} is due", clause=wanted.clause)
    if wanted.frame.refuses or wanted.either or due.loose:
        return None  # ended instead of refused
    return Effect(
        "wrong answer", f"the connection ends where a {wanted.frame.name} is due", ended
    )


def spoilt(due: Expectation, seen: Sequence[Seen]) -> bool:
    """Tell whether the connection cannot serve another case."""
    if due.closed or due.loose or len(seen) != len(due.frames):
        return True
    return any(s.name == "ERROR" for s in seen)
