"""Traces of any stream: rows, lines of JSON, lines of text.

Invariants: a plain stream of any bytes gives rows, never an exception; they are the
same whatever the size of the pieces it is read in, once its first bytes (of which the
dialect is recognised) are at hand; every row is one line of strict JSON that reads
back to the same row, and can be shown as text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import BytesIO
from typing import Any, Final, NoReturn

from ds4proto.link.observer import FIRST_BYTES
from ds4proto.pcap.types import CaptureError
from ds4proto.trace.decoder import CaptureDecoder
from ds4proto.trace.output import JsonLines, TextLines
from ds4proto.trace.rows import FrameRow
from ds4proto.trace.sinks import PayloadMode
from ds4proto_fuzz.parsers.streams import DIALECTS, SMALL, WIDE, seeds_framing
from ds4proto_fuzz.parsers.target import Target, broken, same

__all__ = ["ROWS"]

MODES: Final[tuple[PayloadMode, ...]] = ("summary", "none", "full")


class _Drip(BytesIO):
    """A file that gives its first bytes at once and then single ones."""

    def read(self, _size: int | None = -1, /) -> bytes:
        """Return some bytes, whatever was asked for."""
        return super().read(1 if self.tell() else FIRST_BYTES)

    read1 = read


def check(data: bytes) -> None:
    """Take dialect and options from two bytes, a plain stream from the rest."""
    if len(data) < 2:
        return
    dialect = DIALECTS[data[0] % len(DIALECTS)][1] if data[1] & 1 else None
    mode = MODES[data[1] >> 1 & 3] if data[1] >> 1 & 3 < 3 else "summary"
    limits = SMALL if data[1] & 8 else WIDE

    def rows(source: BytesIO) -> list[FrameRow]:
        decoder = CaptureDecoder(source, payload=mode, limits=limits, dialect=dialect)
        found: list[FrameRow] = []
        try:
            for row in decoder:
                found.append(row)
        except CaptureError as error:
            if found and decoder.plain_stream:
                broken("a plain stream is no capture", error=str(error))
        return found

    whole = rows(BytesIO(data[2:]))
    same("whole or byte by byte", _lines(whole), _lines(rows(_Drip(data[2:]))))
    _show(whole)


def _lines(rows: list[FrameRow]) -> list[Any]:
    """Write rows as JSON and read them back, as strictly as any reader may."""
    out = BytesIO()
    writer = JsonLines(out)
    for row in rows:
        writer.write(row)
    writer.finish()
    lines = out.getvalue().decode("utf-8").splitlines()
    if len(lines) != len(rows):
        broken("a row is one line", rows=len(rows), lines=len(lines))
    found = [json.loads(line, parse_constant=_constant) for line in lines]
    for row, line in zip(rows, found, strict=True):
        told = line["type"], line["stream_offset"], line["length"], line["direction"]
        if told != (row.type, row.stream_offset, row.length, row.direction):
            broken("a line says what its row says", row=row, line=line)
    return found


def _constant(name: str) -> NoReturn:
    broken("JSON has no such number", name=name)


def _show(rows: list[FrameRow]) -> None:
    out = BytesIO()
    writer = TextLines(out, printable=str)
    for row in rows:
        writer.write(row)
    writer.finish()


def seeds() -> Iterator[bytes]:
    """Yield plain streams of sound frames, as they are and under small caps."""
    for seed in seeds_framing():
        if seed[1] in (0, 6):
            yield bytes((seed[0], 0 if seed[1] == 0 else 9 | 4)) + seed[2:]


ROWS: Final = Target("rows", "rows of a trace, as JSON and as text", check, seeds, 900)
