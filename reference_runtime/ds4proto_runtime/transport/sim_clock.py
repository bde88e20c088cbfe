"""The virtual clock: two endpoints in one process, step by step, the same each time."""

from __future__ import annotations

from typing import Any

from ds4proto_runtime.transport.sim import Fabric
from ds4proto_runtime.transport.waits import Steps, T


class SimClock:
    """The virtual clock of a simulated fabric."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.moved = 0

    def now(self) -> float:
        """Return seconds of the fabric."""
        return self.fabric.now

    def run(self, steps: Steps[T]) -> T:
        """Run one endpoint alone."""
        (result,) = run_together(self, steps)
        if isinstance(result, BaseException):
            raise result
        found: T = result
        return found


def run_together(clock: SimClock, *steps: Steps[Any]) -> list[Any]:
    """Run several endpoints to their ends on one virtual clock.

    Returns
    -------
    list
        What each returned, or the exception that ended it.
    """
    fabric = clock.fabric
    results: list[Any] = [None] * len(steps)
    left = dict(enumerate(steps))
    while left:
        before, dues = clock.moved, []
        for index, work in list(left.items()):
            try:
                dues.append(next(work))
            except StopIteration as stop:
                results[index] = stop.value
            except Exception as error:  # the other endpoints go on
                results[index] = error
            else:
                continue
            del left[index]
            clock.moved += 1
        if clock.moved != before or not left:
            continue
        due, coming = min(dues), fabric.next_time()
        if coming is not None and coming <= due:
            fabric.step()
        else:
            # past the deadline by a hair: what waits for it sees it expired
            fabric.run_until(due + 1e-9)
    return results
