"""``ds4proto codec``: what it prints and how it exits."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import click
import numpy as np
import pytest

from ds4proto import cli
from ds4proto.cli.codec import cmd
from ds4proto.codec import definition, kernels, names
from ds4proto.codec.verify import Verdict, exit_code


class Result(NamedTuple):
    exit_code: int
    output: str
    errors: str


Run = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run ``ds4proto codec`` with arguments, through the program's own door."""

    def run_codec(*args: str) -> Result:
        status = cli.run(["codec", *args])
        out, err = capsys.readouterr()
        assert "internal error" not in err
        return Result(status, out, err)

    return run_codec


def test_command_object(run: Run) -> None:
    assert isinstance(cmd, click.Command)
    assert cmd.name == "codec"
    assert "verify" in run("--help").output


def test_list(run: Run) -> None:
    assert all(name in run("list").output for name in names())
    rows = json.loads(run("list", "--json").output)["codecs"]
    assert [row["name"] for row in rows] == list(names())


def test_describe(run: Run) -> None:
    result = run("describe", "e4m3", "--profile", "gcc-fast", "--json")
    facts = json.loads(result.output)
    assert facts["ties"] == "away from zero"
    assert facts["profile"].startswith("gcc-fast")
    assert "away from zero" in run("describe", "e4m3").output
    result = run("describe", "fp7")
    assert result.exit_code == 2
    assert "one of f32, f16" in result.errors
    assert run("describe", "e4m3", "--profile", "msvc").exit_code == 2


def test_verify_runs_every_vector(run: Run) -> None:
    result = run("verify", "--path", "numpy", "--json")
    report = json.loads(result.output)
    assert (result.exit_code, report["exit"], report["failed"]) == (0, 0, 0)
    subjects = {row["subject"] for row in report["verdicts"]}
    assert {"e4m3 Encode", "e4m3 Decode", "f16 Encode", "f32 WireSize"} <= subjects
    assert "token_hash TokenHash" in subjects
    assert report["ran"] == sum(row["ran"] for row in report["verdicts"]) > 20_000
    profiles = {r["profile"] for r in report["verdicts"] if r["subject"][:4] == "e4m3"}
    assert profiles == {"strict", "gcc-linux", "clang-fast", "gcc-fast"}


def test_verify_table(run: Run) -> None:
    result = run("verify", "e4m3", "--path", "numpy")
    assert result.exit_code == 0
    assert "checks, 0 failed" in result.output


def test_verify_sample(run: Run) -> None:
    if not kernels.available("e4m3"):
        pytest.skip(kernels.reason("e4m3"))
    result = run("verify", "--sample", "200000", "--seed", "11", "--json")
    report = json.loads(result.output)
    assert result.exit_code == 0
    assert report["ran"] == 6 * 200_000 + 2 * 65_536 + 4 * 256


def test_a_wrong_definition_fails(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    true_decode = definition.e4m3_decode

    def wrong_decode(codes: Any) -> Any:
        bits = true_decode(codes)
        bits[codes == 0x38] += np.uint32(1)
        return bits

    monkeypatch.setattr(definition, "e4m3_decode", wrong_decode)
    result = run("verify", "e4m3", "--path", "numpy", "--json")
    report = json.loads(result.output)
    assert (result.exit_code, report["failed"]) == (1, 4)
    failures = [row["first"] for row in report["verdicts"] if row["failed"]]
    assert "38 gave 3f800001, not 3f800000" in failures[0]
    assert "FAIL" in run("verify", "e4m3", "--path", "numpy").output
    if kernels.available("e4m3"):
        result = run("verify", "e4m3", "--sample", "1", "--json")
        assert result.exit_code == 1
        assert "code 0x38 gave 0x3f800000, not 0x3f800001" in result.output


def test_a_wrong_hash_fails(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["ds4proto.codec.token_hash"], "TOKEN_HASH_PRIME", 3)
    assert run("verify", "token_hash").exit_code == 1


@pytest.mark.parametrize(
    "args",
    [
        ("verify", "fp7"),
        ("verify", "--exhaustive", "--sample", "1"),
        ("verify", "--sample", "0"),
        ("verify", "--sample", "1", "--seed", "-1"),
        ("verify", "--sample", "1", "f32"),
        ("verify", "--path", "numba", "f32"),
        ("verify", "--path", "gpu"),
    ],
)
def test_nothing_to_run_is_no_success(run: Run, args: tuple[str, ...]) -> None:
    result = run(*args)
    assert result.exit_code == 2
    assert result.output or result.errors


def test_without_numba(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        return "numba is not installed"

    monkeypatch.setattr(kernels, "reason", absent)
    result = run("verify", "e4m3", "--exhaustive", "--json")
    assert result.exit_code == 2
    rows = json.loads(result.output)["verdicts"]
    assert [(row["verdict"], row["first"]) for row in rows] == [
        ("not run", "numba is not installed")
    ]
    assert run("verify", "e4m3", "--path", "numba").exit_code == 2
    assert run("verify", "e4m3").exit_code == 0


def test_exit_codes() -> None:
    good = Verdict("a", "numpy", "strict", 5, 0)
    bad = Verdict("b", "numpy", "strict", 5, 1, "x")
    none = Verdict("c", "numba", "-", 0, 0, "missing")
    assert exit_code([]) == exit_code([none]) == 2
    assert exit_code([good]) == exit_code([good, none]) == 0
    assert exit_code([good, bad]) == 1
    assert (good.passed, bad.passed, none.passed) == (True, False, False)
