"""What the cases cover, for ``ds4proto spec coverage``."""

from __future__ import annotations

from ds4proto_conformance.registry import all_cases


def covered() -> dict[str, list[str]]:
    """Return clause ids and the cases that name them."""
    found: dict[str, list[str]] = {}
    for case in all_cases():
        for clause in case.clauses:
            found.setdefault(clause, []).append(f"case {case.id}")
    return found
