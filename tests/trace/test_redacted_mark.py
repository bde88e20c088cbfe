"""The mark of a redacted file stays with whatever is made of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ds4proto.cli import run
from ds4proto.pcap import CaptureReader
from ds4proto.testing import captures_dir
from ds4proto.trace.diagnosis import diagnose
from ds4proto.trace.redact import REDACTED

OPEN = captures_dir() / "ds4t/v10_decode8.pcap"
OTHER = captures_dir() / "ds4d/a_s2_decode_f32.pcap"


def comment_of(path: Path) -> str:
    with CaptureReader(path) as reader:
        for _ in reader:
            pass
        return reader.info.comment


@pytest.fixture
def hidden(tmp_path: Path) -> Path:
    made = tmp_path / "hidden.pcapng"
    assert run(["trace", "redact", str(OPEN), "-o", str(made)]) == 0
    return made


@pytest.mark.parametrize("place", [0, 1])
def test_a_merge_with_a_redacted_file_is_redacted(
    hidden: Path, place: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    files = [str(OTHER), str(OTHER)]
    files[place] = str(hidden)
    both = tmp_path / "both.pcapng"
    assert run(["trace", "merge", *files, "-o", str(both), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["redacted"] == [str(hidden)]
    assert comment_of(both) == REDACTED
    codes = {finding.code for finding in diagnose([both])}
    assert "unknown.redacted" in codes
    assert not {code for code in codes if code.startswith("numeric.")}


def test_a_merge_of_open_files_has_no_mark(tmp_path: Path) -> None:
    both = tmp_path / "both.pcapng"
    assert run(["trace", "merge", str(OPEN), str(OTHER), "-o", str(both)]) == 0
    assert comment_of(both) == ""


def test_a_cut_of_a_merge_keeps_the_mark(hidden: Path, tmp_path: Path) -> None:
    both, part = tmp_path / "both.pcapng", tmp_path / "part.pcapng"
    assert run(["trace", "merge", str(hidden), str(OTHER), "-o", str(both)]) == 0
    assert run(["trace", "cut", str(both), "-o", str(part), "--from", "0"]) == 0
    assert comment_of(part) == REDACTED


def test_a_page_of_a_redacted_run_judges_no_values(tmp_path: Path) -> None:
    page = tmp_path / "run.html"
    status = run(["view", str(OPEN), "--html", str(page), "--redact"])
    assert status == 0
    assert "The file was redacted: its token ids and values are 0" in page.read_text()
