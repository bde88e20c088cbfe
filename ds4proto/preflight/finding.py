"""What a check says: how bad it is, what, where, what was expected, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

__all__ = ["SEVERITIES", "Finding", "verdict"]

Severity = Literal["error", "warning", "note"]
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "note")
"""An error keeps the run from starting or from being right; a warning costs speed or
hides a trap; a note tells."""


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One finding.

    Attributes
    ----------
    severity : {"error", "warning", "note"}
    check : str
        Which check found it, ``layers.gap``.
    where : str
        Machine, machines, or part of the plan.
    what : str
        The fault in one sentence.
    expected, found : str
    next_step : str
    prints : str
        What ds4 prints in this place, exactly; empty where it prints nothing.
    clause : str
        Clause of the specification, where one rules it.
    """

    severity: Severity
    check: str
    where: str
    what: str
    expected: str = ""
    found: str = ""
    next_step: str = ""
    prints: str = ""
    clause: str = ""


def verdict(findings: Iterable[Finding]) -> Literal["go", "go with care", "no go"]:
    """Return the verdict over all findings."""
    worst = {finding.severity for finding in findings}
    if "error" in worst:
        return "no go"
    return "go with care" if "warning" in worst else "go"
