"""What a diagnosis says: how bad, how sure, what, which frames prove it, what to do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import msgspec
from msgspec.structs import replace as with_fields

from ds4proto.trace.rows import FrameRow

__all__ = [
    "CONFIDENCES",
    "SEVERITIES",
    "Confidence",
    "Evidence",
    "Finding",
    "Severity",
    "hedged",
    "in_its_wake",
    "in_order",
    "proof",
    "worst",
]

Severity = Literal["severe", "warning", "note"]
Confidence = Literal["certain", "likely", "possible"]
SEVERITIES: Final[tuple[Severity, ...]] = ("severe", "warning", "note")
"""Severe: the run failed, or its results are wrong. Warning: it is slow, or one step
from failing. Note: it is told, or it could not be told."""
CONFIDENCES: Final[tuple[Confidence, ...]] = ("certain", "likely", "possible")
"""Certain: the bytes say so. Likely: nothing else known explains them. Possible: one
explanation among others, which the sentence names."""


class Evidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """One frame, place in a stream, or line of a log that proves a finding.

    Attributes
    ----------
    file : str
        As it was given on the command line.
    stream : int
        Number of the TCP connection, from 0, as `ds4proto decode` numbers them.
    direction : str
        ``a>b`` or ``b>a``.
    packet : int
        First packet in the capture, from 1; 0 where it has none.
    offset, length : int
        Where in its direction of the stream the frame begins, and its bytes.
    frame : str
        ``DS4D.WORK``.
    time : float
        Seconds since the first packet.
    line : int
        Of a log, from 1; 0 for a capture.
    text : str
        What is to be seen there.
    """

    file: str
    stream: int = -1
    direction: str = ""
    packet: int = 0
    offset: int = 0
    length: int = 0
    frame: str = ""
    time: float = 0.0
    line: int = 0
    text: str = ""


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One answer.

    Attributes
    ----------
    code : str
        Stable name of the kind, ``tp.gate-missing``.
    severity : {"severe", "warning", "note"}
    confidence : {"certain", "likely", "possible"}
    sentence : str
        The answer, with its numbers.
    numbers : dict
        The same numbers for programs; the unit ends the name (``_ms``, ``_bytes``).
    evidence : tuple of Evidence
    next_step : str
    run : int
        Number of the run in its file, from 1; 0 where it belongs to none.
    file : str
    clause : str
        Rule of the specification, where one is broken.
    """

    code: str
    severity: Severity
    confidence: Confidence
    sentence: str
    numbers: dict[str, float | int | str] = {}
    evidence: tuple[Evidence, ...] = ()
    next_step: str = ""
    run: int = 0
    file: str = ""
    clause: str = ""


def proof(row: FrameRow, file: str, text: str = "") -> Evidence:
    """Return the evidence that a row is."""
    return Evidence(
        file, row.stream, row.direction, row.first_packet, row.stream_offset,
        row.length, row.name, round(row.time, 9), 0, text,
    )  # fmt: skip


def worst(findings: Iterable[Finding]) -> Severity | None:
    """Return the worst severity, None without any finding."""
    found = {finding.severity for finding in findings}
    return next((severity for severity in SEVERITIES if severity in found), None)


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings, the worst first, causes before what follows from them."""
    return sorted(
        findings,
        key=lambda finding: (SEVERITIES.index(finding.severity), _depth(finding)),
    )


def in_its_wake(finding: Finding) -> Finding:
    """Return a finding as what follows from an earlier one of the same run."""
    return with_fields(
        finding,
        code="end.follows",
        severity="note",
        sentence=f"in its wake: {finding.sentence}",
        next_step="",
    )


def hedged(finding: Finding) -> Finding:
    """Return a finding that a hole of the capture may have made, as a note."""
    return with_fields(
        finding,
        severity="note",
        confidence="possible",
        sentence=f"{finding.sentence}. The capture began later or lost bytes just "
        "before, so that this may be its own doing",
        next_step="record again from the start and without loss",
    )


_CAUSES: Final = (
    "identity.", "both.changed", "tcp.", "rdma.gid", "rule.", "frame.", "tp.schedule",
    "tp.diverged", "tp.unknown-session", "tp.gate-timeout", "end.cut-off",
    "stall.inside", "route.error", "route.stray", "route.request-missing", "numeric.",
)  # fmt: skip


def _depth(finding: Finding) -> int:
    """Return how near to a cause a finding is; an end follows from one."""
    if finding.severity == "note":
        return 0
    for depth, start in enumerate(_CAUSES):
        if finding.code.startswith(start):
            return depth
    late = ("end.", "tp.command-failed")
    return len(_CAUSES) + finding.code.startswith(late)
