"""Error texts of the clauses: which one a message is, and whether it fits."""

from __future__ import annotations

import re
from functools import cache

from ds4proto import clauses

__all__ = ["fits", "owner", "template"]


def template(clause: str) -> str:
    """Return the text of a clause, with its format letters; empty without one."""
    return clauses.get(clause).error or ""


@cache
def _pattern(text: str) -> re.Pattern[str]:
    parts = re.split(r"%(?:0\d)?[a-z]", text)
    return re.compile(".*".join(map(re.escape, parts)), re.DOTALL)


@cache
def _known() -> tuple[tuple[str, str], ...]:
    return tuple((c.id, c.error) for c in clauses.load() if c.error)


def fits(clause: str, message: str) -> bool:
    """Return whether a message is the text of a clause, numbers aside."""
    text = template(clause)
    return bool(text) and _pattern(text).fullmatch(message) is not None


@cache
def owner(message: str) -> str | None:
    """Return the first clause whose text a message is."""
    for clause, text in _known():
        if _pattern(text).fullmatch(message):
            return clause
    return None
