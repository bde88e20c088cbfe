"""The front of a diagnosis: files in, findings out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from os import PathLike

from ds4proto.trace.decoder import CaptureDecoder
from ds4proto.trace.diagnosis.check import Check, Scene
from ds4proto.trace.diagnosis.finding import Finding, in_order
from ds4proto.trace.rows import FrameRow
from ds4proto.trace.tcp_events import StreamEvent

__all__ = ["Diagnosis", "Examiner", "diagnose", "examine"]


@dataclass(slots=True)
class Diagnosis:
    """Everything found in some files.

    Attributes
    ----------
    findings : list of Finding
        The worst first.
    frames : int
        Frames decoded, and lines of logs understood.
    unreadable : dict
        File -> what kept it from being read to its end.
    """

    findings: list[Finding] = field(default_factory=list)
    frames: int = 0
    unreadable: dict[str, str] = field(default_factory=dict)


class Examiner:
    """All checks over one capture, in constant memory.

    Parameters
    ----------
    decoder : CaptureDecoder
        Where the rows come from; give `saw` to it as `on_event` for what TCP tells.
    file : str
        Name of the capture in evidence.
    """

    def __init__(self, decoder: CaptureDecoder, file: str) -> None:
        self.scene = Scene(decoder, file)
        self.checks: list[Check] = []
        self.frames = 0

    def add(self, row: FrameRow) -> None:
        """Take the next row."""
        self.frames += row.is_frame
        for check in self.checks:
            check.add(row)

    def saw(self, event: StreamEvent) -> None:
        """Take what TCP did."""
        for check in self.checks:
            check.saw(event)

    def findings(self) -> list[Finding]:
        """Return the findings, the worst first; call it when all rows have passed."""
        found = [f for check in self.checks for f in check.findings()]
        return in_order(found)


def examine(files: Iterable[str | PathLike[str]]) -> Diagnosis:
    """Read captures and logs to their ends, and say what they show."""
    found = Diagnosis()
    for name in files:
        for finding in _one(str(name), found):
            found.findings.append(finding)
    found.findings = in_order(found.findings)
    return found


def diagnose(files: Iterable[str | PathLike[str]]) -> list[Finding]:
    """Return the findings over captures and logs, the worst first.

    Raises
    ------
    OSError
        Where a file cannot be opened.
    """
    return examine(files).findings


def _one(name: str, found: Diagnosis) -> Iterator[Finding]:
    decoder = CaptureDecoder(name)
    examiner = Examiner(decoder, name)
    try:
        for row in decoder:
            examiner.add(row)
    except ValueError as error:
        found.unreadable[name] = str(error)
    found.frames += examiner.frames
    yield from examiner.findings()
