"""One planted fault meets the cases of its role."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from ds4proto.errors import WrongUsage
from ds4proto.peer import PeerLost
from ds4proto_conformance.peers.faults import Fault
from ds4proto_conformance.peers.loop import loop_opener
from ds4proto_conformance.registry import Case
from ds4proto_conformance.runner import Runner
from ds4proto_conformance.settings import Settings
from ds4proto_conformance.verdicts import Verdict

__all__ = ["CUT", "KILLS", "PATIENCE", "Row", "meet", "order"]

PATIENCE: Final = 0.4
"""Seconds that a small peer in a thread may take to answer; it takes milliseconds."""
QUIET: Final = 0.05
"""Seconds of silence that are taken for "nothing comes" in a thread."""
_CONNECT: Final = 2.0
KILLS: Final = (Verdict.FAIL, Verdict.PARTIAL)
"""Verdicts that end a run with exit code 1 and name a clause."""
CUT: Final = Verdict.NOT_RUN
_SLOW_KILLS: Final = 8
"""Failures by silence after which a fault has been seen by enough cases that do not
name it: each costs seconds of waiting. Failures that are told at once do not count."""
_LOST: Final = 2
"""Cases that may find nobody there before the rest is spared."""


@dataclass(slots=True)
class Row:
    """One fault and what the cases said of it.

    Attributes
    ----------
    verdicts : dict
        Case id -> verdict. ``not run``: spared, see `meet`.
    """

    mutant: str
    role: str
    verdicts: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


def order(fault: Fault, cases: Iterable[Case]) -> tuple[list[Case], list[Case]]:
    """Return the cases that name a fault, and the others, each in their order."""
    told = list(cases)
    mine = [case for case in told if fault.name in case.mutants]
    return mine, [case for case in told if fault.name not in case.mutants]


def meet(
    fault: Fault,
    cases: Iterable[Case],
    *,
    patience: float = PATIENCE,
    quiet: float = QUIET,
) -> Row:
    """Run cases against a small peer with one fault, in this process.

    Cases that name the fault come first and each meets a peer of its own, so that each
    has to catch it alone. The others share a peer while it behaves; once some have
    failed by waiting in vain, the rest is spared.
    """
    started = time.monotonic()
    settings = Settings(
        f"loop:{fault.name}",
        fault.role,
        patience=patience,
        quiet=quiet,
        connect=max(_CONNECT, patience),
        ctx=256 if fault.role == "coordinator" else None,
        keep_frames=False,
    )
    runner = Runner(settings, loop_opener(fault))
    row = Row(fault.name, fault.role)
    mine, others = order(fault, cases)
    slow = lost = 0
    try:
        for case in mine:
            runner.close()
            row.verdicts[case.id] = str(_verdict(runner, case)[0])
        for case in others:
            if slow >= _SLOW_KILLS or lost > _LOST:
                row.verdicts[case.id] = str(CUT)
                continue
            before = time.monotonic()
            verdict, gone = _verdict(runner, case)
            row.verdicts[case.id] = str(verdict)
            lost += gone
            slow += verdict in KILLS and time.monotonic() - before > patience
    finally:
        runner.close()
    row.seconds = round(time.monotonic() - started, 2)
    return row


def _verdict(runner: Runner, case: Case) -> tuple[Verdict, bool]:
    """Return a verdict, and whether nobody was there to be judged."""
    try:
        return runner.run(case).verdict, False
    except (PeerLost, WrongUsage):  # nobody there, or one that serves nobody
        return Verdict.FAIL, True
    except Exception as error:
        text = f"{runner.settings.peer}: {case.id}: {error!r}"
        print(text, file=sys.stderr)
        return Verdict.SUITE_ERROR, True
