"""A click group that knows its commands by entry point and loads one when it is run.

Listing the commands imports none of them: whether a module exists is looked up on
disk, and the help lines come from `ds4proto.cli._commands`.
"""

import difflib
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pkgutil import get_importer
from typing import Any, Final

import click

from ds4proto.cli._commands import RESERVED, Reserved
from ds4proto.errors import WrongUsage

__all__ = ["GROUP", "CommandGroup", "installed_commands", "module_exists"]

GROUP: Final = "ds4proto.commands"
_OTHER: Final = "Added by other packages"


def installed_commands() -> dict[str, EntryPoint]:
    """Return the registered commands by name; ds4proto's own win over others."""
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=GROUP):
        if entry.name not in found or _distribution(entry) == "ds4proto":
            found[entry.name] = entry
    return found


def _distribution(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "an unnamed package"


def module_exists(dotted: str) -> bool:
    """Say whether a module can be found, without importing it or its parents."""
    top, *rest = dotted.split(".")
    spec: ModuleSpec | None = find_spec(top)
    name = top
    for part in rest:
        name = f"{name}.{part}"
        spec = _find_below(spec, name)
    return spec is not None and spec.loader is not None


def _find_below(parent: ModuleSpec | None, name: str) -> ModuleSpec | None:
    """Find a submodule; `importlib.util.find_spec` would import the parent first."""
    if parent is None or parent.loader is None:
        return None  # absent, or a bare folder: it runs nothing
    for folder in parent.submodule_search_locations or ():
        finder = get_importer(folder)
        spec = finder.find_spec(name, None) if finder is not None else None
        if spec is not None:
            return spec
    return None


class CommandGroup(click.Group):
    """The ``ds4proto`` command: a lazy group over entry points.

    Parameters
    ----------
    find : callable
        Returns the registered commands by name; read once, on first need.
    reserved : sequence of Reserved
        Names that are spoken for, in the order of the help.
    """

    def __init__(
        self,
        *args: Any,
        find: Callable[[], Mapping[str, EntryPoint]] = installed_commands,
        reserved: tuple[Reserved, ...] = RESERVED,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._find = find
        self._reserved = {row.name: row for row in reserved}
        self._entries: Mapping[str, EntryPoint] | None = None

    @property
    def entries(self) -> Mapping[str, EntryPoint]:
        """All registered commands by name, present in this release or not."""
        if self._entries is None:
            self._entries = self._find()
        return self._entries

    def is_available(self, name: str) -> bool:
        """Say whether the module of a registered command is in this release."""
        entry = self.entries.get(name)
        return entry is not None and module_exists(entry.module)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of the commands that can be run, in the help's order."""
        others = sorted(set(self.entries) - set(self._reserved))
        return [name for name in (*self._reserved, *others) if self.is_available(name)]

    def missing_commands(self) -> list[str]:
        """Return the reserved names that this release does not carry."""
        return [name for name in self._reserved if not self.is_available(name)]

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002
        cmd_name: str,
    ) -> click.Command | None:
        """Load one command.

        Raises
        ------
        WrongUsage
            The name is reserved but this release has no such command.
        """
        if not self.is_available(cmd_name):
            if cmd_name in self._reserved or cmd_name in self.entries:
                raise WrongUsage(
                    f"the command {cmd_name!r} is reserved but not in this release; "
                    f"'ds4proto --help' lists the commands that are"
                )
            return None
        command = self.entries[cmd_name].load()
        if not isinstance(command, click.Command):
            target = self.entries[cmd_name].value
            raise TypeError(f"{target} is no click command but {type(command)}")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the first argument names, or say what is near it."""
        name = args[0]
        known = name.startswith("-") or name in self._reserved or name in self.entries
        if not known and not ctx.resilient_parsing:
            near = difflib.get_close_matches(name, self.list_commands(ctx), n=2)
            hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise click.UsageError(f"There is no command {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write the commands under their headings, then the names not yet filled."""
        by_heading: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            row = self._reserved.get(name)
            heading = row.heading if row else _OTHER
            summary = row.summary if row else _distribution(self.entries[name])
            by_heading.setdefault(heading, []).append((name, summary))
        for heading, rows in by_heading.items():
            with formatter.section(heading):
                formatter.write_dl(rows)
        missing = self.missing_commands()
        if missing:
            with formatter.section("Reserved, not in this release"):
                formatter.write_text(" ".join(missing))
