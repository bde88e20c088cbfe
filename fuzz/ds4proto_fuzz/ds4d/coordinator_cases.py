"""Cases for a coordinator: HELLO that is not valid, and RESULT that is not."""

from __future__ import annotations

from random import Random
from typing import Any, Final

from ds4proto.link.ds4d_frames import (
    FIXED,
    TELEMETRY_PART,
    error_frame,
    framed,
    result_frame,
)
from ds4proto.schema.declare import FrameSpec, offsets_of
from ds4proto.schema.ds4d_hello import ERROR, HELLO
from ds4proto.schema.ds4d_result import LOGITS, RESULT
from ds4proto.schema.ds4d_work import WORK
from ds4proto_fuzz.case import Case, Step, rng_of
from ds4proto_fuzz.ds4d.facts import Facts
from ds4proto_fuzz.mutate import mutate

__all__ = ["COPIES", "STATES", "CoordinatorCases"]

DIALECT: Final = "upstream"
STATES: Final = {
    "connected": "a new connection, nothing said yet",
    "registered": "HELLO has been accepted, WORK may come at any time",
    "asked": "a WORK has come, its RESULT is due",
}


def _copies() -> tuple[tuple[int, int, int], ...]:
    """Return where a RESULT repeats its WORK: offset, size, offset in the WORK."""
    result = offsets_of(RESULT.body, DIALECT)
    work = offsets_of(WORK.body, DIALECT)
    head = RESULT.header_size
    return tuple(
        (head + result[name], 8, head + work[name])
        for name in ("request", "result_hash")
    )


COPIES: Final = _copies()
_TEXTS: Final = (b"", b"no", b"\x1b[2J\0" * 4, b"x" * 300)


class CoordinatorCases:
    """Makes the cases of one coordinator.

    Parameters
    ----------
    facts : Facts
        ``layer_start`` is the first layer that a worker has to serve; ``port`` our own.
    asks : bool
        Whether it sends WORK by itself.
    """

    def __init__(self, facts: Facts, *, asks: bool) -> None:
        self.facts = facts
        self.asks = asks

    def hello(self, **changes: Any) -> bytes:
        """Return the HELLO of a worker that completes the route."""
        f = self.facts
        name = changes.pop("name", f.model_name.encode("utf-8", "surrogateescape"))
        words = {
            "model_id": f.model_id,
            "quant_bits": 2,
            "layer_start": f.layer_start,
            "layer_end": max(0, f.n_layers - 1),
            "has_output": 1,
            "has_hidden": 1,
            "ctx_size": f.ctx or 1 << 30,
            "n_layers": f.n_layers,
            "listen_port": 9,
            "model_name_len": len(name),
        }
        parts = (FIXED[HELLO].build(words | changes), name)
        return b"".join(map(bytes, framed(HELLO, parts)))

    def result(self, **changes: Any) -> bytes:
        """Return a RESULT with logits; ids are copied from the WORK when it is sent."""
        f = self.facts
        record = dict.fromkeys(TELEMETRY_PART.names, 0) | {
            "layer_start": f.layer_start,
            "layer_end": f.n_layers - 1,
            "n_tokens": 1,
        }
        words = {
            "kind": LOGITS,
            "bits": 32,
            "telemetry": TELEMETRY_PART.build(record),
            "payload": bytes(4 * f.vocab),
        }
        return b"".join(map(bytes, result_frame(0, **{**words, **changes})))

    def make(self, seed: int, index: int) -> Case:
        """Return one case; the same for the same facts, seed and index."""
        rng = rng_of(seed, index)
        weights = (70, 8, 22) if self.asks else (100, 0, 0)
        state = rng.choices(tuple(STATES), weights)[0]
        steps: list[Step] = []
        if state != "connected":
            steps.append(Step("control", "HELLO", self.hello()))
        if state == "asked":
            steps[0] = Step("control", "HELLO", self.hello(), then="wait")
        kind, more = self._attack(rng, state)
        return Case(seed, index, state, kind, (*steps, *more))

    def _attack(self, rng: Random, state: str) -> tuple[str, list[Step]]:
        spec, sound = self._valid(rng, state)
        copies = COPIES if spec is RESULT and state == "asked" else ()
        roll = rng.random()
        if roll < 0.8:
            family, found = mutate(rng, spec, DIALECT, sound)
            kept = tuple(
                c
                for c in copies
                if found.data[c[0] : c[0] + c[1]] == sound[c[0] : c[0] + c[1]]
            )
            return family, [
                Step("control", spec.name, found.data, found.how, sound, copy=kept)
            ]
        step = Step("control", spec.name, sound, copy=copies)
        if roll < 0.86:
            how = Step(
                "control", spec.name, sound, "in pieces", then="drip", copy=copies
            )
            return "drip", [how]
        if roll < 0.92:
            size = rng.randrange(len(sound))
            told = f"{size} of {len(sound)} bytes, then an end"
            return "cut", [
                Step(
                    "control",
                    spec.name,
                    sound[:size],
                    told,
                    sound,
                    "half-close",
                    copy=copies,
                )
            ]
        if roll < 0.96:
            return "repeat", [step, step]
        return "half-close", [
            Step(
                "control",
                spec.name,
                sound,
                "then an end",
                then="half-close",
                copy=copies,
            )
        ]

    def _valid(self, rng: Random, state: str) -> tuple[FrameSpec, bytes]:
        if state == "connected":
            return HELLO, self.hello()
        roll = rng.random()
        if roll < 0.08:
            return ERROR, b"".join(map(bytes, error_frame("no more")))
        if roll < 0.16:
            return HELLO, self.hello()
        if roll < 0.3:
            text = rng.choice(_TEXTS)
            data = self.result(status=1, kind=0, bits=0, payload=text, telemetry=b"")
            return RESULT, data
        return RESULT, self.result()
