"""One HTML page that holds everything it shows: no network, no file beside it.

Text from a capture goes through the template's escaping or, in the script, through
``textContent``; a content security policy with the hashes of the page's own script
and style keeps anything else from running.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib.resources import files
from typing import Any, BinaryIO, Final

from ds4proto.trace.output import output_file
from ds4proto.trace.pictures.collecting import (
    CHUNK,
    PROBLEM,
    REVERSE,
    UNDECODED_FLAG,
    Collector,
)
from ds4proto.trace.pictures.model import FRAMES, Picture, Remark
from ds4proto.trace.rows import FrameRow
from ds4proto.trace.text import size_text

__all__ = [
    "HEADERS_ONLY",
    "PRIVATE",
    "REDACTED",
    "render",
    "source_hash",
    "template",
    "themed",
    "write_html",
    "write_page",
]

PRIVATE: Final = (
    "This page holds token ids and bytes of a capture: prompts and answers can be read "
    "from them. Treat it as you treat those. A page to give away: ds4proto view FILE "
    "--html OUT --redact, or --headers-only."
)
REDACTED: Final = (
    "Token ids, payloads and hashes were taken out before this page was made; sizes, "
    "times, addresses, model names and error texts are still those of the run."
)
HEADERS_ONLY: Final = (
    "This page was made of headers and fixed fields alone, hashes replaced; sizes, "
    "times and addresses are still those of the run."
)
_SCRIPTS: Final = ("data.js", "timeline.js", "sequence.js", "heat.js", "main.js")


def write_html(
    path: str,
    rows: Iterable[FrameRow],
    findings: Iterable[Remark] = (),
    *,
    title: str,
    heads: Callable[[FrameRow], bytes] = lambda _row: b"",
    gates: Callable[[int], int | None] = lambda _run: None,
    limit: int = FRAMES,
) -> Picture:
    """Draw rows and findings as one page; it appears whole or not at all.

    Parameters
    ----------
    path : str
        The file to write.
    rows : iterable of FrameRow
        Taken once, in order.
    findings : iterable of Remark
        Read when the rows have passed, so that they may come of the same pass.
    title : str
        Shown on top.
    heads : callable
        Returns the first bytes of a row; `HeadDecoder.take` does.
    gates : callable
        Says the row gates a token of a run.
    limit : int
        Frames held one by one.

    Raises
    ------
    OSError
        Where the file cannot be written.
    """
    collector = Collector(limit=limit, gates=gates)
    with output_file(path) as stream:
        for row in rows:
            collector.add(row, heads(row))
        remarks = [*findings, *collector.remarks()]
        picture = collector.picture(title=title, remarks=remarks)
        write_page(stream, picture, PRIVATE)
    return picture


def write_page(stream: BinaryIO, picture: Picture, warning: str) -> int:
    """Write the page of a picture; return its bytes."""
    written = 0
    for piece in render(picture, warning):
        data = piece.encode("utf-8", "backslashreplace")
        stream.write(data)
        written += len(data)
    return written


def render(picture: Picture, warning: str) -> Iterator[str]:
    """Yield the page in pieces.

    Parameters
    ----------
    picture : Picture
    warning : str
        What a reader should know before giving the page away.
    """
    style, script = _parts()
    columns, table = _columns(picture.frames)
    meta = {
        **picture.document(),
        "spans": picture.spans,
        "columns": table,
        "chunk": CHUNK,
        "heads": picture.heads,
        "flags": {
            "problem": PROBLEM, "undecoded": UNDECODED_FLAG, "reverse": REVERSE,
        },
    }  # fmt: skip
    # findings are in the page as text already
    del meta["findings"]
    yield from _template().generate(
        picture=picture,
        facts=_facts(picture),
        meta=meta,
        columns=columns,
        details=(base64.b64encode(block).decode() for block in picture.details),
        style=style,
        script=script,
        style_hash=source_hash(style),
        script_hash=source_hash(script),
        warning=warning,
    )


def _facts(picture: Picture) -> list[tuple[str, str]]:
    """Return the summary as words."""
    found = []
    for name, value in picture.summary.items():
        if name == "bytes" and isinstance(value, int):
            found.append((name, f"{value:,} ({size_text(value).strip()})"))
        elif isinstance(value, float):
            found.append((name, f"{value:.6g}"))
        elif isinstance(value, int):
            found.append((name, f"{value:,}"))
        else:
            found.append((name, str(value)))
    return found


def _columns(frames: dict[str, Any]) -> tuple[str, list[list[Any]]]:
    """Return the columns as zlib'd base64, and where each lies in it."""
    packed = zlib.compressobj(6)
    data = bytearray()
    table = []
    offset = 0
    # widest first, so that every column is aligned
    for name, column in sorted(frames.items(), key=lambda c: (-c[1].itemsize, c[0])):
        kind = f"{column.dtype.kind}{column.itemsize}"
        raw = column.astype(column.dtype.newbyteorder("<")).tobytes()
        table.append([name, kind, offset, len(column)])
        data += packed.compress(raw)
        offset += len(raw)
    data += packed.flush()
    return base64.b64encode(data).decode(), table


def source_hash(text: str) -> str:
    """Return what a content security policy names a style or a script by."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


@cache
def _parts() -> tuple[str, str]:
    folder = files("ds4proto.trace.pictures") / "parts"
    style = themed((folder / "page.css").read_text(encoding="utf-8"))
    body = "".join((folder / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    return style, f"(function () {{\n'use strict';\n{body}}})();\n"


def themed(style: str) -> str:
    """Return a style sheet behind the project's colours, light and dark.

    A page is dark where its reader's system is; a script may say otherwise in the
    attribute ``data-theme`` of the root.
    """
    folder = files("ds4proto.trace.pictures") / "parts"
    light = (folder / "light.css").read_text(encoding="utf-8")
    dark = (folder / "dark.css").read_text(encoding="utf-8")
    return (
        f":root {{\n{light}}}\n"
        "@media (prefers-color-scheme: dark) {\n"
        f':root:not([data-theme="light"]) {{\n{dark}}}\n}}\n'
        f':root[data-theme="dark"] {{\n{dark}}}\n{style}'
    )


def template(text: str) -> Any:
    """Return a template that escapes all it is given."""
    from jinja2 import Environment, StrictUndefined

    return Environment(autoescape=True, undefined=StrictUndefined).from_string(text)


@cache
def _template() -> Any:
    folder = files("ds4proto.trace.pictures") / "parts"
    return template((folder / "page.html.j2").read_text(encoding="utf-8"))
