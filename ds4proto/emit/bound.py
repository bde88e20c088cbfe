"""What a strategy draws with, shown in one word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Bound"]


class Bound:
    """A function of a drawing whose other arguments are given already.

    Hypothesis shows what a strategy was made of; this keeps it from walking through
    a whole declaration, whose expressions answer to any name.
    """

    def __init__(self, make: Callable[..., Any], **given: Any) -> None:
        self._make = make
        self._given = given

    def __call__(self, draw: Callable[[Any], Any]) -> Any:
        """Draw."""
        return self._make(draw, **self._given)

    def __repr__(self) -> str:
        return f"<{self._make.__name__.strip('_')}>"
