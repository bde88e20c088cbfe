"""Rows out: text, JSON lines, Parquet; to a stream, or to a file as a whole or not."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, cast

import msgspec

from ds4proto.errors import WrongUsage
from ds4proto.trace.names import (
    MISSING,
    Column,
    find_column,
    known_names,
    way_to_names,
)
from ds4proto.trace.rows import FrameRow, plain
from ds4proto.trace.text import HEADING, Piece, render

__all__ = [
    "JsonLines",
    "RowWriter",
    "TextLines",
    "columns_named",
    "output_file",
    "refuse_unwritable",
]

_FLUSH: Final = 1 << 16


class RowWriter(Protocol):
    """Takes rows; `finish` writes what is still held."""

    def file(self, name: str | None) -> None:
        """Say which capture the rows from here on are from; None: there is but one."""

    def write(self, row: FrameRow) -> None:
        """Take a row."""

    def flush(self) -> None:
        """Let a reader see all rows so far, where the format allows it."""

    def finish(self) -> None:
        """Write what is still held."""


def columns_named(text: str) -> dict[str, Column]:
    """Return the columns of a ``--fields`` list, in its order.

    Raises
    ------
    WrongUsage
        For a name that is not known, with those near it.
    """
    found: dict[str, Column] = {}
    for word in text.split(","):
        name = word.strip().lower()
        column = find_column(name)
        if column is None:
            near = get_close_matches(name, known_names(), n=3)
            hint = f"did you mean {', '.join(near)}?" if near else way_to_names(name)
            what = f"unknown name {word.strip()!r}" if name else "a name is missing"
            raise WrongUsage(f"--fields {text!r}: {what}; {hint}")
        found[name] = column
    return found


class _Buffered:
    """Collects bytes and writes them in blocks."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._block = bytearray()

    def flush(self) -> None:
        """Write what is held."""
        if self._block:
            self._stream.write(bytes(self._block))
            self._block.clear()
        self._stream.flush()

    def finish(self) -> None:
        """Write what is still held."""
        self.flush()


class JsonLines(_Buffered):
    """One JSON object a line.

    Parameters
    ----------
    stream : binary stream
    columns : mapping, optional
        Write these alone, absent ones as null.
    """

    def __init__(
        self, stream: BinaryIO, columns: Mapping[str, Column] | None = None
    ) -> None:
        super().__init__(stream)
        self._columns = columns
        self._encoder = msgspec.json.Encoder()
        self._prefix = b""

    def file(self, name: str | None) -> None:
        """Name the capture in every line from here on."""
        head = self._encoder.encode({"file": plain(name)})
        self._prefix = head[:-1] + b"," if name else b""

    def write(self, row: FrameRow) -> None:
        """Take a row."""
        block, columns = self._block, self._columns
        value = row if columns is None else _picked(row, columns)
        if self._prefix:
            block += self._prefix
            block += self._encoder.encode(value)[1:]
        else:
            self._encoder.encode_into(value, block, -1)
        block += b"\n"
        if len(block) >= _FLUSH:
            self.flush()


def _picked(row: FrameRow, columns: Mapping[str, Column]) -> dict[str, Any]:
    found = {}
    for name, column in columns.items():
        value = column.get(row)
        found[name] = None if value is MISSING else value
    return found


class TextLines(_Buffered):
    """Readable lines, or tab-separated columns where fields were picked.

    Parameters
    ----------
    stream : binary stream
    columns : mapping, optional
        Write these alone, separated by tabs, absent ones empty.
    printable : callable
        Escapes what would steer a terminal.
    styled : callable, optional
        Turns pieces into one line for a terminal; plain text without it.
    gates : callable
        Says the row gates a token of a run, for the token that a gate belongs to.
    """

    def __init__(
        self,
        stream: BinaryIO,
        columns: Mapping[str, Column] | None = None,
        *,
        printable: Callable[[str], str],
        styled: Callable[[Sequence[Piece]], str] | None = None,
        gates: Callable[[int], int | None] = lambda _run: None,
    ) -> None:
        super().__init__(stream)
        self._columns = columns
        self._printable = printable
        self._styled = styled
        self.gates = gates
        heading = HEADING if columns is None else "\t".join(columns)
        self.line(heading)

    def line(self, text: str) -> None:
        """Write one line as it is."""
        self._block += f"{text.rstrip()}\n".encode("utf-8", "backslashreplace")
        if len(self._block) >= _FLUSH:
            self.flush()

    def file(self, name: str | None) -> None:
        """Put a capture's name above its rows."""
        if name and self._columns is None:
            self.line(f"== {self._printable(str(plain(name)))}")

    def write(self, row: FrameRow) -> None:
        """Take a row."""
        if self._columns is not None:
            values = [_cell(column, row) for column in self._columns.values()]
            self.line(self._printable_cells(values))
            return
        for pieces in render(row, gates_per_token=self.gates(row.run)):
            if self._styled is not None:
                safe = [(self._printable(text), style) for text, style in pieces]
                self.line(self._styled(safe))
            else:
                self.line(self._printable("".join(text for text, _ in pieces)))

    def _printable_cells(self, values: list[str]) -> str:
        return "\t".join(self._printable(value) for value in values)


def _cell(column: Column, row: FrameRow) -> str:
    value = column.get(row)
    if value is MISSING or value is None:
        return ""
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value)
    return str(value)


@contextmanager
def output_file(path: str | None, option: str = "-o") -> Iterator[BinaryIO]:
    """Open the output: standard output, or a file that appears only when it is whole.

    The bytes go to a temporary file beside `path`, which takes its name at the end;
    after an error nothing is left, and an older file stays as it was.

    Parameters
    ----------
    path : str or None
        None or ``-`` for standard output.
    option : str
        What the user gave the path with, for the text of an error.

    Raises
    ------
    WrongUsage
        Where the folder is not there.
    OSError
        Where the file cannot be written.
    """
    if path is None or path == "-":
        yield sys.stdout.buffer
        return
    target = _in_a_folder(path, option)
    if target.exists() and not target.is_file():
        with target.open("wb") as stream:  # a pipe or a device: no name to take
            yield stream
        return
    handle, name = _beside(target)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield cast(BinaryIO, stream)
        mask = os.umask(0)
        os.umask(mask)
        Path(name).chmod(0o666 & ~mask)
        Path(name).replace(target)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise


def refuse_unwritable(path: str, option: str) -> None:
    """Find out before long work whether `output_file` will take its result.

    Raises
    ------
    WrongUsage
        Where the folder is not there.
    OSError
        Where the file cannot be written.
    """
    target = _in_a_folder(path, option)
    if target.exists() and not target.is_file():
        return
    handle, name = _beside(target)
    os.close(handle)
    Path(name).unlink()


def _in_a_folder(path: str, option: str) -> Path:
    target = Path(path)
    if not target.parent.is_dir():
        raise WrongUsage(
            f"{option} {plain(path)}: there is no folder {plain(str(target.parent))}"
        )
    return target


def _beside(target: Path) -> tuple[int, str]:
    try:
        return tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:  # name what was asked for, not the file beside it
        raise OSError(error.errno, error.strerror, str(target)) from None
