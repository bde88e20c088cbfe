"""The numbered clauses of the specification, as data.

Every rule of the three protocols has one id (``DS4D-WORK-07``) that code, test
cases, findings and the written specification share. The texts live in
``spec/clauses/*.toml``; ``python -m ds4proto.clauses build`` turns them into the
package data read here, and ``... check`` proves that nothing has drifted.

Only the standard library is used.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any, Final

__all__ = ["Clause", "UnknownClauseError", "get", "ids", "load"]

DATA_FILE: Final = "data/clauses.json"


class UnknownClauseError(LookupError):
    """No clause of the specification bears the id asked for."""


@dataclass(frozen=True, slots=True)
class Clause:
    """One rule of the specification.

    Parameters
    ----------
    id : str
        Stable name, such as ``DS4D-WORK-07``; never renamed, never used twice.
    chapter : str
        The clause file it comes from, without its ending.
    keyword : str
        ``MUST``, ``MUST NOT``, ``SHOULD``, ``SHOULD NOT`` or ``MAY`` (RFC 2119).
    text : str
        The rule itself.
    role : tuple of str
        Who is bound: ``coordinator``, ``worker``, ``tp-leader``, ``tp-worker``,
        ``codec``, ``file`` or ``any``.
    dialects : tuple of str
        Dialects in which the rule holds; ``*`` stands for all.
    evidence : str
        ``measured``, ``exhaustive``, ``read`` or ``hypothesis``.
    source : str
        Captures, probes and vectors that show the rule; may be empty for the
        latter two kinds of evidence.
    observed : str
        What the other side sees when the rule is broken; may be empty.
    error : str or None
        The exact text a peer prints, where it prints one (C format letters stand
        for its numbers).
    section : str
        Heading inside the chapter, or empty.
    tier : str
        ``transport`` where frames alone decide, ``engine`` where the model does.
    kind : str
        ``rule``; ``defect`` (what to do where known peers fail); ``ours`` (a
        deliberate, safe deviation).
    reason : str or None
        Why we deviate; present for ``ours`` alone.
    detector : str or None
        How a ``defect`` shows on the wire, where ``observed`` does not say it.
    """

    id: str
    chapter: str
    keyword: str
    text: str
    role: tuple[str, ...]
    dialects: tuple[str, ...]
    evidence: str
    source: str
    observed: str
    error: str | None = None
    section: str = ""
    tier: str = "transport"
    kind: str = "rule"
    reason: str | None = None
    detector: str | None = None

    @property
    def mandatory(self) -> bool:
        """Whether the keyword is ``MUST`` or ``MUST NOT``."""
        return self.keyword.startswith("MUST")


def from_mapping(values: dict[str, Any]) -> Clause:
    """Build a clause from one object of the package data."""
    return Clause(
        **{
            **values,
            "role": tuple(values["role"]),
            "dialects": tuple(values["dialects"]),
        }
    )


@cache
def load() -> tuple[Clause, ...]:
    """Return every clause, chapter by chapter, in the order of the text.

    Raises
    ------
    FileNotFoundError
        If the package was built without its data file.
    """
    text = files("ds4proto").joinpath(DATA_FILE).read_text("utf-8")
    return tuple(from_mapping(values) for values in json.loads(text)["clauses"])


@cache
def _by_id() -> dict[str, Clause]:
    return {clause.id: clause for clause in load()}


def get(clause_id: str) -> Clause:
    """Return the clause with that id.

    Raises
    ------
    UnknownClauseError
        If there is none; the message names the nearest ids.
    """
    found = _by_id().get(clause_id)
    if found is not None:
        return found
    family, _, number = clause_id.rpartition("-")
    close = get_close_matches(f"{family}-{number:0>2}", ids(), n=3)
    raise UnknownClauseError(
        f"no clause {clause_id!r} among the {len(ids())} of the specification; "
        + (f"nearest: {', '.join(close)}" if close else "none is near: see spec list")
    )


def ids() -> tuple[str, ...]:
    """Return all clause ids, in the order of :func:`load`."""
    return tuple(_by_id())


if __name__ == "__main__":
    import sys

    from ds4proto.clauses_build import main

    sys.exit(main(sys.argv[1:]))
