"""``ds4proto check``: a verdict on a peer, clause by clause."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

import click

from ds4proto.cli._options import not_an_input
from ds4proto.cli._output import printable, stdout
from ds4proto.errors import ExitCode, WrongUsage
from ds4proto.peer.api import ROLES, Role
from ds4proto_conformance.cli.listing import listed
from ds4proto_conformance.cli.ranges import Finite

_HELP = """Test a live peer, a capture or a codec against the clauses.

\b
Peers: tcp:HOST:PORT  listen:HOST:PORT  exec:COMMAND  reference:ROLE[:MUTANT]
       capture:FILE   codec:COMMAND
{host} and {port} in a COMMAND are filled in. A worker dials us, a coordinator is
dialled. On tcp: and listen: only harmless cases run unless --allow-harm says more.

\b
Examples:
  ds4proto check --peer reference:worker --role worker --profile smoke
  ds4proto check --peer "exec:./ds4 --role worker --coordinator {host} {port}" \\
      --role worker --html report.html
  ds4proto check --peer capture:run.pcap
  ds4proto check --diff old.jsonl new.jsonl

Exit status: 0 all passed, 1 something failed (with --expect: something changed),
2 nothing was judged, 3 the peer cannot be reached."""

_FILE = click.Path(dir_okay=False)
_COUNT: Final = click.IntRange(1, 0x7FFFFFFF)
_WRITTEN: Final = {
    "report": "--report",
    "junit_file": "--junit",
    "html_file": "--html",
    "markdown_file": "--markdown",
    "write_expect": "--write-expect",
}


@click.command("check", help=_HELP)
@click.option("--peer", help="The peer under test.")
@click.option("--role", type=click.Choice(ROLES), help="What the peer is.")
@click.option(
    "--profile",
    default="full",
    show_default=True,
    help="smoke, must, full or dialect:NAME.",
)
@click.option(
    "--dialect",
    default="upstream",
    show_default=True,
    help="Dialect that the peer speaks, such as upstream or v9w.",
)
@click.option(
    "--position",
    type=click.Choice(["first", "middle", "last"]),
    help="Where a worker has to stand; a wrong place is an error.",
)
@click.option("-k", "keyword", default="", help="Only cases that match, as pytest's.")
@click.option("--case", "only", multiple=True, help="Only this case; repeatable.")
@click.option("-x", "stop", is_flag=True, help="Stop at the first failure.")
@click.option(
    "--seed",
    default=1,
    show_default=True,
    help="Of all that is drawn; the same seed sends the same bytes.",
)
@click.option(
    "--time-scale",
    default=1.0,
    show_default=True,
    type=Finite(0.01, 1000),
    help="Stretches every deadline.",
)
@click.option(
    "--time-limit",
    default=1800.0,
    show_default=True,
    type=Finite(0, 1e6),
    metavar="SECONDS",
    help="Stop the run then, with what was judged; 0 for no limit.",
)
@click.option(
    "--repeat",
    default=1,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="Runs of every case.",
)
@click.option(
    "--strength",
    default=2,
    show_default=True,
    type=click.IntRange(1, 9),
    help="How many parameters are combined with each other.",
)
@click.option(
    "--allow-harm",
    default="none",
    show_default=True,
    type=click.Choice(["none", "session", "process", "memory"]),
    help="What cases may cost a peer that we did not start.",
)
@click.option("--allow-remote", is_flag=True, help="Listen on other than loopback.")
@click.option(
    "--drive",
    default="",
    help="exec:CMD, http:URL or manual: what makes a coordinator start a request.",
)
@click.option(
    "--drive-save",
    default="",
    help="The same, for a coordinator to save its session (cases of snapshots).",
)
@click.option("--drive-load", default="", help="The same, to load a session.")
@click.option("--model", default="", help="GGUF file; only its header is read.")
@click.option("--hidden-values", type=_COUNT, help="f32 values of one hidden state.")
@click.option("--vocab", type=_COUNT, help="Logits of one token.")
@click.option(
    "--ctx", type=_COUNT, help="Context in tokens that a coordinator asks for."
)
@click.option("--n-layers", type=_COUNT, help="Layers of the model.")
@click.option("--report", type=_FILE, help="Write JSON lines, as the cases end.")
@click.option("--junit", "junit_file", type=_FILE, help="Write JUnit XML.")
@click.option(
    "--html", "html_file", type=_FILE, help="Write one page that needs no net."
)
@click.option("--markdown", "markdown_file", type=_FILE, help="Write Markdown.")
@click.option(
    "--expect", type=_FILE, help="Exit 1 only on verdicts that differ from this file."
)
@click.option("--write-expect", type=_FILE, help="Write the verdicts for --expect.")
@click.option(
    "--diff", "reports", nargs=2, metavar="OLD NEW", help="Compare two reports."
)
@click.option(
    "--matrix",
    multiple=True,
    metavar="REPORT",
    help="Put reports side by side; repeatable.",
)
@click.option("--list", "listing", is_flag=True, help="Name the cases, run nothing.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Write the JSON lines (--list: one document).",
)
def cmd(**told: Any) -> int:
    """Test a peer."""
    if told["reports"]:
        return _diff(*told["reports"])
    _refuse_unwritable(told)
    if told["matrix"]:
        return _matrix(told)
    if told["listing"]:
        return listed(told)
    if not told["peer"]:
        raise WrongUsage("--peer is missing; see --help for its grammar")
    if told["expect"]:
        from ds4proto_conformance.report.diff import read_expected

        read_expected(told["expect"])  # a wrong file is told before the run, not after
    if told["peer"].startswith("capture:"):
        return _capture(told)
    told["role"] = role_of(told["peer"], told["role"])
    return _live(told)


def role_of(peer: str, told: str | None = None) -> Role:
    """Return the role of a peer, from its own text where none was told.

    Raises
    ------
    WrongUsage
        Neither says one, there is no such role, or no such kind of peer.
    """
    kind, _, rest = peer.partition(":")
    own = {"reference": rest.partition(":")[0], "codec": "codec"}.get(kind)
    name = told or own
    for role in ROLES:
        if role == name:
            return role
    if not name:
        from ds4proto.peer import parse_peer

        parse_peer(peer)  # an unknown kind of peer is told before a missing role
    wrong = f"{name!r} is no role" if name else "--role is missing"
    raise WrongUsage(f"{wrong}; one of {', '.join(ROLES)}")


def _live(told: Mapping[str, Any]) -> int:
    from ds4proto.peer import parse_peer
    from ds4proto_conformance.bench.drive import Driver
    from ds4proto_conformance.front import run
    from ds4proto_conformance.selection import refuse_unknown, select
    from ds4proto_conformance.settings import Settings

    parse_peer(told["peer"])
    select((), told["profile"])
    names = (
        "peer",
        "role",
        "seed",
        "time_scale",
        "time_limit",
        "dialect",
        "allow_harm",
        "repeat",
        "allow_remote",
        "drive",
        "drive_save",
        "drive_load",
        "model",
        "hidden_values",
        "vocab",
        "ctx",
        "n_layers",
        "strength",
    )
    settings = Settings(**{name: told[name] for name in names})
    settings.position = told["position"] or ""
    if settings.position and settings.role != "worker":
        raise WrongUsage(f"--position is for workers; the role is {settings.role}")
    for text in (settings.drive, settings.drive_save, settings.drive_load):
        Driver(text)  # refuses what it cannot do, before anything runs
    refuse_unknown(told["only"], settings.role)
    report, status = run(
        settings,
        told["profile"],
        keyword=told["keyword"],
        stop=told["stop"],
        report=told["report"],
        command=_command(told),
        only=told["only"],
        watch=(lambda _line: None) if told["as_json"] else _Progress(),
    )
    return _outputs(told, report, status)


class _Progress:
    """One line for each case that did not pass, as it happens."""

    def __init__(self) -> None:
        self._console = stdout()

    def __call__(self, line: Mapping[str, Any]) -> None:
        if line["verdict"] == "pass":
            return
        found = line["deviations"][0] if line["deviations"] else None
        why = f"{found['clause']}: {found['found']}" if found else ""
        why = why or "; ".join(line["notes"])[:160]
        self._console.print(printable(f"{line['verdict']:16} {line['id']}  {why}"))


def _command(told: Mapping[str, Any]) -> str:
    words = ["ds4proto", "check", "--peer", told["peer"], "--role", told["role"]]
    for name in (
        "dialect",
        "position",
        "model",
        "hidden_values",
        "vocab",
        "ctx",
        "drive",
        "drive_save",
        "drive_load",
        "n_layers",
    ):
        value = told[name]
        if value and value != "upstream":
            words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(words)


def _outputs(told: Mapping[str, Any], report: Any, status: ExitCode) -> int:
    from ds4proto_conformance.report.diff import (
        expected_text,
        read_expected,
        unexpected,
    )
    from ds4proto_conformance.report.html import html
    from ds4proto_conformance.report.junit import junit
    from ds4proto_conformance.report.text import markdown

    try:
        _write(told, "junit_file", lambda: junit(report))
        _write(told, "html_file", lambda: html([report]))
        _write(told, "markdown_file", lambda: markdown([report]))
        _write(told, "write_expect", lambda: expected_text(report))
    finally:  # a full disk costs the files and not the verdict
        _say(told, report)
    if told["expect"] and status in (ExitCode.PASSED, ExitCode.FAILED):
        found = unexpected(report, read_expected(told["expect"]))
        for name, what in found:
            print(f"changed: {name}: {what}", file=sys.stderr)
        return ExitCode.FAILED if found else ExitCode.PASSED
    if status is ExitCode.NOTHING_RAN and not report.footer.get("stopped"):
        print("nothing was judged: no case was selected or applied", file=sys.stderr)
    if report.footer.get("stopped"):
        for text in str(report.footer["stopped"]).splitlines():
            print(printable(text), file=sys.stderr)
    return status


def _say(told: Mapping[str, Any], report: Any) -> None:
    from ds4proto_conformance.report.text import by_clause, failures, summary

    if told["as_json"]:
        _write_lines(report)
    else:
        for text in failures(report):
            print("\n" + text)
        print()
        for text in by_clause(report):
            print(text)
        for text in summary(report, stopped=False):  # standard error has it whole
            print(text)


def _refuse_unwritable(told: Mapping[str, Any]) -> None:
    """Refuse before the run what could not be written after it."""
    from ds4proto.trace.output import refuse_unwritable

    scheme, _, target = (told["peer"] or "").partition(":")
    read = [*told["matrix"], *([target] if scheme == "capture" else [])]
    if told["model"]:
        read.append(told["model"])
    for name, option in _WRITTEN.items():
        if told[name]:
            not_an_input(option, told[name], read)
            refuse_unwritable(told[name], option)


def _write(told: Mapping[str, Any], name: str, text: Callable[[], str]) -> None:
    """Write a file that was asked for, whole or not at all."""
    from ds4proto.trace.output import output_file

    if told[name]:
        with output_file(told[name], _WRITTEN[name]) as stream:
            stream.write(text().encode())


def _write_lines(report: Any) -> None:
    from ds4proto.cli._output import write_json

    for line in (report.header, *report.cases.values(), report.footer):
        write_json(line)


def _diff(old: str, new: str) -> int:
    from ds4proto_conformance.report.diff import changes, expected_of
    from ds4proto_conformance.report.stream import read_report

    found = changes(expected_of(read_report(old)), expected_of(read_report(new)))
    for name, what in found:
        print(printable(f"{name}: {what}"))
    print(f"{len(found)} verdicts differ")
    return ExitCode.FAILED if found else ExitCode.PASSED


def _matrix(told: Mapping[str, Any]) -> int:
    from ds4proto_conformance.report.html import html
    from ds4proto_conformance.report.stream import read_report
    from ds4proto_conformance.report.text import markdown

    reports = [read_report(path) for path in told["matrix"]]
    text = markdown(reports)
    _write(told, "html_file", lambda: html(reports))
    _write(told, "markdown_file", lambda: text)
    if not told["html_file"] and not told["markdown_file"]:
        print(text)
    return ExitCode.PASSED


def _capture(told: Mapping[str, Any]) -> int:
    from ds4proto_conformance.passive import judge_capture

    path = told["peer"].partition(":")[2]
    report, status = judge_capture(path, told["role"], report=told["report"])
    return _outputs(told, report, status)
