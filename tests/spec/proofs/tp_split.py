"""Which rank computes what: halves of heads and experts, and what a partial holds."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
from ds4proto_runtime.engines.base import F32
from ds4proto_runtime.tp.spans import SoloGates
from ds4proto_runtime.tp.toy import ToyShape, ToyTpEngine

from ds4proto.link.schedule import Schedule
from tests.spec.tp_showing import altered, shows

SHAPE = ToyShape(n_layer=1, n_embd=16, n_vocab=32, n_expert=8)


class Noting(SoloGates):
    """One process that keeps the partials of both ranks."""

    def __init__(self) -> None:
        super().__init__(Schedule(SHAPE.n_layer))
        self.partials: dict[tuple[str, int], F32] = {}

    def sum(self, layer: int, kind: Any, partial: Any) -> F32:
        for rank in (0, 1):
            self.partials[kind, rank] = partial(rank)
        return super().sum(layer, kind, partial)


def partials(change: Any = None) -> dict[tuple[str, int], F32]:
    """Run one token; ``change`` alters the weights of the layer."""
    engine = ToyTpEngine(SHAPE)
    if change is not None:
        change(engine._layers[0])
    gates = Noting()
    engine.run(engine.open(8), [5], gates)
    return gates.partials


def without(part: str, rows: slice) -> Any:
    def change(layer: Any) -> None:
        getattr(layer, part)[rows] = 0

    return change


def crossed(own: Any, layer: Any, row: F32, score: F32, experts: range) -> F32:
    other = range(4) if experts.start else range(4, 8)
    found: F32 = own(layer, row, score, other)
    return found


def all_of_them(own: Any, layer: Any, row: F32, score: F32, _experts: range) -> F32:
    found: F32 = own(layer, row, score, range(8))
    return found


def unweighted(_own: Any, layer: Any, row: F32, score: F32, experts: range) -> F32:
    best = np.argsort(-score, kind="stable")[:2]
    chosen = [e for e in best if e in experts]
    total: F32 = np.sum([row * layer.experts[e] for e in chosen], axis=0) + row * 0
    return total


def _static(change: Any) -> Any:
    """``altered`` for a static method."""
    own = ToyTpEngine._routed
    return lambda: patch.object(
        ToyTpEngine,
        "_routed",
        staticmethod(lambda *words: change(own, *words)),
    )


@shows(
    ("DS4T-SPLIT-01", "the other half of the experts", _static(crossed)),
    ("DS4T-SPLIT-01", "all experts on both ranks", _static(all_of_them)),
)
def rank_0_has_the_lower_experts_and_rank_1_the_rest() -> None:
    sound = partials()
    for rank, gone in ((0, slice(0, 4)), (1, slice(4, 8))):
        found = partials(without("experts", gone))
        other = 1 - rank
        assert found["FFN", other].tobytes() == sound["FFN", other].tobytes()
    lower = partials(without("experts", slice(0, 4)))
    upper = partials(without("experts", slice(4, 8)))
    moved = [
        (lower["FFN", 0] != sound["FFN", 0]).any(),
        (upper["FFN", 1] != sound["FFN", 1]).any(),
    ]
    assert any(moved)  # the token uses an expert of one of the halves


def whole_heads(
    own: Any, engine: Any, sums: Any, number: int, layer: Any, *rest: Any
) -> F32:
    x, gates = rest
    inner = gates.sum

    def sum_of(at: int, kind: Any, partial: Any) -> F32:
        found: F32 = inner(at, kind, lambda rank: partial(1 - rank))
        return found

    gates.sum = sum_of
    try:
        found: F32 = own(engine, sums, number, layer, x, gates)
        return found
    finally:
        gates.sum = inner


@shows(
    (
        "DS4T-SPLIT-03",
        "halves the other way round",
        altered(ToyTpEngine, "_attention", whole_heads),
    )
)
def rank_0_has_the_lower_heads() -> None:
    sound = partials()
    for rank, gone in ((0, slice(0, 8)), (1, slice(8, 16))):
        found = partials(without("out", gone))
        assert not found["ATTN", rank].any()
        kept = found["ATTN", 1 - rank]
        assert kept.tobytes() == sound["ATTN", 1 - rank].tobytes()
        assert kept.any()


@shows(("DS4T-SPLIT-11", "experts without their weights", _static(unweighted)))
def an_ffn_partial_is_half_the_shared_expert_and_the_own_experts() -> None:
    sound = partials()
    shared = partials(without("experts", slice(None)))
    routed = partials(without("down", slice(None)))
    for rank in (0, 1):
        total = shared["FFN", rank] + routed["FFN", rank]
        assert np.allclose(total, sound["FFN", rank], rtol=0, atol=1e-6)
        gone = slice(0, 8) if rank == 0 else slice(8, 16)
        other = partials(without("down", gone))
        assert np.array_equal(other["FFN", rank], routed["FFN", rank])
    # the weights of a token's experts are its scores, scaled to one
    engine = ToyTpEngine(SHAPE)
    layer = engine._layers[0]
    row = np.ones((1, 16), np.float32)[0]
    score = np.array([3, 0, 0, 0, 1, 0, 0, 0], np.float32)
    for experts, place in ((range(4), 0), (range(4, 8), 4)):
        found = ToyTpEngine._routed(layer, row, score, experts)
        weight = score[place] / (score.sum() + np.float32(1e-3))
        assert np.allclose(found, row * layer.experts[place] * weight, atol=1e-6)
