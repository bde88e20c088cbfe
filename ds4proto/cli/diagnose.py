"""``ds4proto diagnose``: why a run was slow, wrong or over, and what proves it."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import click

from ds4proto.cli._options import json_option, not_an_input
from ds4proto.cli._output import printable, progress, stdout, write_json
from ds4proto.errors import ExitCode, WrongUsage
from ds4proto.printable import counted

if TYPE_CHECKING:
    from rich.console import Console

    from ds4proto.link.schedule import Schedule
    from ds4proto.trace.diagnosis import Diagnosis, Evidence, Finding

__all__ = ["cmd", "report", "show"]

_BOTH: Final = "frames and lines"
_SHOWN: Final = 3
_DIGITS: Final = 9
_OF_A_KIND: Final = 8
_STYLES: Final = {"severe": "bold red", "warning": "yellow", "note": ""}
_TITLES: Final = {
    "severe": "what went wrong",
    "warning": "what to look at",
    "note": "what else it shows",
}
_HELP = """Say why a run was slow, wrong or over, in sentences with numbers.

FILEs are captures (pcap, pcapng, also gzip'd), records of ds4proto proxy, runtime
traces, RoCE captures (UDP port 4791) and plain logs of ds4 processes, in any mixture.
Two recordings of one tensor-parallel run, one on each side, are aligned by their gates
without trusting clocks; recordings of one prompt are compared up to the first token and
layer that differ. Where the files cannot tell, it says so.

\b
Examples:
  ds4proto diagnose run.pcap
  ds4proto diagnose leader.pcap worker.pcap leader.log
  ds4proto diagnose control.pcap roce.pcap --no-notes
  ds4proto diagnose worker.log --gates 86
  ds4proto diagnose run.pcap worker.log --html why.html
  ds4proto diagnose run.pcap --json | jq '.findings[] | select(.severity=="severe")'

The exit status is 1 where something severe was found, 0 where nothing was, 2 where no
file could be read."""


@click.command("diagnose", help=_HELP)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@json_option
@click.option(
    "--no-notes", is_flag=True, help="Leave out what is neither bad nor slow."
)
@click.option("--gates", metavar="SCHEDULE",
              help="Schedule of the gate numbers in logs: gates a token (86), or "
              "START,STEP,COUNT as in the hello (7,2,75). Default: from a hello among "
              "the files, else from the log itself.")  # fmt: skip
@click.option("--html", metavar="OUT",
              help="Draw the first capture as one page that lists the findings, "
              "too.")  # fmt: skip
def cmd(
    files: tuple[str, ...],
    as_json: bool,
    no_notes: bool,
    gates: str | None,
    html: str | None,
) -> int:
    """Diagnose captures and logs."""
    from ds4proto.trace.diagnosis import examine

    schedule = None if gates is None else schedule_of(gates)
    if html is not None:
        from ds4proto.trace.output import refuse_unwritable

        not_an_input("--html", html, files)
        refuse_unwritable(html, "--html")
    with progress("reading", None):
        found = examine(files, schedule=schedule)
    for name, why in found.unreadable.items():
        print(f"ds4proto diagnose: {printable(f'{name}: {why}')}", file=sys.stderr)
    if no_notes:
        found.findings = [f for f in found.findings if f.severity != "note"]
    if html is not None:
        _draw(html, files, found)
    if as_json:
        write_json(report(found, files))
    else:
        show(found, files, stdout())
    if not found.frames and not found.unreadable:
        print(
            "ds4proto diagnose: no frame of the protocols and no known line in "
            f"{', '.join(map(printable, files))}: {_what_else(files)}",
            file=sys.stderr,
        )
    if any(finding.severity == "severe" for finding in found.findings):
        return ExitCode.FAILED
    return ExitCode.PASSED if found.frames else ExitCode.NOTHING_RAN


def _draw(html: str, files: tuple[str, ...], found: Diagnosis) -> None:
    """Draw the first capture that holds frames, with all findings."""
    from ds4proto.errors import NothingRan
    from ds4proto.pcap import CaptureError
    from ds4proto.trace.diagnosis.logs import head_of, is_log
    from ds4proto.trace.pictures import draw, remarks_of

    for name in files:
        if name == "-" or is_log(head_of(name)):  # what - held was read already
            continue
        with suppress(NothingRan, CaptureError):  # told above
            draw(name, html=html, findings=remarks_of(found.findings, name))
            text = f"drew {name} to {html}; prompts can be read from it"
            print(f"ds4proto diagnose: {printable(text)}", file=sys.stderr)
            return
    raise WrongUsage(f"--html {html}: none of the files is a capture with frames")


def schedule_of(text: str) -> Schedule:
    """Return the schedule that an option describes.

    Raises
    ------
    WrongUsage
    """
    from ds4proto.link.schedule import MAX_SLOTS, Schedule

    parts = text.split(",")
    numbers_alone = all(p.strip().isdecimal() and len(p) <= _DIGITS for p in parts)
    if len(parts) not in (1, 3) or not numbers_alone:
        raise WrongUsage(
            f"--gates {text!r}: expected gates a token, such as 86, or "
            "START,STEP,COUNT from the hello, such as 7,2,75"
        )
    numbers = [int(part) for part in parts]
    start, step, count = (0, 1, numbers[0]) if len(parts) == 1 else numbers
    last = start + (count - 1) * step
    if not 1 <= count <= MAX_SLOTS or not 1 <= step <= MAX_SLOTS or last >= MAX_SLOTS:
        raise WrongUsage(
            f"--gates {text!r}: a schedule has 1 to {MAX_SLOTS} gates and slots, its "
            "step is 1 or more"
        )
    return Schedule(last // 2 + 1, count, start, step)


def _what_else(files: tuple[str, ...]) -> str:
    """Return where to look when nothing was known."""
    from ds4proto.trace.diagnosis.logs import head_of, is_log

    if all(name != "-" and is_log(head_of(name)) for name in files):
        return (
            "read its last lines; a capture of such a run (ds4proto capture) says more"
        )
    return "ds4proto stats tells more"


def report(found: Diagnosis, files: tuple[str, ...]) -> dict[str, Any]:
    """Return everything found as one JSON object."""
    from msgspec import to_builtins

    from ds4proto.trace.diagnosis.finding import worst

    return {
        "files": [printable(name) for name in files],
        "frames": found.frames,
        "worst": worst(found.findings),
        "counts": dict(Counter(finding.severity for finding in found.findings)),
        "unreadable": found.unreadable,
        "findings": [
            {
                "numbers": {},
                "evidence": [],
                "next_step": "",
                **to_builtins(finding),
            }
            for finding in found.findings
        ],
    }


def show(found: Diagnosis, files: tuple[str, ...], console: Console) -> None:
    """Print the findings, the worst first."""
    counts: Counter[str] = Counter(finding.severity for finding in found.findings)
    told = ", ".join(
        f"{counts[name]} {word}{'s' if counts[name] != 1 and name != 'severe' else ''}"
        for name, word in (
            ("severe", "severe"),
            ("warning", "warning"),
            ("note", "note"),
        )
    )
    names = ", ".join(files)
    console.print(
        printable(
            f"{names}: {counted(found.frames, 'frame or line', plural=_BOTH)}: {told}"
        )
    )
    for severity, title in _TITLES.items():
        kinds: Counter[str] = Counter()
        group = [f for f in found.findings if f.severity == severity]
        if group:
            console.print()
            console.print(f"== {title}", style="bold")
        for finding in group:
            kinds[finding.code] += 1
            if kinds[finding.code] <= _OF_A_KIND:
                _one(finding, console, files)
        for code, count in kinds.items():
            if count > _OF_A_KIND:
                console.print(f"... and {count - _OF_A_KIND} more of {code} (--json)")
    if not found.findings and found.frames:
        console.print("nothing to tell")


def _one(finding: Finding, console: Console, files: tuple[str, ...]) -> None:
    severe, many = finding.severity == "severe", len(files) > 1
    console.print()
    sentence = finding.sentence
    if not sentence.startswith(tuple(files)):
        sentence = sentence[:1].upper() + sentence[1:]
    console.print(printable(f"{sentence}."), style=_STYLES[finding.severity])
    where = f" in {finding.file}" if many and finding.file else ""
    console.print(
        printable(
            f"  [{finding.code}, {finding.severity}, {finding.confidence}{where}]"
        )
    )
    shown = finding.evidence if severe else finding.evidence[:_SHOWN]
    if finding.severity != "note":
        for evidence in shown[: 2 * _SHOWN]:
            console.print(printable(f"  proof: {place(evidence, many=many)}"))
    if finding.next_step:
        console.print(printable(f"  next: {finding.next_step}"))


def place(evidence: Evidence, *, many: bool) -> str:
    """Return where to look, in words."""
    parts = [evidence.file] if many and evidence.file else []
    if evidence.line:
        parts.append(f"line {evidence.line}")
    if evidence.frame:
        parts.append(evidence.frame)
    if evidence.stream >= 0:
        parts.append(f"stream {evidence.stream} {evidence.direction}".strip())
    if evidence.packet:
        parts.append(f"packet {evidence.packet}")
    if evidence.length:
        parts.append(f"{counted(evidence.length, 'byte')} at offset {evidence.offset}")
    if evidence.time:
        parts.append(f"{evidence.time:.6f} s")
    text = ", ".join(parts)
    return f"{text}: {evidence.text}" if evidence.text else text
