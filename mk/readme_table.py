"""The table of commands in README.md: what is in this release, and what is not yet.

``python mk/readme_table.py`` compares, ``--write`` rewrites the table.
"""

import sys
from pathlib import Path

import click

from ds4proto.cli._commands import RESERVED
from ds4proto.cli._loader import CommandGroup

README = Path(__file__).parents[1] / "README.md"
BEGIN = "<!-- commands: written by `make readme` -->\n"
END = "<!-- end of commands -->\n"


def table() -> str:
    """Return the rows, in the order of the help."""
    group = CommandGroup("ds4proto")
    present = set(group.list_commands(click.Context(group)))
    lines = ["| command | what it does | in this release |", "|---|---|---|"]
    for row in RESERVED:
        state = "yes" if row.name in present else "not yet"
        lines.append(f"| `ds4proto {row.name}` | {row.summary} | {state} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Compare or rewrite; the exit status is 1 where the table is out of date."""
    text = README.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    old, end, after = rest.partition(END)
    if not begin or not end:
        print(f"{README.name} has lost the marks around its table of commands")
        return 1
    new = table()
    if "--write" in sys.argv[1:]:
        README.write_text(before + BEGIN + new + END + after, encoding="utf-8")
        return 0
    if old != new:
        print(f"the table of commands in {README.name} is out of date: make readme")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
