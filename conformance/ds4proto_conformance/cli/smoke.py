"""``ds4proto smoke``: what a peer is, in a few seconds."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import click

from ds4proto.cli._output import printable, stderr, stdout, write_json
from ds4proto.errors import ExitCode
from ds4proto.peer.api import ROLES
from ds4proto_conformance.cli.ranges import Finite

_HELP = """Name the dialect and the limits of a peer, of a codec its numeric profile.

\b
Examples:
  ds4proto smoke --peer reference:worker
  ds4proto smoke --peer tcp:10.0.0.5:5555 --role coordinator --json

Exit status: 0 it answers as it should, 1 something failed, 2 nothing was judged, 3 it
cannot be reached."""


@click.command("smoke", help=_HELP)
@click.option("--peer", required=True, help="The peer; see ds4proto check --help.")
@click.option(
    "--role",
    type=click.Choice(ROLES),
    help="What the peer is, where --peer does not say it.",
)
@click.option("--model", default="", help="GGUF file; only its header is read.")
@click.option(
    "--time-scale",
    default=1.0,
    show_default=True,
    type=Finite(0.01, 1000),
    help="Stretches every deadline.",
)
@click.option("--json", "as_json", is_flag=True, help="Write JSON instead of text.")
def cmd(
    peer: str, role: str | None, model: str, time_scale: float, as_json: bool
) -> int:
    """Meet a peer and say what it is."""
    from ds4proto.errors import NothingRan
    from ds4proto.errors import PeerLost as Lost
    from ds4proto_conformance.cli.check import role_of
    from ds4proto_conformance.front import run
    from ds4proto_conformance.identity import profile_of
    from ds4proto_conformance.settings import Settings
    from ds4proto_conformance.verdicts import Verdict

    settings = Settings(peer, role_of(peer, role), time_scale=time_scale, model=model)
    report, status = run(settings, "smoke")
    if status is ExitCode.PEER_LOST:
        raise Lost(str(report.footer.get("stopped")))
    if status is ExitCode.NOTHING_RAN:
        why = report.footer.get("stopped") or "no case applies to it"
        raise NothingRan(f"nothing is known of {peer}: {why}")
    found: dict[str, Any] = profile_of(report)
    if as_json:
        write_json({"peer": peer, "exit": int(status), **found})
        return status
    console = stdout()
    for name, value in found.items():
        console.print(printable(f"{name:18} {_words(value)}"))
    bad = [line for line in report.cases.values() if Verdict(line["verdict"]).bad]
    for line in bad:
        text = f"{line['verdict']}: {line['id']}  {_why(line)}"
        console.print(printable(text), soft_wrap=True)
    if bad:
        again = f"ds4proto check --peer {shlex.quote(peer)} --role {settings.role}"
        stderr().print(f"next: {again} --profile smoke", soft_wrap=True)
    return status


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{count} {name}" for name, count in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _why(line: Mapping[str, Any]) -> str:
    found = line["deviations"][0] if line["deviations"] else None
    if found is None:
        return "; ".join(line["notes"])[:160]
    return f"{found['clause']}: expected {found['expected']}, found {found['found']}"
