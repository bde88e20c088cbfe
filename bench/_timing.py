"""Best-of-N timing of cases side by side, and how every benchmark prints it.

A shared machine is noisy, so the cases take turns in every round, each keeps its best
run, and the clock is the CPU time of the calling thread. What counts is the ratio to
the baseline, measured in the same run.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

Case = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """One measured case.

    Attributes
    ----------
    name
        What ran.
    cpu_seconds, wall_seconds
        Best CPU time of the calling thread and best wall time.
    rate
        Work units a second, from the CPU time.
    ratio
        Rate over the baseline's rate: 1 is as fast as the baseline.
    wall_ratio
        The same from wall time; the one to read for cases with several threads.
    """

    name: str
    cpu_seconds: float
    wall_seconds: float
    rate: float
    ratio: float
    wall_ratio: float


def measure(
    cases: Mapping[str, Case], *, baseline: str, work: float, rounds: int = 15
) -> list[Row]:
    """Run all cases in turn, ``rounds`` times, after one warm-up each.

    Parameters
    ----------
    cases
        Name -> what to run. All do the same ``work``.
    baseline
        Name of the case that the ratios refer to.
    work
        Units of one call, for the rate: bytes, frames, rows.
    """
    cpu = dict.fromkeys(cases, float("inf"))
    wall = dict.fromkeys(cases, float("inf"))
    for case in cases.values():
        case()
    for _ in range(rounds):
        for name, case in cases.items():
            wall_start, cpu_start = time.perf_counter(), time.thread_time()
            case()
            cpu[name] = min(cpu[name], time.thread_time() - cpu_start)
            wall[name] = min(wall[name], time.perf_counter() - wall_start)
    return [
        Row(
            name,
            cpu[name],
            wall[name],
            work / max(cpu[name], 1e-9),
            cpu[baseline] / max(cpu[name], 1e-9),
            wall[baseline] / max(wall[name], 1e-9),
        )
        for name in cases
    ]


def report(
    title: str,
    rows: list[Row],
    *,
    baseline: str,
    unit: str,
    scale: float = 1.0,
    as_json: bool | None = None,
) -> None:
    """Print rows as one JSON line (with ``--json``) or as a table.

    ``unit`` names the rate after division by ``scale``, for example GB/s and 1e9.
    """
    if as_json is None:
        as_json = "--json" in sys.argv[1:]
    if as_json:
        record = {
            "benchmark": title,
            "baseline": baseline,
            "unit": unit,
            "machine": platform.machine(),
            "python": platform.python_version(),
            "rows": [{**asdict(row), "rate": row.rate / scale} for row in rows],
        }
        print(json.dumps(record))
        return
    table = Table(title=title, caption=f"ratios are to: {baseline}")
    table.add_column("case")
    for heading in (unit, "ratio", "wall ratio", "best ms"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            row.name,
            f"{row.rate / scale:.2f}",
            f"{row.ratio:.2f}",
            f"{row.wall_ratio:.2f}",
            f"{row.cpu_seconds * 1e3:.3f}",
        )
    Console().print(table)
