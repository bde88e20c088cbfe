"""Cases for ranks: hellos, commands, answers and gates that are not valid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

from ds4proto.link.ds4t_identity import Identity
from ds4proto.schema.declare import FrameSpec, offsets_of
from ds4proto.schema.ds4t_hello import HELLO
from ds4proto.schema.registry import frame, to_bytes
from ds4proto_fuzz.case import Case, Step, Then, rng_of
from ds4proto_fuzz.mutate import mutate, with_field
from ds4proto_fuzz.tp.gate_cases import GATE_STATES, GateCases
from ds4proto_fuzz.tp.wire import HEADER

__all__ = ["STATES", "LeaderCases", "WorkerCases"]

PROMPT: Final = (1, 2, 3, 4, 5, 6, 7, 8)
STATES: Final = {
    "hello": "the peer has said its hello, ours is due",
    "paired": "both connections are there, a command is due",
    "session": "a session is open",
    **GATE_STATES,
}
_WEIGHTS: Final = (4, 6, 10, 1, 3, 6, 4)
_CONTEXTS: Final = (0, -1, 1 << 20, 1 << 16, (1 << 22) + 1, (1 << 31) - 1, -(1 << 31))
_OTHERS: Final = 0.3
_TOP: Final = (1 << 64) - 1


class _Ranks:
    def __init__(self, hello: Mapping[str, Any], dialect: str, own: bytes) -> None:
        self.hello, self.dialect, self.own = hello, dialect, own

    def frame(self, name: str, **values: Any) -> bytes:
        """Return a control frame."""
        spec = frame(f"DS4T.{name}", dialect=self.dialect)
        return to_bytes(spec, values, dialect=self.dialect)

    def spec(self, name: str) -> FrameSpec | None:
        """Return the declaration of a frame, None where the dialect has none."""
        try:
            return frame(f"DS4T.{name}", dialect=self.dialect)
        except (LookupError, ValueError):
            return None

    def hello_attack(self, rng: Random) -> tuple[str, list[Step]]:
        """Return a hello that is not valid, or is another model's."""
        if rng.random() < _OTHERS:
            known = [name for name in Identity.of(self.hello).words()
                     if self.hello.get(name)]  # fmt: skip
            name = rng.choice(known)
            value = self.hello[name] + rng.choice((-1, 1))
            data = with_field(HELLO, self.dialect, self.own, name, value)
            how = f"{name}={value}"
            return "another model", [Step("control", "HELLO", data, how, self.own)]
        family, found = mutate(rng, HELLO, self.dialect, self.own)
        then: Then = "half-close" if rng.random() < 0.2 else ""
        step = Step("control", "HELLO", found.data, found.how, self.own, then)
        return family, [step]


