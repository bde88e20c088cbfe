"""Reduction: fewer steps, fewer wrong fields, fewer bytes, the same effect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from time import monotonic
from typing import Final

from ds4proto_fuzz.case import Case, Step

__all__ = ["shrink"]

_WORD: Final = 4
_SMALLEST_CUT: Final = 16
_FEW: Final = 6
"""Steps up to which any two of them are tried without."""
_MANY: Final = 64
"""Repetitions above which only frames and repetitions are reduced."""


_Reduce = Callable[[Case, Callable[[Case], bool]], Case]


class _Budget:
    def __init__(self, tests: int, seconds: float) -> None:
        self.left, self.until = tests, monotonic() + seconds

    def spend(self) -> bool:
        self.left -= 1
        return self.left >= 0 and monotonic() < self.until


def shrink(
    case: Case,
    holds: Callable[[Case], bool],
    *,
    tests: int = 200,
    seconds: float = 40.0,
) -> Case:
    """Return a smaller case for which `holds` is still true.

    Parameters
    ----------
    holds : callable
        Gives a case to the peer and says whether the effect is the same.
    tests, seconds : int, float
        Bounds of the whole reduction; what has been reached then is returned.
    """
    budget = _Budget(tests, seconds)

    def same(other: Case) -> bool:
        return budget.spend() and holds(other)

    ways: tuple[_Reduce, ...] = (_alone, _steps, _pairs, _words, _bytes, _steps)
    if case.repeat > _MANY:  # each try is long, and its bytes are not the point
        ways = (_alone, _steps, _repeats)
    elif case.repeat > 1:
        ways = (_alone, _steps, _repeats, _words)
    for reduce in ways:
        case = reduce(case, same)
    return case


def _alone(case: Case, same: Callable[[Case], bool]) -> Case:
    """Try each wrong step by itself, which is most often enough."""
    wrong = [step for step in case.steps if step.how]
    for step in wrong if len(case.steps) > 1 else ():
        if same(case.with_steps([step])):
            return case.with_steps([step])
    return case


def _steps(case: Case, same: Callable[[Case], bool]) -> Case:
    """Leave out steps: halves first, then one by one from the front."""
    size = len(case.steps) // 2
    while size:
        at = 0
        while at < len(case.steps) and len(case.steps) > 1:
            rest = case.steps[:at] + case.steps[at + size :]
            if rest and same(case.with_steps(rest)):
                case = case.with_steps(rest)
            else:
                at += size
        size //= 2
    return case


def _pairs(case: Case, same: Callable[[Case], bool]) -> Case:
    """Leave out a question and its answer, of which neither can go alone."""
    if not 3 <= len(case.steps) <= _FEW:
        return case
    for first, second in combinations(range(len(case.steps)), 2):
        rest = [s for n, s in enumerate(case.steps) if n not in (first, second)]
        if same(case.with_steps(rest)):
            return _pairs(case.with_steps(rest), same)
    return case


def _repeats(case: Case, same: Callable[[Case], bool]) -> Case:
    """Halve the repetitions while the effect lasts."""
    while case.repeat > 8 and same(replace(case, repeat=case.repeat // 2)):
        case = replace(case, repeat=case.repeat // 2)
    return case


def _with(case: Case, index: int, step: Step) -> Case:
    return case.with_steps((*case.steps[:index], step, *case.steps[index + 1 :]))


def _words(case: Case, same: Callable[[Case], bool]) -> Case:
    """Make wrong words right again, as far as the effect does not need them."""
    for index, step in enumerate(case.steps):
        if not step.base or step.base == step.data:
            continue
        whole = replace(step, data=step.base, how="")
        if same(_with(case, index, whole)):
            case = _with(case, index, whole)
            continue
        if len(step.base) != len(step.data):
            continue
        wrong = [
            at
            for at in range(0, len(step.data), _WORD)
            if step.data[at : at + _WORD] != step.base[at : at + _WORD]
        ]
        for at in wrong if len(wrong) > 1 else ():
            now = case.steps[index]
            end = at + _WORD
            data = now.data[:at] + now.base[at:end] + now.data[end:]
            if same(_with(case, index, replace(now, data=data))):
                case = _with(case, index, replace(now, data=data))
    return case


def _bytes(case: Case, same: Callable[[Case], bool]) -> Case:
    """Cut ends off and blank what is long."""
    for index in range(len(case.steps)):
        size = len(case.steps[index].data) // 2
        while size >= _SMALLEST_CUT:
            step = case.steps[index]
            shorter = replace(step, data=step.data[: len(step.data) - size])
            if len(shorter.data) >= 1 and same(_with(case, index, shorter)):
                case = _with(case, index, shorter)
                size = min(size, len(shorter.data) // 2)
            else:
                size //= 2
        case = _blank(case, index, same)
    return case


def _blank(case: Case, index: int, same: Callable[[Case], bool]) -> Case:
    """Zero the second half, then the third quarter and so on."""
    step = case.steps[index]
    at = len(step.data) // 2
    if len(step.data) > 4 * _SMALLEST_CUT and any(step.data[at:]):
        blank = replace(step, data=step.data[:at] + bytes(len(step.data) - at))
        if same(_with(case, index, blank)):
            return _with(case, index, blank)
    return case
