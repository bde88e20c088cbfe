"""``ds4proto snapshot``: what it shows, finds and compares."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ds4proto.cli import run as main
from ds4proto.testing import capture_path

RECORDED = capture_path("toy/pipeline_f32/session.dsv4")
LOGITS = 13 * 4 + 62 * 4
TENSORS = LOGITS + 256 * 4 + 2 * 8 * 4


def damaged(folder: Path, at: int, value: int = 0x5A) -> str:
    data = bytearray(RECORDED.read_bytes())
    data[at] ^= value
    path = folder / "other.dsv4"
    path.write_bytes(data)
    return str(path)


def test_inspect(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["snapshot", "inspect", str(RECORDED), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["token_count"], found["vocab"]) == ("DSV4", 62, 256)
    assert found["n_comp"] == [0, 0, 15, 0, 15, 0, 15, 0]
    assert found["token_hash"] == "0x4167f3758ddf45ef"
    assert (found["bytes"], found["model"]) == (68172, "the toy model")


def test_verify(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["snapshot", "verify", str(RECORDED)]) == 0
    assert "sound" in capsys.readouterr().out
    short = tmp_path / "short.dsv4"
    short.write_bytes(RECORDED.read_bytes()[:-1])
    assert main(["snapshot", "verify", str(short)]) == 1
    assert "FILE-DSV4-11" in capsys.readouterr().out
    long = tmp_path / "long.dsv4"
    long.write_bytes(RECORDED.read_bytes() + b"\0")
    assert main(["snapshot", "verify", str(long)]) == 1
    assert "FILE-DSV4-12" in capsys.readouterr().out
    assert main(["snapshot", "verify", str(RECORDED), "--ratios", "0,0,4,4"]) == 1
    assert main(["snapshot", "verify", str(RECORDED), "--ratios", "0,0,4,128"]) == 0


def test_inspect_says_that_a_file_is_cut(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    short = tmp_path / "short.dsv4"
    short.write_bytes(RECORDED.read_bytes()[:-1])
    assert main(["snapshot", "inspect", str(short), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["bytes"] == 68171
    assert "FILE-DSV4-11 DSV4.tensors at byte 68171: expected" in err
    assert main(["snapshot", "inspect", str(RECORDED)]) == 0
    assert capsys.readouterr().err == ""


def test_verify_without_a_model_gives_no_verdict(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    data = bytearray(RECORDED.read_bytes())
    data[9 * 4] = 17  # head_dim, of no known model
    path = tmp_path / "unknown.dsv4"
    path.write_bytes(data)
    assert main(["snapshot", "verify", str(path)]) == 2
    assert "--ratios" in capsys.readouterr().err


def test_other_files_are_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"GGUF....")
    assert main(["snapshot", "inspect", str(path)]) == 2
    assert "expected DSV4 or DSVL at byte 0, found 47 47 55 46" in (
        capsys.readouterr().err
    )
    assert main(["snapshot", "verify", str(RECORDED), "--model", "none"]) == 2
    assert "known: toy, 'DeepSeek V4 Flash'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("at", "wanted"),
    [
        (13 * 4 + 5 * 4, "first differing token 5: 15 and 79"),
        (LOGITS + 7 * 4 + 1, "first differing logit 7"),
        # layers 0 and 1 hold 8 rows of 16 floats each; layer 2 begins behind them
        (TENSORS + 2 * 512 + 3 * 64 + 4 * 4, "layer 2 raw [3, 4]"),
        (TENSORS + 2 * 512 + 512 + 64, "layer 2 compressed [1, 0]"),
        (3 * 4, "prefill_cap: 16 and 74"),
    ],
)
def test_diff_names_the_first_difference(
    at: int, wanted: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    other = damaged(tmp_path, at, 0x40 if "token" in wanted else 0x5A)
    assert main(["snapshot", "diff", str(RECORDED), other]) == 1
    assert wanted in capsys.readouterr().out
    assert main(["snapshot", "diff", str(RECORDED), str(RECORDED)]) == 0
