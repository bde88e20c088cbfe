"""Findings of a diagnosis as remarks of a picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from ds4proto.trace.pictures.model import Place, Remark

if TYPE_CHECKING:
    from ds4proto.trace.diagnosis.finding import Evidence, Finding

__all__ = ["OF_A_KIND", "remarks_of"]

OF_A_KIND: Final = 8
"""Findings of one kind that a page lists; it counts the others."""
_PLACES: Final = 4
_SEVERITIES: Final = {"severe": "error", "warning": "warning", "note": "note"}


def remarks_of(findings: Iterable[Finding], file: str) -> list[Remark]:
    """Return findings as a page lists them.

    Parameters
    ----------
    findings : iterable of Finding
    file : str
        The capture that is drawn: evidence in it leads to frames, evidence in other
        files is told in words.
    """
    kinds: Counter[str] = Counter()
    found = []
    for finding in findings:
        kinds[finding.code] += 1
        if kinds[finding.code] <= OF_A_KIND:
            found.append(_remark(finding, file))
    for code, count in kinds.items():
        if count > OF_A_KIND:
            more = f"{count - OF_A_KIND} more of {code}"
            found.append(Remark("note", f"{more}: ds4proto diagnose --json lists all"))
    return found


def _remark(finding: Finding, file: str) -> Remark:
    own = [e for e in finding.evidence if e.file == file and e.stream >= 0]
    lines = [f"{finding.code}" + (f", {finding.clause}" if finding.clause else "")]
    lines += [
        _words(e, file) for e in finding.evidence[:_PLACES] if e.text or e not in own
    ]
    sentence = finding.sentence[:1].upper() + finding.sentence[1:]
    return Remark(
        _SEVERITIES.get(finding.severity, "note"),
        sentence,
        finding.confidence,
        tuple(lines),
        finding.next_step,
        tuple(Place(e.stream, e.direction, e.offset, e.packet) for e in own[:_PLACES]),
    )


def _words(evidence: Evidence, file: str) -> str:
    parts = [] if evidence.file == file else [evidence.file]
    if evidence.line:
        parts.append(f"line {evidence.line}")
    if evidence.frame:
        parts.append(evidence.frame)
    if evidence.packet:
        parts.append(f"packet {evidence.packet}")
    place = ", ".join(part for part in parts if part)
    return f"{place}: {evidence.text}" if evidence.text else place
