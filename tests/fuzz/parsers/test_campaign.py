"""The targets as scripts, and the campaign that runs them, with a stand-in for atheris.

What coverage guidance adds needs the real one: ``make fuzz``.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from ds4proto_fuzz.parsers import NAMES
from ds4proto_fuzz.parsers import campaign as campaign_module
from ds4proto_fuzz.parsers.__main__ import main
from ds4proto_fuzz.parsers.campaign import (
    TARGETS,
    Outcome,
    Status,
    Stopped,
    read_status,
    signature,
)

from ds4proto.cli._boundary import run_command
from ds4proto.errors import WrongUsage

ROOT = Path(__file__).parents[3]


def parsers(*args: str, stub: Path | None, **env: str) -> Any:
    """Run the command line, with a folder in front of Python's path."""
    code = (
        "import importlib.util, runpy, sys\n"
        "found = importlib.util.find_spec\n"
        f"if {stub is None}: importlib.util.find_spec = (\n"
        "    lambda name, *rest: None if name == 'atheris' else found(name, *rest))\n"
        f"sys.argv = ['parsers', *{args!r}]\n"
        "runpy.run_module('ds4proto_fuzz.parsers', run_name='__main__')\n"
    )
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(stub or ""), **env},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.fixture
def stub(tmp_path: Path) -> Path:
    folder = tmp_path / "stub"
    folder.mkdir()
    shutil.copy(Path(__file__).with_name("atheris_stub.py"), folder / "atheris.py")
    return folder


def test_every_target_is_a_script_that_names_it() -> None:
    scripts = {path.stem: path.read_text() for path in TARGETS.glob("[a-z]*.py")}
    assert set(scripts) == set(NAMES)
    for name, text in scripts.items():
        assert f'run("{name}")' in text


def test_a_campaign_runs_targets_and_tells_what_they_did(
    tmp_path: Path, stub: Path
) -> None:
    out = tmp_path / "out"
    done = parsers(
        "campaign", "--time", "2", "--target", "message", "--target", "gguf",
        "--out", str(out), "--json", stub=stub,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)["targets"]
    assert [row["name"] for row in told] == ["message", "gguf"]
    for row in told:
        files = len(list((ROOT / "fuzz" / "corpus" / row["name"]).iterdir()))
        assert row["runs"] == row["coverage"] == files
        assert row["findings"] == []
        assert (out / "corpus" / row["name"] / "found").exists()


