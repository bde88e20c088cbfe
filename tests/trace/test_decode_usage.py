"""``ds4proto decode``: wrong options, absent files, conditions that nothing meets."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ds4proto.cli import run
from ds4proto.testing import captures_dir

ROOT = captures_dir()
THREE = ROOT / "ds4d" / "d_s3_forward_f16.pcap"
PAIR = ROOT / "ds4t" / "v10_everything.pcap"
Decode = Callable[..., tuple[int, str, str]]


@pytest.fixture
def decode(capfd: pytest.CaptureFixture[str]) -> Decode:
    def call(*args: Any) -> tuple[int, str, str]:
        status = run(["decode", *map(str, args)])
        out, err = capfd.readouterr()
        return status, out, err

    return call


def test_wrong_conditions_and_names_are_wrong_usage(decode: Decode) -> None:
    status, out, err = decode(THREE, "--where", "ds4d.wrok.flags")
    assert (status, out) == (2, "")
    assert "column 1" in err
    assert "ds4d.work.flags" in err
    status, _, err = decode(THREE, "--fields", "type,tiem")
    assert status == 2
    assert "time" in err
    status, _, err = decode(THREE, "--dialect", "klingon")
    assert status == 2
    assert "upstream" in err


def test_an_empty_condition_or_list_of_columns_is_wrong_usage(decode: Decode) -> None:
    # what a shell makes of an unset variable must not mean "everything"
    status, out, err = decode(THREE, "--where", "")
    assert (status, out) == (2, "")
    assert "expected a condition" in err
    status, out, err = decode(THREE, "--fields", "")
    assert (status, out) == (2, "")
    assert "a name is missing" in err
    status, _, err = decode(THREE, "--fields", "zzzz")
    assert status == 2
    assert "names look like" in err


def test_a_condition_that_no_row_meets_is_told(decode: Decode) -> None:
    status, _, err = decode(THREE, "--where", 'type == "WROK"')
    assert status == 0
    assert "none of 38 rows meets" in err
    assert "rows meets" not in decode(THREE, "--where", 'type in ("WORK",)')[2]


def test_a_dialect_of_another_protocol_leaves_the_connection_alone(
    decode: Decode,
) -> None:
    assert decode(THREE, "--dialect", "v9w")[:2] == decode(THREE)[:2]
    assert decode(PAIR, "--dialect", "bf16")[:2] == decode(PAIR)[:2]


def test_an_absent_file_is_told_before_anything_is_written(
    decode: Decode, tmp_path: Path
) -> None:
    for args in ([THREE, tmp_path / "gone"], [THREE, "--roce", tmp_path / "gone"]):
        status, out, err = decode(*args)
        assert (status, out) == (2, "")
        assert err == f"ds4proto: {tmp_path / 'gone'}: No such file or directory\n"


def test_a_folder_that_takes_no_file_is_told_by_the_name_asked_for(
    decode: Decode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_options: Any) -> Any:
        raise PermissionError(13, "Permission denied", "/a/temporary/name")

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    status, out, err = decode(THREE, "-o", tmp_path / "rows.txt")
    assert (status, out) == (2, "")
    assert f"ds4proto: {tmp_path / 'rows.txt'}: Permission denied" in err


def test_what_is_no_capture_of_queue_pairs_is_named(
    decode: Decode, tmp_path: Path
) -> None:
    text = tmp_path / "text"
    text.write_text("hello, this is no capture file at all")
    status, _, err = decode(THREE, "--roce", text)
    assert status == 2
    assert f"{text}: not a capture file" in err


def test_nothing_decodable_is_status_2(decode: Decode, tmp_path: Path) -> None:
    empty = tmp_path / "empty.pcap"
    empty.write_bytes(THREE.read_bytes()[:24])
    assert decode(empty)[0] == 2
    odd = tmp_path / "odd.pcap"
    odd.write_bytes(b"no capture at all, just text that goes on for a while")
    status, _, err = decode(odd)
    assert status == 2
    assert "not a capture file" in err
    assert decode(tmp_path / "absent.pcap")[0] == 2
