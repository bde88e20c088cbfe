"""The front of a diagnosis: files in, findings out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Final

from msgspec.structs import replace as with_fields

from ds4proto.link.schedule import Schedule
from ds4proto.pcap.types import CaptureError
from ds4proto.trace.decoder import CaptureDecoder
from ds4proto.trace.diagnosis.broken_rules import RulesCheck
from ds4proto.trace.diagnosis.check import Check, Scene, is_whole
from ds4proto.trace.diagnosis.connecting import ConnectingCheck
from ds4proto.trace.diagnosis.connections import Connections
from ds4proto.trace.diagnosis.cross import cross_findings
from ds4proto.trace.diagnosis.finding import Finding, hedged, in_order
from ds4proto.trace.diagnosis.gate_headers import GateHeaders
from ds4proto.trace.diagnosis.giving_up import GivingUpCheck
from ds4proto.trace.diagnosis.hops import Pipelines
from ds4proto.trace.diagnosis.identity import IdentityCheck
from ds4proto.trace.diagnosis.kept import NotTracked, first_of_each_kind
from ds4proto.trace.diagnosis.logs import (
    LogReader,
    head_of,
    is_log,
    settings_findings,
)
from ds4proto.trace.diagnosis.pipeline import PipelineCheck
from ds4proto.trace.diagnosis.rdma import RdmaCheck, roce_findings
from ds4proto.trace.diagnosis.routes import RouteCheck
from ds4proto.trace.diagnosis.tensor import TensorCheck
from ds4proto.trace.diagnosis.tp_answers import TpAnswersCheck
from ds4proto.trace.diagnosis.tp_ending import TpEndingCheck
from ds4proto.trace.diagnosis.tp_ends import PairEnds
from ds4proto.trace.diagnosis.tp_gates import Pairs
from ds4proto.trace.diagnosis.tp_refusals import Refusals
from ds4proto.trace.diagnosis.transport import TransportCheck
from ds4proto.trace.diagnosis.values import ValuesCheck, flush_look
from ds4proto.trace.roce import decode_roce
from ds4proto.trace.rows import FrameRow
from ds4proto.trace.tcp_events import StreamEvent

__all__ = ["Diagnosis", "Examiner", "diagnose", "examine"]

_STDIN: Final = "-"
_BY_STATE: Final = (
    "rule.", "frame.", "end.cut-off", "end.worker-left", "end.no-stop", "stall.inside",
    "route.stray", "route.request-missing", "tp.", "identity.",
)  # fmt: skip
"""Findings that rest on what passed before, or on what did not."""


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
    file : str
        Name of the capture in evidence.
    decoder : CaptureDecoder, optional
        Where the rows come from. Let its `on_event` call `saw` for what TCP tells, and
        give it ``payload=flush_look`` to count what narrowing would lose.
    """

    def __init__(self, file: str, decoder: CaptureDecoder | None = None) -> None:
        self.file = file
        self.decoder = decoder or CaptureDecoder(
            file, payload=flush_look, on_event=self.saw
        )
        scene = Scene(self.decoder, file)
        self.connections = Connections(scene)
        self.pipelines = Pipelines()
        self.pairs = Pairs()
        self._headers = GateHeaders(scene, self.connections)
        self._transport = TransportCheck(scene, self.connections)
        ends = PairEnds(scene, self.connections)
        refusals = Refusals(scene, self.pairs, ends)
        routes, values = RouteCheck(scene), ValuesCheck(scene)
        identity = IdentityCheck(scene)
        self._bounded = NotTracked(
            file,
            lambda: {
                "sessions": routes.sessions.lost + refusals.commands.lost,
                "registrations": routes.hellos.lost,
                "slices of workers": identity.workers.lost,
                "payloads": values.places.lost,
                "answers of workers": sum(
                    run.nodes.lost for run in self.pipelines.runs.values()
                ),
                "gates": sum(run.waits.lost for run in self.pairs.runs.values()),
            },
        )
        self.checks: tuple[Check, ...] = (
            refusals,
            PipelineCheck(scene, self.pipelines),
            TensorCheck(scene, self.pairs),
            GivingUpCheck(scene, self.connections, self.pipelines),
            TpEndingCheck(
                scene, self.connections, self.pairs, self._headers, ends, refusals
            ),
            TpAnswersCheck(scene, self.pairs, refusals),
            routes,
            identity,
            ConnectingCheck(scene, self.connections),
            RulesCheck(
                scene,
                self.connections,
                self.pairs,
                self.pipelines,
                self._headers,
                refusals,
            ),
            self._headers,
            RdmaCheck(scene),
            values,
            self._transport,
            self._bounded,
        )
        self.frames = 0
        self._judged: list[Finding] | None = None

    def saw(self, event: StreamEvent) -> None:
        """Take what TCP did, before the rows that come of it."""
        self.connections.saw(event)
        self._transport.saw(event)
        self._headers.saw(event)

    def add(self, row: FrameRow) -> None:
        """Take the next row."""
        self.frames += row.is_frame
        self.connections.add(row)
        if not is_whole(row):
            return
        for check in self.checks:
            check.add(row)

    def findings(self) -> list[Finding]:
        """Return the findings, the worst first; call it when all rows have passed."""
        if self._judged is not None:
            return self._judged
        self.connections.settle()
        found = (f for check in self.checks for f in check.findings())
        judged = in_order(map(self._with_holes, found))
        self._judged = in_order(first_of_each_kind(judged, self.file))
        return self._judged

    def _with_holes(self, finding: Finding) -> Finding:
        """Accuse nobody of what the capture's own holes may have made."""
        if finding.severity == "note" or not finding.code.startswith(_BY_STATE):
            return finding
        times = [one.time for one in finding.evidence[:2]]
        doubtful = any(self.connections.doubtful(finding.run, t) for t in times)
        pair = self.pairs.runs.get(finding.run)
        unnamed = pair is not None and not pair.hello  # nor is its dialect known
        if doubtful or (unnamed and self.connections.holed(finding.run)):
            return hedged(finding)
        return finding


