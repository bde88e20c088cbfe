"""The cases: how one is declared, and where all of them are found.

A case is a short function that reads like its clause::

    @case(
        "worker/work/unknown-flag",
        clauses=("DS4D-WORK-07",),
        role="worker",
        category="limits",
        mutants=("skip-WORK-07",),
    )
    def unknown_flag(peer: WorkerBench) -> None:
        \"\"\"A WORK with a flag that nobody defined is refused.\"\"\"
        peer.work(flags=peer.flags() | 0x20).refused("DS4D-WORK-07")

With ``params`` it gets a second argument, a mapping of one combination.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

from ds4proto import clauses as clause_register
from ds4proto.peer.api import Role

__all__ = ["CATEGORIES", "HARM", "Case", "Harm", "all_cases", "case", "load_cases"]

Harm = Literal["none", "session", "process", "memory"]
HARM: Final[tuple[Harm, ...]] = ("none", "session", "process", "memory")
"""What a case may cost the peer, the least first."""

Category = Literal[
    "framing",
    "handshake",
    "state",
    "codec",
    "telemetry",
    "snapshot",
    "gates",
    "faults",
    "limits",
    "liveness",
    "forwarding",
    "determinism",
]
CATEGORIES: Final[tuple[Category, ...]] = (
    "framing",
    "handshake",
    "state",
    "codec",
    "telemetry",
    "snapshot",
    "gates",
    "faults",
    "limits",
    "liveness",
    "forwarding",
    "determinism",
)
Position = Literal["first", "middle", "last"]
Body = Callable[..., None]
_B = TypeVar("_B", bound=Body)


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One declared case.

    Attributes
    ----------
    id : str
        Stable, ``role/topic/name``.
    clauses : tuple of str
        The clauses that a failure breaks, the main one first.
    mutants : tuple of str
        Planted faults that this case alone has to catch.
    params : mapping
        Name -> values; combined t-wise.
    positions : tuple of str
        Where a worker may stand for the case to apply; empty: anywhere.
    strength : int
        How many parameters are combined exhaustively with each other.
    smoke : bool
        Part of the profile ``smoke``.
    """

    id: str
    clauses: tuple[str, ...]
    role: Role
    category: Category
    body: Body
    dialects: tuple[str, ...] = ("*",)
    params: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    harm: Harm = "none"
    needs_restart: bool = False
    mutants: tuple[str, ...] = ()
    positions: tuple[Position, ...] = ()
    strength: int = 2
    smoke: bool = False
    slow: bool = False

    @property
    def severity(self) -> str:
        """``must`` where a clause of the case is mandatory, else ``should``."""
        found = [clause_register.get(name).mandatory for name in self.clauses]
        return "must" if any(found) else "should"

    @property
    def title(self) -> str:
        """First line of the case's own description."""
        text = (self.body.__doc__ or "").strip()
        return text.splitlines()[0] if text else self.id


_CASES: dict[str, Case] = {}


def case(
    id: str,
    *,
    clauses: tuple[str, ...],
    role: Role,
    category: Category,
    mutants: tuple[str, ...],
    dialects: tuple[str, ...] = ("*",),
    params: Mapping[str, Sequence[Any]] | None = None,
    harm: Harm = "none",
    needs_restart: bool = False,
    positions: tuple[Position, ...] = (),
    strength: int = 2,
    smoke: bool = False,
    slow: bool = False,
) -> Callable[[_B], _B]:
    """Declare a case.

    Raises
    ------
    ValueError
        The id is taken, a clause is unknown, or no mutant is named.
    """

    def declare(body: _B) -> _B:
        before = _CASES.get(id)
        if before is not None and before.body.__qualname__ != body.__qualname__:
            raise ValueError(f"case {id!r} is declared twice")
        for name in clauses:
            clause_register.get(name)
        if not clauses or not mutants:
            raise ValueError(f"case {id!r} needs a clause and a mutant")
        _CASES[id] = Case(
            id,
            clauses,
            role,
            category,
            body,
            dialects,
            dict(params or {}),
            harm,
            needs_restart,
            mutants,
            positions,
            strength,
            smoke,
            slow,
        )
        return body

    return declare


def load_cases() -> None:
    """Import every module of ``ds4proto_conformance.cases``."""
    from ds4proto_conformance import cases

    for found in pkgutil.iter_modules(cases.__path__):
        importlib.import_module(f"{cases.__name__}.{found.name}")


def all_cases(role: str | None = None) -> tuple[Case, ...]:
    """Return every case, or those of one role, in the order of their files."""
    load_cases()
    return tuple(c for c in _CASES.values() if role is None or c.role == role)
