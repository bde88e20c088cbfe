"""Inputs of the parser targets: corpora, and what Hypothesis makes of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import pytest
from ds4proto_fuzz.parsers import target
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

ROOT = Path(__file__).parents[3]
CORPUS = ROOT / "fuzz" / "corpus"
ORDERS: Final[tuple[Literal["big", "little"], ...]] = ("big", "little")


def steady(examples: int) -> settings:
    """Return settings under which a property takes the same examples each time."""
    return settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        stateful_step_count=20,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )


def unreduced(examples: int) -> settings:
    """Return the same for a property that is to fail: how it does is not reduced."""
    return settings(steady(examples), phases=(Phase.generate,))


def finds_a_fault_in_drips(
    machine: type[RuleBasedStateMachine], home: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Require that conversations find a machine that raises at a single byte."""
    real = home.receive_data

    def planted(self: Any, data: Any, now: float) -> None:
        if data is not None and len(data) == 1:
            raise KeyError("planted")
        real(self, data, now)

    monkeypatch.setattr(home, "receive_data", planted)
    with pytest.raises(KeyError, match="planted"):
        run_state_machine_as_test(machine, settings=unreduced(30))


@cache
def corpus(name: str) -> tuple[bytes, ...]:
    """Return the corpus of a target, shortest first."""
    files = [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]
    return tuple(sorted(files, key=lambda data: (len(data), data)))


@st.composite
def mutated(draw: st.DrawFn, name: str) -> bytes:
    """Draw a file of a corpus with a few places changed, cut, doubled or swapped."""
    files = corpus(name)
    data = bytearray(draw(st.sampled_from(files)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        kind = draw(st.integers(0, 4))
        if kind == 0:
            data[at : at + 1] = draw(st.binary(min_size=1, max_size=4))
        elif kind == 1:
            word = draw(st.sampled_from((0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)))
            order: Literal["big", "little"] = draw(st.sampled_from(ORDERS))
            data[at : at + 4] = word.to_bytes(4, order)
        elif kind == 2:
            del data[at : at + draw(st.integers(1, 16))]
        elif kind == 3:
            data[at:at] = data[at : at + draw(st.integers(1, 40))]
        else:
            other = draw(st.sampled_from(files))
            data[at:] = other[at:]
    return bytes(data[: target(name).most])
