"""What the lines of a report hold."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from typing import Any

from ds4proto_conformance.registry import Case
from ds4proto_conformance.settings import Settings
from ds4proto_conformance.verdicts import Outcome

__all__ = ["case_line", "header_line", "replay"]


def header_line(
    settings: Settings, profile: str, count: int, command: str
) -> dict[str, Any]:
    """Return the first line of a report, without what the writer adds."""
    return {
        "peer": settings.peer,
        "role": settings.role,
        "dialect": settings.dialect,
        "profile": profile,
        "seed": settings.seed,
        "time_scale": settings.time_scale,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "cases": count,
        "command": command,
    }


def replay(case_id: str, settings: Settings, command: str = "") -> str:
    """Return the command that runs one case again."""
    words = ["ds4proto", "check", "--peer", settings.peer, "--role", settings.role]
    base = command or shlex.join(words)
    return f"{base} --case {shlex.quote(case_id)} --seed {settings.seed}"


def case_line(
    case: Case, outcome: Outcome, settings: Settings, command: str = ""
) -> dict[str, Any]:
    """Return the line of one case."""
    return {
        "id": case.id,
        "title": case.title,
        "verdict": str(outcome.verdict),
        "clauses": list(case.clauses),
        "role": case.role,
        "category": case.category,
        "severity": case.severity,
        "deviations": outcome.deviations,
        "notes": outcome.notes,
        "combination": {k: str(v) for k, v in outcome.combination.items()},
        "combinations": outcome.combinations,
        "failed_combinations": outcome.failed_combinations,
        "attempts": outcome.attempts,
        "seconds": round(outcome.seconds, 4),
        "seed": settings.seed,
        "frames": outcome.frames,
        "output": outcome.output,
        "reproduce": replay(case.id, settings, command),
    }
