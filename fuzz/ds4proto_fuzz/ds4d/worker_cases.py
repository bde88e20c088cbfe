"""Cases for a worker: a valid prefix to each state, then what is not valid."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

from ds4proto.link.ds4d_frames import CODE
from ds4proto.schema.declare import FrameSpec, offsets_of
from ds4proto.schema.ds4d_common import HEADER
from ds4proto.schema.ds4d_snapshot import (
    SNAPSHOT_CHUNK,
    SNAPSHOT_LOAD_BEGIN,
    SNAPSHOT_SAVE_REQ,
)
from ds4proto.schema.ds4d_work import WORK
from ds4proto_fuzz.case import Case, Step, Then, rng_of
from ds4proto_fuzz.ds4d.facts import Facts
from ds4proto_fuzz.ds4d.forward_cases import ForwardCases
from ds4proto_fuzz.ds4d.frames import POOL, Frames
from ds4proto_fuzz.mutate import mutate

__all__ = ["STATES", "WorkerCases"]

DIALECT: Final = "upstream"
STATES: Final = {
    "open": "a data connection on which this case has said nothing yet",
    "live": "a session holds tokens",
    "queued": "several WORK frames are on their way",
    "saving": "a SAVE request has been answered, or is about to be",
    "loading": "a LOAD has begun, chunks are due",
    "control": "the control connection, behind HELLO",
    "route": "a WORK whose route goes on, or comes back, has come",
    "forwarded": "a WORK has gone on to the next hop (none behind the last layer)",
}
_WEIGHTS: Final = (30, 40, 8, 8, 12, 0.15)
_ROUTES: Final = {True: (14, 26), False: (4, 0)}
"""Weights of the last two states, for workers with a next hop and without."""
_FLOOD_EVERY: Final = 2048
_FLOOD_AT: Final = 100
_FLOOD: Final = 300
_HUGE: Final = 1 << 22
_TYPE: Final = CODE[WORK].to_bytes(4, "big")
_TYPE_AT: Final = offsets_of(HEADER, DIALECT)["type"]


def _then(spec: FrameSpec, data: bytes) -> Then:
    """Return ``wait`` behind snapshot frames: they overtake WORK, and WORK them."""
    plain = spec is WORK and data.startswith(_TYPE, _TYPE_AT)
    return "" if plain or spec is SNAPSHOT_CHUNK else "wait"


def _inside(step: Step) -> bool:
    return step.name == SNAPSHOT_CHUNK.name


def _apart(steps: list[Step]) -> tuple[Step, ...]:
    """Have everything answered before a snapshot frame goes out."""
    for at in range(1, len(steps)):
        snapshot = steps[at].name.startswith("SNAPSHOT") and not _inside(steps[at])
        if (snapshot or steps[at].then == "wait") and not steps[at - 1].then:
            steps[at - 1] = replace(steps[at - 1], then="wait")
    return tuple(steps)


class WorkerCases:
    """Makes the cases of one worker.

    Parameters
    ----------
    facts : Facts
    control : bool
        Whether the control connection may be spoilt too; the worker then needs about
        a second to come back.
    routes : bool
        Whether routes may lead to us: the worker is on this machine.
    """

    def __init__(
        self, facts: Facts, *, control: bool = True, routes: bool = True
    ) -> None:
        self.facts = facts
        self.frames = Frames(facts)
        self.forwarding = ForwardCases(facts, self.frames)
        self._states = tuple(STATES)
        weights = list(_WEIGHTS)
        if not control:
            weights[-1] = 0
        more = _ROUTES[self.forwarding.able] if routes else (0, 0)
        self._weights = [*weights, *more]

    def make(self, seed: int, index: int) -> Case:
        """Return one case; the same for the same facts, seed and index."""
        rng = rng_of(seed, index)
        if index % _FLOOD_EVERY == _FLOOD_AT:
            return self._flood(seed, index)
        state = rng.choices(self._states, self._weights)[0]
        if state in ("route", "forwarded"):
            attack = self.forwarding.route
            if state == "forwarded":
                attack = self.forwarding.forwarded
            kind, more = attack(rng)
            return Case(seed, index, state, kind, tuple(more))
        on = "control" if state == "control" else "data"
        steps, session, held = self._prefix(rng, state, on)
        kind, more = self._attack(rng, state, on, session, held)
        return Case(seed, index, state, kind, _apart([*steps, *more]))

    # prefixes

    def _prefix(
        self, rng: Random, state: str, on: str
    ) -> tuple[list[Step], int, tuple[int, ...]]:
        """Return valid steps, the session of the case and what it holds then."""
        session = rng.choice(POOL[:-1])
        if state in ("open", "control"):
            return [], session, ()
        held = self._tokens(rng)
        first = self.frames.work(session, held, ack=True, request=1)
        steps = [Step(on, "WORK", first)]
        if state == "queued":
            for number in (2, 3):
                token = (rng.randrange(64),)
                frame = self.frames.work(
                    session, token, prefix=held, reset=False, ack=True, request=number
                )
                steps.append(Step(on, "WORK", frame))
                held += token
        elif state == "saving":
            steps = [Step(on, "WORK", first, then="wait")]
            if rng.random() < 0.5:
                save = self.frames.save(session, held)
                steps.append(Step(on, "SNAPSHOT_SAVE_REQ", save, then="wait"))
        elif state == "loading":
            shard = self.facts.shard or b"\0" * 64
            begin = self.frames.load_begin(session, held, len(shard))
            steps = [Step(on, "SNAPSHOT_LOAD_BEGIN", begin)]
            if rng.random() < 0.5:
                half = shard[: len(shard) // 2]
                steps.append(Step(on, "SNAPSHOT_CHUNK", self.frames.chunk(half)))
        return steps, session, held

    def _tokens(self, rng: Random) -> tuple[int, ...]:
        return tuple(rng.randrange(64) for _ in range(rng.choice((1, 1, 2, 3))))

    # what is valid in a state, to be mutated

    def _valid(
        self, rng: Random, state: str, session: int, held: tuple[int, ...]
    ) -> tuple[FrameSpec, bytes]:
        roll = rng.random()
        if state == "loading":
            shard = self.facts.shard or b"\0" * 64
            part = rng.choice((shard, shard[len(shard) // 2 :], b"", shard[:7]))
            if roll < 0.8:
                return SNAPSHOT_CHUNK, self.frames.chunk(part)
        if state == "saving" or roll > 0.93:
            return SNAPSHOT_SAVE_REQ, self.frames.save(session, held or (1, 2))
        if roll > 0.86:
            shard = self.facts.shard or b"\0" * 64
            size = rng.choice((0, len(shard)))
            return SNAPSHOT_LOAD_BEGIN, self.frames.load_begin(
                session, held or (1, 2), size
            )
        return WORK, self._work(rng, session, held)

    def _work(self, rng: Random, session: int, held: tuple[int, ...]) -> bytes:
        reset = not held or rng.random() < 0.3
        return self.frames.work(
            session,
            self._tokens(rng),
            prefix=() if reset else held,
            reset=reset,
            ack=rng.random() < 0.6,
            bits=rng.choice((32, 32, 16, 8)),
            request=rng.choice((7, 8, 1 << 32, (1 << 64) - 1)),
        )

    # attacks

    def _attack(
        self, rng: Random, state: str, on: str, session: int, held: tuple[int, ...]
    ) -> tuple[str, list[Step]]:
        roll = rng.random()
        if roll < 0.12 and state not in ("loading", "queued"):
            return self._coherent(rng, on, session, held)
        spec, sound = self._valid(rng, state, session, held)
        if roll < 0.8:
            family, found = mutate(rng, spec, DIALECT, sound)
            then = _then(spec, found.data)
            step = Step(on, spec.name, found.data, found.how, sound, then)
            return family, [step, *self._check(rng, on)]
        return self._order(rng, on, spec, sound)

    def _check(self, rng: Random, on: str) -> list[Step]:
        """Return a sound frame that shows whether the stream is still in step."""
        if rng.random() < 0.25:
            return []
        session = rng.choice(POOL[:-1])
        frame = self.frames.work(session, (rng.randrange(64),), ack=True, request=9)
        return [Step(on, "WORK", frame)]

    def _order(
        self, rng: Random, on: str, spec: FrameSpec, sound: bytes
    ) -> tuple[str, list[Step]]:
        """Return sound frames in an order, a number or a pace that is not."""
        step = Step(on, spec.name, sound, then=_then(spec, sound))
        check = self._check(rng, on)
        kind = rng.choice(
            ("repeat", "drip", "half-close", "id reuse", "cut", "missing")
        )
        if kind == "repeat":
            return kind, [step] * rng.choice((2, 3, 6)) + check
        if kind == "drip":
            return kind, [Step(on, spec.name, sound, "in pieces", then="drip"), *check]
        if kind == "half-close":
            return kind, [Step(on, spec.name, sound, "then an end", then="half-close")]
        if kind == "cut":
            size = rng.randrange(len(sound))
            how = f"{size} of {len(sound)} bytes, then an end"
            cut = Step(on, spec.name, sound[:size], how, sound, "half-close")
            return kind, [cut]
        if kind == "missing":
            return kind, check  # the prefix goes on with a WORK instead
        other = self.frames.work(POOL[0], (1,), ack=True, request=1)
        then: Then = "" if step.then == "" else "wait"
        return kind, [Step(on, "WORK", other, "request id in use", then=then), step,
                      *check]  # fmt: skip

    def _coherent(
        self, rng: Random, on: str, session: int, held: tuple[int, ...]
    ) -> tuple[str, list[Step]]:
        """Return a frame that is wrong though its lengths and hashes agree."""
        f, make = self.facts, self.frames
        prefix = held if rng.random() < 0.5 else ()
        reset = not prefix
        kind = rng.choice(("vocabulary", "no tokens", "context", "prefix", "load"))
        name = "WORK"
        if kind == "vocabulary":
            bad = rng.choice((f.vocab, f.vocab + 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF))
            tokens = [1, bad] if rng.random() < 0.5 else [bad]
            data = make.work(session, tokens, prefix=prefix, reset=reset)
        elif kind == "no tokens":
            data = make.work(session, (), prefix=prefix, reset=reset)
        elif kind == "context":
            count = f.ctx + rng.choice((0, 1)) - len(prefix)
            if not 0 < count * max(4, 4 * f.hidden_values) < _HUGE:
                count = 2
            data = make.work(session, [1] * count, prefix=prefix, reset=reset)
        elif kind == "prefix":
            lie = (*prefix, 5)
            data = make.work(session, (1, 2), prefix=lie, reset=rng.random() < 0.5)
        else:
            name = "SNAPSHOT_LOAD_BEGIN"
            tokens = [rng.choice((f.vocab, 0xFFFFFFFF)), 1]
            data = make.load_begin(session, tokens, rng.choice((0, 64)))
        then: Then = "wait" if kind == "load" else ""
        step = Step(on, name, data, f"coherent: {kind}", then=then)
        return f"coherent {kind}", [step, *self._check(rng, on)]

    def _flood(self, seed: int, index: int) -> Case:
        """Return one sound WORK, again and again with another session."""
        offsets = offsets_of(WORK.body, DIALECT)
        at = WORK.header_size + offsets["session"]
        data = self.frames.work(0xF100D_0000_0000, (1,), ack=True, request=4)
        step = Step("data", "WORK", data, "another session each time", vary=((at, 8),))
        return Case(seed, index, "open", "id flood", (step,), repeat=_FLOOD)
