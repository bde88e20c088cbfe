"""The kill runner: rows that outlive a stop, and what the matrix makes of them."""

import importlib
import json
from pathlib import Path

import pytest
from ds4proto_conformance.kill import Row
from ds4proto_conformance.kill.matrix import page, report
from ds4proto_conformance.kill.rows import Journal, due
from ds4proto_conformance.registry import all_cases

ROLE, FAULT = "codec", "codec-e4m3-even"
CASES = [case.id for case in all_cases(ROLE)]
main = importlib.import_module("ds4proto_conformance.kill.__main__")


def written(path: Path, verdict: str = "pass", **changes: str) -> Row:
    row = Row(FAULT, ROLE, {name: verdict for name in CASES} | changes, 1.5)
    with Journal(path) as journal:
        journal.write(row)
    return row


def test_rows_are_found_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "rows.jsonl"
    row = written(path, **{CASES[0]: "fail"})
    with Journal(path) as journal:
        assert journal.known(ROLE, FAULT) == row
        assert due(journal.known(ROLE, FAULT), all_cases(ROLE)) == []
        assert journal.known(ROLE, "codec-f16-flush").verdicts == {}


def test_a_line_that_was_cut_is_dropped_and_the_next_one_is_whole(
    tmp_path: Path,
) -> None:
    path = tmp_path / "rows.jsonl"
    written(path)
    path.write_text(path.read_text()[:-40])
    with Journal(path) as journal:
        assert journal.known(ROLE, FAULT).verdicts == {}
    row = written(path)
    with Journal(path) as journal:
        assert journal.known(ROLE, FAULT) == row


def test_what_has_changed_or_failed_by_us_is_due_again(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    written(path, **{CASES[1]: "suite error"})
    with Journal(path) as journal:
        assert due(journal.known(ROLE, FAULT), all_cases(ROLE)) == [CASES[1]]
    named = next(case.id for case in all_cases(ROLE) if FAULT in case.mutants)
    written(path, **{CASES[1]: "flaky", named: "flaky"})
    with Journal(path) as journal:
        assert due(journal.known(ROLE, FAULT), all_cases(ROLE)) == [named]
    path.unlink()
    written(path, **{CASES[1]: "suite error"})
    line = json.loads(path.read_text().strip())
    line["verdicts"][CASES[2]][1] = "another text"
    del line["verdicts"][CASES[3]]
    path.write_text(json.dumps(line) + "\n")
    with Journal(path) as journal:
        missing = due(journal.known(ROLE, FAULT), all_cases(ROLE))
    assert missing == CASES[1:4]
    path.write_text(json.dumps({**line, "source": "another text"}) + "\n")
    with Journal(path) as journal:
        assert journal.known(ROLE, FAULT).verdicts == {}


def test_a_second_run_has_nothing_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, rows = tmp_path / "m.json", tmp_path / "rows.jsonl"
    words = ["--role", ROLE, "--mutant", FAULT, "--processes", "1"]
    words += ["--rows", str(rows), "--out", str(out), "--page", str(tmp_path / "m.md")]
    assert main.main(words) == 0
    first = out.read_bytes()
    found = json.loads(first)
    assert (found["mutants"], found["killed"]) == (1, 1)
    assert "codec/e4m3/ties-away" in found["matrix"][FAULT]["killed_by"]
    assert found["sound_peers"] == {"codec:none": []}
    monkeypatch.setattr(main, "results", lambda jobs, _n: iter(jobs[:0]))
    assert main.main(words) == 0
    assert out.read_bytes() == first


def test_an_unknown_fault_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main.main(["--mutant", "no-such", "--out", "unused.json"])
    assert stopped.value.code == 2
    assert "no fault of that name" in capsys.readouterr().err


def test_a_fault_that_lives_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    row = Row(FAULT, ROLE, dict.fromkeys(CASES, "pass"))
    sick = Row("none", ROLE, {CASES[0]: "flaky", CASES[1]: "pass"})
    found = report([row], {"codec:none": sick})
    assert (found["mutants"], found["killed"]) == (1, 0)
    assert found["survivors"][0]["reason"] == "not known"
    assert found["declared_but_alive"] == [f"codec/e4m3/ties-away: {FAULT}"]
    assert found["sound_peers"] == {"codec:none": [CASES[0]]}
    assert f"| {FAULT} | codec | rounds ties to even | not known |" in page(found)
    assert main.told(found) == 1
    assert (
        f"declared but alive: codec/e4m3/ties-away: {FAULT}" in capsys.readouterr().out
    )
