"""``ds4proto fuzz peer``: fuzz a live peer, state by state."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ds4proto.cli import (
    DURATION,
    INTERRUPTED,
    json_option,
    printable,
    progress,
    stderr,
    stdout,
    write_json,
)
from ds4proto.errors import ExitCode, WrongUsage

if TYPE_CHECKING:
    from ds4proto_fuzz.campaign import Campaign, Engine
    from ds4proto_fuzz.findings import Finding

_PICTURES = (".png", ".svg", ".dot")
_HELP = """Reach each state of a live peer by valid frames, then send what is not valid.

\b
Peers: exec:COMMAND  reference:ROLE[:MUTANT]  listen:HOST:PORT  tcp:HOST:PORT
{host} and {port} in a COMMAND are filled in. Only a peer that we start (exec:,
reference:) is started again after a crash and watched for memory, descriptors and
threads.

\b
Examples:
  ds4proto fuzz peer --peer reference:worker --role worker --time 10m
  ds4proto fuzz peer --peer "exec:./ds4 --role worker --coordinator {host} {port}" \\
      --role worker --cases 100000 --workers 4 --out findings
  ds4proto fuzz peer --peer "exec:./ds4 --listen {host} {port} --http 8080" \\
      --role coordinator --drive http://127.0.0.1:8080/v1/completions

