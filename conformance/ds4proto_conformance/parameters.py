"""Parameters of a case: combined t-wise, and the failing combination shrunk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["combinations", "shrink"]

Row = Mapping[str, Any]


def combinations(
    params: Mapping[str, Sequence[Any]], strength: int = 2, salt: str = ""
) -> list[dict[str, Any]]:
    """Return rows in which every `strength` parameters meet in all their values.

    The result depends on the arguments alone.
    """
    if not params:
        return [{}]
    if len(params) < 2 or strength < 2:
        names = list(params)
        longest = max(len(params[name]) for name in names)
        return [
            {name: params[name][i % len(params[name])] for name in names}
            for i in range(longest)
        ]
    from covertable import make

    # The library orders by hash of the values' positions: give it positions only.
    factors = {name: list(range(len(values))) for name, values in params.items()}
    rows = make(factors, strength=min(strength, len(params)), salt=salt)
    found = [{n: params[n][i] for n, i in sorted(dict(r).items())} for r in rows]
    return sorted(found, key=lambda row: [params[n].index(row[n]) for n in row])


def shrink(
    failing: Row,
    passing: Sequence[Row],
    fails: Callable[[Row], bool],
    *,
    budget: int = 12,
) -> dict[str, Any]:
    """Return the parameters of a failing row that matter.

    Each parameter in turn takes the value of the nearest passing row; where the row
    still fails, that parameter is not to blame. At most `budget` rows are tried.
    """
    if not passing:
        return {}
    nearest = max(passing, key=lambda row: sum(row[n] == failing[n] for n in failing))
    row = dict(failing)
    blamed = []
    for name in failing:
        if nearest[name] == row[name]:
            continue
        trial = {**row, name: nearest[name]}
        if budget > 0 and fails(trial):
            row = trial
        else:
            blamed.append(name)
        budget -= 1
    return {name: failing[name] for name in blamed} or dict(failing)
