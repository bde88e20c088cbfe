"""The kill matrix: every case against every mutant of its role."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ds4proto.peer import PeerLost
from ds4proto_conformance.mutants import all_mutants, find
from ds4proto_conformance.peers.faults import Fault
from ds4proto_conformance.peers.loop import loop_opener
from ds4proto_conformance.registry import Case, all_cases
from ds4proto_conformance.runner import Runner
from ds4proto_conformance.settings import Settings
from ds4proto_conformance.verdicts import Verdict

__all__ = ["KILLS", "Row", "matrix", "meet"]

PATIENCE: Final = 0.4
QUIET: Final = 0.05
MUTANT_SECONDS: Final = 45.0
"""Seconds that one mutant may take; one that fails everything slowly is cut."""
_SHOWN: Final = 6
KILLS: Final = (Verdict.FAIL, Verdict.PARTIAL, Verdict.CONCEPTUAL)
ROLES: Final = ("worker", "coordinator", "tp-leader", "tp-worker", "codec")
POSITIONS: Final = {"worker": ("last", "middle", "first"), "coordinator": ("",)}


@dataclass(slots=True)
class Row:
    """One mutant and what the cases said of it."""

    mutant: str
    role: str
    verdicts: dict[str, str]
    seconds: float = 0.0


def meet(fault: Fault, cases: Iterable[Case], *, patience: float = PATIENCE) -> Row:
    """Run cases against a small peer with one fault, in this process."""
    started = time.monotonic()
    settings = Settings(
        f"loop:{fault.name}",
        fault.role,
        patience=patience,
        quiet=QUIET,
        connect=2.0,
        ctx=256 if fault.role == "coordinator" else None,
        keep_frames=False,
    )
    runner = Runner(settings, loop_opener(fault))
    row = Row(fault.name, fault.role, {})
    lost = 0
    for case in cases:
        if time.monotonic() - started > MUTANT_SECONDS:
            row.verdicts[case.id] = str(Verdict.NOT_RUN)
            continue
        if lost > 2:
            row.verdicts[case.id] = str(Verdict.FAIL)
            continue
        try:
            verdict = runner.run(case).verdict
        except PeerLost:
            lost += 1
            verdict = Verdict.FAIL
        except Exception as error:
            lost += 1
            verdict = Verdict.FAIL
            print(f"{fault.name}: {case.id}: {error!r}", file=sys.stderr)
        row.verdicts[case.id] = str(verdict)
    runner.close()
    row.seconds = round(time.monotonic() - started, 2)
    return row


def _job(name: tuple[str, str]) -> Row:
    role, mutant = name
    return meet(find(role, mutant), all_cases(role))


def matrix(names: Sequence[tuple[str, str]], workers: int = 2) -> list[Row]:
    """Return a row for each (role, mutant); two processes share the work."""
    if workers < 2:
        return [_job(name) for name in names]
    context = multiprocessing.get_context("spawn")
    rows = []
    with context.Pool(workers) as pool:
        for row in pool.imap_unordered(_job, names, chunksize=1):
            killers = sum(Verdict(v) in KILLS for v in row.verdicts.values())
            text = f"{row.mutant:34} killed by {killers:3} cases, {row.seconds:6.1f} s"
            print(text, file=sys.stderr, flush=True)
            rows.append(row)
    return rows


def sound(roles: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return what the cases say of peers without a fault."""
    found = {}
    for role in roles:
        for position in POSITIONS.get(role, ("",)):
            name = f"none-{position}" if position else "none"
            found[f"{role}:{name}"] = _job((role, name)).verdicts
    return found


def report(rows: Sequence[Row], sane: dict[str, dict[str, str]]) -> dict[str, Any]:
    """Return what ``report.json`` holds."""
    cases = {case.id: case for case in all_cases()}
    kills: dict[str, list[str]] = {name: [] for name in cases}
    survivors = []
    for row in sorted(rows, key=lambda r: (r.role, r.mutant)):
        by = [c for c, v in row.verdicts.items() if Verdict(v) in KILLS]
        for name in by:
            kills[name].append(row.mutant)
        if not by:
            survivors.append(row.mutant)
    mutants = all_mutants()
    return {
        "mutants": len(rows),
        "killed": len(rows) - len(survivors),
        "cases": len(
            {c.id for c in cases.values() if c.role in {r.role for r in rows}}
        ),
        "survivors": survivors,
        "sound_peers": {
            name: sorted(c for c, v in found.items() if Verdict(v).bad)
            for name, found in sane.items()
        },
        "declared_but_alive": sorted(
            f"{case.id}: {mutant}"
            for case in cases.values()
            for mutant in case.mutants
            if mutant in mutants and mutant not in kills[case.id]
        ),
        "matrix": {
            row.mutant: {
                "role": row.role,
                "category": mutants[row.mutant].category,
                "about": mutants[row.mutant].about,
                "seconds": row.seconds,
                "killed_by": [c for c in kills if row.mutant in kills[c]],
            }
            for row in sorted(rows, key=lambda r: (r.role, r.mutant))
        },
        "case_mutants": {
            name: {
                "clauses": list(cases[name].clauses),
                "category": cases[name].category,
                "declared": list(cases[name].mutants),
                "kills": found,
            }
            for name, found in kills.items()
        },
    }


def page(found: dict[str, Any]) -> str:
    """Return the matrix as Markdown."""
    out = ["# Kill matrix", "", "Written by `make mutants`; do not edit.", ""]
    killed = f"{found['killed']} of {found['mutants']}"
    out.append(f"{killed} planted faults are caught by {found['cases']} cases.")
    if found["survivors"]:
        out += ["", "Alive: " + ", ".join(found["survivors"])]
    out += ["", "| mutant | role | what it does | caught by |", "|---|---|---|---|"]
    for name, row in found["matrix"].items():
        by = row["killed_by"]
        shown = ", ".join(by[:_SHOWN]) + (
            f" and {len(by) - _SHOWN} more" * (len(by) > _SHOWN)
        )
        out.append(f"| {name} | {row['role']} | {row['about']} | {shown or '-'} |")
    out += ["", "| case | clauses | a fault that it alone catches |", "|---|---|---|"]
    for name, row in found["case_mutants"].items():
        own = [m for m in row["declared"] if m in row["kills"]]
        shown = ", ".join(own) or "-"
        out.append(f"| {name} | {' '.join(row['clauses'])} | {shown} |")
    return "\n".join(out) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Build the matrix; return 1 where a declared mutant lives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--page", type=Path, help="the matrix to read, Markdown")
    parser.add_argument("--role", action="append")
    parser.add_argument("--mutant", action="append")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(argv)
    roles = options.role or list(ROLES)
    names = [
        (fault.role, name)
        for name, fault in sorted(all_mutants().items())
        if fault.role in roles and (not options.mutant or name in options.mutant)
    ]
    rows = matrix(names, options.workers)
    found = report(rows, sound(roles))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    if options.page is not None:
        options.page.write_text(page(found), "utf-8")
    print(
        f"{found['mutants']} mutants, {found['killed']} killed, {found['cases']} cases"
    )
    for text in found["declared_but_alive"]:
        print(f"declared but alive: {text}")
    for name, bad in found["sound_peers"].items():
        for case in bad:
            print(f"sound peer {name} fails {case}")
    broken = found["declared_but_alive"] or any(found["sound_peers"].values())
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
