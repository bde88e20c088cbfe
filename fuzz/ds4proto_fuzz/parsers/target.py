"""What a target is, and which there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, NoReturn, cast

__all__ = ["NAMES", "Broken", "Target", "broken", "same", "target"]


class Broken(AssertionError):
    """An invariant of a parser does not hold; the text says which and how."""


@dataclass(frozen=True, slots=True)
class Target:
    """One parser under test.

    Parameters
    ----------
    name : str
        Also the name of ``fuzz/targets/NAME.py`` and of its corpus folder.
    doc : str
        What is parsed, in one line.
    check : callable
        Takes the input; returns where every invariant holds.
    seeds : callable
        Yields inputs to start from, made from the declarations and writers.
    most : int
        Longest input in bytes.
    """

    name: str
    doc: str
    check: Callable[[bytes], None]
    seeds: Callable[[], Iterator[bytes]]
    most: int = 4096


_HOMES: Final = {
    "framing": "streams:FRAMING",
    "observer": "streams:OBSERVER",
    "rows": "rows:ROWS",
    "schema": "schemas:SCHEMA",
    "capture": "captures:CAPTURE",
    "tcp": "reassembly:TCP",
    "saved": "files:SAVED",
    "gguf": "files:GGUF",
    "report": "reports:REPORT",
    "message": "reports:MESSAGE",
}
NAMES: Final = tuple(_HOMES)
"""Every target, in the order of the documentation."""


def target(name: str) -> Target:
    """Return a target by name; its parser is imported only now.

    Raises
    ------
    KeyError
        There is none of that name.
    """
    module, _, attribute = _HOMES[name].partition(":")
    home = import_module(f"ds4proto_fuzz.parsers.{module}")
    return cast(Target, getattr(home, attribute))


def broken(invariant: str, **seen: Any) -> NoReturn:
    """Raise `Broken` with what was seen, cut to a readable length."""
    parts = [f"{name}={value!r:.300}" for name, value in seen.items()]
    raise Broken(": ".join((invariant, ", ".join(parts))) if parts else invariant)


def same(invariant: str, one: Any, other: Any) -> None:
    """Require two results to be equal; name the first item that differs."""
    if one == other:
        return
    if isinstance(one, list) and isinstance(other, list):
        for index, (left, right) in enumerate(zip(one, other, strict=False)):
            if left != right:
                broken(invariant, at=index, one=left, other=right)
        broken(invariant, one=one[len(other) :], other=other[len(one) :])
    broken(invariant, one=one, other=other)
