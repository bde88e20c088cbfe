"""What a person reads of a preflight: machines, verdicts, findings, limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from rich.console import Console

from ds4proto.cli._output import printable
from ds4proto.preflight.case import Case
from ds4proto.preflight.facts import GIB
from ds4proto.preflight.finding import Finding
from ds4proto.preflight.gather import Gathered
from ds4proto.preflight.link import LinkReport
from ds4proto.preflight.predict import Prediction, predict
from ds4proto.preflight.report import AREAS, document, worst
from ds4proto.printable import counted

__all__ = ["show", "show_links"]

_STYLE: Final = {"error": "bold red", "warning": "yellow", "note": "dim"}


def show(case: Case, findings: list[Finding], console: Console) -> None:
    """Print machines, verdicts by area, findings, settings and the prediction."""
    from rich.table import Table

    report = document(case, findings)

    def table(title: str, *columns: str) -> Table:
        made = Table(title=title, title_justify="left", title_style="bold")
        for column in columns:
            made.add_column(column, overflow="fold")
        return made

    machines = table("machines", "machine", "role", "layers", "needs GiB", "of GiB")
    for one in report["machines"]:
        machines.add_row(
            printable(one["name"]), f"{one['program']} {one['role']}", one["layers"],
            _gib(one["need_bytes"]), _gib(one["limit_bytes"]),
        )  # fmt: skip
    console.print(machines)
    verdicts = table("verdicts", "area", "verdict", "findings")
    for key, name in AREAS.items():
        of_area = [f for f in findings if f.check.partition(".")[0] == key]
        verdicts.add_row(name, worst(findings, key), str(len(of_area) or ""))
    console.print(verdicts)
    for finding in findings:
        _finding(finding, lambda text, style="": console.print(
            printable(text), style=style or None, soft_wrap=True
        ))  # fmt: skip
    if report["settings"]:
        names = [m["name"] for m in report["machines"]]
        settings = table("settings that no hello carries", "name", *names, "")
        for row in report["settings"]:
            settings.add_row(
                row["name"], *(printable(row["values"].get(n, "")) for n in names),
                "differ" if row["differ"] else "",
            )  # fmt: skip
        console.print(settings)
    _prediction(predict(case), table, console)
    console.print(f"verdict: {report['verdict']}", style="bold")


def _gib(value: int | None) -> str:
    return "?" if value is None else f"{value / GIB:.1f}"


def _finding(finding: Finding, say: Callable[..., None]) -> None:
    head = f"{finding.severity}: {finding.where}: {finding.what} [{finding.check}]"
    say(head, _STYLE[finding.severity])
    if finding.prints:
        say(f"    ds4 prints: {finding.prints}")
    if finding.expected:
        say(f"    expected: {finding.expected}")
    if finding.found:
        say(f"    found:    {finding.found}")
    if finding.next_step:
        say(f"    next:     {finding.next_step}")


def _prediction(
    found: list[Prediction], table: Callable[..., Any], console: Console
) -> None:
    if not found:
        return
    limits = table(
        "limits that the links set", "bits", "decode t/s", "prefill t/s",
        "waits a token", "message", "bound by",
    )  # fmt: skip
    for one in found:
        limits.add_row(
            str(one.bits), _speed(one.decode), _speed(one.prefill),
            f"{one.decode_ms:.3g} ms, {counted(one.messages, 'message')}",
            f"{one.message_bytes} B, chunk {one.chunk_bytes} B", one.bound,
        )  # fmt: skip
    console.print(limits)
    console.print(found[0].model, soft_wrap=True)


def _speed(value: float | None) -> str:
    return "?" if value is None else f"{value:.4g}"


def show_links(
    links: Sequence[LinkReport],
    gathered: Sequence[Gathered],
    widths: Sequence[str],
    console: Console,
) -> None:
    """Print what was measured, RDMA on each machine, and which width pays."""
    from rich.table import Table

    table = Table(title="measured links", title_justify="left", title_style="bold")
    for column in ("to", "message", "round trip p50", "p99", "Gbit/s out, in, both"):
        table.add_column(column, overflow="fold")
    joined = [one.machine.name for one in gathered[1:]]
    hops = [" -> ".join(link.between) for link in links[len(joined) :]]
    for link, to in zip(links, joined + hops, strict=True):
        speeds = f"{link.to_gbit:.3g}, {link.from_gbit:.3g}, {link.both_gbit:.3g}"
        for name, (size, p50, p99) in link.rtt_ms.items():
            table.add_row(
                printable(to), f"{name}, {size} B",
                f"{p50:.3g} ms", f"{p99:.3g} ms", speeds,
            )  # fmt: skip
            speeds = ""
    console.print(table)
    for one in gathered:
        rdma = one.rdma
        text = f"RDMA on {one.machine.name}: {rdma.verdict} {rdma.device} {rdma.gid}"
        console.print(printable(text.rstrip()), soft_wrap=True)
        for line in rdma.table:
            console.print(f"    {printable(line)}", soft_wrap=True)
        if rdma.next_step:
            console.print(f"    next: {printable(rdma.next_step)}", soft_wrap=True)
    for line in widths:
        console.print(printable(line), soft_wrap=True)
