"""Faults met by two processes that share the work."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Final

from ds4proto_conformance.kill.meet import Row, meet
from ds4proto_conformance.mutants import find
from ds4proto_conformance.registry import all_cases

__all__ = ["PROCESSES", "Job", "results"]

PROCESSES: Final = 2
_BATCH: Final = 120
"""Faults after which the processes are replaced: threads of peers that hang on would
add up."""
Job = tuple[str, str, tuple[str, ...]]
"""Role, name of the fault, ids of the cases that it has to meet."""


def _met(job: Job) -> Row:
    role, mutant, wanted = job
    chosen = set(wanted)
    return meet(find(role, mutant), [c for c in all_cases(role) if c.id in chosen])


def results(jobs: Sequence[Job], processes: int = PROCESSES) -> Iterator[Row]:
    """Yield a row for each job as it ends."""
    if processes < 2 or len(jobs) < 2:
        yield from map(_met, jobs)
        return
    context = multiprocessing.get_context("spawn")
    for first in range(0, len(jobs), _BATCH):
        batch = jobs[first : first + _BATCH]
        with ProcessPoolExecutor(processes, mp_context=context) as pool:
            for future in as_completed([pool.submit(_met, job) for job in batch]):
                yield future.result()
