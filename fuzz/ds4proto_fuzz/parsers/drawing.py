"""Examples of a Hypothesis strategy as a plain list, the same each time."""

from __future__ import annotations

from typing import TypeVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

__all__ = ["drawn"]

Drawn = TypeVar("Drawn")


def drawn(strategy: st.SearchStrategy[Drawn], examples: int) -> list[Drawn]:
    """Return what a strategy draws; neither a database nor a clock takes part."""
    found: list[Drawn] = []

    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(value: Drawn) -> None:
        found.append(value)

    collect()
    return found
