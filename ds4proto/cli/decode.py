"""``ds4proto decode``: every frame of a capture, one readable line each."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ds4proto.cli._options import DURATION, not_an_input
from ds4proto.cli._output import printable
from ds4proto.errors import ExitCode
from ds4proto.printable import counted

if TYPE_CHECKING:
    from ds4proto.trace.decoder import CaptureDecoder
    from ds4proto.trace.output import RowWriter
    from ds4proto.trace.rows import FrameRow
    from ds4proto.trace.text import Piece

__all__ = ["check_dialect", "cmd", "must_open"]

_POLL_S: Final = 0.2
_PROMPTS: Final = (
    "note: token ids and hidden states in a capture give prompts and answers away; "
    "treat this output as you treat those"
)
_NO_FRAME: Final = (
    "no frame could be decoded; ds4proto stats counts what the capture holds"
)
_HELP = """Show every frame of a capture, one readable line each.

FILE is pcap or pcapng, gzip'd or not, the plain bytes of one direction of one
connection, or - for standard input. Protocols are found by content on any port.

\b
Examples:
  ds4proto decode run.pcap
  ds4proto decode run.pcap --where 'ds4d.work.n_tokens > 1 and problems'
  ds4proto decode run.pcap --where 'ds4d.result.result_kind == "LOGITS"'
  ds4proto decode run.pcap --fields time,src_role,ds4d.work.request,ds4d.work.pos0
  ds4proto decode run.pcap --format jsonl -o frames.jsonl
  ds4proto decode run.pcap --roce port.pcap
  tcpdump -i lo -U -w - tcp | ds4proto decode -

