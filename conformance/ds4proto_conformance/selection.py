"""Profiles: which cases of a role a run asks for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ds4proto.errors import WrongUsage
from ds4proto.printable import printable
from ds4proto.schema.dialects import DEFAULT_DS4D, all_dialects, dialects_of
from ds4proto_conformance.registry import Case, all_cases

__all__ = [
    "PROFILES",
    "refuse_dialect",
    "refuse_keyword",
    "refuse_unknown",
    "select",
]

PROFILES: Final = ("smoke", "must", "full")
_PROTOCOLS: Final = {
    "coordinator": "DS4D", "worker": "DS4D", "tp-leader": "DS4T", "tp-worker": "DS4T",
}  # fmt: skip


def select(cases: Iterable[Case], profile: str) -> list[Case]:
    """Return the cases of a profile; ``dialect:NAME`` asks for those of a dialect.

    Raises
    ------
    WrongUsage
        There is no such profile.
    """
    if profile == "full":
        return list(cases)
    if profile == "smoke":
        return [case for case in cases if case.smoke]
    if profile == "must":
        return [c for c in cases if c.severity == "must" and not c.slow]
    kind, _, name = profile.partition(":")
    if kind != "dialect" or not name:
        raise WrongUsage(
            f"no profile {profile!r}; known: {', '.join(PROFILES)}, dialect:NAME"
        )
    refuse_dialect(name, "", f"--profile {profile}")
    return [case for case in cases if name in case.dialects or "*" in case.dialects]


def refuse_dialect(name: str, role: str, option: str) -> None:
    """Refuse a dialect that there is not, or that peers of a role cannot speak.

    Raises
    ------
    WrongUsage
        It names those that are known.
    """
    of_role = dialects_of(_PROTOCOLS[role]) if role in _PROTOCOLS else all_dialects()
    known = [dialect.name for dialect in of_role]
    if name not in (*known, DEFAULT_DS4D):
        raise WrongUsage(
            f"{option}: {role and f'a {role} has '}no dialect {name!r}; known:"
            f" {', '.join(known)}"
        )


def refuse_keyword(keyword: str) -> None:
    """Refuse a ``-k`` with bytes that no id has; pytest would print them raw.

    Raises
    ------
    WrongUsage
        It shows the expression with those bytes escaped.
    """
    if not keyword.replace("\t", " ").isprintable():  # pytest takes tabs for spaces
        raise WrongUsage(
            f"-k {printable(keyword)}: expected words of case ids with and, or, not,"
            " found characters that cannot be printed. Next: leave them out"
        )


def refuse_unknown(ids: Sequence[str], role: str) -> None:
    """Refuse ids of cases that a role does not have.

    Raises
    ------
    WrongUsage
        It names the ids that are near.
    """
    from difflib import get_close_matches

    known = [case.id for case in all_cases(role)] if ids else []
    for name in ids:
        if name not in known:
            near = ", ".join(get_close_matches(name, known, 3, 0.5))
            raise WrongUsage(
                f"--case {name}: a {role} has no such case{near and f'; near: {near}'}."
                f" Next: ds4proto check --list --role {role}"
            )
