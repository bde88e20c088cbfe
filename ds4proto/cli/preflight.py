"""``ds4proto preflight``: whether these machines will work together."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from ds4proto.cli._options import json_option
from ds4proto.cli._output import printable, stdout, write_json
from ds4proto.errors import ExitCode

if TYPE_CHECKING:
    from ds4proto.preflight.facts import Plan

__all__ = ["cmd"]

_HELP = """Check machines, model and options before a run.

With --plan nothing touches the network: the file names machines, their ds4 command
lines, models, memory and links, and everything that will not work is listed at once,
with the very text that ds4 would print.

\b
Examples:
  ds4proto preflight --plan cluster.toml
  ds4proto preflight --plan cluster.toml --json | jq .verdict
  ds4proto preflight --plan cluster.toml --propose

The exit status is 0 without errors, 1 with some, 2 where the plan cannot be read; with
--strict a warning counts as an error."""


@click.command("preflight", help=_HELP)
@click.option("--plan", "plan_file", metavar="FILE", help="A cluster.toml to check.")
@click.option("--propose", "proposing", is_flag=True,
              help="Give layer ranges from memory and speed.")  # fmt: skip
@click.option("--strict", is_flag=True, help="Exit 1 at warnings, too.")
@json_option
def cmd(plan_file: str | None, proposing: bool, strict: bool, as_json: bool) -> int:
    """Check a run before it starts."""
    if plan_file is None:
        raise click.UsageError("give --plan FILE")
    from ds4proto.preflight.plan import read_plan

    plan = read_plan(plan_file)
    if proposing:
        return _propose(plan, as_json=as_json)
    return _judge(plan, strict=strict, as_json=as_json)


def _judge(plan: Plan, *, strict: bool, as_json: bool) -> int:
    from ds4proto.preflight.case import make_case
    from ds4proto.preflight.report import document
    from ds4proto.preflight.rules import judge

    findings, case = judge(plan), make_case(plan)
    if as_json:
        write_json(document(case, findings))
    else:
        from ds4proto.cli._preflight_tables import show

        show(case, findings, stdout())
    bad = {"error", "warning"} if strict else {"error"}
    failed = any(finding.severity in bad for finding in findings)
    return ExitCode.FAILED if failed else ExitCode.PASSED


def _propose(plan: Plan, *, as_json: bool) -> int:
    from ds4proto.preflight.facts import GIB
    from ds4proto.preflight.propose import propose

    found = propose(plan)
    if as_json:
        write_json(
            {
                "proposal": [
                    {
                        "machine": one.machine,
                        "layers": one.layers,
                        "need_bytes": one.need,
                        "limit_bytes": one.limit,
                    }
                    for one in found
                ]
            }
        )
        return ExitCode.PASSED
    for one in found:
        of = "" if one.limit is None else f" of {one.limit / GIB:.1f}"
        need = f"{one.need / GIB:.1f}{of} GiB"
        print(f"{printable(one.machine)}: --layers {one.layers}   ({need})")
    print(
        "layers go by speed where it is stated, else evenly, as far as memory holds",
        file=sys.stderr,
    )
    return ExitCode.PASSED
