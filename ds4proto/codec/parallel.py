"""Work on slices of one payload in a few threads; the kernels release the GIL."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Final

CHUNK: Final = 1 << 16
"""Values a step: 256 KiB of f32, which stays in a second-level cache."""

PARALLEL_FROM: Final = 1 << 17
"""Fewer values than this are not worth the hand-over to another thread."""


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="ds4proto-codec")


# A forked child inherits the pool object but none of its threads.
os.register_at_fork(after_in_child=_pool.cache_clear)


def run_slices(
    step: Callable[[int, int], None], values: int, threads: int, unit: int = CHUNK
) -> None:
    """Call ``step(start, stop)`` so that the slices cover ``range(values)`` once.

    With one thread there is one call; with more, each thread gets one run of whole
    ``unit`` values. Returns when all are done; the first exception is raised.
    """
    if threads == 1 or values < PARALLEL_FROM:
        step(0, values)
        return
    share = -(-values // threads // unit) * unit
    starts = range(0, values, share)
    # The caller's thread takes the first share instead of waiting idly.
    others = [
        _pool(threads - 1).submit(step, start, min(start + share, values))
        for start in starts[1:]
    ]
    try:
        step(0, min(share, values))
    finally:
        for future in others:
            future.exception()
    for future in others:
        future.result()
