"""Verdicts, and the exceptions through which a case states them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

__all__ = [
    "Deviation",
    "NotApplicable",
    "Outcome",
    "Unsupported",
    "Verdict",
]


class Verdict(StrEnum):
    """What is said of one case."""

    PASS = "pass"
    CONCEPTUAL = "conceptual pass"
    PARTIAL = "partial"
    FAIL = "fail"
    UNSUPPORTED = "unsupported"
    FLAKY = "flaky"
    NOT_APPLICABLE = "not applicable"
    NOT_RUN = "not run"
    SUITE_ERROR = "suite error"

    @property
    def bad(self) -> bool:
        """Whether a run with this verdict ends with exit code 1."""
        return self in _BAD

    @property
    def judged(self) -> bool:
        """Whether the peer's behaviour was seen at all."""
        return self not in (Verdict.NOT_APPLICABLE, Verdict.NOT_RUN)


_BAD = (Verdict.PARTIAL, Verdict.FAIL, Verdict.FLAKY, Verdict.SUITE_ERROR)


class Deviation(Exception):
    """The peer did something else than a clause asks for.

    Parameters
    ----------
    clause : str
        Id of the clause.
    expected, found : str
        What the clause asks for, and what was seen.
    """

    def __init__(self, clause: str, expected: str, found: str) -> None:
        super().__init__(f"{clause}: expected {expected}; found {found}")
        self.clause = clause
        self.expected = expected
        self.found = found

    def as_dict(self) -> dict[str, str]:
        """Return it as a report holds it."""
        return {
            "clause": self.clause,
            "expected": self.expected,
            "found": self.found,
        }


class Unsupported(Exception):
    """The peer itself says that it cannot do this; the text is the evidence."""


class NotApplicable(Exception):
    """The clause does not bind this peer; the text says why."""


@dataclass(slots=True)
class Outcome:
    """The verdict on one case, and what led to it.

    Attributes
    ----------
    deviations : list of mapping
        ``clause``, ``expected``, ``found``; the first is the decisive one.
    notes : list of str
        Reasons for lesser verdicts, evidence, differences that are no faults.
    combination : mapping
        The failing parameters, shrunk to those that matter.
    frames : list of mapping
        What crossed, decoded; see ``transcript.frames``.
    """

    case: str
    verdict: Verdict
    deviations: list[dict[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    combination: dict[str, Any] = field(default_factory=dict)
    combinations: int = 0
    failed_combinations: int = 0
    attempts: int = 1
    seconds: float = 0.0
    seed: int = 0
    frames: list[dict[str, Any]] = field(default_factory=list)
    output: str = ""
