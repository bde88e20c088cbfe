"""What a case did to a peer: classes, severity, the words that fold duplicates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

__all__ = ["CLASSES", "SEVERITY", "Class", "Effect"]

Class = Literal[
    "crash", "hang", "over-allocation", "leak", "silent accept", "wrong answer"
]
CLASSES: Final = (
    "crash", "hang", "over-allocation", "leak", "silent accept", "wrong answer",
)  # fmt: skip
SEVERITY: Final[dict[str, str]] = {
    "crash": "high",
    "hang": "high",
    "over-allocation": "high",
    "leak": "medium",
    "silent accept": "medium",
    "wrong answer": "medium",
}


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect.

    Attributes
    ----------
    kind : str
        One of ``CLASSES``.
    what : str
        What was seen, without numbers that differ from case to case: equal words of
        one kind in one state are one finding.
    detail : str
        The rest, for a reader.
    clause : str
        Clause that forbids it, where one does.
    """

    kind: Class
    what: str
    detail: str = ""
    clause: str = ""

    @property
    def severity(self) -> str:
        """``high`` where one client takes the peer from all others."""
        return SEVERITY[self.kind]

    def same(self, other: Effect | None) -> bool:
        """Tell whether the other is the same effect."""
        return other is not None and (self.kind, self.what) == (other.kind, other.what)

    def as_json(self) -> dict[str, Any]:
        """Return the effect as a finding holds it."""
        return {
            "class": self.kind,
            "what": self.what,
            "detail": self.detail,
            "clause": self.clause,
            "severity": self.severity,
        }

    def __str__(self) -> str:
        more = f" ({self.detail})" if self.detail else ""
        return f"{self.kind}: {self.what}{more}"
