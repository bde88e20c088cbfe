"""The matrix as it is committed: ``report.json`` and a page to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ds4proto_conformance.kill.meet import CUT, KILLS, Row, order
from ds4proto_conformance.kill.survivors import REASONS
from ds4proto_conformance.mutants import all_mutants
from ds4proto_conformance.registry import all_cases
from ds4proto_conformance.verdicts import Verdict

__all__ = ["counted", "page", "report"]

_SHOWN: Final = 6


def _with(row: Row, *verdicts: Verdict) -> list[str]:
    return sorted(c for c, v in row.verdicts.items() if Verdict(v) in verdicts)


def report(rows: Sequence[Row], sound: Mapping[str, Row]) -> dict[str, Any]:
    """Return what ``report.json`` holds: no times, so that bytes repeat.

    Parameters
    ----------
    sound : mapping
        Name -> row of a small peer without a fault.
    """
    rows = sorted(rows, key=lambda r: (r.role, r.mutant))
    mutants = all_mutants()
    roles = {row.role for row in rows}
    cases = {case.id: case for case in all_cases() if case.role in roles}
    kills: dict[str, list[str]] = {name: [] for name in cases}
    for row in rows:
        for name in _with(row, *KILLS):
            kills[name].append(row.mutant)
    alive = [row for row in rows if not _with(row, *KILLS)]
    return {
        "mutants": len(rows),
        "killed": len(rows) - len(alive),
        "cases": len(cases),
        "survivors": [
            {
                "mutant": row.mutant,
                "role": row.role,
                "about": mutants[row.mutant].about,
                "reason": REASONS.get(row.mutant, "not known"),
            }
            for row in alive
        ],
        "sound_peers": {
            name: _with(row, *(v for v in Verdict if v.bad), Verdict.CONCEPTUAL)
            for name, row in sorted(sound.items())
        },
        "declared_but_alive": [
            f"{case.id}: {row.mutant}"
            for row in rows
            for case in order(mutants[row.mutant], all_cases(row.role))[0]
            if row.mutant not in kills[case.id] and not _excused(row, case.id)
        ],
        "matrix": {row.mutant: _line(row) for row in rows},
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


def _excused(row: Row, case: str) -> bool:
    noticed = Verdict(row.verdicts[case]) is Verdict.CONCEPTUAL
    return noticed and row.mutant in REASONS


def _line(row: Row) -> dict[str, Any]:
    fault = all_mutants()[row.mutant]
    line: dict[str, Any] = {
        "role": row.role,
        "category": fault.category,
        "about": fault.about,
        "killed_by": _with(row, *KILLS),
    }
    lesser = {
        "another_way": _with(row, Verdict.CONCEPTUAL),
        "in_doubt": _with(row, Verdict.FLAKY, Verdict.SUITE_ERROR),
        "spared": len(_with(row, CUT)),
    }
    return line | {name: found for name, found in lesser.items() if found}


def counted(found: Mapping[str, Any], start: str) -> list[str]:
    """Return the cases of a topic that count.

    A case counts where the matrix shows a fault that it names and catches alone, and no
    other case holds all its clauses and catches all its faults.

    Parameters
    ----------
    start : str
        Beginning of the cases' ids, ``worker/framing/``.
    """
    cases = found["case_mutants"]
    sets = {k: (set(v["clauses"]), set(v["kills"])) for k, v in cases.items()}

    def contained(name: str) -> bool:
        clauses, kills = sets[name]
        return any(
            other != name
            and clauses <= sets[other][0]
            and kills <= sets[other][1]
            and (sets[other] != sets[name] or other < name)
            for other in sets
        )

    return [
        name
        for name, case in cases.items()
        if name.startswith(start)
        and set(case["declared"]) & set(case["kills"])
        and not contained(name)
    ]


def page(found: Mapping[str, Any]) -> str:
    """Return the matrix as Markdown."""
    share = 100 * found["killed"] / max(1, found["mutants"])
    out = [
        "# Kill matrix",
        "",
        "Written by `make mutants`; do not edit.",
        "",
        f"{found['killed']} of {found['mutants']} planted faults ({share:.1f} %) are"
        f" caught by {found['cases']} cases. A peer without a fault fails none of them:"
        f" {', '.join(found['sound_peers'])}.",
        "",
        "Caught means the verdict fail or partial, twice with the same seed. A case"
        " that names a fault has met a peer of its own.",
        "",
        "## Alive",
        "",
    ]
    if found["survivors"]:
        out += ["| mutant | role | what it does | why it lives |", "|---|---|---|---|"]
        out += [
            f"| {s['mutant']} | {s['role']} | {s['about']} | {s['reason']} |"
            for s in found["survivors"]
        ]
    else:
        out.append("None.")
    out += ["", "## Faults", ""]
    out += ["| mutant | role | what it does | caught by |", "|---|---|---|---|"]
    for name, row in found["matrix"].items():
        by = row["killed_by"]
        more = f" and {len(by) - _SHOWN} more" * (len(by) > _SHOWN)
        shown = ", ".join(by[:_SHOWN]) + more
        out.append(f"| {name} | {row['role']} | {row['about']} | {shown or '-'} |")
    out += ["", "## Cases", ""]
    out += ["| case | clauses | faults that it alone catches |", "|---|---|---|"]
    for name, row in found["case_mutants"].items():
        own = [m for m in row["declared"] if m in row["kills"]]
        out.append(f"| {name} | {' '.join(row['clauses'])} | {', '.join(own) or '-'} |")
    return "\n".join(out) + "\n"
