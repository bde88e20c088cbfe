"""A report that is none is refused with a sentence, whatever stands in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ds4proto_conformance.report.diff import expected_of, read_expected
from ds4proto_conformance.report.stream import ReportError, read_report

HEADER = {
    "kind": "header", "version": 1, "tool": "0", "peer": "x", "role": "worker",
    "seed": 1, "cases": 1,
}  # fmt: skip
CASE = {
    "kind": "case", "id": "a", "verdict": "pass", "clauses": [], "category": "c",
    "severity": "must", "deviations": [], "seed": 1, "reproduce": "r",
}  # fmt: skip
FOOTER = {"kind": "footer", "verdicts": {"pass": 1}, "seconds": 1.0, "exit": 0}
DEEP = "[" * 100_000


def written(path: Path, *lines: object) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_whole_report_is_read(tmp_path: Path) -> None:
    found = read_report(written(tmp_path / "r", HEADER, CASE, FOOTER))
    assert expected_of(found) == {"a": "pass"}


@pytest.mark.parametrize(
    ("line", "changed", "text"),
    [
        (1, {"verdict": None}, "2: verdict: expected one of"),
        (1, {"id": 7}, "2: id: expected string, found 7"),
        (1, {"seed": True}, "2: seed: expected integer, found True"),
        (2, {"identity": [1]}, "3: identity: expected object"),
        (0, {"role": "nobody"}, "1: role: expected one of"),
    ],
)
def test_a_malformed_line_is_named(
    tmp_path: Path, line: int, changed: dict[str, object], text: str
) -> None:
    lines = [dict(HEADER), dict(CASE), dict(FOOTER)]
    lines[line] |= changed
    with pytest.raises(ReportError, match=text):
        read_report(written(tmp_path / "r", *lines))


@pytest.mark.parametrize("lacking", ["verdict", "id"])
def test_a_case_says_what_every_reader_needs(tmp_path: Path, lacking: str) -> None:
    case = {name: value for name, value in CASE.items() if name != lacking}
    with pytest.raises(ReportError, match=f"2: a case without {lacking}"):
        read_report(written(tmp_path / "r", HEADER, case, FOOTER))


def test_a_file_without_a_line_end_is_read_no_further_than_a_report_goes(
    tmp_path: Path,
) -> None:
    path = tmp_path / "r"
    with path.open("wb") as file:
        file.truncate(1 << 32)  # a hole
    with pytest.raises(ReportError, match="line of at most 16 MiB"):
        read_report(path)
    with pytest.raises(ReportError, match="more than 16 MiB"):
        read_expected(path)


def test_nesting_without_end_is_no_json(tmp_path: Path) -> None:
    path = tmp_path / "r"
    path.write_text(DEEP)
    with pytest.raises(ReportError, match="no JSON"):
        read_report(path)
    with pytest.raises(ReportError, match="no file of expected verdicts"):
        read_expected(path)