def examine(
    files: Iterable[str | PathLike[str]], *, schedule: Schedule | None = None
) -> Diagnosis:
    """Read captures and logs to their ends, and say what they show, alone and together.

    Parameters
    ----------
    files : iterable of paths
        Captures, proxy records and runtime traces (pcap, pcapng), RoCE captures, and
        plain logs of ds4 processes, told apart by their first bytes.
    schedule : Schedule, optional
        Gives the gate numbers in logs their places; else a hello among the captures,
        or the log itself.

    Raises
    ------
    OSError
        Where a file cannot be opened.
    """
    found = Diagnosis()
    names = [str(name) for name in files]
    logs = [LogReader(n) for n in names if n != _STDIN and is_log(head_of(n))]
    texts = {log.file for log in logs}
    captures = [_read(name, found) for name in names if name not in texts]
    for capture in captures:
        found.findings += capture.findings()
        if capture.decoder.packet_counts.get("udp") and capture.file != _STDIN:
            found.findings += _roce(capture, captures, found)
    for log in logs:
        log.read()
        given = schedule or _schedule_in(captures)
        found.findings += log.findings(given)
        found.frames += log.understood
    if len(logs) > 1:
        found.findings += settings_findings(logs)
    again = [capture for capture in captures if capture.file != _STDIN]
    if len(again) > 1:
        cross = list(cross_findings(again))
        if any(finding.code in ("both.link", "both.late-rank") for finding in cross):
            found.findings = [_settled(finding) for finding in found.findings]
        found.findings += cross
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


def _read(name: str, found: Diagnosis) -> Examiner:
    examiner = Examiner(name)
    try:
        for row in examiner.decoder:
            examiner.add(row)
    except CaptureError as error:
        found.unreadable[name] = str(error)
    info = examiner.decoder.info
    if info.truncated and name not in found.unreadable:
        found.unreadable[name] = (
            f"the file ends inside a record at file offset {info.truncated_at}; what "
            "came before is judged"
        )
    elif info.marked_complete is False and name not in found.unreadable:
        found.unreadable[name] = (
            "the recording was broken off: its mark of completeness is missing"
        )
    found.frames += examiner.frames
    return examiner


def _roce(
    capture: Examiner, captures: Sequence[Examiner], found: Diagnosis
) -> Iterator[Finding]:
    """Read the RDMA packets of a capture, with the control stream of any."""
    pairs = [one for one in (capture, *captures) if one.pairs.runs]
    control = pairs[0].file if pairs else None
    try:
        report = decode_roce(control, capture.file)
    except CaptureError as error:
        found.unreadable.setdefault(capture.file, str(error))
        return
    found.frames += sum(report.packets.values())
    yield from roce_findings(report, capture.file)


def _settled(finding: Finding) -> Finding:
    """Return what one side alone suspects as a note, where both sides tell."""
    if finding.code not in ("tp.skew", "tp.slow-gates"):
        return finding
    return with_fields(finding, severity="note", next_step="")


def _schedule_in(captures: Sequence[Examiner]) -> Schedule | None:
    for capture in captures:
        for run in capture.pairs.runs.values():
            if run.schedule is not None:
                return run.schedule
    return None