class WorkerCases(_Ranks):
    """Makes the cases of one tp-worker."""

    def __init__(self, hello: Mapping[str, Any], dialect: str, own: bytes) -> None:
        super().__init__(hello, dialect, own)
        self.gates = GateCases(hello, dialect)

    def make(self, seed: int, index: int) -> Case:
        """Return one case; the same for the same hello, seed and index."""
        rng = rng_of(seed, index)
        state = rng.choices(tuple(STATES), _WEIGHTS)[0]
        if state == "hello":
            kind, more = self.hello_attack(rng)
            return Case(seed, index, state, kind, tuple(more))
        known = 1 + index % 1000
        if state in GATE_STATES:
            case = self.gates.make(rng, seed, index, state, known)
            if case is not None:
                return case
            state = "session"
        steps: list[Step] = []
        if state != "paired":
            create = self.frame("SESSION_CREATE", session_id=known, ctx_size=256)
            steps.append(Step("control", "SESSION_CREATE", create, then="wait"))
        kind, more = self._command(rng, known)
        return Case(seed, index, state, kind, (*steps, *more))

    def _sound(self, rng: Random, known: int) -> tuple[str, bytes]:
        makers: dict[str, Callable[[], bytes]] = {
            "SESSION_CREATE": lambda: self.frame(
                "SESSION_CREATE", session_id=known + 2000, ctx_size=256
            ),
            "SESSION_DESTROY": lambda: self.frame("SESSION_DESTROY", session_id=known),
            "REWIND": lambda: self.frame("REWIND", session_id=known, position=0),
            "INVALIDATE": lambda: self.frame("INVALIDATE", session_id=known),
            "SYNC": lambda: self.frame("SYNC", session_id=known, tokens=PROMPT),
            "EVAL": lambda: self.frame("EVAL", session_id=known, seq=1, token=3),
            "VERIFY": lambda: self.frame("VERIFY", session_id=known, tokens=(1, 2)),
            "VERIFY_COMMIT": lambda: self.frame("VERIFY_COMMIT", mode=1, token_count=0),
            "EVAL_BATCH": lambda: self.frame(
                "EVAL_BATCH", items=[{"session_id": known, "token": 1}]
            ),
            "STOP": lambda: self.frame("STOP"),
        }
        weights = {"SESSION_CREATE": 5, "SESSION_DESTROY": 3, "REWIND": 3,
                   "INVALIDATE": 3, "STOP": 1}  # fmt: skip
        names = [n for n in makers if self.spec(n) is not None]
        name = rng.choices(names, [weights.get(n, 2) for n in names])[0]
        return name, makers[name]()

    def _values(self, rng: Random, known: int) -> tuple[str, list[Step]]:
        """Return commands in good form whose numbers are odd; the pair lives on."""
        kind = rng.choices(("context", "id", "destroy", "rewind"), (3, 1, 1, 1))[0]
        if kind == "context":
            values = {"session_id": known + 4000, "ctx_size": rng.choice(_CONTEXTS)}
            step = Step("control", "SESSION_CREATE",
                        self.frame("SESSION_CREATE", **values), kind)  # fmt: skip
        elif kind == "id":
            values = {"session_id": rng.choice((0, known, _TOP)), "ctx_size": 256}
            step = Step("control", "SESSION_CREATE",
                        self.frame("SESSION_CREATE", **values), kind)  # fmt: skip
        elif kind == "destroy":
            data = self.frame(
                "SESSION_DESTROY", session_id=rng.choice((0, _TOP, known))
            )
            step = Step("control", "SESSION_DESTROY", data, kind)
        else:
            position = rng.choice((-1, -(1 << 31), (1 << 31) - 1, 0, 1))
            data = self.frame("REWIND", session_id=known, position=position)
            step = Step("control", "REWIND", data, kind)
        return f"odd {kind}", [step]

    def _command(self, rng: Random, known: int) -> tuple[str, list[Step]]:
        if rng.random() < 0.45:
            return self._values(rng, known)
        name, sound = self._sound(rng, known)
        spec = self.spec(name)
        assert spec is not None
        roll = rng.random()
        if roll < 0.8:
            family, found = mutate(rng, spec, self.dialect, sound)
            return family, [Step("control", name, found.data, found.how, sound)]
        if roll < 0.88:
            size = rng.randrange(1, len(sound))
            how = f"{size} of {len(sound)} bytes, then an end"
            return "cut", [
                Step("control", name, sound[:size], how, sound, "half-close")
            ]
        if roll < 0.94:
            return "drip", [Step("control", name, sound, "in pieces", then="drip")]
        return "repeat", [Step("control", name, sound)] * 2


class LeaderCases(_Ranks):
    """Makes the cases of one tp-leader."""

    def make(self, seed: int, index: int) -> Case:
        """Return one case."""
        rng = rng_of(seed, index)
        state = rng.choices(("hello", "asked"), (1, 2))[0]
        if state == "hello":
            kind, more = self.hello_attack(rng)
            return Case(seed, index, state, kind, tuple(more))
        spec = frame("DS4T.COMMAND_ACK", dialect=self.dialect)
        sound = self.frame("COMMAND_ACK", session_id=0, status=0)
        offset = offsets_of(spec.body, self.dialect)["session_id"]
        create = frame("DS4T.SESSION_CREATE", dialect=self.dialect)
        there = offsets_of(create.body, self.dialect)["session_id"]
        copy = (HEADER.size + offset, 8, HEADER.size + there)
        hello = Step("control", "HELLO", self.own, then="wait")
        roll = rng.random()
        if roll < 0.85:
            family, found = mutate(rng, spec, self.dialect, sound)
            at, size, _ = copy
            kept = found.data[at : at + size] == sound[at : at + size]
            step = Step("control", "COMMAND_ACK", found.data, found.how, sound,
                        copy=(copy,) if kept else ())  # fmt: skip
            return Case(seed, index, state, family, (hello, step))
        then: Then = "drip" if roll < 0.92 else "half-close"
        data = sound if then == "drip" else sound[: rng.randrange(1, len(sound))]
        step = Step("control", "COMMAND_ACK", data, then, sound, then, copy=(copy,))
        return Case(seed, index, state, then, (hello, step))


LEADER_STATES: Final = {
    "hello": STATES["hello"],
    "asked": "SESSION_CREATE has come, its acknowledgement is due",
}
