"""``ds4proto codec``: list, describe and verify the payload codecs."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from ds4proto.codec.base import PROFILES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ds4proto.codec.verify import Verdict

_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group("codec")
def cmd() -> None:
    r"""Look at the formats of activations on the wire and check them here.

    \b
      ds4proto codec list                what there is
      ds4proto codec describe e4m3       how a format rounds, clips and treats NaN
      ds4proto codec verify              run all packaged test vectors
      ds4proto codec verify --exhaustive compare fast and plain code on all f32 values
    """


@cmd.command("list")
@_JSON
def list_codecs(as_json: bool) -> None:
    """List the codecs with their widths."""
    from ds4proto.codec import get, names

    rows = [dict(get(name, path="numpy").describe()) for name in names()]
    if as_json:
        click.echo(json.dumps({"codecs": rows}))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("codec", "bits a value", "largest", "wire", "source")
    for row in rows:
        keys = ("name", "bits_per_value", "largest", "wire", "source")
        table.add_row(*(row.get(key, "") for key in keys))
    Console().print(table)


@cmd.command()
@click.argument("name")
@click.option(
    "--profile",
    default="strict",
    show_default=True,
    help="Numeric profile of the peer's build: " + ", ".join(PROFILES) + ".",
)
@_JSON
def describe(name: str, profile: str, as_json: bool) -> None:
    """Tell how codec NAME rounds, clips and treats special values."""
    from ds4proto.codec import CodecError, get

    try:
        facts = get(name, profile=profile, path="numpy").describe()
    except CodecError as error:
        raise click.UsageError(str(error)) from None
    if as_json:
        click.echo(json.dumps(dict(facts)))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None)
    for key, value in facts.items():
        table.add_row(f"[bold]{key.replace('_', ' ')}[/bold]", value)
    Console().print(table)


@cmd.command()
@click.argument("codecs", nargs=-1)
@click.option(
    "--path",
    type=click.Choice(["all", "numpy", "numba"]),
    default="all",
    show_default=True,
    help="Which code runs the vectors.",
)
@click.option(
    "--exhaustive",
    is_flag=True,
    help="Compare fast and plain code over all 2^32 f32 patterns, all profiles. "
    "Takes minutes.",
)
@click.option(
    "--sample",
    type=click.IntRange(min=1, max=1 << 32),
    metavar="N",
    help="Like --exhaustive, over N random patterns.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of --sample.")
@_JSON
def verify(
    codecs: tuple[str, ...],
    path: str,
    exhaustive: bool,
    sample: int | None,
    seed: int,
    as_json: bool,
) -> None:
    """Run the test vectors of CODECS (all if none is named).

    With --exhaustive or --sample, compare the compiled code with the plain definition
    instead. Exit code 0: all passed; 1: something failed; 2: nothing ran.
    """
    from ds4proto.codec.vectors import names
    from ds4proto.codec.verify import exit_code

    unknown = [name for name in codecs if name not in names()]
    if unknown:
        raise click.UsageError(
            f"no vectors for {unknown[0]!r}: choose from {', '.join(names())}"
        )
    if exhaustive and sample is not None:
        raise click.UsageError("choose one of --exhaustive and --sample")
    if seed < 0:
        raise click.UsageError("--seed must be 0 or more")
    chosen = codecs or names()
    if exhaustive or sample is not None:
        verdicts = _run_patterns(chosen, sample, seed, as_json)
    else:
        verdicts = _run_vectors(chosen, path, as_json)
    code = exit_code(verdicts)
    _print_verdicts(verdicts, code, as_json)
    sys.exit(code)


def _run_vectors(names: Sequence[str], path: str, quiet: bool) -> list[Verdict]:
    from ds4proto.codec import verify as checks
    from ds4proto.codec.base import Path

    wanted: tuple[Path, ...] = ("numpy", "numba")
    if path == "numpy":
        wanted = ("numpy",)
    elif path == "numba":
        wanted = ("numba",)
    with _progress(quiet) as progress:
        task = progress.add_task("vectors", total=checks.vector_count(names, wanted))
        verdicts = list(
            checks.verify_vectors(names, wanted, lambda n: progress.advance(task, n))
        )
    return verdicts + list(checks.missing_paths(names, wanted))


def _run_patterns(
    names: Sequence[str], sample: int | None, seed: int, quiet: bool
) -> list[Verdict]:
    from ds4proto.codec import verify as checks

    total = len(checks.pattern_checks(names)) * (sample or checks.ALL_PATTERNS)
    with _progress(quiet) as progress:
        task = progress.add_task("f32 patterns", total=total)
        verdicts = list(
            checks.verify_patterns(
                names,
                lambda n: progress.advance(task, n),
                sample=sample,
                seed=seed,
            )
        )
    return verdicts + list(checks.missing_paths(names, ("numba",)))


def _progress(quiet: bool) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=quiet or not sys.stderr.isatty(),
        transient=True,
    )


def _print_verdicts(verdicts: Sequence[Verdict], code: int, as_json: bool) -> None:
    from dataclasses import asdict

    ran = sum(verdict.ran for verdict in verdicts)
    failed = sum(verdict.failed for verdict in verdicts)
    if as_json:
        rows = [asdict(v) | {"verdict": _word(v)} for v in verdicts]
        click.echo(
            json.dumps({"ran": ran, "failed": failed, "exit": code, "verdicts": rows})
        )
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("what", "path", "profile", "ran", "failed", "verdict", "note")
    for v in verdicts:
        colour = {"pass": "green", "FAIL": "red"}.get(_word(v), "yellow")
        table.add_row(
            v.subject,
            v.path,
            v.profile,
            str(v.ran),
            str(v.failed),
            f"[{colour}]{_word(v)}[/{colour}]",
            escape(v.first),
        )
    Console().print(table)
    if ran:
        click.echo(f"{ran} checks, {failed} failed")
    else:
        click.echo(
            "nothing ran: only f16, bf16 and e4m3 have compiled code, "
            "and it needs numba (pip install 'ds4proto[fast]')"
        )


def _word(verdict: Verdict) -> str:
    if verdict.failed:
        return "FAIL"
    return "pass" if verdict.ran else "not run"
