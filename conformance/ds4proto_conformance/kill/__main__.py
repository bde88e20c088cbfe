"""``python -m ds4proto_conformance.kill``: build the matrix, or go on with it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ds4proto_conformance.kill.matrix import page, report
from ds4proto_conformance.kill.meet import KILLS, Row
from ds4proto_conformance.kill.pool import PROCESSES, results
from ds4proto_conformance.kill.rows import Journal, due
from ds4proto_conformance.mutants import all_mutants, sound_names
from ds4proto_conformance.registry import all_cases
from ds4proto_conformance.verdicts import Verdict

ROLES: Final = ("worker", "coordinator", "tp-leader", "tp-worker", "codec")


def build(
    names: Sequence[tuple[str, str]], journal: Journal, processes: int = PROCESSES
) -> list[Row]:
    """Return a row for each (role, fault); what the journal holds is not run again."""
    rows = {name: journal.known(*name) for name in names}
    jobs = []
    for (role, mutant), row in rows.items():
        missing = tuple(due(row, all_cases(role)))
        if missing:
            jobs.append((role, mutant, missing))
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description:44}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task("", total=len(names), completed=len(names) - len(jobs))
        for new in results(jobs, processes):
            row = rows[new.role, new.mutant]
            row.verdicts |= new.verdicts
            row.seconds = round(row.seconds + new.seconds, 2)
            journal.write(row)
            killers = sum(Verdict(v) in KILLS for v in row.verdicts.values())
            text = f"{row.mutant}: {killers} cases, {new.seconds:.1f} s"
            bar.update(task, advance=1, description=text)
            if not console.is_terminal:
                print(text, file=sys.stderr, flush=True)
    return list(rows.values())


def main(argv: Sequence[str] | None = None) -> int:
    """Build the matrix; return 1 where a fault outlives a case that names it."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="example: python -m ds4proto_conformance.kill --role codec --out m.json",
    )
    parser.add_argument("--out", type=Path, required=True, help="the matrix, JSON")
    parser.add_argument("--page", type=Path, help="the matrix to read, Markdown")
    parser.add_argument("--rows", type=Path, help="rows so far; a stopped run goes on")
    parser.add_argument("--role", action="append", choices=ROLES, help="some roles")
    parser.add_argument("--mutant", action="append", help="some faults")
    parser.add_argument(
        "--processes", type=int, default=PROCESSES, choices=(1, 2), help="at once"
    )
    options = parser.parse_args(argv)
    roles = options.role or list(ROLES)
    names = [
        (fault.role, name)
        for name, fault in sorted(all_mutants().items())
        if fault.role in roles and (not options.mutant or name in options.mutant)
    ]
    if not names:
        parser.error("no fault of that name in these roles")
    sane = [(role, name) for role in roles for name in sound_names(role)]
    with Journal(options.rows) as journal:
        rows = build([*sane, *names], journal, options.processes)
    sound = {f"{r.role}:{r.mutant}": r for r in rows if (r.role, r.mutant) in sane}
    found = report([r for r in rows if (r.role, r.mutant) not in sane], sound)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for path, text in (
        (options.out, json.dumps(found, indent=1) + "\n"),
        (options.page, page(found)),
    ):
        if path is not None:
            part = path.with_name(path.name + ".part")
            part.write_text(text, "utf-8")
            part.replace(path)
    return told(found)


def told(found: dict[str, object]) -> int:
    """Print what the matrix comes to; return the exit status."""
    print(
        f"{found['mutants']} mutants, {found['killed']} killed, {found['cases']} cases"
    )
    bad = 0
    for text in _texts(found["declared_but_alive"]):
        bad = 1
        print(f"declared but alive: {text}")
    peers = found["sound_peers"]
    assert isinstance(peers, dict)
    for name, cases in peers.items():
        for case in cases:
            bad = 1
            print(f"sound peer {name} fails {case}")
    return bad


def _texts(found: object) -> list[str]:
    return [str(text) for text in found] if isinstance(found, list) else []


if __name__ == "__main__":
    sys.exit(main())
