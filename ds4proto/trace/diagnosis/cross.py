"""What several recordings say together: both sides of one run, or one prompt twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Final

from ds4proto.trace.diagnosis.both_sides import align, same_run
from ds4proto.trace.diagnosis.check import is_redacted
from ds4proto.trace.diagnosis.compare import Difference, first_difference, parting
from ds4proto.trace.diagnosis.finding import Finding
from ds4proto.trace.diagnosis.transports import transport_findings

if TYPE_CHECKING:
    from ds4proto.trace.diagnosis.front import Examiner

__all__ = ["control_of", "cross_findings"]

_MOST: Final = 6
"""Recordings that are compared with each other."""


def cross_findings(captures: Sequence[Examiner]) -> Iterator[Finding]:
    """Answer from all pairs of recordings that belong together."""
    both: set[tuple[int, int]] = set()
    few = captures[:_MOST]
    for (i, one), (j, two) in combinations(enumerate(few), 2):
        for first in one.pairs.runs.values():
            for second in two.pairs.runs.values():
                if same_run(first, second):
                    both.add((i, j))
                    files = one.file, two.file
                    numbers = first.number, second.number
                    yield from align(files, numbers, first.schedule)
    hidden = [one for one in captures if is_redacted(one.decoder)]
    if hidden and len(captures) > 1:
        yield Finding(
            "compare.redacted", "note", "certain",
            f"{', '.join(one.file for one in hidden[:_MOST])}: redacted, so that its "
            "token ids and values are compared with no other recording",
            next_step="compare the originals", file=hidden[0].file,
        )  # fmt: skip
    yield from transport_findings([one for one in few if one not in hidden])
    found: dict[tuple[int, int], Difference | int] = {}
    for (i, one), (j, two) in combinations(enumerate(few), 2):
        if one in hidden or two in hidden:
            continue
        if (i, j) not in both and _kinds(one) & _kinds(two):
            run = next(iter(one.pairs.runs.values()), None)
            n_embd = int(run.words.get("n_embd", 0)) if run is not None else 0
            schedule = run.schedule if run is not None else None
            found[i, j] = first_difference(one.file, two.file, n_embd, schedule)
    for (i, j), difference in found.items():
        control = control_of(found, (i, j))
        yield from parting((few[i].file, few[j].file), difference, control)


def control_of(
    found: dict[tuple[int, int], Difference | int], pair: tuple[int, int]
) -> Difference | int | None:
    """Return what to hold against a difference: an equal pair, else another one.

    Which recordings are of one side nobody says. Two that are equal are as good as
    that; where none are, no machine repeats itself.
    """
    others = [
        one for key, one in found.items()
        if key != pair and set(key) & set(pair) and one != 0
    ]  # fmt: skip
    equal = (one for one in others if isinstance(one, int))
    return next(equal, next(iter(others), None))


def _kinds(capture: Examiner) -> set[str]:
    """Return which protocols of a capture have payloads to compare."""
    kinds = set()
    if any(run.pairs for run in capture.pairs.runs.values()):
        kinds.add("DS4T")
    if capture.pipelines.runs:
        kinds.add("DS4D")
    return kinds
