"""The ``ds4proto`` command: one module a command, loaded when it is run.

A command module defines ``cmd``, a `click.Command`, and is named by an entry point of
the group ``ds4proto.commands``. It imports what is heavy inside its functions, prints
through `stdout`, returns its exit status, and lets documented errors through: `main`
turns them into a line on stderr and an exit status.
"""

import sys
from collections.abc import Sequence

import click

from ds4proto.cli._boundary import INTERRUPTED, run_command
from ds4proto.cli._loader import CommandGroup
from ds4proto.cli._options import DURATION, Duration, json_option, parse_duration
from ds4proto.cli._output import printable, progress, stderr, stdout, write_json

__all__ = [
    "DURATION",
    "INTERRUPTED",
    "Duration",
    "json_option",
    "main",
    "parse_duration",
    "printable",
    "progress",
    "run",
    "stderr",
    "stdout",
    "write_json",
]

_EPILOG = (
    "Exit status: 0 all passed, 1 something failed, 2 nothing ran or wrong usage, "
    "3 peer lost. Every command has its own --help."
)


def _print_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from ds4proto.cli._version import version_text

        click.echo(version_text())
        ctx.exit()


@click.group(
    cls=CommandGroup,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and the dialects covered.",
)
def _group() -> None:
    """Decode, check and run the ds4 wire protocols: DS4D, DS4T and DS4B."""


def run(args: Sequence[str]) -> int:
    """Run one command line, without the program's name, and return its exit status."""
    return run_command(_group, args, "ds4proto")


def main() -> None:
    """Run the command line of this process and end the process with its status."""
    sys.exit(run(sys.argv[1:]))
