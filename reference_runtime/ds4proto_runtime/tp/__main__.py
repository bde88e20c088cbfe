"""``python -m ds4proto_runtime.tp``: one rank, with the errors of the command line."""

from __future__ import annotations

import sys

import click

from ds4proto.cli._boundary import run_command


@click.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def main(arguments: tuple[str, ...]) -> int:
    """Run one rank of a pair."""
    from ds4proto_runtime.tp.cli import run

    return run(arguments)


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:], "ds4proto-tp"))