def test_a_long_run_is_made_of_processes_that_pass_the_corpus_on(
    tmp_path: Path, stub: Path
) -> None:
    out = tmp_path / "out"
    done = parsers(
        "campaign", "--time", "600", "--jobs", "1", "--target", "message",
        "--out", str(out), "--json", stub=stub,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["targets"]
    files = len(list((ROOT / "fuzz" / "corpus" / "message").iterdir()))
    # 240 + 240 + 120 s; what the first one left is there for the second and third
    assert row["runs"] == files + 2 * (files + 1)
    assert row["corpus"] == files + 1


def test_a_finding_is_left_as_a_file_that_replays(tmp_path: Path, stub: Path) -> None:
    out = tmp_path / "out"
    done = parsers(
        "campaign", "--time", "3", "--target", "message", "--out", str(out),
        stub=stub, PLANTED="1",
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    (finding,) = [
        path
        for path in (out / "findings" / "message").iterdir()
        if path.suffix != ".txt"
    ]  # the same exception at the same place, again and again, is one finding
    assert str(finding) in done.stdout
    text = finding.with_suffix(".txt").read_text()
    assert text.startswith("KeyError at atheris.py:")
    assert f"replay message {finding}" in text
    again = parsers("replay", "message", str(finding), stub=stub)
    assert again.returncode == 0, "the stand-in planted it; the parser is sound"
    assert "holds" in again.stdout


def test_an_input_that_is_found_twice_is_one_finding(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """libFuzzer names the file by its content: a second process writes the same."""
    (tmp_path / "gguf.py").write_text(
        "import pathlib, sys\n"
        "at = next(a for a in sys.argv if a[:9] == '-artifact').partition('=')[2]\n"
        "pathlib.Path(at + 'crash-1').write_bytes(b'x')\n"
        "print('KeyError: 1')\n"
        "print(f'Test unit written to {at}crash-1', flush=True)\n"
        "sys.exit(77)\n"
    )
    monkeypatch.setattr(campaign_module, "TARGETS", tmp_path)
    monkeypatch.setattr(campaign_module, "find_spec", lambda _name: True)
    (one,) = campaign_module.campaign(["gguf"], 3, out=tmp_path / "out")
    assert [path.name for path in one.findings] == ["crash-1"]
    assert (one.repeated, one.failed) == (2, "")
    (again,) = campaign_module.campaign(["gguf"], 2, out=tmp_path / "out")
    assert again.findings == one.findings


def test_without_atheris_the_way_on_is_told() -> None:
    done = parsers("campaign", "--time", "1", stub=None)
    assert done.returncode == 2
    assert "pip install 'ds4proto[fuzz]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_clone_the_way_on_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(campaign_module, "TARGETS", tmp_path / "none")
    with pytest.raises(WrongUsage, match="Next: run it from a clone"):
        campaign_module.campaign(["gguf"], 1, out=tmp_path)


def test_a_target_that_stands_still_is_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "gguf.py").write_text("import time\ntime.sleep(3600)\n")
    monkeypatch.setattr(campaign_module, "TARGETS", tmp_path)
    monkeypatch.setattr(campaign_module, "GRACE_SECONDS", 0)
    monkeypatch.setattr(campaign_module, "find_spec", lambda _name: True)
    (outcome,) = campaign_module.campaign(["gguf"], 1, out=tmp_path / "out")
    assert outcome.failed.startswith("ended with status -9")


def test_a_stop_ends_every_process_and_begins_no_target(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    line = "#7 NEW cov: 5 ft: 6 corp: 7/8b"
    for name in ("gguf", "rows"):
        text = f"import time\nprint({line!r}, flush=True)\ntime.sleep(3600)\n"
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setattr(campaign_module, "TARGETS", tmp_path)
    monkeypatch.setattr(campaign_module, "find_spec", lambda _name: True)
    thread = threading.main_thread().ident
    assert thread is not None

    def told(*_: Any) -> None:
        signal.pthread_kill(thread, signal.SIGINT)

    with pytest.raises(Stopped) as stop:
        campaign_module.campaign(
            ["gguf", "rows"], 7200, out=tmp_path / "out", jobs=1, told=told
        )
    (one,) = stop.value.outcomes
    assert (one.name, one.runs, one.findings, one.failed) == ("gguf", 7, [], "")


@pytest.mark.parametrize(("found", "status"), [([], 130), ([Path("crash-1")], 1)])
def test_a_stopped_campaign_tells_where_its_files_are(
    found: list[Path], status: int,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def stopped(*_: Any, **_more: Any) -> None:
        raise Stopped([Outcome("gguf", 7, findings=found)])

    monkeypatch.setattr(campaign_module, "campaign", stopped)
    assert run_command(main, ["campaign", "--out", "here"], "parsers") == status
    shown, told = capsys.readouterr()
    assert "findings in here/findings. Next: the same command" in told
    assert ("gguf: crash-1" in shown) == bool(found)


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (
            "#27303\tREDUCE cov: 372 ft: 767 corp: 94/3114b lim: 80 exec/s: 1365 "
            "rss: 64Mb L: 58/69 MS: 3 CrossOver-",
            Status(27303, 372, 767, 94, 1365),
        ),
        (
            "#2\tINITED cov: 40 ft: 41 corp: 1/1b exec/s: 0 rss: 60Mb",
            Status(2, 40, 41, 1, 0),
        ),
        ("#3\tNEW    cov: 5 ft: 6 corp: 7/8Kb", Status(3, 5, 6, 7, 0)),
        ("Done 27338 runs in 21 second(s)", None),
        ("INFO: Seed: 1", None),
    ],
)
def test_status_lines_of_libfuzzer(line: str, status: Status | None) -> None:
    assert read_status(line) == status


def test_the_same_fault_has_the_same_signature() -> None:
    trace = [
        "Traceback (most recent call last):",
        '  File "/a/parsers/files.py", line 9, in check',
        '  File "/a/model/gguf.py", line {}, in read',
    ]
    one = [line.format(70) for line in trace] + ["KeyError: 'x'"]
    two = [line.format(70) for line in trace] + ["KeyError: 'y'"]
    else_where = [line.format(71) for line in trace] + ["KeyError: 'x'"]
    assert signature(one) == signature(two) == "KeyError at gguf.py:70"
    assert signature(else_where) != signature(one)
    broken = [line.format(70) for line in trace]
    broken.append(
        "ds4proto_fuzz.parsers.target.Broken: whole or byte by byte: at=4, one=1"
    )
    assert "whole or byte by byte at gguf.py:70" in signature(broken)
    slow = ["==1== ERROR: libFuzzer: timeout after 30 seconds"]
    assert signature(slow) == "timeout after 30 seconds"


def test_help_teaches_by_example() -> None:
    for command in ("campaign", "million", "replay", "corpus"):
        done = parsers(command, "--help", stub=None)
        assert done.returncode == 0
        assert f"python -m ds4proto_fuzz.parsers {command}" in done.stdout
