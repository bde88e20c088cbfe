"""``ds4proto fuzz promote``: make a conformance case of a finding."""

from __future__ import annotations

from pathlib import Path

import click

from ds4proto.cli import json_option, printable, stdout, write_json
from ds4proto.errors import ExitCode

_HELP = """Write the minimal sequence of a finding as a conformance case.

The case gives the same bytes and asks for what the clauses ask for; afterwards the
peer has to serve a sound WORK. It applies to peers with the facts of the finding.

\b
Examples:
  ds4proto fuzz promote findings/crash-live-0a1b2c3d --to promoted
  DS4PROTO_PROMOTED=promoted ds4proto check --peer reference:worker \\
      --role worker -k promoted

In a clone, --to conformance/ds4proto_conformance/promoted makes it one of the
suite's own; --mutant then names the planted fault that it catches."""


@click.command("promote", help=_HELP)
@click.argument("folder")
@click.option("--to", default="promoted", show_default=True, help="Folder of the case.")
@click.option("--clause", default="", help="Clause that a failure breaks.")
@click.option("--mutant", default="", help="Planted fault that the case catches.")
@json_option
def cmd(folder: str, to: str, clause: str, mutant: str, as_json: bool) -> int:
    """Promote a finding."""
    from ds4proto import clauses
    from ds4proto.errors import WrongUsage
    from ds4proto_fuzz.findings import load
    from ds4proto_fuzz.promote import promoted, write

    if clause:
        try:
            clauses.get(clause)
        except LookupError:
            raise WrongUsage(f"--clause {clause}: no such clause") from None
    finding = load(folder)
    path = write(finding, Path(to), clause=clause, mutant=mutant)
    case = promoted(finding, clause=clause, mutant=mutant)
    if as_json:
        write_json({"id": case["id"], "clauses": case["clauses"], "file": str(path)})
    else:
        stdout().print(printable(f"{case['id']} in {path}, {case['clauses'][0]}"))
    return ExitCode.PASSED
