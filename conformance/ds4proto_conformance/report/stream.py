"""The report as JSON lines: written while the run goes on, read back whole.

The first line is a ``header``, then one line a ``case``, the last one is a
``footer``; a stream without footer was cut short. ``schema.json`` beside this module
says what each line holds.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, Final, TextIO

from ds4proto.errors import Ds4ProtoError, ExitCode
from ds4proto_conformance.report.shape import fault_of

__all__ = ["VERSION", "Report", "ReportError", "Writer", "read_report"]

VERSION: Final = 1
MAX_LINE: Final = 16 << 20
"""Bytes of one line that are read."""


class ReportError(Ds4ProtoError, ValueError):
    """A file that is no report, or not a whole one."""

    exit_code = ExitCode.NOTHING_RAN


class Writer:
    """Writes a report; every line is flushed, so that a cut run leaves what it had.

    Parameters
    ----------
    path : path
        Overwritten.
    """

    def __init__(self, path: str | os.PathLike[str], header: Mapping[str, Any]) -> None:
        self._file: IO[str] = Path(path).open("w", encoding="utf-8")  # noqa: SIM115
        self._counts: Counter[str] = Counter()
        about = {"kind": "header", "version": VERSION, "tool": version("ds4proto")}
        self._write({**about, **header})

    def _write(self, line: Mapping[str, Any]) -> None:
        text = json.dumps(line, separators=(",", ":"), ensure_ascii=True, default=str)
        self._file.write(text + "\n")
        self._file.flush()

    def case(self, line: Mapping[str, Any]) -> None:
        """Write one case."""
        self._counts[line["verdict"]] += 1
        self._write({"kind": "case", **line})

    def close(self, footer: Mapping[str, Any]) -> None:
        """Write the footer and finish."""
        counts = dict(sorted(self._counts.items()))
        self._write({"kind": "footer", "verdicts": counts, **footer})
        self._file.close()


@dataclass(slots=True)
class Report:
    """A whole report.

    Attributes
    ----------
    header, footer : mapping
    cases : dict
        Case id -> its line, in the order of the run.
    """

    header: dict[str, Any]
    cases: dict[str, dict[str, Any]] = field(default_factory=dict)
    footer: dict[str, Any] = field(default_factory=dict)

    @property
    def peer(self) -> str:
        """Name of the peer."""
        return str(self.header.get("peer", "?"))

    @property
    def identity(self) -> dict[str, Any]:
        """What the peer said of itself."""
        return dict(self.footer.get("identity", {}))


def read_report(path: str | os.PathLike[str]) -> Report:
    """Read a report back.

    Raises
    ------
    ReportError
        It cannot be read, a line is malformed, or the footer is missing.
    """
    report: Report | None = None
    try:
        with Path(path).open(encoding="utf-8") as lines:
            for number, text in enumerate(_bounded(lines), 1):
                line = _line(path, number, text)
                kind = line.get("kind")
                if report is None:
                    _check_header(path, line)
                fault = fault_of(line)
                if fault is not None:
                    raise ReportError(f"{path}:{number}: {fault}. Next: run it again")
                if report is None:
                    report = Report(line)
                elif report.footer:
                    raise ReportError(f"{path}:{number}: lines behind the footer")
                elif kind == "case":
                    report.cases[line["id"]] = line
                elif kind == "footer":
                    report.footer = line
                else:
                    raise ReportError(
                        f"{path}:{number}: expected a case or the footer, found {kind}"
                    )
    except (OSError, UnicodeDecodeError) as error:
        raise ReportError(f"{path}: cannot be read: {error}") from None
    if report is None:
        raise ReportError(f"{path}: empty; expected a report of ds4proto check")
    if not report.footer:
        raise ReportError(
            f"{path}: the footer is missing, the run was cut short after"
            f" {len(report.cases)} cases. Next: run it again"
        )
    return report


def _bounded(lines: TextIO) -> Iterator[str]:
    """Yield lines; one that is too long comes cut, and is refused for its length."""
    while text := lines.readline(MAX_LINE + 1):
        yield text


def _line(path: str | os.PathLike[str], number: int, text: str) -> dict[str, Any]:
    if len(text) > MAX_LINE:
        raise ReportError(
            f"{path}:{number}: expected a line of at most {MAX_LINE >> 20} MiB, found"
            " more; is this a report?"
        )
    try:
        line = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ReportError(f"{path}:{number}: no JSON: {error}") from None
    if not isinstance(line, dict):
        raise ReportError(f"{path}:{number}: expected an object")
    return line


def _check_header(path: str | os.PathLike[str], line: Mapping[str, Any]) -> None:
    if line.get("kind") != "header":
        raise ReportError(f"{path}:1: expected a header; is this a report?")
    if line.get("version") != VERSION:
        raise ReportError(
            f"{path}:1: report version {line.get('version')}, this tool reads {VERSION}"
        )
