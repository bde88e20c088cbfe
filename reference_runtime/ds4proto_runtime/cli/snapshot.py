"""``ds4proto snapshot``: inspect, verify and compare saved sessions and shards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ds4proto.cli._options import json_option
from ds4proto.cli._output import printable, stderr, stdout, write_json
from ds4proto.errors import ExitCode, NothingRan

if TYPE_CHECKING:
    from ds4proto.schema.problem import Problem
    from ds4proto_runtime.saved_files import Layout, SavedFile

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group("snapshot")
def cmd() -> None:
    """Inspect, verify and compare saved sessions (DSV4) and shards (DSVL).

    \b
    Examples:
      ds4proto snapshot inspect session.dsv4
      ds4proto snapshot verify session.dsv4 --model "DeepSeek V4 Flash"
      ds4proto snapshot diff before.dsv4 after.dsv4
    """  # noqa: D301


def _example(arguments: str) -> str:
    return f"\b\nExample:\n  ds4proto snapshot {arguments}"


def _model_options(function: Callable[..., Any]) -> Callable[..., Any]:
    function = click.option(
        "--ratios",
        metavar="R,R,...",
        help="Compression ratio of each layer; the last two go on.",
    )(function)
    return click.option(
        "--model", metavar="NAME", help="Known model, by name or number; or toy."
    )(function)


def _layout(model: str | None, ratios: str | None) -> Layout | None:
    from ds4proto_runtime.saved_files import named_layout, ratios_layout

    if ratios is not None:
        return ratios_layout(ratios)
    return None if model is None else named_layout(model)


def _read(path: Path, model: str | None, ratios: str | None) -> SavedFile:
    from ds4proto_runtime.saved_files import read_file

    return read_file(path, _layout(model, ratios))


def _told(problem: Problem) -> str:
    return (
        f"{problem.clause} {problem.path} at byte {problem.frame_offset}: expected"
        f" {problem.expected}, found {problem.found}"
    )


@cmd.command("inspect", epilog=_example("inspect session.dsv4 --json"))
@click.argument("file", type=_FILE)
@_model_options
@json_option
def inspect(file: Path, model: str | None, ratios: str | None, as_json: bool) -> int:
    """Show the header, tokens and rows of FILE."""
    from ds4proto_runtime.saved_files import summary

    found = _read(file, model, ratios)
    shown = summary(found)
    if found.problems:
        stderr().print(
            f"ds4proto snapshot inspect: {printable(str(file))}: broken:"
            f" {printable(_told(found.problems[0]))}; snapshot verify lists all",
            soft_wrap=True,
        )
    if as_json:
        write_json(shown)
    else:
        for name, value in shown.items():
            stdout().print(f"{name:18} {printable(str(value))}")
    return ExitCode.PASSED


@cmd.command("verify", epilog=_example("verify session.dsv4 --model toy"))
@click.argument("file", type=_FILE)
@_model_options
@json_option
def verify(file: Path, model: str | None, ratios: str | None, as_json: bool) -> int:
    """Check every rule of FILE; sizes need a known model, or --ratios.

    The exit status is 0 when all holds, 1 when a rule is broken, 2 when the sizes
    could not be judged.
    """
    found = _read(file, model, ratios)
    lines = [_told(problem) for problem in found.problems]
    if as_json:
        model_name = found.layout.source if found.layout is not None else None
        write_json({"file": str(file), "model": model_name, "problems": lines})
    else:
        for line in lines:
            stdout().print(printable(line), style="red")
    if lines:
        return ExitCode.FAILED
    if found.container is None:
        raise NothingRan(
            f"{file}: no known model has this header, so the sizes of its tensors"
            " cannot be judged; name the model with --model, or give --ratios"
        )
    if not as_json:
        count = len(found.container.tensors)
        source = found.layout.source if found.layout is not None else "?"
        stdout().print(
            f"{printable(str(file))}: {found.kind}, {found.size} bytes, {count}"
            f" tensors, sound (model: {source})"
        )
        tail = found.container.zero_tail
        if tail > 4096:
            stdout().print(f"note: the file ends with {tail} zero bytes")
    return ExitCode.PASSED


@cmd.command("diff", epilog=_example("diff before.dsv4 after.dsv4"))
@click.argument("first", type=_FILE)
@click.argument("second", type=_FILE)
@_model_options
@json_option
def diff(
    first: Path, second: Path, model: str | None, ratios: str | None, as_json: bool
) -> int:
    """Name the first token, row count, logit and tensor in which two files differ.

    The exit status is 0 when they are equal, 1 when they differ.
    """
    from ds4proto_runtime.saved_files import differences

    found = differences(_read(first, model, ratios), _read(second, model, ratios))
    if as_json:
        write_json({"equal": not found, "differences": found})
    else:
        for line in found or ["no difference"]:
            stdout().print(printable(line))
    return ExitCode.FAILED if found else ExitCode.PASSED
