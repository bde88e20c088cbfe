"""All checks over one plan, at once: nothing stops at the first fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from ds4proto.preflight import (
    rules_commands,
    rules_links,
    rules_memory,
    rules_pipeline,
    rules_settings,
    rules_tp,
)
from ds4proto.preflight.case import Case, make_case
from ds4proto.preflight.facts import Plan
from ds4proto.preflight.finding import SEVERITIES, Finding

__all__ = ["CHECKS", "judge"]

Check = Callable[[Case], Iterator[Finding]]
CHECKS: Final[tuple[Check, ...]] = (
    *rules_commands.CHECKS,
    *rules_pipeline.CHECKS,
    *rules_tp.CHECKS,
    *rules_settings.CHECKS,
    *rules_memory.CHECKS,
    *rules_links.CHECKS,
)


def judge(plan: Plan) -> list[Finding]:
    """Return all findings about a plan: errors first, then warnings, then notes."""
    case = make_case(plan)
    found = [finding for check in CHECKS for finding in check(case)]
    return sorted(found, key=lambda one: SEVERITIES.index(one.severity))
