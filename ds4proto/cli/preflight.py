"""``ds4proto preflight``: whether these machines will work together."""

from __future__ import annotations

import platform
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ds4proto.cli._options import DURATION, host_and_port, json_option, not_an_input
from ds4proto.cli._output import printable, stdout, write_json
from ds4proto.errors import ExitCode, WrongUsage
from ds4proto.preflight import MOST_SESSIONS

if TYPE_CHECKING:
    from ds4proto.preflight.facts import Plan
    from ds4proto.preflight.finding import Finding
    from ds4proto.preflight.gather import Gathered
    from ds4proto.preflight.live import Outcome

__all__ = ["cmd"]

_HELP = """Check machines, model and options before a run.

With --plan nothing touches the network: the file names machines, their ds4 command
lines, models, memory and links, and everything that will not work is listed at once,
with the very text that ds4 would print.

Live, one machine waits and shows a one-time code, the others join with it. Each
gathers its own facts (GGUF header, command line, DS4_* variables, memory, interfaces,
RDMA), the link between exactly these addresses is measured, and all print one verdict.
The ds4 command behind -- is read and not run. Nothing is encrypted: facts about the
machines cross the link in the clear, the code does not.

\b
Examples:
  ds4proto preflight --plan cluster.toml
  ds4proto preflight --plan cluster.toml --propose
  ds4proto preflight --plan cluster.toml --report html -o preflight.html
  ds4proto preflight --listen 10.0.0.1:7600 --allow-remote -- ./ds4 \\
      --role coordinator --layers 0:20 --listen 10.0.0.1 9000 -m flash.gguf
  ds4proto preflight --join 10.0.0.1:7600 --code CODE -- ./ds4 \\
      --role worker --layers 21:output --coordinator 10.0.0.1 9000 -m flash.gguf

The exit status is 0 without errors, 1 with some, 2 where nothing could be checked, 3
where the other machine is lost; with --strict a warning counts as an error."""


@click.command("preflight", help=_HELP)
@click.argument("command", nargs=-1, metavar="[-- DS4 COMMAND...]")
@click.option("--plan", "plan_file", metavar="FILE", help="A cluster.toml to check.")
@click.option("--propose", "proposing", is_flag=True,
              help="Give layer ranges from memory and speed.")  # fmt: skip
@click.option("--listen", metavar="HOST:PORT", default="127.0.0.1:0",
              show_default=True, help="Where the others join.")  # fmt: skip
@click.option("--allow-remote", is_flag=True,
              help="Listen beyond loopback; with --join: for a neighbour in the route, "
              "to measure.")  # fmt: skip
@click.option("--joiners", type=click.IntRange(1, 63), default=1, show_default=True,
              help="How many machines to wait for.")  # fmt: skip
@click.option("--join", "target", metavar="HOST:PORT", help="Join a waiting machine.")
@click.option("--code", metavar="CODE", envvar="DS4PROTO_PREFLIGHT_CODE",
              help="The one-time code that the first machine shows.")  # fmt: skip
@click.option("--name", metavar="NAME", help="Of this machine; default: its host name.")
@click.option("--sessions", type=click.IntRange(1, MOST_SESSIONS), default=1,
              show_default=True, help="Contexts that live at once.")  # fmt: skip
@click.option("--wait", type=DURATION, default=600.0, show_default="10m",
              help="How long to wait for the others.")  # fmt: skip
@click.option("--strict", is_flag=True, help="Exit 1 at warnings, too.")
@click.option("--report", type=click.Choice(["html"]),
              help="Write the outcome as one page instead of text.")  # fmt: skip
@click.option("-o", "--output", metavar="FILE",
              help="With --report: write here, whole or not at all; default: standard "
              "output.")  # fmt: skip
@json_option
def cmd(
    command: tuple[str, ...],
    plan_file: str | None,
    proposing: bool,
    listen: str,
    allow_remote: bool,
    joiners: int,
    target: str | None,
    code: str | None,
    name: str | None,
    sessions: int,
    wait: float,
    strict: bool,
    report: str | None,
    output: str | None,
    as_json: bool,
) -> int:
    """Check a run before it starts."""
    show = _Show(strict=strict, as_json=as_json, report=report, output=output)
    if output is not None and report is None:
        raise click.UsageError("-o goes with --report html")
    if report is not None and (as_json or proposing):
        raise click.UsageError("--report goes without --json and without --propose")
    if output not in (None, "-"):
        from ds4proto.trace.output import refuse_unwritable

        not_an_input("-o", str(output), [] if plan_file is None else [plan_file])
        refuse_unwritable(str(output), "-o")  # before others are made to wait
    if plan_file is not None:
        if command or target is not None:
            raise click.UsageError("--plan goes without --join and without a command")
        from ds4proto.preflight.plan import read_plan

        plan = read_plan(plan_file)
        if proposing:
            return _propose(plan, as_json=as_json)
        return _judge(plan, show)
    if proposing:
        raise click.UsageError("--propose needs --plan FILE")
    if not command:
        raise click.UsageError(
            "give --plan FILE, or -- and the ds4 command of this side"
        )
    if target is not None and not code:
        raise click.UsageError("--join needs --code: the first machine shows it")
    own = name or platform.node().partition(".")[0] or "machine"
    if target is not None:
        outcome = _join(
            host_and_port(target),
            command,
            own,
            str(code),
            wait,
            allow_remote=allow_remote,
        )
    else:
        from ds4proto.peer import listen as open_listener
        from ds4proto.preflight.facts import RunFacts
        from ds4proto.preflight.live import host
        from ds4proto.preflight.protocol import new_code

        mine = _own_facts(command, own)
        with open_listener(
            *host_and_port(listen), allow_remote=allow_remote
        ) as listener:
            shown, secret = listener.address, new_code()
            text = f"[{shown[0]}]" if ":" in shown[0] else shown[0]
            _say(f"waiting for {joiners} to join; on the other machine:")
            _say(
                f"  ds4proto preflight --join {text}:{shown[1]} --code {secret} -- ..."
            )
            outcome = host(
                listener,
                mine,
                secret,
                joiners=joiners,
                run=RunFacts(sessions=sessions),
                wait=wait,
                say=_say,
            )
    return _live(outcome, show)


