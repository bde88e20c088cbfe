"""Printing for commands: plain and of fixed width unless a terminal reads it.

Text that came from a peer goes through `printable` first: a capture must not be able
to steer the terminal of whoever looks at it.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EPIPE
from typing import TYPE_CHECKING, Any, Final

from ds4proto.printable import printable

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "PLAIN_CONSOLE_WIDTH",
    "printable",
    "progress",
    "stderr",
    "stdout",
    "write_json",
]

PLAIN_CONSOLE_WIDTH: Final = 100


def stdout() -> "Console":
    """Return a console on standard output, for results."""
    return _console(to_stderr=False)


def stderr() -> "Console":
    """Return a console on standard error, for progress, warnings and advice."""
    return _console(to_stderr=True)


def _console(*, to_stderr: bool) -> "Console":
    from rich.console import Console

    class PipedConsole(Console):
        """rich would end the process with status 1, which says that a check failed."""

        def on_broken_pipe(self) -> None:
            self.quiet = True
            if not to_stderr:
                raise BrokenPipeError(EPIPE, os.strerror(EPIPE))
            # What is still buffered must not fail once more when the interpreter ends.
            sink = os.open(os.devnull, os.O_WRONLY)
            os.dup2(sink, sys.stderr.fileno())
            os.close(sink)

    stream = sys.stderr if to_stderr else sys.stdout
    # A width given outright keeps files and pipes equal on every machine; colour is
    # rich's own choice (NO_COLOR, TERM=dumb, and no terminal all mean none).
    width = None if stream.isatty() else PLAIN_CONSOLE_WIDTH
    return PipedConsole(
        stderr=to_stderr,
        width=width,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )


def write_json(value: Any) -> None:
    """Write one JSON document as one line on standard output."""
    sys.stdout.write(json.dumps(value, separators=(",", ":"), allow_nan=False) + "\n")


@contextmanager
def progress(title: str, total: float | None) -> Iterator[Callable[[float], None]]:
    """Show a bar on standard error while the block runs, if a terminal reads it.

    Parameters
    ----------
    title : str
        What is going on, for the left of the bar.
    total : float or None
        Units of work in all; None where it is not known.

    Yields
    ------
    callable
        Call it with the units done since the last call.
    """
    if not sys.stderr.isatty():
        yield lambda _done: None
        return
    from rich.progress import Progress

    with Progress(console=stderr(), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.advance(task, done)
