"""``python -m ds4proto_fuzz.parsers``: campaigns, the long lane, corpora, replay."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ds4proto.cli import (
    DURATION,
    INTERRUPTED,
    json_option,
    printable,
    stderr,
    stdout,
    write_json,
)
from ds4proto.cli._boundary import run_command
from ds4proto.errors import ExitCode, WrongUsage
from ds4proto_fuzz.parsers.target import NAMES, target

if TYPE_CHECKING:
    from ds4proto_fuzz.parsers.campaign import Outcome, Status

PROGRAM = "python -m ds4proto_fuzz.parsers"
OUT = Path("build/fuzz")
_EVERY_S = 2.0


@click.group(epilog=f"\b\nExample:\n  {PROGRAM} campaign --time 10m")
def main() -> None:
    """Fuzz the parsers of ds4proto itself."""


@main.command(
    epilog=f"\b\nExamples:\n  {PROGRAM} campaign --time 10m\n"
    f"  {PROGRAM} campaign --target gguf --time 20m --jobs 1"
)
@click.option(
    "--time", "seconds", type=DURATION, default="10m", help="For all together."
)
@click.option("--target", "names", multiple=True, type=click.Choice(NAMES))
@click.option("--jobs", type=click.IntRange(1, 64), default=2, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=OUT, show_default=True)
@json_option
def campaign(
    seconds: float,
    names: tuple[str, ...],
    jobs: int,
    seed: int,
    out: Path,
    as_json: bool,
) -> int:
    """Run the coverage-guided targets; findings are left as files."""
    from ds4proto_fuzz.parsers.campaign import Stopped
    from ds4proto_fuzz.parsers.campaign import campaign as run

    chosen = names or NAMES
    board = _Board(seconds)
    stopped = False
    try:
        outcomes = run(chosen, seconds, out=out, jobs=jobs, seed=seed, told=board.told)
    except Stopped as stop:
        outcomes, stopped = stop.outcomes, True
    board.end()
    found = sum(len(one.findings) for one in outcomes)
    failed = [one for one in outcomes if one.failed]
    if as_json:
        rows = [{**asdict(one), "rate": one.rate} for one in outcomes]
        for row in rows:
            row["findings"] = [str(path) for path in row["findings"]]
        report = {"seconds": seconds, "seed": seed, "stopped": stopped}
        write_json(report | {"targets": rows})
    else:
        stdout().print(_table(outcomes))
        for one in outcomes:
            for path in one.findings:
                stdout().print(f"{one.name}: {path}")
            if one.failed:
                stdout().print(f"{one.name} could not run: {one.failed}")
    if stopped:
        stderr().print(
            printable(f"stopped early; inputs that reached new code are in {out}/corpus"
                      f" and findings in {out}/findings. Next: the same command again"),
            soft_wrap=True,
        )  # fmt: skip
        return ExitCode.FAILED if found else INTERRUPTED
    if failed and len(failed) == len(outcomes) and not found:
        return ExitCode.NOTHING_RAN
    return ExitCode.FAILED if found or failed else ExitCode.PASSED


class _Board:
    """One line on standard error: what every running target last said."""

    def __init__(self, seconds: float) -> None:
        self._start = self._shown = time.monotonic()
        self._seconds = seconds
        self._last: dict[str, Status] = {}
        self._found: dict[str, int] = {}
        self._live = sys.stderr.isatty()

    def told(self, name: str, status: Status, outcome: Outcome) -> None:
        """Note a status line; show the board from time to time."""
        self._last[name] = status
        self._found[name] = len(outcome.findings) + outcome.repeated
        now = time.monotonic()
        if now - self._shown < (_EVERY_S if self._live else 10 * _EVERY_S):
            return
        self._shown = now
        rate = sum(one.rate for one in self._last.values()) // max(1, len(self._last))
        cover = sum(one.coverage for one in self._last.values())
        text = (
            f"{now - self._start:5.0f} s of {self._seconds:.0f}  {name}: "
            f"{status.runs} runs, {status.rate}/s, coverage {status.coverage}; "
            f"all: {rate}/s a target, coverage {cover}, "
            f"finds {sum(self._found.values())}"
        )
        sys.stderr.write(f"\r{text:<110}" if self._live else text + "\n")
        sys.stderr.flush()

    def end(self) -> None:
        """Leave the line."""
        if self._live:
            sys.stderr.write("\r" + " " * 110 + "\r")


def _table(outcomes: list[Outcome]) -> Any:
    from rich.table import Table

    table = Table(title="coverage-guided fuzzing of our own parsers")
    for heading in ("target", "inputs", "a second", "seconds", "coverage", "findings"):
        table.add_column(heading, justify="left" if heading == "target" else "right")
    for one in outcomes:
        table.add_row(
            one.name,
            str(one.runs),
            f"{one.rate:.0f}",
            f"{one.seconds:.0f}",
            str(one.coverage),
            str(len(one.findings)),
        )
    return table


@main.command(
    epilog=f"\b\nExamples:\n  {PROGRAM} million --frames 10000\n"
    f"  {PROGRAM} million --jobs 2 --journal build/fuzz/million.jsonl"
)
@click.option("--frames", type=click.IntRange(1), default=1_000_000, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--jobs", type=click.IntRange(1, 64), default=2, show_default=True)
@click.option("--type", "types", multiple=True, metavar="NAME", help="DS4D.WORK ...")
@click.option(
    "--journal",
    type=click.Path(path_type=Path),
    default=None,
    help="Lines of the types that are done; a stopped run goes on from there.",
)
@json_option
def million(
    frames: int,
    seed: int,
    jobs: int,
    types: tuple[str, ...],
    journal: Path | None,
    as_json: bool,
) -> int:
    """Send mutated frames of every message type through the decoder."""
    from ds4proto_fuzz.parsers.million import TYPES, Escaped, Tally, run

    unknown = [name for name in types if name not in TYPES]
    if unknown:
        raise WrongUsage(
            f"no message type {unknown[0]!r}; there are {', '.join(TYPES)}"
        )

    def told(tally: Tally) -> None:
        if not as_json:
            stdout().print(
                f"{tally.type:<26} {tally.frames:>9} frames {tally.rate:>7.0f}/s  "
                f"sound {tally.sound}, odd {tally.odd}, unreadable {tally.unreadable}"
            )

    try:
        rows = run(
            frames, seed=seed, types=types or TYPES, jobs=jobs, journal=journal,
            told=told,
        )  # fmt: skip
    except Escaped as error:
        stdout().print(str(error))
        return ExitCode.FAILED
    if as_json:
        write_json([{**asdict(row), "rate": row.rate} for row in rows])
    else:
        total = sum(row.frames for row in rows)
        spent = sum(row.seconds for row in rows)
        stdout().print(
            f"{total} frames of {len(rows)} types, {total / max(spent, 1e-9):.0f}/s a"
            " processor, no exception"
        )
    return ExitCode.PASSED


@main.command(
    epilog=f"\b\nExample:\n  {PROGRAM} replay gguf build/fuzz/findings/gguf/F"
)
@click.argument("name", type=click.Choice(NAMES))
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
def replay(name: str, files: tuple[Path, ...]) -> int:
    """Give files to a target again, within the bounds of memory and time."""
    from ds4proto_fuzz.parsers.bounds import bounded

    failed = 0
    for path in files:
        try:
            lines, peak = bounded(target(name).check, path.read_bytes())
        except OSError as error:
            raise WrongUsage(f"{path}: {error.strerror}") from None
        except Exception as error:
            failed += 1
            stdout().print(f"{path}: {type(error).__name__}: {error}")
        else:
            stdout().print(f"{path}: holds ({lines} lines, {peak} bytes at most)")
    return ExitCode.FAILED if failed else ExitCode.PASSED


@main.command(epilog=f"\b\nExample:\n  {PROGRAM} corpus --more build/fuzz/corpus")
@click.option(
    "--folder", type=click.Path(path_type=Path), default=Path("fuzz/corpus"),
    show_default=True,
)  # fmt: skip
@click.option("--more", type=click.Path(path_type=Path), help="Inputs of a campaign.")
@click.option("--target", "names", multiple=True, type=click.Choice(NAMES))
@click.option("--frames", is_flag=True, help="Draw the sound frames anew first.")
def corpus(
    folder: Path, more: Path | None, names: tuple[str, ...], frames: bool
) -> int:
    """Write the corpora anew: seeds and what is there, minimised."""
    from ds4proto_fuzz.parsers.corpus import corpus_of, write
    from ds4proto_fuzz.parsers.schemas import write_pool

    if frames:
        stdout().print(f"sound frames: {write_pool()} bytes")
    for name in names or NAMES:
        chosen = target(name)
        found = [] if more is None else corpus_of(more, chosen)
        kept = write(folder, chosen, [path.read_bytes() for path in found])
        size = sum(path.stat().st_size for path in kept)
        stdout().print(f"{name}: {len(kept)} files, {size} bytes")
    return ExitCode.PASSED


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:], PROGRAM))
