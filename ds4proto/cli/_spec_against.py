"""Option vectors against a program: are refusals worded as they have to be.

Only rows that every program decides before it opens a model or a connection are asked.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from ds4proto.errors import WrongUsage
from ds4proto.rule_vectors import Row, VectorFile

SECONDS: Final = 20.0
"""A program that says nothing for so long has taken what it was to refuse."""
_MOST: Final = 1 << 16

Outcome = Literal["pass", "fail", "not asked"]


@dataclass(frozen=True, slots=True)
class Asked:
    """One row and what the program did."""

    row: Row
    outcome: Outcome
    found: str = ""


def ask(
    file: VectorFile, command: str, *, dialect: str = "", seconds: float = SECONDS
) -> Iterator[Asked]:
    """Run the rows of an option file; each is a process of its own.

    Parameters
    ----------
    command : str
        The program, with words that it needs besides, such as a model.
    dialect : str
        A fork whose own options are asked too.

    Raises
    ------
    WrongUsage
        If the rows have no command lines, or the program cannot be started.
    """
    if "argv" not in file.keys or "refused" not in file.keys:
        raise WrongUsage(f"{file.name} holds no command lines: give options-ds4d")
    program = shlex.split(command)
    if not program:
        raise WrongUsage("--against: no program")
    for row in file.rows:
        asked = "refused" in row.values and "n_layers" not in row.values
        if not asked or row.values.get("dialect", dialect) != dialect:
            yield Asked(row, "not asked")
            continue
        found = _said([*program, *row["argv"]], seconds)
        passed = any(line.endswith(row["refused"]) for line in found.splitlines())
        yield Asked(row, "pass" if passed else "fail", found.strip()[-300:])


def _said(argv: list[str], seconds: float) -> str:
    """Return what a program printed; its last words where it did not end."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            check=False,
        )
    except OSError as error:
        raise WrongUsage(f"--against: cannot start {argv[0]}: {error}") from None
    except subprocess.TimeoutExpired as error:
        said = error.stdout or b""
        return said[-_MOST:].decode("utf-8", "replace") + "\n(still running)"
    return done.stdout[-_MOST:].decode("utf-8", "replace")
