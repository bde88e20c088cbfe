"""``ds4proto fuzz``: search for input that a peer does not survive."""

from __future__ import annotations

from importlib import import_module
from typing import Final

import click

_COMMANDS: Final = {
    "peer": ("ds4proto_fuzz.cli.peer", "Fuzz a live peer, state by state."),
    "replay": ("ds4proto_fuzz.cli.replay", "Give a finding to a peer again."),
    "promote": ("ds4proto_fuzz.cli.promote", "Make a conformance case of a finding."),
}
"""Name -> module that defines ``cmd``, and its line of help."""


class _Lazy(click.Group):
    """A group that imports a command when it is run."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names in the order of the table."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import one command."""
        if cmd_name not in _COMMANDS:
            return None
        command = import_module(_COMMANDS[cmd_name][0]).cmd
        assert isinstance(command, click.Command)
        return command

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002
        formatter: click.HelpFormatter,
    ) -> None:
        """Write the table without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, row[1]) for name, row in _COMMANDS.items()])


@click.group(
    "fuzz",
    cls=_Lazy,
    epilog="\b\nExamples:\n"
    "  ds4proto fuzz peer --peer reference:worker --role worker --time 1m\n"
    "  ds4proto fuzz replay findings/hang-open-0a1b2c3d --peer reference:worker",
)
def cmd() -> None:
    """Search for input that a peer does not survive; each find is a file."""
