"""Text files that a user names: prompts and texts, of a bounded length."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from ds4proto.errors import WrongUsage

__all__ = ["MOST", "bounded_text"]

MOST: Final = 64 << 20
"""Characters of a file that are read: far more than any context has tokens."""


def bounded_text(
    path: str | Path, errors: Literal["strict", "surrogateescape"] = "strict"
) -> str:
    """Return a UTF-8 file whole.

    Raises
    ------
    WrongUsage
        It is longer than ``MOST``: a device, or the wrong file.
    OSError, UnicodeDecodeError
        It cannot be read.
    """
    with Path(path).open(encoding="utf-8", errors=errors) as file:
        text = file.read(MOST + 1)
    if len(text) > MOST:
        raise WrongUsage(
            f"{path}: expected a text of at most {MOST >> 20} MiB, found more. Next:"
            " name another file, or cut this one"
        )
    return text
