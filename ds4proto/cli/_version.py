"""What ``ds4proto --version`` says: the release and the dialects that it knows."""

from collections.abc import Iterable
from typing import Any

from ds4proto import __version__

__all__ = ["version_text"]


def version_text() -> str:
    """Return the release and, one line each, the dialects with their upstream dates."""
    lines = [f"ds4proto {__version__}"]
    dialects = _known_dialects()
    if not dialects:
        return lines[0]
    lines.append("dialects covered (name, protocol, upstream date, evidence, title):")
    rows = [
        (one.name, one.protocol, str(one.date or "-"), str(one.evidence), one.title)
        for one in dialects
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append(f"  {'  '.join(cells)}  {row[4]}".rstrip())
    return "\n".join(lines)


def _known_dialects() -> list[Any]:
    try:
        from ds4proto.schema.dialects import all_dialects
    except ModuleNotFoundError as error:
        # Only a build without schemas may go without the list; a broken one may not.
        if not (error.name or "").startswith("ds4proto.schema"):
            raise
        return []
    dialects: Iterable[Any] = all_dialects()
    return list(dialects)
