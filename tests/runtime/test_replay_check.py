"""The replay check counts differences and names the greatest."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from ds4proto_runtime.pipeline.generation import replay_check


class Unsteady:
    """A session whose second prefill differs."""

    def __init__(self, *answers: list[float]) -> None:
        self._answers = list(answers)
        self.asked: list[bool] = []

    def sync(self, tokens, *, fresh, progress):  # type: ignore[no-untyped-def]
        self.asked.append(fresh)
        progress(len(tokens))
        logits = np.array(self._answers.pop(0), np.float32)
        return SimpleNamespace(logits=logits, seconds=0.5)


def test_equal_logits_pass() -> None:
    session = Unsteady([1.0, -0.0], [1.0, -0.0])
    assert replay_check(session, [1], lambda _n: None) == (None, 0.5)
    assert session.asked == [True, True]


def test_differences_are_counted_by_bits() -> None:
    session = Unsteady([1.0, 2.0, 0.0], [1.5, 4.0, -0.0])
    fault, _ = replay_check(session, [1], lambda _n: None)
    assert fault == (
        "distributed replay check failed: mismatches=3 max_abs=2 token=1"
        " before=2 after=4"
    )
