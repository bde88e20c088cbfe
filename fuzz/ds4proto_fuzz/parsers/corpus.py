"""The corpora: seeds from the declarations and writers, kept small.

A file stays where it reaches lines of the library that no smaller file before it
reaches. That costs a little coverage guidance and keeps the folder readable; a
campaign finds the rest again within seconds.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import ds4proto
from ds4proto_fuzz.parsers.target import Target

__all__ = ["corpus_of", "lines_reached", "minimised", "name_of", "write"]

LIBRARY: Final = f"{Path(ds4proto.__file__).parent}/"
REPORTS: Final = "/ds4proto_conformance/report/"


def name_of(data: bytes) -> str:
    """Return the file name of an input: the start of its hash."""
    return hashlib.sha256(data).hexdigest()[:16]


def corpus_of(folder: Path, target: Target) -> list[Path]:
    """Return the files of a target's corpus, sorted by name."""
    return sorted(path for path in (folder / target.name).glob("*") if path.is_file())


def lines_reached(target: Target, data: bytes) -> set[tuple[CodeType, int]]:
    """Return the lines of the library that an input executes.

    Raises
    ------
    Exception
        Whatever the check raises.
    """
    seen: set[tuple[CodeType, int]] = set()
    ours: dict[CodeType, bool] = {}

    def trace(frame: FrameType, event: str, _arg: Any) -> Any:
        code = frame.f_code
        inside = ours.get(code)
        if inside is None:
            name = code.co_filename
            inside = ours[code] = name.startswith(LIBRARY) or REPORTS in name
        if not inside:
            return None
        if event == "line":
            seen.add((code, frame.f_lineno))
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        target.check(data)
    finally:
        sys.settrace(previous)
    return seen


def minimised(target: Target, inputs: Iterable[bytes]) -> list[bytes]:
    """Return the inputs, shortest first, that reach lines no earlier one reaches."""
    reached: set[tuple[CodeType, int]] = set()
    kept = []
    distinct = sorted(set(inputs), key=lambda data: (len(data), data))
    target.check(b"")  # what happens once, on first use, is nobody's merit
    for data in distinct:
        if len(data) > target.most:
            continue
        new = lines_reached(target, data)
        if not new <= reached:
            reached |= new
            kept.append(data)
    return kept


def write(folder: Path, target: Target, more: Iterable[bytes] = ()) -> list[Path]:
    """Write the corpus of a target: seeds, files that are there, and ``more``."""
    held = [path.read_bytes() for path in corpus_of(folder, target)]
    kept = minimised(target, [*target.seeds(), *held, *more])
    place = folder / target.name
    place.mkdir(parents=True, exist_ok=True)
    due = {name_of(data): data for data in kept}
    for path in corpus_of(folder, target):
        if path.name not in due:
            path.unlink()
    for name, data in due.items():
        (place / name).write_bytes(data)
    return corpus_of(folder, target)
