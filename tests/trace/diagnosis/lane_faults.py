"""Inject every fault of the catalogue, diagnose it, write the table.

``python -m tests.trace.diagnosis.lane_faults --write docs/diagnosis.md`` puts the table
between the marks of that page; without ``--write`` it prints it. Wrong and missing
diagnoses stand in it like the right ones.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import replace

from ds4proto.trace.diagnosis import Finding, examine
from tests.trace.diagnosis.catalogue import FAULTS, Fault

BEGIN: Final = "<!-- faults: begin -->"
END: Final = "<!-- faults: end -->"
MOST_OF_A_KIND: Final = 4
_LONG: Final = 240


class Judged(NamedTuple):
    """One fault and what was made of it.

    Attributes
    ----------
    verdict : str
        ``right``: the cause is the first finding; ``right, after CODE``: it is among
        them, behind something else; ``missing``: it is not.
    """

    fault: Fault
    verdict: str
    finding: Finding | None
    first: Finding | None


def judge(fault: Fault, folder: Path) -> Judged:
    """Inject one fault and judge the diagnosis."""
    folder.mkdir(parents=True, exist_ok=True)
    findings = [
        replace(finding, sentence=finding.sentence.replace(f"{folder}/", ""))
        for finding in examine(fault.make(folder)).findings
    ]
    first = findings[0] if findings else None
    hit = next((finding for finding in findings if names_it(fault, finding)), None)
    if hit is None:
        alarmed = any(finding.severity != "note" for finding in findings)
        silent = not fault.expect and not alarmed
        verdict = "missing, no byte tells" if silent else "missing"
        return Judged(fault, verdict, None, None if silent else first)
    bad = [f for f in findings if f.severity != "note"]
    if hit.severity == "note" and bad and not names_it(fault, bad[0]):
        return Judged(fault, f"right, after {bad[0].code}", hit, first)
    ahead = findings[: findings.index(hit)]
    other = next((f for f in ahead if f.severity != "note"), None)
    if other is not None:
        return Judged(fault, f"right, after {other.code}", hit, first)
    return Judged(fault, "right", hit, first)


def names_it(fault: Fault, finding: Finding) -> bool:
    """Tell whether a finding names the cause of a fault."""
    return finding.code in fault.expect and all(
        word in finding.sentence for word in fault.words
    )


def table(judged: list[Judged]) -> str:
    """Return the table in Markdown, with its totals above it."""
    verdicts = Counter(one.verdict.partition(",")[0] for one in judged)
    behind = sum(one.verdict.startswith("right, after") for one in judged)
    lines = [
        f"{len(judged)} faults: {verdicts['right']} diagnosed with the right cause "
        f"({behind} of them behind another finding), {verdicts['missing']} missing.",
        "",
        "| kind | injected by | fault | diagnosis | verdict |",
        "|---|---|---|---|---|",
    ]
    for one in judged:
        shown = one.finding or one.first
        said = (
            "nothing" if shown is None else f"`{shown.code}`: {_cell(shown.sentence)}"
        )
        lines.append(
            f"| {one.fault.kind} | {one.fault.how} | {_cell(one.fault.what)} | {said} "
            f"| {one.verdict} |"
        )
    return "\n".join(lines)


def _cell(text: str) -> str:
    text = text.replace("|", "\\|")
    return text if len(text) <= _LONG else f"{text[:_LONG].rsplit(' ', 1)[0]} ..."


def main(words: list[str] | None = None) -> int:
    """Run the lane; the status is 1 where a diagnosis is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="page to put the table into")
    parser.add_argument("--only", default="", help="faults whose name begins so")
    chosen = parser.parse_args(words)
    judged = []
    with tempfile.TemporaryDirectory() as folder:
        for fault in FAULTS:
            if not fault.name.startswith(chosen.only):
                continue
            one = judge(fault, Path(folder) / fault.name)
            judged.append(one)
            said = (
                "" if one.first is None else f"{one.first.code}: {one.first.sentence}"
            )
            print(f"{fault.name}: {one.verdict}; first: {said}", file=sys.stderr)
    text = table(judged)
    if chosen.write is None:
        print(text)
    else:
        page = chosen.write.read_text()
        head, _, rest = page.partition(BEGIN)
        _, _, tail = rest.partition(END)
        chosen.write.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{tail}")
    return int(any(one.verdict == "missing" for one in judged))


if __name__ == "__main__":
    sys.exit(main())
