"""Fields of a frame as a page can hold them: short, and numbers exact."""

from __future__ import annotations

from typing import Any, Final

from ds4proto.printable import counted, printable
from ds4proto.trace.payload import PayloadSummary
from ds4proto.trace.text import payload_text

__all__ = ["ITEMS", "TEXT", "cut", "shown"]

ITEMS: Final = 64
"""Entries of a list or a record at most."""
TEXT: Final = 2000
"""Characters of a text at most."""
_EXACT: Final = 1 << 53  # beyond it a browser's numbers lose their last digits


def shown(value: Any, depth: int = 3) -> Any:
    """Return a value cut to size; large whole numbers become text.

    Parameters
    ----------
    value : Any
        Of a field.
    depth : int
        Levels of lists and records that are opened.
    """
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if -_EXACT <= value <= _EXACT else str(value)
    if isinstance(value, str):
        return cut(printable(value))
    if isinstance(value, PayloadSummary):
        return printable(payload_text(value))
    if not depth:
        return "..."
    if isinstance(value, list | tuple):
        items = [shown(item, depth - 1) for item in value[:ITEMS]]
        if len(value) > ITEMS:
            items.append(f"{len(value) - ITEMS} more")
        return items
    if isinstance(value, dict):
        kept = list(value.items())[:ITEMS]
        return {printable(str(key)): shown(item, depth - 1) for key, item in kept}
    if isinstance(value, bytes | memoryview):
        return f"{counted(len(value), 'byte')}"
    return value


def cut(text: str) -> str:
    """Return a text that says how much of it was left out."""
    return text if len(text) <= TEXT else f"{text[:TEXT]} ({len(text) - TEXT} more)"
