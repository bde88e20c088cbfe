"""Tables of frames in a terminal: names stay whole, whatever the width."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console

ROOMY: Final = 100
"""Columns from which a table has one line for each field."""
_LONG: Final = frozenset({"meaning", "values"})
"""Columns of prose; those of names are never broken."""


def print_layout(console: Console, markdown: str) -> None:
    """Print the table of a layout, as `emit.tables.layout_table` gives it.

    On a narrow terminal the prose of a field stands on lines of its own below its name.
    """
    lines = markdown.splitlines()
    heads = lines[0].strip("| ").split(" | ")
    rows = [
        [
            cell.replace("`", "").strip()
            for cell in line[2:-2].replace("\\|", "/").split(" | ")
        ]
        for line in lines[2:]
    ]
    if console.width < ROOMY:
        _stacked(console, heads, rows)
    else:
        _table(console, heads, rows)


def _table(console: Console, heads: list[str], rows: list[list[str]]) -> None:
    from rich.table import Table

    shown = Table(box=None, pad_edge=False)
    for head in heads:
        shown.add_column(head, no_wrap=head not in _LONG, overflow="fold")
    for row in rows:
        shown.add_row(*row)
    console.print(shown)


def _stacked(console: Console, heads: list[str], rows: list[list[str]]) -> None:
    if not rows:
        return
    names = [at for at, head in enumerate(heads) if head not in _LONG]
    widths = {at: max(len(row[at]) for row in rows) for at in names}
    indent = 2 + widths[names[0]]
    for row in rows:
        parts = [row[at].ljust(min(widths[at], console.width // 3)) for at in names]
        console.print("  ".join(parts).rstrip())
        prose = [row[at] for at in range(len(row)) if at not in names and row[at]]
        if prose:
            print_indented(console, "; ".join(prose), indent)


def print_indented(console: Console, text: str, indent: int = 2) -> None:
    """Print a paragraph whose every line is indented, wrapped between words."""
    margin = " " * indent
    wrapped = textwrap.fill(
        text,
        console.width,
        initial_indent=margin,
        subsequent_indent=margin,
        break_long_words=False,
        break_on_hyphens=False,
    )
    console.print(wrapped, soft_wrap=True)
