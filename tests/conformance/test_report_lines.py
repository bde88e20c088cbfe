"""What a report tells; one that is none is refused with a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ds4proto_conformance.report.diff import expected_of, read_expected
from ds4proto_conformance.report.html import html
from ds4proto_conformance.report.stream import Report, ReportError, read_report
from ds4proto_conformance.report.text import by_clause, failures

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


def failed(number: int, clause: str, found: str) -> dict[str, object]:
    deviation = {"clause": clause, "expected": "an answer", "found": found}
    return CASE | {
        "id": f"case-{number}",
        "verdict": "fail",
        "deviations": [deviation],
        "frames": [{"type": "WORK", "length": 9, "hex": "ab" * 50}],
    }


def of(*lines: dict[str, object]) -> Report:
    return Report(HEADER, {str(line["id"]): line for line in lines}, FOOTER)


def test_what_many_cases_share_is_told_once_with_the_ids_of_the_others() -> None:
    same = [failed(n, "DS4D-WORK-45", "silence") for n in range(9)]
    other = failed(9, "DS4D-WORK-45", "a closed connection")
    report = of(*same, other, CASE)
    texts = failures(report)
    assert [text.split(":")[0] for text in texts] == ["case-0", "case-9"]
    rest = ", ".join(f"case-{n}" for n in range(1, 9))
    assert f"and 8 more cases: {rest}\n" in texts[0]
    assert "more cases" not in texts[1]
    for line in same:  # the page of a browser stays whole
        assert html([report]).count(str(line["id"])) >= 1


def test_few_failures_are_all_told_whole() -> None:
    texts = failures(of(*(failed(n, "DS4D-WORK-45", "silence") for n in range(3))))
    assert len(texts) == 3
    assert all("frames:" in text and "more cases" not in text for text in texts)


def test_cases_without_a_clause_are_never_taken_for_the_same() -> None:
    lines = [
        CASE | {"id": f"c{n}", "verdict": "suite error", "notes": [f"fault {n}"]}
        for n in range(9)
    ]
    report = of(*lines)
    assert len(failures(report)) == 9
    assert by_clause(report) == ["failed by clause:", "  no clause  9 cases, first c0"]


def test_the_summary_by_clause_has_the_most_failed_first() -> None:
    one = failed(0, "DS4D-HELLO-01", "silence")
    many = [failed(n, "DS4D-WORK-45", f"status {n}") for n in range(1, 4)]
    assert by_clause(of(one, *many, CASE)) == [
        "failed by clause:",
        "  DS4D-WORK-45   3 cases, first case-1",
        "  DS4D-HELLO-01  1 case, first case-0",
    ]
    assert by_clause(of(CASE)) == []
