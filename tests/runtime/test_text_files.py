"""Texts that a user names are read up to a bound."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds4proto_runtime import text_files
from ds4proto_runtime.tp import cli
from ds4proto_runtime.tp.options import parse_options

from ds4proto.errors import WrongUsage


def test_a_text_is_read_whole_up_to_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_files, "MOST", 6)
    path = tmp_path / "t"
    path.write_bytes("zwölf!".encode())
    assert text_files.bounded_text(path) == "zwölf!"
    path.write_bytes(b"seven..")
    with pytest.raises(WrongUsage, match=r"found more\. Next: "):
        text_files.bounded_text(path)


def test_bytes_that_are_no_text_are_kept_where_asked(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(b"a\xff")
    assert text_files.bounded_text(path, "surrogateescape") == "a\udcff"
    with pytest.raises(UnicodeDecodeError):
        text_files.bounded_text(path)


def test_a_device_without_end_is_refused() -> None:
    with pytest.raises(WrongUsage, match="at most 64 MiB"):
        text_files.bounded_text("/dev/zero")


def test_a_pair_reads_no_prompt_file_without_end() -> None:
    options = parse_options(
        [
            "--role",
            "coordinator",
            "--listen",
            "127.0.0.1",
            "1",
            "--prompt-file",
            "/dev/zero",
        ]
    )
    with pytest.raises(WrongUsage, match="at most 64 MiB"):
        cli._prompts(options, None)
