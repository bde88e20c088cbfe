"""Bounded memory and time, measured so that every machine comes to the same verdict.

Memory is the peak of Python's and numpy's allocations while a check runs; time is the
number of lines of Python that it executes. Neither depends on how busy the machine
is, and both are far too slow for every input: the tests measure a sample, and the
coverage-guided lane has the limits of the process instead.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from ds4proto_fuzz.parsers.target import Broken, broken

__all__ = ["BASE_BYTES", "BASE_LINES", "bounded", "limit_address_space"]

BASE_BYTES: Final = 8 << 20
"""What any check may allocate: readers take blocks of 1 MiB."""
BYTES_PER_BYTE: Final = 1024
BASE_LINES: Final = 100_000
LINES_PER_BYTE: Final = 2_000
"""A check runs its parser several times, once byte by byte."""


class _Lines:
    """Counts executed lines and stops the run past a limit."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.seen = 0

    def __call__(self, _frame: FrameType, event: str, _arg: Any) -> Any:
        if event == "line":
            self.seen += 1
            if self.seen > self.most:
                raise Broken(f"bounded time: more than {self.most} lines executed")
        return self


def bounded(check: Callable[[bytes], None], data: bytes) -> tuple[int, int]:
    """Run a check within its bounds; return lines executed and peak bytes.

    What happens once in a process, on first use, counts too.

    Raises
    ------
    Broken
        It allocates or executes more than an input of that length can justify, or
        the check says so.
    """
    lines = _Lines(BASE_LINES + LINES_PER_BYTE * len(data))
    most = BASE_BYTES + BYTES_PER_BYTE * len(data)
    previous = sys.gettrace()
    started = not tracemalloc.is_tracing()
    if started:
        tracemalloc.start()
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    sys.settrace(lines)
    try:
        check(data)
    finally:
        sys.settrace(previous)
        peak = tracemalloc.get_traced_memory()[1] - before
        if started:
            tracemalloc.stop()
    if peak > most:
        broken("bounded memory", input=len(data), peak=peak, allowed=most)
    return lines.seen, peak


def limit_address_space(extra: int) -> None:
    """Let this process map at most ``extra`` bytes more than it has now.

    An allocation from a length that a peer announced then fails at once, also where
    the system would hand out pages only when they are touched. Linux alone; elsewhere
    the limit on resident memory has to do.
    """
    if not sys.platform.startswith("linux"):
        return
    import resource
    from pathlib import Path

    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    most = pages * resource.getpagesize() + extra
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
