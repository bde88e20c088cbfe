"""``ds4proto view``: look at a capture, in the terminal or as pictures."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ds4proto.cli._options import json_option, not_an_input
from ds4proto.cli._output import printable, write_json
from ds4proto.errors import ExitCode

if TYPE_CHECKING:
    from ds4proto.trace.pictures.drawing import Drawn, Privacy

__all__ = ["cmd"]

_POLL_S: Final = 0.2
_HELP = """Look at a capture: browse it in the terminal, or draw it.

Without --html, --png, --qlog or --json a browser opens in the terminal (also over
ssh -t): frames as a list, / filters with a condition as in ds4proto decode, below the
list are the fields and bytes of the frame; e goes to the next broken rule, q quits.
It needs the extra view: pip install 'ds4proto[view]'.

--html writes one page that needs no network: swim lanes, sequence diagram, throughput,
in flight, heat maps by layer, findings. --png needs the extra plot. A capture holds
prompts and answers, and so does what is drawn of it: --redact or --headers-only take
them out first, as ds4proto trace redact does.

\b
Examples:
  ds4proto view run.pcap
  ds4proto view run.pcap --html run.html
  ds4proto view run.pcap --html share.html --redact
  ds4proto view run.pcap --png pictures --qlog run.qlog
  ds4proto view growing.pcapng --follow

The exit status is 0 when there were frames, 2 when there were none."""


@click.command("view", help=_HELP)
@click.argument("file", metavar="FILE")
@click.option("--html", metavar="OUT", help="Write one self-contained page.")
@click.option("--png", metavar="DIR", help="Write the main pictures to a folder.")
@click.option("--qlog", metavar="OUT", help="Write frames as qlog-style events.")
@click.option("--where", metavar="EXPR", help="Only frames that meet a condition.")
@click.option("--redact", is_flag=True,
              help="Take token ids, payloads and hashes out first.")  # fmt: skip
@click.option("--headers-only", is_flag=True,
              help="Take all but headers and fixed fields out first.")  # fmt: skip
@click.option("--bytes", "head_bytes", metavar="N", type=click.IntRange(0, 4096),
              help="Bytes shown of a frame; default: 96 in a page, 512 in the "
              "browser.")  # fmt: skip
@click.option("--keep", metavar="N", type=click.IntRange(1, 1_000_000),
              help="Frames held one by one; default: 150000 in a page, 100000 in "
              "the browser.")  # fmt: skip
@click.option("--dialect", metavar="NAME", help="Read the protocol under this dialect.")
@click.option("--follow", is_flag=True, help="Browser: go on while the file grows.")
@json_option
def cmd(
    file: str,
    html: str | None,
    png: str | None,
    qlog: str | None,
    where: str | None,
    redact: bool,
    headers_only: bool,
    head_bytes: int | None,
    keep: int | None,
    dialect: str | None,
    follow: bool,
    as_json: bool,
) -> int:
    """Look at a capture."""
    from ds4proto.cli.decode import check_dialect, must_open
    from ds4proto.trace.where import compile_where

    drawing = as_json or any(out is not None for out in (html, png, qlog))
    if drawing and follow:
        raise click.UsageError("--follow goes with the browser alone")
    if redact and headers_only:
        raise click.UsageError("--headers-only takes out more than --redact: give one")
    privacy: Privacy = "redact" if redact else "headers-only" if headers_only else ""
    must_open(file)
    for option, out in (("--html", html), ("--qlog", qlog)):
        if out is not None:
            not_an_input(option, out, [file])
    check_dialect(dialect)
    meets = None if where is None else compile_where(where)
    if not drawing:
        return _browse(
            file, meets, privacy, 512 if head_bytes is None else head_bytes,
            keep or 100_000, dialect, follow=follow,
        )  # fmt: skip
    from ds4proto.trace.pictures.drawing import draw
    from ds4proto.trace.pictures.heads import HEAD_BYTES
    from ds4proto.trace.pictures.model import FRAMES

    drawn = draw(
        file, html=html, png=png, qlog=qlog, where=meets, privacy=privacy,
        head_bytes=HEAD_BYTES if head_bytes is None else head_bytes,
        limit=keep or FRAMES, dialect=dialect,
    )  # fmt: skip
    return _tell(file, drawn, privacy, as_json=as_json)


def _tell(file: str, drawn: Drawn, privacy: str, *, as_json: bool) -> int:
    if drawn.damage:
        _say(f"{file}: {drawn.damage}; everything before it was drawn")
    if not privacy and drawn.files:
        _say(
            "note: prompts and answers can be read from what was drawn; --redact or "
            "--headers-only take them out"
        )
    if as_json:
        document = drawn.picture.document()
        write_json({**document, "files": drawn.files, "html_bytes": drawn.html_bytes})
        return ExitCode.PASSED
    for name in drawn.files:
        _say(f"wrote {name}")
    return ExitCode.PASSED


def _terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _say(text: str) -> None:
    print(f"ds4proto view: {printable(text)}", file=sys.stderr)


def _browse(
    file: str,
    meets: Callable[[Any], bool] | None,
    privacy: Privacy,
    head_bytes: int,
    keep: int,
    dialect: str | None,
    *,
    follow: bool,
) -> int:
    if file == "-":
        raise click.UsageError(
            "the browser reads keys from standard input, so that FILE cannot be -; "
            "save the capture first, or use ds4proto decode -"
        )
    if follow and privacy:
        raise click.UsageError("--redact and --headers-only need a file that is whole")
    if not _terminal():
        raise click.UsageError(
            "the browser needs a terminal (over ssh: ssh -t); without one give --html, "
            "--png, --qlog or --json, or use ds4proto decode"
        )
    from ds4proto.cli._view_app import Browser
    from ds4proto.cli._view_rows import RowReader, RowStore
    from ds4proto.trace.pictures.drawing import safe_source

    stop = threading.Event()
    with safe_source(file, privacy) as source:
        reader = RowReader(
            source, follow=follow, wait=lambda: not stop.wait(_POLL_S), meets=meets,
            head_bytes=head_bytes, dialect=dialect,
        )  # fmt: skip
        stop = reader.stop
        store = RowStore(keep, newest=follow)
        Browser(Path(file).name, reader, store, follow=follow).run()
    if not store.rows and not store.dropped:
        _say(f"{file}: no frame was decoded; ds4proto stats counts what it holds")
        return ExitCode.NOTHING_RAN
    return ExitCode.PASSED
