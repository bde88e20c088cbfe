"""Write or check the vector files: ``python -m ds4proto.codec.vectors``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from ds4proto.codec.base import CodecError
from ds4proto.codec.vectors.generate import generate, render
from ds4proto.codec.vectors.lint import lint

_HERE = Path(__file__).parent
_MEASURED = _HERE.parents[2] / "tests" / "codec" / "data"


@click.command()
@click.option(
    "--measured",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=_MEASURED,
    help="Folder of the measured vectors (tests/codec/data of a clone).",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=_HERE,
    help="Folder to write to.",
)
@click.option("--check", is_flag=True, help="Write nothing; exit 1 if files differ.")
def main(measured: Path, output: Path, check: bool) -> None:
    """Generate the codec vector files from rules and measured rows."""
    try:
        contents = generate(measured)
    except (CodecError, OSError) as error:
        raise click.ClickException(str(error)) from None
    stale = []
    for name, content in contents.items():
        problems = lint(name, content)
        if problems:
            raise click.ClickException(f"{name}: {problems[0]}")
        text, path = render(content), output / f"{name}.json"
        if check:
            if not path.is_file() or path.read_text("utf-8") != text:
                stale.append(name)
            continue
        output.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(text, "utf-8")
        os.replace(partial, path)  # noqa: PTH105 - atomic on both systems
        click.echo(f"{path}: {content['numberOfTests']} tests")
    if stale:
        click.echo(f"out of date: {', '.join(stale)}; run without --check", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
