"""Reports as text: a summary, and for a failure what its tracker needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ds4proto import clauses
from ds4proto.cli._output import printable
from ds4proto.printable import counted
from ds4proto_conformance.report.stream import Report
from ds4proto_conformance.verdicts import Verdict

__all__ = ["ORDER", "by_clause", "failures", "summary", "ticket", "verdict_counts"]

ORDER: Final = (
    Verdict.FAIL,
    Verdict.PARTIAL,
    Verdict.FLAKY,
    Verdict.SUITE_ERROR,
    Verdict.CONCEPTUAL,
    Verdict.UNSUPPORTED,
    Verdict.NOT_RUN,
    Verdict.NOT_APPLICABLE,
    Verdict.PASS,
)
_SHOWN: Final = 24
_ALIKE: Final = 3
"""Failures that read the same, and further ones are named without details."""
_NEXT_FAILED: Final = "make the peer do what is expected, then replay the case"
_NEXT: Final = {
    str(
        Verdict.FLAKY
    ): "replay it with --repeat 5, and with --time-scale 4 if it waits",
    str(Verdict.SUITE_ERROR): "not the peer's fault: please report it with this text",
}


def verdict_counts(report: Report) -> dict[str, int]:
    """Return how often each verdict was given, the bad ones first."""
    counts = Counter(line["verdict"] for line in report.cases.values())
    return {str(v): counts[str(v)] for v in ORDER if counts[str(v)]}


def summary(report: Report, *, stopped: bool = True) -> list[str]:
    """Return the lines of a summary; with `stopped` why the run ended early."""
    counts = verdict_counts(report)
    words = ", ".join(f"{n} {name}" for name, n in counts.items()) or "no cases"
    head = f"{report.header['role']} {report.peer}: {len(report.cases)} cases: {words}"
    lines = [printable(head)]
    if stopped and report.footer.get("stopped"):
        first = str(report.footer["stopped"]).splitlines()[0]
        lines.append(f"stopped: {printable(first)}")
    return lines


def failures(report: Report) -> list[str]:
    """Return the texts of the failed cases; what many share is told once.

    Beyond some cases with the same verdict, clause, expected and found only the
    first is told whole, with the ids of the others.
    """
    alike: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for number, line in enumerate(_failed(report)):
        first = line["deviations"][0] if line["deviations"] else None
        same = (first["clause"], first["expected"], first["found"]) if first else ()
        key = (line["verdict"], *(same or (str(number),)))
        alike.setdefault(key, []).append(line)
    out = []
    for lines in alike.values():
        told = lines if len(lines) <= _ALIKE else lines[:1]
        out += [ticket(line, report.header) for line in told]
        more = [line["id"] for line in lines[len(told) :]]
        if more:
            out[-1] += f"\nand {len(more)} more cases: {printable(', '.join(more))}"
            out[-1] += "\n  (the same clause, expected and found; --report has all)"
    return out


def by_clause(report: Report) -> list[str]:
    """Return one line for each clause that cases fail on, most cases first."""
    found: dict[str, list[str]] = {}
    for line in _failed(report):
        first = line["deviations"][0]["clause"] if line["deviations"] else "no clause"
        found.setdefault(first, []).append(line["id"])
    rows = sorted(found.items(), key=lambda row: -len(row[1]))
    width = max((len(clause) for clause in found), default=0)
    lines = [
        f"  {clause:{width}}  {counted(len(ids), 'case')}, first {ids[0]}"
        for clause, ids in rows
    ]
    return ["failed by clause:", *map(printable, lines)] if lines else []


def _failed(report: Report) -> list[Mapping[str, Any]]:
    return [c for c in report.cases.values() if Verdict(c["verdict"]).bad]


def ticket(line: Mapping[str, Any], report_header: Mapping[str, Any]) -> str:
    """Return a text that is ready for the tracker of the peer."""
    out = [f"{line['id']}: {line.get('title', '')}", f"verdict: {line['verdict']}"]
    for deviation in line["deviations"]:
        clause = deviation["clause"]
        out.append(f"clause {clause}: {_text(clause)}")
        out.append(f"  expected: {deviation['expected']}")
        out.append(f"  found:    {deviation['found']}")
    combination = line.get("combination") or {}
    if combination and line.get("combinations", 0) > 1:
        pairs = ", ".join(f"{k}={v}" for k, v in combination.items())
        failed, all_ = line.get("failed_combinations"), line.get("combinations")
        out.append(f"combination: {pairs} ({failed} of {all_} combinations failed)")
    out += [f"note: {note}" for note in line.get("notes", ())]
    frames = line.get("frames") or []
    if frames:
        out.append("frames:")
        out += [f"  {frame_line(frame)}" for frame in frames[:_SHOWN]]
        if len(frames) > _SHOWN:
            out.append(f"  ... {len(frames) - _SHOWN} more, see the JSON report")
    if line.get("output"):
        out.append("last output of the peer:")
        out += [f"  {text}" for text in line["output"].splitlines()[-10:]]
    out.append(f"peer: {report_header.get('peer')}, seed {line['seed']}")
    out.append(f"next: {_NEXT.get(line['verdict'], _NEXT_FAILED)}")
    out.append(f"replay: {line['reproduce']}")
    return "\n".join(printable(text) for text in out)


def frame_line(frame: Mapping[str, Any]) -> str:
    """Return one frame as one line, its bytes behind it."""
    fields = frame.get("fields") or {}
    shown = " ".join(f"{k}={_short(v)}" for k, v in fields.items())
    arrow = "<-" if frame.get("from") == "peer" else "->"
    size = frame.get("length", 0)
    hexed = str(frame.get("hex", ""))
    return f"{arrow} {frame.get('on', '')} {frame['type']} {size} B {shown} | {hexed}"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _text(clause: str) -> str:
    try:
        return clauses.get(clause).text
    except LookupError:
        return "(not in the register)"


def markdown(reports: Iterable[Report]) -> str:
    """Return one table over several peers: rows are cases, columns peers."""
    found = list(reports)
    ids = list(dict.fromkeys(name for r in found for name in r.cases))
    head = "| case | " + " | ".join(_cell(r.peer) for r in found) + " |"
    out = ["# Conformance", ""]
    out += [f"* {line}" for r in found for line in summary(r)]
    out += ["", head, "|---" * (len(found) + 1) + "|"]
    for name in ids:
        cells = [str(r.cases.get(name, {}).get("verdict", "-")) for r in found]
        out.append(f"| {_cell(name)} | {' | '.join(cells)} |")
    failed = [
        ticket(line, r.header)
        for r in found
        for line in r.cases.values()
        if Verdict(line["verdict"]).bad
    ]
    for text in failed:
        out += ["", f"## {text.splitlines()[0]}", "", "```", text, "```"]
    return "\n".join(out) + "\n"


def _cell(text: str) -> str:
    return printable(text).replace("|", "\\|")
