"""A recorded run judged by the same rules, without a peer to talk to.

Every frame that crossed is judged by the observers; a clause that frames of the judged
role break fails, a clause that frames of its kind kept passes.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from ds4proto import clauses
from ds4proto.errors import ExitCode, WrongUsage
from ds4proto.trace.rows import FrameRow, plain
from ds4proto_conformance.between import Differences
from ds4proto_conformance.report.stream import Report, Writer, read_report
from ds4proto_conformance.verdicts import Verdict

__all__ = ["judge_capture", "judge_rows"]

_SHOWN: Final = 3
"""Frames that a report shows for each clause."""
CLOCK: Final = 0.05
"""Seconds by which a capture may have both directions of a stream out of order."""
_ORDER: Final = ("DS4D-RESULT-21", "DS4D-RESULT-27")
_SIDES: Final = {
    "coordinator": ("coordinator", ("DS4D",)),
    "worker": ("worker", ("DS4D",)),
    "tp-leader": ("leader", ("DS4T", "DS4B")),
    "tp-worker": ("worker", ("DS4T", "DS4B")),
}
"""Role -> how the rows call it, and the protocols in which it is one."""


def judge_rows(
    rows: Iterable[FrameRow], role: str | None
) -> tuple[dict[str, dict[str, Any]], Counter[str]]:
    """Return clause -> line of a report, and how many frames of each type there were.

    A problem that a dialect explains (the observers settle it) is none; frames of a
    dialect that is recognised only are passed over. A difference between two ranks
    fails the side that goes on behind it.
    """
    broken: dict[str, list[tuple[FrameRow, Any]]] = defaultdict(list)
    kept: dict[str, int] = Counter()
    types: Counter[str] = Counter()
    shuffled: set[int] = set()
    between = Differences()
    asked: dict[tuple[int, int], list[float]] = defaultdict(list)
    for row in rows:
        if row.type == "WORK" and "request" in row.fields:
            asked[row.stream, row.fields["request"]].append(row.time)
        convicted = between.take(row)
        if not row.is_frame or not _from(row, role):
            continue
        for pair in convicted:
            broken[pair[1].clause].append(pair)
        types[row.name] += 1
        for name in _clauses_of(row):
            kept[name] += 1
        for problem in row.problems:
            if between.settled(problem):
                kept[problem.clause] += 1
            else:
                broken[problem.clause].append((row, problem))
    for name in _ORDER:
        if any(_shuffled(row, asked) for row, _ in broken[name]):
            shuffled |= {row.stream for row, _ in broken[name]}
    for name in _ORDER:
        broken[name] = [pair for pair in broken[name] if pair[0].stream not in shuffled]
    lines = {}
    for name in sorted({*kept, *(n for n, found in broken.items() if found)}):
        lines[name] = _line(name, broken.get(name, []), kept[name])
        lines[name]["notes"] += between.of([name])
    return lines, types


def _shuffled(row: FrameRow, asked: Mapping[tuple[int, int], list[float]]) -> bool:
    """Tell an answer that the capture's clock put in front of its own request."""
    times = asked.get((row.stream, row.fields.get("request", -1)), [])
    return any(0 <= time - row.time <= CLOCK for time in times)


def _from(row: FrameRow, role: str | None) -> bool:
    if role is None:
        return True
    side, protocols = _SIDES.get(role, ("", ()))
    return row.protocol in protocols and row.src_role.startswith(side)


def _clauses_of(row: FrameRow) -> tuple[str, ...]:
    from ds4proto.schema.registry import frame

    try:
        return frame(row.name, dialect=row.dialect.rstrip("?")).clauses
    except (LookupError, ValueError):
        return ()


def _line(name: str, broken: list[tuple[FrameRow, Any]], kept: int) -> dict[str, Any]:
    clause = clauses.get(name)
    verdict = Verdict.FAIL if broken else Verdict.PASS
    return {
        "id": f"capture/{name}",
        "title": clause.text,
        "verdict": str(verdict),
        "clauses": [name],
        "role": "capture",
        "category": clause.chapter,
        "severity": "must" if clause.mandatory else "should",
        "deviations": [
            {"clause": name, "expected": p.expected, "found": f"{p.path}: {p.found}"}
            for _, p in broken[:_SHOWN]
        ],
        "notes": [f"{len(broken)} of {kept} frames"] if broken else [f"{kept} frames"],
        "frames": [_frame(row) for row, _ in broken[:_SHOWN]],
        "seconds": 0.0,
    }


def _frame(row: FrameRow) -> dict[str, Any]:
    return {
        "on": f"stream {row.stream}",
        "from": row.src_role,
        "type": row.name,
        "length": row.length,
        "fields": {k: plain(v) for k, v in row.fields.items()},
        "problems": [str(problem) for problem in row.problems],
        "hex": f"stream offset {row.stream_offset}, packet {row.first_packet}",
    }


def judge_capture(
    path: str, role: str | None = None, *, report: str | os.PathLike[str] | None = None
) -> tuple[Report, ExitCode]:
    """Judge a capture file.

    Parameters
    ----------
    role : str, optional
        Only frames that this side sent; by default those of both.

    Raises
    ------
    WrongUsage
        The file cannot be read as a capture.
    """
    from ds4proto.trace import decode

    if not Path(path).is_file():
        what = "not a plain file" if Path(path).exists() else "no such file"
        raise WrongUsage(f"capture {path}: {what}")
    started = time.monotonic()
    try:
        lines, types = judge_rows(decode(path, payload="none"), role)
    except (ValueError, OSError) as error:
        raise WrongUsage(f"capture {path}: {error}") from None
    bad = sum(line["verdict"] == "fail" for line in lines.values())
    status = ExitCode.FAILED if bad else ExitCode.PASSED
    if not types:
        status = ExitCode.NOTHING_RAN
    with tempfile.TemporaryDirectory(prefix="ds4-check-") as folder:
        target = Path(report) if report is not None else Path(folder) / "report.jsonl"
        replay = f"ds4proto check --peer capture:{path}"
        writer = Writer(
            target,
            {
                "peer": f"capture:{path}",
                "role": role or "capture",
                "seed": 0,
                "cases": len(lines),
                "command": replay,
            },
        )
        for line in lines.values():
            writer.case({**line, "seed": 0, "reproduce": replay})
        writer.close(
            {
                "seconds": round(time.monotonic() - started, 3),
                "exit": int(status),
                "identity": {"frames": dict(types)},
            }
        )
        return read_report(target), status
