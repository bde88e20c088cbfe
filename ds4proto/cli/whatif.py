"""``ds4proto whatif``: what narrower widths would have done to a run's values."""

from __future__ import annotations

import sys
from math import isfinite
from typing import TYPE_CHECKING, Any

import click

from ds4proto.cli._options import json_option
from ds4proto.cli._output import printable, progress, stdout, write_json
from ds4proto.errors import ExitCode, WrongUsage
from ds4proto.printable import counted

if TYPE_CHECKING:
    from rich.console import Console

    from ds4proto.trace.narrowing import Narrowed
    from ds4proto.trace.whatif import WhatIf

__all__ = ["cmd"]

_HELP = """Say what a narrower width would have done to the values of a 32-bit run.

FILE is a capture of your own run with 32-bit activations (--dist-activation-bits 32, or
a tensor-parallel run over TCP). Each hidden state and partial goes through the codecs
themselves; the answer counts what is clipped, becomes 0 or stops being a number, and
gives the signal-to-noise ratio by hop and layer, and the worst token. It is about the
prompt in the capture: record several.

\b
Examples:
  ds4proto whatif run.pcap
  ds4proto whatif run.pcap --formats e4m3,mxfp8,int8
  ds4proto whatif run.pcap --json | jq .formats

\b
8 bits unsafe: 31 values above 240, all in token 0 (0.2 % of the values become 0, ...)

The exit status is 1 where a width is unsafe (values clipped or infinite), 0 where all
fit, 2 where the file holds no 32-bit hidden state."""


@click.command("whatif", help=_HELP)
@click.argument("file")
@click.option("--formats", default="f16,bf16,e4m3", show_default=True, metavar="LIST",
              help="Codecs to try; ds4proto codec list names them.")  # fmt: skip
@json_option
def cmd(file: str, formats: str, as_json: bool) -> int:
    """Try narrower widths on a capture."""
    from ds4proto.codec import CodecError
    from ds4proto.trace.whatif import what_if

    names = tuple(name.strip() for name in formats.split(",") if name.strip())
    if not names:
        raise click.UsageError("--formats: expected names of codecs, found none")
    try:
        with progress("reading", None):
            found = what_if(file, tuple(dict.fromkeys(names)))
    except CodecError as error:
        raise WrongUsage(f"--formats {formats}: {error}") from None
    if found.damage:
        print(
            f"ds4proto whatif: {printable(f'{file}: {found.damage}')}", file=sys.stderr
        )
    if as_json:
        write_json(_report(file, found))
    else:
        _show(file, found, stdout())
    return ExitCode.FAILED if found.unsafe else ExitCode.PASSED


def _report(file: str, found: WhatIf) -> dict[str, Any]:
    from ds4proto.trace.narrowing import verdict

    totals = {name: found.total(name) for name in found.formats}
    return {
        "file": printable(file),
        "unsafe": found.unsafe,
        "formats": {
            name: {"verdict": verdict(name, total), **_numbers(total)}
            for name, total in totals.items()
        },
        "places": [
            {
                "hop": place.name,
                "what": place.what,
                "payloads": place.payloads,
                "values": place.values,
                "largest": place.largest,
                "non_finite_before": place.odd,
                "formats": {n: _numbers(one) for n, one in place.by_format.items()},
            }
            for place in found.places
        ],
        "narrow_payloads": found.narrow,
        "partial_payloads": found.partial,
        "left_out_payloads": found.left_out,
    }


def _numbers(one: Narrowed) -> dict[str, Any]:
    return {
        "values": one.values,
        "clipped": one.clipped,
        "non_finite": one.non_finite,
        "flushed": one.flushed,
        "sqnr_db": _finite(one.sqnr),
        "worst_token": one.worst[1] if isfinite(one.worst[0]) else None,
        "worst_token_sqnr_db": _finite(one.worst[0]),
        "clipped_tokens": {str(k): v for k, v in sorted(one.clipped_tokens.items())},
    }


def _finite(value: float) -> float | None:
    """Return a ratio, or None for one without end, which JSON cannot say."""
    return round(value, 2) if isfinite(value) else None


def _show(file: str, found: WhatIf, console: Console) -> None:
    from rich.table import Table

    from ds4proto.trace.narrowing import verdict

    values = sum(place.values for place in found.places)
    console.print(printable(f"{file}: {counted(values, 'value')} at 32 bits"))
    console.print()
    for name in found.formats:
        total = found.total(name)
        style = "" if total.safe else "bold red"
        console.print(printable(f"{verdict(name, total)}."), style=style)
    odd = sum(place.odd for place in found.places)
    if odd:
        console.print(
            f"{counted(odd, 'value', 'were')} infinite or NaN before any narrowing."
        )
    for width, count in found.narrow.items():
        console.print(
            f"{counted(count, 'payload', 'are')} at {width} already: of no use here."
        )
    if found.left_out:
        console.print(
            f"{counted(found.left_out, 'payload', 'are')} of more hops and layers than "
            "are told "
            "apart, and are left out."
        )
    if found.partial:
        console.print(
            f"{counted(found.partial, 'payload', 'are')} not whole in the capture."
        )
    console.print()
    table = Table(box=None, pad_edge=False)
    for column in ("hop", "what", "largest", "format", "clipped", "inf", "to 0", "dB",
                   "worst"):  # fmt: skip
        words = column in ("hop", "what", "format")
        table.add_column(column, justify="left" if words else "right")
    for place in found.places:
        head = [printable(place.name), printable(place.what), f"{place.largest:.4g}"]
        for name, one in place.by_format.items():
            ratio, token = one.worst
            table.add_row(
                *head, name, str(one.clipped), str(one.non_finite), str(one.flushed),
                _short(one.sqnr), f"{ratio:.1f} at {token}" if isfinite(ratio) else "-",
            )  # fmt: skip
            head = ["", "", ""]
    console.print(table)
    console.print()
    console.print("This is about the prompt in the capture; other prompts may differ.")


def _short(value: float) -> str:
    return f"{value:.1f}" if isfinite(value) else "-"
