"""``ds4proto trace``: captures that can be given away, cut down or joined."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from ds4proto.cli._options import json_option, not_an_input
from ds4proto.cli._output import printable, write_json
from ds4proto.errors import ExitCode, NothingRan
from ds4proto.printable import counted

if TYPE_CHECKING:
    from ds4proto.trace.rewriting import Summary

__all__ = ["cmd"]

_GROUP = """Redact, cut or merge captures.

\b
Examples:
  ds4proto trace redact run.pcap -o share.pcapng
  ds4proto trace cut run.pcap -o part.pcapng --from 12.5 --to 14
  ds4proto trace merge leader.pcapng worker.pcapng -o both.pcapng

The output is pcapng. It appears whole or not at all."""
_REDACT = """Take prompts and answers out of a capture.

\b
Kept: connections, addresses, times, segment borders; headers, lengths, positions,
  flags, ids, statuses, error texts, routes, model names.
Replaced: token ids by 0; hidden states, logits, partials, snapshots and image rows by
  zero bytes; bytes of no frame by zero bytes. Token hashes become those of as many
  zeros, so that they still agree with each other; hashes of the state stay equal to
  each other and to nothing outside the file.
Left out: other traffic, retransmissions, bare acknowledgements, checksums' faults.

\b
Example:
  ds4proto trace redact run.pcap -o share.pcapng --headers-only"""
_CUT = """Keep a part of a capture: by time, by connection, by condition.

Frames are kept whole or left out; what is left out shows as lost in between. Hellos
of the chosen connections stay, so that the dialect stays known.

\b
Examples:
  ds4proto trace cut run.pcap -o part.pcapng --from 12.5 --to 14
  ds4proto trace cut run.pcap -o hop.pcapng --stream 1 --stream 2
  ds4proto trace cut run.pcap -o bad.pcapng --where 'problems'"""
_MERGE = """Join captures by time, one interface each.

\b
Example:
  ds4proto trace merge leader.pcapng worker.pcapng -o both.pcapng --shift 1=-0.0021

--shift N=SECONDS moves the times of the N-th file, counted from 0: clocks of two
machines differ."""

_out = click.option(
    "-o", "--output", metavar="FILE", required=True, help="Write this pcapng."
)
_headers = click.option(
    "--headers-only", is_flag=True,
    help="Keep headers and fixed fields alone; payloads count as not captured.",
)  # fmt: skip


@click.group("trace", help=_GROUP)
def cmd() -> None:
    """Group the commands on captures."""


@cmd.command("redact", help=_REDACT)
@click.argument("file", metavar="FILE")
@_out
@_headers
@json_option
def redact(file: str, output: str, headers_only: bool, as_json: bool) -> int:
    """Take the private part out."""
    from ds4proto.trace.cut import Selection
    from ds4proto.trace.output import output_file
    from ds4proto.trace.redact import REDACTED, Redactor, head_size
    from ds4proto.trace.rewriting import rewrite

    not_an_input("--output", output, [file])
    change = Redactor(secrets.token_bytes(16)).frame
    with output_file(output) as target, _reading(file):
        summary = rewrite(
            file,
            target,
            choice=Selection(headers_only=headers_only),
            change=change,
            head=head_size,
            comment=REDACTED,
        )
        _must_hold_frames(file, summary)
    return _tell("redact", file, output, summary, as_json=as_json)


@cmd.command("cut", help=_CUT)
@click.argument("file", metavar="FILE")
@_out
@click.option("--from", "begin", metavar="S", type=click.FloatRange(0),
              help="Seconds since the first packet.")  # fmt: skip
@click.option("--to", "end", metavar="S", type=click.FloatRange(0),
              help="Seconds since the first packet.")  # fmt: skip
@click.option("--stream", "streams", metavar="N", type=click.IntRange(0),
              multiple=True, help="Connection, as decode numbers it.")  # fmt: skip
@click.option("--where", metavar="EXPR", help="A condition as in ds4proto decode.")
@click.option("--no-hellos", is_flag=True, help="Do not keep hellos outside the part.")
@_headers
@json_option
def cut(
    file: str,
    output: str,
    begin: float | None,
    end: float | None,
    streams: tuple[int, ...],
    where: str | None,
    no_hellos: bool,
    headers_only: bool,
    as_json: bool,
) -> int:
    """Keep a part."""
    if begin is not None and end is not None and end <= begin:
        raise click.UsageError(f"--to {end:g} is not behind --from {begin:g}")
    from ds4proto.trace.cut import Selection
    from ds4proto.trace.output import output_file
    from ds4proto.trace.redact import head_size
    from ds4proto.trace.rewriting import rewrite
    from ds4proto.trace.where import compile_where

    not_an_input("--output", output, [file])
    choice = Selection(
        begin=begin,
        end=end,
        streams=frozenset(streams) if streams else None,
        meets=compile_where(where) if where else None,
        headers_only=headers_only,
        hellos=not no_hellos,
    )
    with output_file(output) as target, _reading(file):
        summary = rewrite(
            file, target, choice=choice, head=head_size, comment="cut from a capture"
        )
        _must_hold_frames(file, summary)
        if not choice.chosen and choice.times is not None:
            first, last = choice.times
            raise NothingRan(
                f"{file}: no frame meets what was asked for, only hellos would stay, "
                f"so nothing was written. Its frames come from {first:.6f} to "
                f"{last:.6f} s. Next: see them with ds4proto decode {file}"
            )
    return _tell("cut", file, output, summary, as_json=as_json)


@cmd.command("merge", help=_MERGE)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@_out
@click.option("--shift", "shifts", metavar="N=S", multiple=True,
              help="Move the times of one file by seconds.")  # fmt: skip
@json_option
def merge(
    files: tuple[str, ...], output: str, shifts: tuple[str, ...], as_json: bool
) -> int:
    """Join captures."""
    from ds4proto.trace.merge import merge as merged
    from ds4proto.trace.output import output_file

    not_an_input("--output", output, files)
    moved = _shifts(shifts, len(files))
    with output_file(output) as target:
        done = merged(files, target, shifts_ns=moved)
        if not done.packets:
            raise NothingRan(
                f"{', '.join(files)}: there is no packet to merge, so nothing was "
                "written; check that these are the captures you meant"
            )
    for name in done.truncated:
        _say("merge", f"{name}: the file ends inside a record; merged up to there")
    if as_json:
        write_json(
            {"packets": done.packets, "truncated": list(done.truncated),
             "redacted": list(done.redacted)}
        )  # fmt: skip
    else:
        _say(
            "merge",
            f"{counted(done.packets, 'packet')} of {counted(len(files), 'file')} to "
            f"{output}",
        )
        if done.redacted:
            _say("merge", f"{', '.join(done.redacted)}: redacted, and so is {output}")
    return ExitCode.PASSED


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Put the name of the input before what is wrong with it."""
    from ds4proto.pcap.types import CaptureError

    try:
        yield
    except CaptureError as error:
        raise error.of(name) from None


