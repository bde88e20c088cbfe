"""``ds4proto stats``: what a capture holds, in numbers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from ds4proto.cli._options import json_option
from ds4proto.cli._output import printable, stdout, write_json
from ds4proto.errors import ExitCode
from ds4proto.printable import counted

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["cmd", "measure", "show"]

_HELP = """Count frames, bytes, gaps and problems of captures.

Every byte of TCP payload is accounted for: as part of a frame, or as undecoded with
the reason. Several FILEs are summed; with --json the single reports stand under
"files".

\b
Examples:
  ds4proto stats run.pcap
  ds4proto stats run.pcap --json | jq .frames

The exit status is 0 when frames were found, 2 when there were none; with --strict it
is 1 when a frame breaks a rule or bytes could not be decoded."""


@click.command("stats", help=_HELP)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@json_option
@click.option("--strict", is_flag=True, help="Exit 1 at any problem.")
def cmd(files: tuple[str, ...], as_json: bool, strict: bool) -> int:
    """Count what captures hold."""
    from ds4proto.trace.stats import total_of

    reports = []
    damaged = False
    for name in files:
        report, error = measure(name)
        damaged |= bool(error) or report["truncated"]
        if error or report["truncated"]:
            why = error or "the file ends inside a record; what came before is counted"
            print(f"ds4proto stats: {printable(f'{name}: {why}')}", file=sys.stderr)
        reports.append({"file": printable(name), **report})
    total = reports[0] if len(reports) == 1 else total_of(reports)
    if as_json:
        write_json(total if len(reports) == 1 else {**total, "files": reports})
    else:
        for report in reports:
            show(report, stdout())
        if len(reports) > 1:
            show({"file": f"all {len(reports)} captures", **total}, stdout())
    if not total["frames"]:
        if not damaged:
            print(f"ds4proto stats: {_no_frame(total)}", file=sys.stderr)
        return ExitCode.NOTHING_RAN
    broken = total["problems"] or total["undecoded_bytes"] - total["foreign_bytes"]
    return ExitCode.FAILED if strict and (broken or damaged) else ExitCode.PASSED


def _no_frame(total: dict[str, Any]) -> str:
    if not total["packets"]:
        return "no packet was found; the recording may have been stopped too early"
    kinds = total.get("packet_kinds", {}).items()
    seen = "".join(f"{count} {kind}, " for kind, count in kinds if count)
    advice = "check where, when and with what filter the recording was made"
    if total["gaps"].get("not captured"):
        advice = "a snap length has cut the packets: record whole ones (tcpdump -s 0)"
    others = counted(total["foreign_streams"], "connection")
    return (
        f"no frame in {counted(total['packets'], 'packet')} "
        f"({seen}{others} of other traffic); {advice}"
    )


def measure(source: Any) -> tuple[dict[str, Any], str]:
    """Return the numbers of one capture, and what stopped the reading, if anything."""
    from ds4proto.pcap.types import CaptureError
    from ds4proto.trace.decoder import CaptureDecoder
    from ds4proto.trace.stats import CaptureStats

    decoder = CaptureDecoder(source)
    stats = CaptureStats(decoder)
    error = ""
    try:
        for row in decoder:
            stats.add(row)
    except CaptureError as problem:
        error = str(problem)
    return stats.report(), error


def show(report: dict[str, Any], console: Console) -> None:
    """Print one report as tables."""
    from rich.table import Table

    def say(text: str = "", style: str = "") -> None:
        console.print(printable(text), style=style)

    def table(title: str, *columns: str) -> Table:
        made = Table(title=title, title_justify="left", box=None, pad_edge=False)
        for column in columns:
            words = column in ("frame", "hop", "clause", "reason", "run", "value")
            made.add_column(column, justify="left" if words else "right")
        return made

    say(str(report["file"]), "bold")
    say(
        f"{counted(report['packets'], 'packet')}, "
        f"{counted(report['streams'], 'TCP stream')} "
        f"({report['foreign_streams']} foreign), {report['stream_bytes']} payload "
        f"bytes: {report['accounted_bytes']} in frames, {report['undecoded_bytes']} not"
    )
    rows = report["frames"]
    if rows:
        counts = table("frames", "frame", "total", "a>b", "b>a")
        for name, count in rows.items():
            ways = report["frames_by_direction"].get(name, {})
            counts.add_row(
                name, str(count), str(ways.get("a>b", 0)), str(ways.get("b>a", 0))
            )
        counts.add_row("total", str(sum(rows.values())), "", "", style="bold")
        console.print(counts)
    if report.get("hops"):
        hops = table("hops", "hop", "requests", "tokens", "down", "up", "bytes/token")
        for hop in report["hops"]:
            hops.add_row(
                printable(hop["hop"]), str(hop["requests"]), str(hop["tokens"]),
                str(hop["work_bytes"]), str(hop["result_bytes"]),
                str(hop["bytes_per_token"]),
            )  # fmt: skip
        console.print(hops)
    for gates in report.get("gates", ()):
        say(
            f"gates of run {gates['run']}: {gates['row_gates']} row, "
            f"{gates['batch_gates']} batch, {gates['bulk_gates']} bulk in "
            f"{counted(gates['gate_bytes'], 'byte')}; {gates['gates_per_token']} a "
            "token announced"
        )
    for title, key, head in (
        ("undecoded bytes", "undecoded_reasons", "reason"),
        ("problems", "problems", "clause"),
        ("gaps", "gaps", "reason"),
        ("odd values in payloads", "payload_values", "value"),
    ):
        if report[key]:
            odd = table(title, head, "count")
            for name, count in report[key].items():
                odd.add_row(printable(name), str(count))
            console.print(odd)
    for run in report.get("runs", ()):
        kinds = ", ".join(f"{n} {kind}" for n, kind in run["streams"].items())
        say(f"run {run['run']} ({run['protocol']}): streams {kinds}")
        say(f"  {'; '.join(run['roles'])}")
        for note in run["notes"]:
            say(f"  note: {note}", "yellow")
    for one in report.get("connections", ()):
        for note in one["notes"]:
            say(f"stream {one['stream']} {one['a']} -> {one['b']}: {note}", "yellow")
    say()