The exit status is 0 when frames were decoded, 2 when there were none; with --strict
it is 1 when a frame breaks a rule or bytes could not be decoded."""


@click.command("decode", help=_HELP)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option(
    "--format", "form", type=click.Choice(["text", "jsonl", "parquet"]),
    default="text", show_default=True, help="How rows are written.",
)  # fmt: skip
@click.option("-o", "--output", metavar="FILE", help="Write here, whole or not at all.")
@click.option("--where", metavar="EXPR", help="Only rows that meet a condition.")
@click.option("--fields", metavar="A,B", help="Only these columns, by name.")
@click.option(
    "--payload", type=click.Choice(["none", "summary", "full"]), default="summary",
    show_default=True, help="Describe payloads, pass over them, or show their bytes.",
)  # fmt: skip
@click.option("--limit", metavar="N", type=click.IntRange(1), help="Stop after N rows.")
@click.option("--follow", is_flag=True, help="Go on while the file grows.")
@click.option("--until", type=DURATION, help="With --follow: stop after this long.")
@click.option(
    "--dialect", metavar="NAME", help="Read the protocol of this dialect under it."
)
@click.option(
    "--fast", is_flag=True,
    help="Parquet only: fixed fields alone, without rules, payloads and gates.",
)  # fmt: skip
@click.option(
    "--roce", metavar="PCAP",
    help="RoCE v2 packets recorded beside FILE: messages, retries, and their gates.",
)  # fmt: skip
@click.option("--strict", is_flag=True, help="Exit 1 at any problem.")
def cmd(
    files: tuple[str, ...],
    form: str,
    output: str | None,
    where: str | None,
    fields: str | None,
    payload: Any,
    limit: int | None,
    follow: bool,
    until: float | None,
    dialect: str | None,
    fast: bool,
    roce: str | None,
    strict: bool,
) -> int:
    """Decode captures."""
    if fast:
        others = (where, fields, limit, until, dialect, roce)
        if form != "parquet" or follow or strict or any(o is not None for o in others):
            raise click.UsageError("--fast goes with --format parquet and -o alone")
        return _fast(files, output)
    if until is not None and not follow:
        raise click.UsageError("--until needs --follow")
    if follow and len(files) > 1:
        raise click.UsageError("--follow takes one FILE")
    if roce is not None and (len(files) > 1 or follow or form == "parquet"):
        raise click.UsageError("--roce goes with one FILE, as text or jsonl")
    from ds4proto.trace.decoder import ORDER_WINDOW, CaptureDecoder
    from ds4proto.trace.output import columns_named, output_file
    from ds4proto.trace.where import compile_where

    _must_open_all([*files, *([] if roce is None else [roce])], output)
    check_dialect(dialect)
    meets = None if where is None else compile_where(where)
    columns = None if fields is None else columns_named(fields)
    if form == "parquet" and output is None and sys.stdout.isatty():
        raise click.UsageError("--format parquet writes binary data: give -o FILE")
    say = _Stderr(_PROMPTS)
    left = limit
    tally = _Tally()
    with output_file(output) as stream, _stopping(follow) as stop:
        writer = _writer(form, stream, columns, payload)
        for name in files:
            wait = _waiter(stop, until) if follow else None
            # somebody waits for the rows of what grows
            live = follow or name == "-" or not Path(name).is_file()
            decoder = CaptureDecoder(
                name, payload=payload, dialect=dialect, follow=follow, wait=wait,
                reorder=0 if live else ORDER_WINDOW,
            )  # fmt: skip
            writer.file(name if len(files) > 1 else None)
            writer.source(decoder)
            left, damage = _run(decoder, writer, meets, left, tally, flush=live)
            if damage:
                say(f"{name}: {damage}")
                tally.damaged = True
            say.about(name, decoder)
            tally.damaged |= decoder.info.truncated
            if left == 0:
                break
        writer.finish()
        if roce is not None:
            tally.problems += _roce(files[0], roce, form, stream)
    if not tally.frames:
        say(_NO_FRAME)
        return ExitCode.NOTHING_RAN
    if where is not None and not tally.shown:
        say(f"--where: none of {counted(tally.rows, 'row')} meets {where}")
    if strict and (tally.problems or tally.undecoded or tally.damaged):
        return ExitCode.FAILED
    return ExitCode.PASSED


def _must_open_all(files: Sequence[str], output: str | None) -> None:
    for name in files:
        must_open(name)
    if output is not None:
        not_an_input("--output", output, files)


def _fast(files: tuple[str, ...], output: str | None) -> int:
    from ds4proto.pcap.types import CaptureError
    from ds4proto.trace.column_table import ColumnTable
    from ds4proto.trace.columns import frame_columns, frame_names
    from ds4proto.trace.output import output_file

    _must_open_all(files, output)
    say = _Stderr(_PROMPTS)
    with output_file(output) as stream:
        again = all(Path(name).is_file() for name in files)
        found = set().union(*map(frame_names, files)) if again else None
        table = ColumnTable(stream, found)
        for name in files:
            table.file(name if len(files) > 1 else None)
            try:
                for part in frame_columns(name):
                    table.write(part)
            except CaptureError as error:
                say(f"{name}: {error}")
        table.finish()
    if not table.frames:
        say(_NO_FRAME)
        return ExitCode.NOTHING_RAN
    return ExitCode.PASSED


def _roce(control: str, roce: str, form: str, stream: Any) -> int:
    """Write what crossed the queue pairs; return how much of it went wrong."""
    import msgspec

    from ds4proto.pcap.types import CaptureError
    from ds4proto.trace.roce import decode_roce
    from ds4proto.trace.roce_text import roce_lines, roce_records

    try:
        report = decode_roce(control, roce)
    except CaptureError as error:
        raise error.of(roce) from None
    if form == "jsonl":
        for record in roce_records(report):
            stream.write(msgspec.json.encode(record) + b"\n")
    else:
        for line in roce_lines(report):
            stream.write(printable(line).encode() + b"\n")
    return len(report.findings)


def must_open(name: str) -> None:
    """Raise what opening a capture raises, before anything is written."""
    path = Path(name)
    # a pipe is opened once, by the one who reads it
    if name != "-" and (path.is_file() or path.is_dir() or not path.exists()):
        path.open("rb").close()


class _Tally:
    """What was seen, whether or not it was shown."""

    def __init__(self) -> None:
        self.rows = 0
        self.shown = 0
        self.frames = 0
        self.problems = 0
        self.undecoded = 0
        self.damaged = False

    def add(self, row: FrameRow) -> None:
        self.rows += 1
        self.problems += len(row.problems)
        if row.is_frame:
            self.frames += 1
        else:
            self.undecoded += 1


def _run(
    decoder: CaptureDecoder,
    writer: _Writer,
    meets: Callable[[Any], bool] | None,
    left: int | None,
    tally: _Tally,
    *,
    flush: bool,
) -> tuple[int | None, str]:
    """Write the rows of a capture; return how many are left to show, and its damage."""
    from ds4proto.pcap.types import CaptureError

    try:
        for row in decoder:
            tally.add(row)
            if meets is not None and not meets(row):
                continue
            writer.write(row)
            tally.shown += 1
            if flush:
                writer.flush()
            if left is not None:
                left -= 1
                if left == 0:
                    break
    except CaptureError as error:
        return left, str(error)
    return left, ""


class _Writer:
    """A row writer, and what the commands around it need to tell it."""

    def __init__(self, rows: RowWriter) -> None:
        self._rows = rows
        self.write = rows.write
        self.flush = rows.flush
        self.finish = rows.finish

    def file(self, name: str | None) -> None:
        self._rows.file(name)

    def source(self, decoder: CaptureDecoder) -> None:
        from ds4proto.trace.output import TextLines

        if isinstance(self._rows, TextLines):
            runs = decoder.decoder.runs

            def gates(run: int) -> int | None:
                return runs[run - 1].gates_per_token if 0 < run <= len(runs) else None

            self._rows.gates = gates


def _writer(form: str, stream: Any, columns: Any, payload: str) -> _Writer:
    from ds4proto.trace.output import JsonLines, TextLines

    if form == "jsonl":
        return _Writer(JsonLines(stream, columns))
    if form == "parquet":
        from ds4proto.trace.parquet import ParquetRows

        return _Writer(ParquetRows(stream, columns, payload=payload != "none"))
    styled = _styler() if stream is sys.stdout.buffer and sys.stdout.isatty() else None
    return _Writer(TextLines(stream, columns, printable=printable, styled=styled))


def _styler() -> Callable[[Sequence[Piece]], str] | None:
    from ds4proto.cli._output import stdout

    console = stdout()
    if console.no_color or not console.is_terminal:
        return None
    from rich.text import Text

    def styled(pieces: Sequence[Piece]) -> str:
        line = Text.assemble(*pieces, no_wrap=True)
        with console.capture() as capture:
            console.print(line, soft_wrap=True, end="")
        return capture.get()

    return styled


def check_dialect(name: str | None) -> None:
    """Raise a usage error for the name of a dialect that there is not."""
    if name is None:
        return
    from ds4proto.schema import all_dialects

    known = [dialect.name for dialect in all_dialects()]
    if name.rstrip("?") not in known:
        raise click.UsageError(f"no dialect {name!r}; known: {', '.join(known)}")


class _Stderr:
    """Says things on standard error; the note about prompts once, before all."""

    def __init__(self, first: str) -> None:
        self(first)

    def __call__(self, text: str) -> None:
        sys.stdout.flush()
        print(f"ds4proto decode: {printable(text)}", file=sys.stderr)

    def about(self, name: str, decoder: CaptureDecoder) -> None:
        """Warn of what the container lacks."""
        at = decoder.info.truncated_at
        if at is not None:
            self(
                f"{name}: the file ends inside a record at offset {at}; everything "
                "before it was decoded"
            )
        if decoder.info.marked_complete is False:
            self(f"{name}: the recorder did not finish this file")


@contextmanager
def _stopping(follow: bool) -> Iterator[threading.Event]:
    """Let the first Ctrl-C end the following, and the rows so far be written."""
    stop = threading.Event()
    if not follow or threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def interrupted(_signal: int, _frame: Any) -> None:
        stop.set()
        signal.signal(signal.SIGINT, before)  # a second Ctrl-C breaks off at once

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def _waiter(stop: threading.Event, until: float | None) -> Callable[[], bool]:
    """Return what the reader calls at the end of a file that may still grow."""
    deadline = None if until is None else time.monotonic() + until

    def wait() -> bool:
        pause = _POLL_S
        if deadline is not None:
            pause = min(pause, deadline - time.monotonic())
            if pause <= 0:
                return False
        return not stop.wait(pause)

    return wait