Exit status: 0 nothing found, 1 something found, 2 nothing ran, 3 the peer is lost, 130
stopped by Ctrl-C with nothing found yet; --resume goes on."""


@click.command("peer", help=_HELP)
@click.option("--peer", required=True, help="The peer under fire.")
@click.option(
    "--role", required=True, help="worker, coordinator, tp-worker, tp-leader."
)
@click.option("--cases", type=click.IntRange(1), help="How many cases.")
@click.option("--time", "seconds", type=DURATION, help="How long; 20s, 10m.")
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0))
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1, 256),
              help="Processes, each with a peer of its own.")  # fmt: skip
@click.option("--ray", "cluster", metavar="ADDRESS",
              help="Spread over a ray cluster; 'local' starts one here.")  # fmt: skip
@click.option(
    "--out", default="findings", show_default=True, help="Folder of the findings."
)
@click.option("--resume", is_flag=True, help="Go on with the campaign of that folder.")
@click.option("--graph", help="Picture of states and transitions: .png, .svg or .dot.")
@click.option("--patience", default="3s", show_default=True, type=DURATION,
              help="How long an answer may take.")  # fmt: skip
@click.option("--hidden-values", type=int, default=0, help="f32 values a token.")
@click.option("--vocab", type=int, default=0)
@click.option("--drive", default="",
              help="What makes a coordinator or leader ask: exec:COMMAND, http:URL.",
              )  # fmt: skip
@click.option("--allow-remote", is_flag=True, help="Listen on other than loopback.")
@json_option
def cmd(**told: Any) -> int:
    """Fuzz a peer."""
    from ds4proto_fuzz.campaign import Campaign, Plan
    from ds4proto_fuzz.roles import ROLES
    from ds4proto_fuzz.target import Settings

    if told["role"] not in ROLES:
        raise WrongUsage(f"--role {told['role']!r}: expected {', '.join(ROLES)}")
    _check_peer(told)
    settings = Settings(
        told["peer"],
        told["role"],
        patience=told["patience"],
        hidden_values=told["hidden_values"],
        vocab=told["vocab"],
        drive=told["drive"],
        allow_remote=told["allow_remote"],
    )
    if told["graph"]:
        _check_graph(told["graph"])
    cases = told["cases"]
    if cases is None and told["seconds"] is None:
        cases = 10_000
    campaign = Campaign(
        Plan(settings, told["seed"], cases, told["seconds"]),
        told["out"],
        resume=told["resume"],
    )
    stopped = _run(campaign, _engine(told), cases, quiet=told["as_json"])
    return _report(campaign, told, stopped=stopped)


def _check_peer(told: dict[str, Any]) -> None:
    from ds4proto.peer import parse_peer

    parse_peer(told["peer"])
    kind = told["peer"].partition(":")[0]
    if kind in ("capture", "codec"):
        raise WrongUsage(f"--peer {kind}: has no live connections; see --help")
    if told["workers"] > 1 and kind not in ("exec", "reference"):
        raise WrongUsage(
            "--workers above 1 needs a peer that we start: exec:, reference:"
        )


def _check_graph(path: str) -> None:
    """Refuse before the run a picture that could not be drawn after it."""
    from importlib.util import find_spec

    from ds4proto.trace.output import refuse_unwritable

    ending = Path(path).suffix
    if ending not in _PICTURES:
        raise WrongUsage(f"--graph {path}: expected a name in {', '.join(_PICTURES)}")
    if ending != ".dot" and find_spec("matplotlib") is None:
        raise WrongUsage(
            f"--graph {path} needs matplotlib. Next: pip install 'ds4proto[plot]', or "
            "give a name in .dot"
        )
    refuse_unwritable(path, "--graph")


def _engine(told: dict[str, Any]) -> Engine:
    from ds4proto_fuzz.campaign import Here, Pool

    if told["cluster"]:
        from ds4proto_fuzz.cluster import Cluster

        return Cluster(told["cluster"], told["workers"])
    return Here() if told["workers"] == 1 else Pool(told["workers"])


def _run(campaign: Campaign, engine: Engine, cases: int | None, *, quiet: bool) -> bool:
    """Carry the campaign out; tell whether it was stopped."""
    console = stderr()

    def tell(finding: Finding) -> None:
        if not quiet:
            console.print(printable(f"found: {finding.effect}  [{finding.name}]"))

    with progress("cases", cases) as step:
        try:
            campaign.run(engine, tell=tell, step=step)
        except KeyboardInterrupt:
            return True
    return False


def _report(campaign: Campaign, told: dict[str, Any], *, stopped: bool) -> int:
    from ds4proto_fuzz.roles import states_of
    from ds4proto_fuzz.watch import unwatched

    states, tally = states_of(told["role"]), campaign.tally
    if told["graph"]:
        _draw(Path(told["graph"]), campaign, states)
    findings = list(campaign.store)
    if told["as_json"]:
        rows = [f.as_json() | {"folder": str(campaign.root / f.name)} for f in findings]
        report = {**tally.as_json(), "findings": rows}
        write_json(report | {"lost": campaign.lost, "stopped": stopped})
    else:
        _print(campaign, findings, states)
    blind = unwatched(told["peer"])
    if blind and tally.cases:
        text = f"memory, descriptors and threads were not watched: {blind}"
        stderr().print(text, soft_wrap=True, markup=False)
    if campaign.lost:
        stderr().print(printable(campaign.lost))
        return ExitCode.PEER_LOST
    if stopped:  # behind the table, where it is read
        kept = f"the same command with --resume goes on (--out {told['out']})"
        nothing = "no case was finished, so there is nothing to resume"
        text = f"stopped early after {tally.cases} cases; "
        text += kept if campaign.done else nothing
        stderr().print(printable(text), soft_wrap=True)
        return ExitCode.FAILED if findings else INTERRUPTED
    if not tally.cases:
        return ExitCode.NOTHING_RAN
    return ExitCode.FAILED if findings else ExitCode.PASSED


def _draw(path: Path, campaign: Campaign, states: Any) -> None:
    from ds4proto.trace.output import output_file
    from ds4proto_fuzz.picture import dot, picture

    edges = campaign.tally.reached.edges()
    if path.suffix == ".dot":
        with output_file(str(path), "--graph") as stream:
            stream.write(dot(edges, states).encode())
    else:
        picture(edges, states, path)


def _print(campaign: Campaign, findings: list[Finding], states: Any) -> None:
    from rich.table import Table

    console, tally = stdout(), campaign.tally
    table = Table(title="states and transitions reached")
    for name in ("state", "led to", "cases", "kinds"):
        table.add_column(
            name, justify="right" if name in ("cases", "kinds") else "left"
        )
    for state, led, count, kinds in tally.reached.table():
        table.add_row(state, led, str(count), str(kinds))
    console.print(table)
    reached = {state for state, _, _ in tally.reached.counts}
    for state in states:
        if state not in reached:
            console.print(f"not reached: {state} ({states[state]})")
    rate = tally.cases / tally.seconds if tally.seconds else 0.0
    console.print(
        f"{tally.cases} cases, {tally.frames} frames, {rate:.0f} cases/s, "
        f"{tally.restarts} restarts, {tally.muted} left out as known"
    )
    for words, count in tally.unproven.most_common(5):
        console.print(printable(f"seen {count} times, not on a second try: {words}"))
    for finding in findings:
        console.print(
            printable(
                f"{finding.effect.severity:7} {finding.effect}\n"
                f"        {len(finding.case.steps)} frames, {finding.count} cases, "
                f"ds4proto fuzz replay {campaign.root / finding.name}"
            ),
            soft_wrap=True,  # the command is there to be copied
        )
    console.print(f"{len(findings)} findings")
