"""No command writes what it makes over what it reads."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ds4proto.cli import run
from ds4proto.testing import captures_dir

CAPTURE = captures_dir() / "ds4d/h_hello_reject_layers.pcap"
COMMANDS = [
    ("decode", "IN", "-o", "IN"),
    ("decode", "IN", "--format", "parquet", "--fast", "-o", "IN"),
    ("decode", "OTHER", "--roce", "IN", "-o", "IN"),
    ("trace", "redact", "IN", "-o", "IN"),
    ("trace", "cut", "IN", "--from", "0", "-o", "IN"),
    ("trace", "merge", "OTHER", "IN", "-o", "IN"),
    ("preflight", "--plan", "IN", "--report", "html", "-o", "IN"),
    ("check", "--peer", "capture:IN", "--html", "IN"),
    ("check", "--peer", "capture:OTHER", "--model", "IN", "--report", "IN"),
    ("check", "--matrix", "IN", "--markdown", "IN"),
]


@pytest.mark.parametrize("args", COMMANDS, ids=" ".join)
def test_an_output_that_is_an_input_is_refused(
    args: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.pcap"
    shutil.copy(CAPTURE, path)
    link = tmp_path / "link"  # another name of the same file
    link.symlink_to(path)
    before = path.read_bytes()
    words = [w.replace("IN", str(path)).replace("OTHER", str(CAPTURE)) for w in args]
    words[-1] = str(link)
    assert run(words) == 2
    assert "is an input itself" in capsys.readouterr().err
    assert path.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == [link, path]
