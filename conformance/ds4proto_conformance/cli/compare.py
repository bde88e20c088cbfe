"""``ds4proto compare``: whether two peers fit, and at which widths."""

from __future__ import annotations

import click

from ds4proto.cli._output import printable, stdout, write_json
from ds4proto.errors import ExitCode

_HELP = """Say whether two peers fit, from live peers, captures or saved reports.

\b
Examples:
  ds4proto compare a.jsonl b.jsonl
  ds4proto compare reference:coordinator reference:worker
  ds4proto compare capture:run.pcap reference:worker

Exit status: 0 they fit, 1 they do not, 2 one of them could not be judged, 3 a peer is
lost."""


@click.command("compare", help=_HELP)
@click.argument("a")
@click.argument("b")
@click.option("--json", "as_json", is_flag=True, help="Write JSON instead of text.")
def cmd(a: str, b: str, as_json: bool) -> int:
    """Compare two peers."""
    from ds4proto_conformance.identity import fit, identity_of

    one, two = identity_of(a), identity_of(b)
    reasons, widths = fit(one, two)
    apart = [reason for reason in reasons if not reason.startswith("note:")]
    if as_json:
        write_json(
            {"a": one, "b": two, "fit": not apart, "reasons": reasons, "widths": widths}
        )
        return ExitCode.FAILED if apart else ExitCode.PASSED
    console = stdout()
    for reason in reasons:
        console.print(printable(reason))
    if apart:
        console.print("they do not fit")
        return ExitCode.FAILED
    console.print(f"they fit, at widths {', '.join(map(str, widths))}")
    return ExitCode.PASSED
