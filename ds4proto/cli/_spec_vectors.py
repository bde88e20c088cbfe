"""``ds4proto spec vectors``: list the rule vectors, give one, ask a program."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING

import click

from ds4proto.cli._options import json_option
from ds4proto.cli._output import stdout, write_json
from ds4proto.errors import ExitCode, WrongUsage

if TYPE_CHECKING:
    from ds4proto.rule_vectors import VectorFile


@click.command(
    epilog="\b\nExamples:\n  ds4proto spec vectors\n"
    "  ds4proto spec vectors options-ds4d > options.json\n"
    "  ds4proto spec vectors options-ds4d --against './ds4 -m model.gguf'"
)
@click.argument("name", required=False)
@click.option(
    "--against",
    metavar="COMMAND",
    help="Run the refusals of an option file against this program.",
)
@click.option("--dialect", default="", help="Fork whose own options are asked too.")
@json_option
def vectors(name: str | None, against: str | None, dialect: str, as_json: bool) -> int:
    """List the rule vectors, print one file as it is, or ask a program.

    Rows of input and expected outcome for rules that need no connection: command
    lines, saved files, first bytes, answers. Each row names the clauses that it tests.

    With --against each command line that has to be refused is given to the program;
    the exact text has to end a line of what it prints within 20 seconds. Exit status:
    0 all refused so, 1 some not, 2 nothing was asked.
    """
    from ds4proto import rule_vectors

    if name is None:
        if against is not None:
            raise WrongUsage("--against needs a file of vectors, such as options-ds4d")
        return _list(as_json)
    if name not in rule_vectors.names():
        known = ", ".join(rule_vectors.names())
        raise WrongUsage(f"no vectors {name!r}; known: {known}")
    if against is None:
        sys.stdout.write(rule_vectors.text(name))
        return ExitCode.PASSED
    return _ask(rule_vectors.load(name), against, dialect, as_json)


def _list(as_json: bool) -> int:
    from ds4proto import rule_vectors
    from ds4proto.cli._spec_tables import print_indented

    found = [rule_vectors.load(known) for known in rule_vectors.names()]
    if as_json:
        write_json(
            [{"name": f.name, "rows": len(f.rows), "about": f.about} for f in found]
        )
        return ExitCode.PASSED
    for file in found:
        stdout().print(f"{file.name}, {len(file.rows)} rows")
        print_indented(stdout(), file.about)
    return ExitCode.PASSED


def _ask(file: VectorFile, command: str, dialect: str, as_json: bool) -> int:
    from ds4proto.cli._output import printable, progress
    from ds4proto.cli._spec_against import ask

    counts: Counter[str] = Counter()
    told, failed = [], []
    with progress("asking the program", len(file.rows)) as done:
        for one in ask(file, command, dialect=dialect):
            counts[one.outcome] += 1
            if one.outcome == "fail":
                failed.append(one)
            done(1)
    for one in failed:
        row = one.row
        told.append(
            {
                "row": row.name,
                "clauses": list(row.clauses),
                "argv": row["argv"],
                "expected": row["refused"],
                "found": one.found,
            }
        )
        if not as_json:
            stdout().print(f"fail {row.name} {' '.join(row.clauses)}")
            stdout().print(f"  given:    {' '.join(row['argv'])}")
            stdout().print(f"  expected: {row['refused']}")
            stdout().print(f"  found:    {printable(one.found) or 'nothing'}")
    if as_json:
        write_json({"counts": dict(counts), "failed": told})
    else:
        sums = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
        stdout().print(f"{file.name}: {sums}")
    if not counts["pass"] + counts["fail"]:
        return ExitCode.NOTHING_RAN
    return ExitCode.FAILED if counts["fail"] else ExitCode.PASSED