_FARTHEST_NS: Final = 10**18
"""A shift of 30 years: more is a slip, and soon no time of pcapng."""


def _shifts(texts: tuple[str, ...], count: int) -> list[int]:
    moved = [0] * count
    for text in texts:
        number, equals, seconds = text.partition("=")
        try:
            place = int(number)
            shift = round(float(seconds) * 1e9)
        except (ValueError, OverflowError):
            place, shift = -1, 0
        if not equals or not 0 <= place < count or abs(shift) > _FARTHEST_NS:
            raise click.UsageError(
                f"--shift {text!r}: expected N=SECONDS with N from 0 to {count - 1}"
                f" and up to {_FARTHEST_NS // 10**9} seconds"
            )
        moved[place] = shift
    return moved


def _must_hold_frames(file: str, summary: Summary) -> None:
    if not summary.frames["whole"] and not summary.frames["head"]:
        raise NothingRan(
            f"{file}: no frame of ours is left, so nothing was written. Next: see "
            f"what the file holds with ds4proto stats {file}"
        )


def _tell(verb: str, file: str, output: str, done: Summary, *, as_json: bool) -> int:
    if done.truncated:
        _say(verb, f"{file}: the file ends inside a record; what came before is done")
    report: dict[str, Any] = {
        "output": output,
        "frames": done.frames["whole"] + done.frames["head"],
        "frames_without_payload": done.frames["head"],
        "frames_left_out": done.frames["none"],
        "undecoded_bytes": done.undecoded_bytes,
        "connections": done.streams,
        "foreign_connections_left_out": done.foreign_streams,
        "input_truncated": done.truncated,
    }
    if as_json:
        write_json(report)
        return ExitCode.PASSED
    _say(
        verb,
        f"{counted(report['frames'], 'frame')} of "
        f"{counted(done.streams, 'connection')} to {output}; left "
        f"out: {counted(done.frames['none'], 'frame')}, "
        f"{counted(done.foreign_streams, 'connection')} of "
        "other traffic",
    )
    if done.undecoded_bytes:
        _say(verb, f"{counted(done.undecoded_bytes, 'byte', 'belong')} to no frame")
    return ExitCode.PASSED


def _say(verb: str, text: str) -> None:
    print(f"ds4proto trace {verb}: {printable(text)}", file=sys.stderr)