def _say(text: str) -> None:
    print(f"ds4proto preflight: {printable(text)}", file=sys.stderr, flush=True)


def _own_facts(command: tuple[str, ...], own: str, *, peer: str = "") -> Gathered:
    """Return the facts of this machine; before others are made to wait."""
    from ds4proto.preflight.gather import gather

    mine = gather(command, name=own, peer=peer)
    model = mine.machine.parsed().model
    if model is not None and mine.model is None:
        begin = f"model: {model}: "
        told = [text for text in mine.missing if text.startswith(begin)]
        why = told[0].removeprefix(begin) if told else "none"
        raise WrongUsage(
            f"-m {model}: expected a readable GGUF file, found: {why}. "
            "Next: give the file that this machine will use"
        )
    return mine


def _join(
    address: tuple[str, int],
    command: tuple[str, ...],
    own: str,
    code: str,
    wait: float,
    *,
    allow_remote: bool,
) -> Outcome:
    from ds4proto.preflight.live import join

    mine = _own_facts(command, own, peer=address[0])
    return join(address, mine, code, wait=wait, allow_remote=allow_remote)


class _Show(NamedTuple):
    """How an outcome is shown, and what of it fails the command."""

    strict: bool
    as_json: bool
    report: str | None
    output: str | None

    def document(self, document: dict[str, Any]) -> bool:
        """Write the outcome as a document where one was asked for; say whether."""
        if self.as_json:
            write_json(document)
        elif self.report is not None:
            from ds4proto.preflight.report_html import as_html
            from ds4proto.trace.output import output_file

            with output_file(self.output) as stream:
                stream.write(as_html(document).encode("utf-8", "backslashreplace"))
            if self.output not in (None, "-"):
                _say(f"{document['verdict']}; wrote {self.output}")
        return self.as_json or self.report is not None

    def status(self, findings: list[Finding]) -> int:
        """Return the exit status."""
        bad = {"error", "warning"} if self.strict else {"error"}
        failed = any(finding.severity in bad for finding in findings)
        return ExitCode.FAILED if failed else ExitCode.PASSED


def _live(outcome: Outcome, show: _Show) -> int:
    from ds4proto.preflight.widths import which_pays

    speeds = [link.to_gbit for link in outcome.links]
    lines = which_pays(outcome.case, min(speeds)) if speeds else []
    if not show.document({**outcome.document(), "widths": lines}):
        from ds4proto.cli._preflight_tables import show as show_text
        from ds4proto.cli._preflight_tables import show_links

        show_links(outcome.links, outcome.gathered, lines, stdout())
        show_text(outcome.case, outcome.findings, stdout())
    return show.status(outcome.findings)


def _judge(plan: Plan, show: _Show) -> int:
    from ds4proto.preflight.case import make_case
    from ds4proto.preflight.report import document
    from ds4proto.preflight.rules import judge

    findings, case = judge(plan), make_case(plan)
    if not show.document(document(case, findings)):
        from ds4proto.cli._preflight_tables import show as show_text

        show_text(case, findings, stdout())
    return show.status(findings)


def _propose(plan: Plan, *, as_json: bool) -> int:
    from ds4proto.preflight.facts import GIB
    from ds4proto.preflight.propose import propose

    found = propose(plan)
    if as_json:
        write_json(
            {
                "proposal": [
                    {
                        "machine": one.machine,
                        "layers": one.layers,
                        "need_bytes": one.need,
                        "limit_bytes": one.limit,
                    }
                    for one in found
                ]
            }
        )
        return ExitCode.PASSED
    for one in found:
        of = "" if one.limit is None else f" of {one.limit / GIB:.1f}"
        size = "?" if one.need is None else f"{one.need / GIB:.1f}"
        need = f"{size}{of} GiB"
        print(f"{printable(one.machine)}: --layers {one.layers}   ({need})")
    print(
        "layers go by speed where it is stated, else evenly, as far as memory holds",
        file=sys.stderr,
    )
    return ExitCode.PASSED
