"""``ds4proto check`` from the outside: verdicts, reports, exit codes."""

import importlib
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
from ds4proto_conformance.report.stream import ReportError, read_report

from ds4proto.cli import run

REPOSITORY = Path(__file__).parents[2]
SCHEMA = json.loads(
    (
        Path(__file__).parents[2]
        / "conformance/ds4proto_conformance/report/schema.json"
    ).read_text()
)


def smoke(peer: str, *args: str) -> Any:
    return command("smoke", "--peer", peer, *args)


def check(*args: str, cwd: Path | None = None, **env: str) -> Any:
    return command("check", *args, cwd=cwd, **env)


def command(*args: str, cwd: Path | None = None, **env: str) -> Any:
    return subprocess.run(
        [str(Path(sys.executable).with_name("ds4proto")), *args],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_run_of_the_reference_and_all_its_reports(tmp_path: Path) -> None:
    paths = {k: tmp_path / k for k in ("r.jsonl", "j.xml", "h.html", "m.md", "e.json")}
    (tmp_path / "conftest.py").write_text("raise SystemExit('a stray conftest ran')")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    done = check(
        "--peer", "reference:worker", "--profile", "smoke",
        "--report", str(paths["r.jsonl"]), "--junit", str(paths["j.xml"]),
        "--html", str(paths["h.html"]), "--markdown", str(paths["m.md"]),
        "--write-expect", str(paths["e.json"]),
        cwd=tmp_path, PYTEST_ADDOPTS="--also-wrong",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for line in paths["r.jsonl"].read_text().splitlines():
        jsonschema.validate(json.loads(line), SCHEMA)
    found = read_report(paths["r.jsonl"])
    assert found.footer["exit"] == 0
    assert found.footer["verdicts"]["pass"] == len(found.cases) - sum(
        v for k, v in found.footer["verdicts"].items() if k != "pass"
    )
    assert found.identity["hidden_values"] == 64
    suite = ET.parse(paths["j.xml"]).getroot()[0]
    assert int(suite.get("tests", "0")) == len(found.cases)
    page = paths["h.html"].read_text()
    assert "worker/work/unknown-flag" in page
    assert "http" not in page.replace("http:URL", "")
    assert "| worker/work/unknown-flag | pass |" in paths["m.md"].read_text()
    assert set(json.loads(paths["e.json"].read_text())["verdicts"]) == set(found.cases)


def test_a_planted_fault_is_named_with_clause_frames_and_replay() -> None:
    name = "worker/work/unknown-flag"
    done = check("--peer", "reference:worker:skip-WORK-07", "--case", name)
    assert done.returncode == 1, done.stderr
    assert "clause DS4D-WORK-07: A worker MUST refuse" in done.stdout
    assert "DS4D.WORK" in done.stdout
    assert f"--case {name} --seed 1" in done.stdout


@pytest.mark.parametrize(
    ("peer", "case", "clause"),
    [
        ("tp-worker:tpw-ffn-first", "tp-worker/gates/token", "DS4"),
        ("tp-leader:tpl-halves-swapped", "tp-leader/control/logits-used", "DS4"),
    ],
)
def test_a_rank_with_a_planted_fault_is_started(
    peer: str, case: str, clause: str
) -> None:
    done = check("--peer", f"reference:{peer}", "--case", case)
    assert done.returncode == 1, done.stderr
    assert f"clause {clause}" in done.stdout


def test_the_example_of_a_codec_command_passes_all() -> None:
    shim = Path(__file__).parents[2] / "conformance" / "shims" / "codec_shim.py"
    done = check("--peer", f"codec:{sys.executable} {shim}", "--json")
    assert done.returncode == 0, done.stdout
    verdicts = json.loads(done.stdout.splitlines()[-1])["verdicts"]
    assert list(verdicts) == ["pass"]
    assert verdicts["pass"] >= 50


def test_expected_verdicts_make_a_known_fault_no_failure(tmp_path: Path) -> None:
    expected = tmp_path / "e.json"
    base = ["--peer", "reference:worker:skip-WORK-07", "-k", "unknown-flag"]
    assert check(*base, "--write-expect", str(expected)).returncode == 1
    assert check(*base, "--expect", str(expected)).returncode == 0
    other = ["--peer", "reference:worker:none", "-k", "unknown-flag"]
    done = check(*other, "--expect", str(expected))
    assert done.returncode == 1
    assert "expected fail" in done.stderr or "expected partial" in done.stderr


@pytest.mark.parametrize(
    ("args", "status", "text"),
    [
        (("--peer", "reference:worker", "-k", "no_such_case"), 2, "nothing was judged"),
        (("--peer", "reference:worker", "--time-scale", "nan"), 2, "--time-scale"),
        (("--peer", "reference:worker", "--hidden-values", "-3"), 2, "--hidden"),
        (
            ("--peer", "reference:worker", "--case", "worker/work/unknown"),
            2,
            "near: worker/work/unknown-flag",
        ),
        (("--peer", "nonsense:x", "--role", "worker"), 2, "not a kind of peer"),
        (("--peer", "reference:worker:no-such"), 2, "no mutant"),
        (("--peer", "reference:worker", "--profile", "tiny"), 2, "no profile"),
        ((), 2, "--peer is missing"),
        (("--peer", "tcp:127.0.0.1:1"), 2, "--role is missing; one of"),
        (("--peer", "bogus:worker"), 2, "'bogus' is not a kind of peer"),
        (("--peer", "reference:nobody"), 2, "'nobody' is no role"),
        (
            ("--peer", "reference:coordinator", "--position", "last"),
            2,
            "--position is for workers",
        ),
        (("--peer", "reference:coordinator", "--drive", "x:y"), 2, "expected one of"),
        (
            ("--peer", "reference:worker:none-middle", "--position", "last"),
            2,
            "its HELLO says middle (layers 2:4 of 8)",
        ),
        (("--peer", "capture:none.pcap"), 2, "no such file"),
    ],
)
def test_wrong_usage_is_told(args: tuple[str, ...], status: int, text: str) -> None:
    done = check(*args)
    assert done.returncode == status, done.stdout + done.stderr
    assert text in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("option", ["report", "junit", "html", "markdown"])
def test_an_output_that_cannot_be_written_is_told_before_the_run(
    option: str, tmp_path: Path
) -> None:
    where = str(tmp_path / "absent" / "out")
    done = check("--peer", "reference:worker", f"--{option}", where)
    assert done.returncode == 2
    assert done.stdout == ""
    assert f"--{option} {where}: there is no folder" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_list_of_expected_verdicts_is_read_before_the_run(tmp_path: Path) -> None:
    done = check("--peer", "reference:worker", "--expect", str(tmp_path / "absent"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "absent" in done.stderr


def test_a_full_disk_costs_the_files_and_not_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    capture = REPOSITORY / "conformance/captures/ds4d/a_s2_decode_f32.pcap"

    def full(_reports: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ds4proto_conformance.report.html.html", full)
    args = ["check", "--peer", f"capture:{capture}", "--role", "worker"]
    assert run([*args, "--html", str(page)]) == 1
    assert "19 cases: 19 pass" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_the_list_of_cases_is_one_document() -> None:
    done = check("--list", "--role", "worker", "--json")
    found = {case["id"]: case for case in json.loads(done.stdout)}
    assert "DS4D-WORK-07" in found["worker/work/unknown-flag"]["clauses"]
    done = check("--list", "--role", "worker", "-k", "flag")
    assert done.returncode == 2
    assert "leave -k and --case out" in done.stderr


def test_smoke_names_what_fails_and_how_to_see_more() -> None:
    done = smoke("reference:worker:skip-WORK-02")
    assert done.returncode == 1
    assert "verdicts           1 fail, 2 not applicable, 13 pass" in done.stdout
    assert re.search(
        r"^fail: worker/\S+  DS4D-\S+: expected .*, found ", done.stdout, re.M
    )
    assert done.stderr.endswith(
        "next: ds4proto check --peer reference:worker:skip-WORK-02 --role worker "
        "--profile smoke\n"
    )


def test_smoke_says_nothing_of_a_peer_that_could_not_be_started() -> None:
    done = smoke("exec:/nonexistent/ds4", "--role", "worker")
    assert (done.returncode, done.stdout) == (2, "")
    assert "'/nonexistent/ds4' cannot be started: No such file" in done.stderr


def test_a_run_that_was_stopped_is_no_success() -> None:
    done = check(
        "--peer", "reference:coordinator:none", "--drive-save", "exec:/no-such",
        "--case", "coordinator/hello/model-id", "--case", "coordinator/snapshot/save",
    )  # fmt: skip
    assert "coordinator/hello/model-id" not in done.stdout  # it passed
    assert "1 cases: 1 pass" in done.stdout
    assert done.returncode == 2
    assert "/no-such" in done.stderr
    assert "/no-such" not in done.stdout  # once is enough


def test_a_report_that_was_cut_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.jsonl"
    header = {"kind": "header", "version": 1, "tool": "0", "peer": "x"}
    header |= {"role": "worker", "seed": 1, "cases": 0}
    path.write_text(json.dumps(header) + "\n")
    with pytest.raises(ReportError, match="footer is missing"):
        read_report(path)
    done = check("--diff", str(path), str(path))
    assert done.returncode == 2
    assert "cut short" in done.stderr


@pytest.mark.parametrize("name", ["check", "smoke", "compare"])
def test_every_option_says_what_it_does(name: str) -> None:
    command = importlib.import_module(f"ds4proto_conformance.cli.{name}").cmd
    silent = [
        option.name
        for option in command.params
        if isinstance(option, click.Option) and not option.help
    ]
    assert silent == []
    assert "ds4proto" in (command.help or "")
