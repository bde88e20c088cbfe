"""``ds4proto check --list``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ds4proto.errors import ExitCode, WrongUsage

__all__ = ["listed"]


def listed(told: Mapping[str, Any]) -> int:
    """Name the cases that the options select; return the exit status.

    Raises
    ------
    WrongUsage
        Together with options that pick single cases.
    """
    from ds4proto_conformance.registry import all_cases
    from ds4proto_conformance.selection import select

    if told["keyword"] or told["only"]:
        raise WrongUsage("--list names all cases of a profile: leave -k and --case out")
    found = select(all_cases(told["role"]), told["profile"])
    if told["as_json"]:
        from ds4proto.cli._output import write_json

        write_json(
            [
                {"id": case.id, "title": case.title, "severity": case.severity,
                 "clauses": list(case.clauses)}
                for case in found
            ]
        )  # fmt: skip
        return ExitCode.PASSED if found else ExitCode.NOTHING_RAN
    for case in found:
        print(f"{case.id:52} {case.severity:6} {' '.join(case.clauses)}")
        print(f"    {case.title}")
    print(f"{len(found)} cases")
    return ExitCode.PASSED if found else ExitCode.NOTHING_RAN
