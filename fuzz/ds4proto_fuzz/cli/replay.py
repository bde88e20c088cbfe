"""``ds4proto fuzz replay``: give a finding to a peer again."""

from __future__ import annotations

from typing import Any

import click

from ds4proto.cli import DURATION, json_option, printable, stdout, write_json
from ds4proto.errors import ExitCode

_HELP = """Give the minimal sequence of a finding to a peer, each time a fresh one.

\b
Examples:
  ds4proto fuzz replay findings/hang-live-0a1b2c3d
  ds4proto fuzz replay findings/hang-live-0a1b2c3d --peer "exec:./ds4 {host} {port}"

Exit status: 1 the effect is there, 0 it is not, 3 the peer is lost."""


@click.command("replay", help=_HELP)
@click.argument("folder")
@click.option("--peer", help="Another peer than the one of the finding.")
@click.option("--drive", default="", help="As for 'fuzz peer'.")
@click.option("--tries", default=2, show_default=True, type=click.IntRange(1, 1000))
@click.option("--patience", default="3s", show_default=True, type=DURATION)
@json_option
def cmd(
    folder: str,
    peer: str | None,
    drive: str,
    tries: int,
    patience: float,
    as_json: bool,
) -> int:
    """Replay a finding."""
    from ds4proto.peer import parse_peer
    from ds4proto_fuzz.findings import load
    from ds4proto_fuzz.hunt import confirm
    from ds4proto_fuzz.roles import target_of
    from ds4proto_fuzz.target import Settings

    finding = load(folder)
    who: dict[str, Any] = dict(finding.peer)
    spec = peer or str(who["spec"])
    parse_peer(spec)
    settings = Settings(
        spec,
        who["role"],
        patience=patience,
        hidden_values=int(who.get("hidden_values") or 0),
        vocab=int(who.get("vocab") or 0),
        drive=drive,
    )
    target = target_of(settings)
    try:
        effect, times = confirm(target, finding.case, tries)
        other = _differences(who, target.identity())
    finally:
        target.stop()
    same = finding.effect.same(effect)
    if as_json:
        write_json(
            {
                "expected": finding.effect.as_json(),
                "seen": effect.as_json() if effect is not None else None,
                "same": same,
                "times": times,
                "tries": tries,
                "other_peer": other,
            }
        )
    else:
        console = stdout()
        for line in other:
            console.print(printable(f"not the peer of the finding: {line}"))
        console.print(printable(f"the finding: {finding.effect}"))
        console.print(printable(f"seen now:    {effect or 'nothing'}"))
        console.print(f"{times if effect is not None else 0} of {tries} tries")
    return ExitCode.PASSED if effect is None else ExitCode.FAILED


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the facts in which the peer differs from the one of the finding."""
    return [
        f"{name} {now[name]}, then {before[name]}"
        for name in sorted(now)
        if name in before and before[name] != now[name]
    ]
