"""``python -m ds4proto_fuzz.planted``: find every planted fault, and time it.

Each faulty peer is fuzzed with one seed until something is found. A row fails where
that takes longer than the limit, is of another class, or is not reduced far enough.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

from ds4proto.cli import write_json
from ds4proto.peer import Role
from ds4proto_fuzz.findings import Finding, Store
from ds4proto_fuzz.hunt import QUICK, Hunt
from ds4proto_fuzz.mutants import ROLES, spec_of, table_of
from ds4proto_fuzz.roles import target_of
from ds4proto_fuzz.target import Settings

__all__ = ["LIMIT", "Row", "markdown", "search"]

LIMIT: Final = 60.0
"""Seconds in which a fault has to be found."""
TESTS: Final = 200
"""Tests of one reduction."""
FRAMES: Final = 3
"""Frames to which it has to be reduced."""


@dataclass(frozen=True, slots=True)
class Row:
    """How one planted fault fared; ``found_s`` is up to the first confirmed effect."""

    role: str
    name: str
    about: str
    kind: str
    found_s: float
    total_s: float
    cases: int
    finding: Finding | None

    @property
    def passed(self) -> bool:
        """Whether it was found as it has to be."""
        found = self.finding
        return (
            found is not None
            and self.found_s <= LIMIT
            and found.effect.kind == self.kind
            and found.case.frames <= FRAMES
        )

    def as_json(self) -> dict[str, Any]:
        """Return the row for a report."""
        found = self.finding
        return {
            "role": self.role,
            "name": self.name,
            "about": self.about,
            "class": self.kind,
            "found_s": round(self.found_s, 1),
            "total_s": round(self.total_s, 1),
            "cases": self.cases,
            "frames": found.case.frames if found else None,
            "bytes": found.case.size if found else None,
            "repeat": found.case.repeat if found else None,
            "effect": found.effect.as_json() if found else None,
            "passed": self.passed,
        }


def search(
    role: Role, name: str, seed: int, *, limit: float = LIMIT, patience: float = 3.0,
    quick: float = QUICK,
) -> Row:  # fmt: skip
    """Fuzz one faulty peer until something of its class is found.

    Parameters
    ----------
    limit : float
        Seconds to find it, and to reduce it.
    patience, quick : float
        Seconds that an answer may take, and while a case is reduced.
    """
    found: list[Finding] = []
    fault = table_of(role)[name]
    settings = Settings(spec_of(role, name), role, patience=patience)
    target = target_of(settings)
    with tempfile.TemporaryDirectory() as folder:
        hunt = Hunt(
            target, seed, Store(folder), tell=found.append, budget=(TESTS, limit),
            quick=quick,
        )  # fmt: skip
        start = monotonic()
        try:
            target.start()
            for index in itertools.count():
                if found or monotonic() - start > limit:
                    break
                hunt.one(index)
        finally:
            target.stop()
        first = hunt.first_at - start if hunt.first_at else limit
        return Row(
            role, name, fault.about, fault.kind, first, monotonic() - start,
            hunt.tally.cases, found[0] if found else None,
        )  # fmt: skip


def markdown(rows: list[Row]) -> str:
    """Return the table of the documentation."""
    lines = [
        "| peer | fault | class | found after | cases | reduced after | frames |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        found = row.finding
        if found is None:
            after, size = "not found", ""
        else:
            repeat = f" x {found.case.repeat}" if found.case.repeat > 1 else ""
            after, size = f"{row.found_s:.1f} s", f"{found.case.frames}{repeat}"
        lines.append(
            f"| {row.role} `{row.name}` | {row.about} | {row.kind} | {after} "
            f"| {row.cases} | {row.total_s:.1f} s | {size} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Search all, or those named; the exit status is 1 where one fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="ROLE:NAME; default: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    known: dict[str, tuple[Role, str]] = {
        f"{role}:{name}": (role, name)
        for role in ROLES
        for name, fault in table_of(role).items()
        if fault.kind
    }
    strange = sorted(set(options.names) - set(known))
    if strange:
        parser.error(f"no planted fault {strange[0]}; known: {', '.join(known)}")
    rows = []
    for word in options.names or known:
        role, name = known[word]
        row = search(role, name, options.seed)
        rows.append(row)
        if options.json:
            write_json(row.as_json())
        else:
            verdict = "found" if row.passed else "FAILED"
            seen = row.finding.effect if row.finding else "nothing"
            print(
                f"{verdict} {word}: {row.found_s:.1f} s, {row.cases} cases, "
                f"{row.total_s:.1f} s with reduction; {seen}",
                flush=True,
            )
    if not options.json:
        print(markdown(rows))
    return 0 if all(row.passed for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
