"""``ds4proto codec``: list, describe, measure and verify the payload codecs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ds4proto.cli._options import json_option
from ds4proto.cli._output import progress, stdout, write_json
from ds4proto.codec.base import PROFILES
from ds4proto.printable import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ds4proto.codec.verify import Verdict

WIRE_FORMATS = ("bf16", "int8", "fp8", "int4", "mxfp8", "mxfp4", "nvfp4")
"""Formats of a compressed pipeline wire, its uncompressed one first."""

_HELP = """Look at the formats of activations on the wire and check them here.

\b
Examples:
  ds4proto codec list                 what there is
  ds4proto codec describe e4m3        how a format rounds, clips, treats NaN
  ds4proto codec bytes --width 2048   what a token costs in each format
  ds4proto codec verify               run all packaged test vectors
  ds4proto codec verify --exhaustive  compare fast and plain code, all f32 values"""


def _examples(*lines: str) -> str:
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


@click.group("codec", help=_HELP)
def cmd() -> None:
    """Hold the commands about codecs."""


@cmd.command("list", epilog=_examples("ds4proto codec list --json"))
@json_option
def list_codecs(as_json: bool) -> None:
    """List the codecs with their widths."""
    from ds4proto.codec import get, names

    rows = [dict(get(name, path="numpy").describe()) for name in names()]
    if as_json:
        write_json({"codecs": rows})
        return
    from rich.table import Table

    table = Table("codec", "bits a value", "largest", "wire", "source")
    for row in rows:
        keys = ("name", "bits_per_value", "largest", "wire", "source")
        table.add_row(*(row.get(key, "") for key in keys))
    stdout().print(table)


@cmd.command(
    epilog=_examples(
        "ds4proto codec describe e4m3 --profile gcc-fast",
        "ds4proto codec describe mxfp4 --variant rounding=away",
    )
)
@click.argument("name")
@click.option(
    "--profile",
    default="strict",
    show_default=True,
    help="Numeric profile of the peer's build: " + ", ".join(PROFILES) + ".",
)
@click.option(
    "--variant",
    "variants",
    multiple=True,
    metavar="CHOICE=VALUE",
    help="A choice of a scaled format, as its description lists them. Repeatable.",
)
@json_option
def describe(name: str, profile: str, variants: tuple[str, ...], as_json: bool) -> None:
    """Tell how codec NAME rounds, clips and treats special values."""
    from ds4proto.codec import CodecError, get

    reserved = {"profile", "threads", "path"}
    chosen = dict(variant.partition("=")[::2] for variant in variants)
    if wrong := sorted(reserved & set(chosen)):
        raise click.UsageError(f"{wrong[0]!r} is no variant of a format")
    try:
        # What names a variant is a keyword that the format takes.
        codec = get(name, profile=profile, path="numpy", **chosen)  # type: ignore[arg-type]
        facts = codec.describe()
    except CodecError as error:
        raise click.UsageError(str(error)) from None
    if as_json:
        write_json(dict(facts))
        return
    from rich.table import Table

    table = Table(show_header=False, box=None)
    for key, value in facts.items():
        table.add_row(key.replace("_", " "), value)
    stdout().print(table)


@cmd.command(
    "bytes",
    epilog=_examples(
        "ds4proto codec bytes --width 16384 --all",
        "ds4proto codec bytes --width 2048 --tokens 512 --json",
    ),
)
@click.option(
    "--width",
    type=click.IntRange(min=0),
    required=True,
    help="Values a token and tensor: the model's hidden size.",
)
@click.option(
    "--tensors",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Tensors a token; 2 for a wire that sends hidden state and residual apart.",
)
@click.option(
    "--tokens", type=click.IntRange(min=1), default=1, show_default=True, help="Rows."
)
@click.option("--all", "every", is_flag=True, help="Every codec, not only seven.")
@json_option
def wire_size(
    width: int, tensors: int, tokens: int, every: bool, as_json: bool
) -> None:
    """Tell how many bytes a token (or --tokens of them) takes on the wire.

    Shown are the formats of a compressed pipeline wire beside bf16, or with --all every
    codec, f32, f16 and e4m3 of ds4 among them. Frame headers are not in it. With
    --json, one flat object: codec to bytes.
    """
    from ds4proto.codec import CodecError, get, names

    chosen = names() if every else WIRE_FORMATS
    try:
        sizes = {
            name: tensors * get(name, path="numpy").wire_bytes(tokens * width, tokens)
            for name in chosen
        }
    except CodecError as error:
        raise click.UsageError(str(error)) from None
    if as_json:
        write_json(sizes)
        return
    from rich.table import Table

    table = Table("codec")
    table.add_column("bytes", justify="right")
    table.add_column("compression (bf16 = 1)", justify="right")
    for name, size in sizes.items():
        ratio = f"{sizes['bf16'] / size:.2f}" if size else "-"
        table.add_row(name, str(size), ratio)
    stdout().print(table)


@cmd.command(
    epilog=_examples(
        "ds4proto codec verify",
        "ds4proto codec verify e4m3 --sample 100000 --seed 7",
    )
)
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
@json_option
def verify(
    codecs: tuple[str, ...],
    path: str,
    exhaustive: bool,
    sample: int | None,
    seed: int,
    as_json: bool,
) -> int:
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
        verdicts = _run_patterns(chosen, sample, seed)
    else:
        verdicts = _run_vectors(chosen, path)
    code = exit_code(verdicts)
    _print_verdicts(verdicts, code, as_json)
    return code


def _run_vectors(names: Sequence[str], path: str) -> list[Verdict]:
    from ds4proto.codec import verify as checks
    from ds4proto.codec.base import Path

    wanted: tuple[Path, ...] = ("numpy", "numba")
    if path == "numpy":
        wanted = ("numpy",)
    elif path == "numba":
        wanted = ("numba",)
    with progress("vectors", checks.vector_count(names, wanted)) as advance:
        verdicts = list(checks.verify_vectors(names, wanted, advance))
    return verdicts + list(checks.missing_paths(names, wanted))


def _run_patterns(names: Sequence[str], sample: int | None, seed: int) -> list[Verdict]:
    from ds4proto.codec import verify as checks

    total = len(checks.pattern_checks(names)) * (sample or checks.ALL_PATTERNS)
    with progress("f32 patterns", total) as advance:
        verdicts = list(
            checks.verify_patterns(names, advance, sample=sample, seed=seed)
        )
    return verdicts + list(checks.missing_paths(names, ("numba",)))


def _print_verdicts(verdicts: Sequence[Verdict], code: int, as_json: bool) -> None:
    from dataclasses import asdict

    ran = sum(verdict.ran for verdict in verdicts)
    failed = sum(verdict.failed for verdict in verdicts)
    if as_json:
        rows = [asdict(v) | {"verdict": _word(v)} for v in verdicts]
        write_json({"ran": ran, "failed": failed, "exit": code, "verdicts": rows})
        return
    from rich.table import Table
    from rich.text import Text

    table = Table("what", "path", "profile", "ran", "failed", "verdict", "note")
    for v in verdicts:
        word = _word(v)
        style = {"pass": "green", "FAIL": "bold red"}.get(word, "yellow")
        table.add_row(
            v.subject,
            v.path,
            v.profile,
            str(v.ran),
            str(v.failed),
            Text(word, style),
            v.first,
        )
    if verdicts:
        stdout().print(table)
    if ran:
        click.echo(f"{counted(ran, 'check')}, {failed} failed")
    else:
        click.echo(
            "nothing ran: f32 and token_hash have no compiled code, scaled formats are "
            "no pattern each, and all of it needs numba (pip install 'ds4proto[fast]')"
        )


def _word(verdict: Verdict) -> str:
    if verdict.failed:
        return "FAIL"
    return "pass" if verdict.ran else "not run"
