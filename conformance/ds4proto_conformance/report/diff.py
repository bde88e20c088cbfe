"""Two reports compared, and a run compared with what was expected of it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ds4proto_conformance.report.stream import MAX_LINE, Report, ReportError
from ds4proto_conformance.verdicts import Verdict

__all__ = ["changes", "expected_of", "expected_text", "read_expected", "unexpected"]

_PIECE: Final = 1 << 16


def changes(old: Mapping[str, str], new: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return (case, ``old -> new``) for every case whose verdict differs."""
    found = []
    for name in dict.fromkeys((*old, *new)):
        before, after = old.get(name, "absent"), new.get(name, "absent")
        if before != after:
            found.append((name, f"{before} -> {after}"))
    return found


def expected_of(report: Report) -> dict[str, str]:
    """Return case -> verdict."""
    return {name: str(line["verdict"]) for name, line in report.cases.items()}


def expected_text(report: Report) -> str:
    """Return the file that later runs are compared with."""
    about = {
        "about": "verdicts of a run of ds4proto check",
        "role": report.header["role"],
    }
    verdicts = dict(sorted(expected_of(report).items()))
    return json.dumps({**about, "verdicts": verdicts}, indent=1) + "\n"


def read_expected(path: str | os.PathLike[str]) -> dict[str, str]:
    """Read what `expected_text` made.

    Raises
    ------
    ReportError
        It is none.
    """
    try:
        with Path(path).open(encoding="utf-8") as file:
            # one read of that many would reserve as much, however short the file is
            text = ""
            while len(text) <= MAX_LINE and (piece := file.read(_PIECE)):
                text += piece
        if len(text) > MAX_LINE:
            raise ValueError(f"more than {MAX_LINE >> 20} MiB")
        value: Any = json.loads(text)
        return {str(k): str(Verdict(v)) for k, v in value["verdicts"].items()}
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        raise ReportError(
            f"{path}: no file of expected verdicts ({error}). Next: write one with"
            " --write-expect"
        ) from None


def unexpected(report: Report, expected: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the differences between a run and what was expected of its cases.

    Cases that the run did not select are no difference; a case that nobody expected
    is one only where its verdict is bad.
    """
    found = []
    for name, verdict in expected_of(report).items():
        due = expected.get(name)
        if due is None and not Verdict(verdict).bad:
            continue
        if due != verdict:
            found.append((name, f"expected {due or 'nothing'}, found {verdict}"))
    return found
