"""Cases at gates: a sound lockstep up to one of them, then a gate that is not valid."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, Final

from ds4proto.link.ds4t_texts import LocalProtocolError
from ds4proto.link.plan import PlanKind, PlannedGate
from ds4proto.schema.declare import fields_of, offsets_of
from ds4proto.schema.registry import frame
from ds4proto_fuzz.case import Case, Step, Then
from ds4proto_fuzz.tp.lockstep import GATE, Lockstep

__all__ = ["GATE_STATES", "GateCases"]

GATE_STATES: Final = {
    "gate": "a prefill runs, its first gate is due on the data connection",
    "inner gate": "a prefill runs, a gate behind the first is due",
    "decode gate": "a token is decoded behind a prefill, a row gate is due",
    "block gate": "a block of drafts is verified, a batch gate is due",
}
SHORT: Final = (1, 2, 3, 4, 5, 6, 7, 8)
LONG: Final = tuple(1 + i % 9 for i in range(40))
"""Long enough for attention rows to be swapped: bulk gates of two sizes a layer."""
_BULK: Final = frame("DS4B.GATE_BULK", dialect="v14").body
_KINDS: Final = ("header", "bits", "cut", "again", "ahead", "other kind", "surplus",
                 "floats", "floats", "drip", "sound")  # fmt: skip
_NOTHING: Final[Then] = ""
_WIRE: Final = (b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\0\0\x80\xff")
"""NaN and both infinities."""


class GateCases:
    """Makes the gate cases of one tp-worker.

    Parameters
    ----------
    hello : mapping
        Words of its hello.
    """

    def __init__(self, hello: Mapping[str, Any], dialect: str) -> None:
        self._hello, self._dialect = hello, dialect
        self._prompt: tuple[int, ...] = SHORT

    def make(
        self, rng: Random, seed: int, index: int, state: str, known: int
    ) -> Case | None:
        """Return a case; None where the dialect or the model has no such gate."""
        walk = Lockstep(self._hello, self._dialect)
        try:
            gates = self._lead(rng, walk, state, known)
        except LocalProtocolError:
            return None  # the dialect has no such command
        if not gates:
            return None
        at = 0 if state == "gate" else rng.randrange(len(gates))
        if state == "inner gate":
            at = max(1, at)
            if at >= len(gates):
                return None
        walk.passed(gates[:at])
        kind, step = self._attack(rng, walk, gates[at])
        walk.steps.append(step)
        if at + 1 == len(gates):
            walk.went_on(gates, self._prompt)
        return Case(seed, index, state, f"gate {kind}", tuple(walk.steps))

    def _lead(
        self, rng: Random, walk: Lockstep, state: str, known: int
    ) -> list[PlannedGate]:
        """Come to the command whose gates are attacked; return those."""
        walk.create(known)
        self._prompt = SHORT
        if state == "inner gate":
            self._prompt = rng.choice((SHORT, LONG))
        if state in ("gate", "inner gate"):
            return walk.sync(known, self._prompt)
        walk.passed(walk.sync(known, SHORT))
        walk.synced(known, SHORT)
        if state == "block gate":
            return walk.verify(known, tuple(range(1, rng.choice((2, 3, 10)))))
        if rng.random() < 0.3:
            return walk.batch(known, 3)
        return walk.decode(known, 3)

    def _attack(
        self, rng: Random, walk: Lockstep, planned: PlannedGate
    ) -> tuple[str, Step]:
        before = walk.steps[-1].data if walk.steps[-1].on == "data" else b""
        sound = walk.gate(planned)
        data = bytearray(sound)
        kind, how, then = rng.choice(_KINDS), "", _NOTHING
        if kind == "again" and not before:
            kind = "header"
        if kind == "header":
            field = rng.choice(fields_of(_BULK, "v14"))
            at = offsets_of(_BULK, "v14")[field.path]
            old = int.from_bytes(data[at : at + field.size], "little")
            top = (1 << 8 * field.size) - 1
            new = rng.choice((old + 1, old - 1, old ^ 1 << 15, 0, top)) & top
            data[at : at + field.size] = new.to_bytes(field.size, "little")
            how = f"{field.path} {old:#x} -> {new:#x}"
        elif kind == "bits":
            data[rng.randrange(GATE.size)] ^= 1 << rng.randrange(8)
            how = "a bit of the header"
        elif kind == "floats":
            at = GATE.size + 4 * rng.randrange((len(data) - GATE.size) // 4)
            data[at : at + 4] = rng.choice(_WIRE)
            how = "not finite"
        elif kind == "cut":
            edges = (1, GATE.size - 1, GATE.size, rng.randrange(1, len(data)))
            del data[rng.choice(edges) :]
            how, then = f"{len(data)} of {len(sound)} bytes, then an end", "half-close"
        elif kind == "again":
            data[: GATE.size] = before[: GATE.size]
            how = "the header of the gate before"
        elif kind == "ahead":
            data[: GATE.size] = walk.gate(planned)[: GATE.size]
            how = "the header of the gate behind"
        elif kind == "other kind":
            other: PlanKind = "row" if planned.kind != "row" else "bulk"
            lie = walk.gate(planned._replace(kind=other))
            data[: GATE.size] = lie[: GATE.size]
            how = f"the header of a {other} gate"
        elif kind == "surplus":
            data += rng.randbytes(rng.choice((1, GATE.size, 64)))
            how = "bytes behind it"
        elif kind == "drip":
            how, then = "in pieces", "drip"
        return kind, Step("data", "gate", bytes(data), how, sound, then)
