"""``ds4proto codec bytes``, and scaled formats in the other commands."""

from __future__ import annotations

import json

import pytest

from ds4proto import cli

TABLE = {"bf16": 8192, "int8": 4104, "fp8": 4104, "int4": 2056, "mxfp8": 4224,
         "mxfp4": 2176, "nvfp4": 2312}  # fmt: skip


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    status = cli.run(["codec", *args])
    out, err = capsys.readouterr()
    assert "internal error" not in err
    return status, out, err


def test_the_published_table(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "bytes", "--width", "2048", "--tensors", "2", "--json")
    assert (status, json.loads(out)) == (0, TABLE)
    status, out, _ = run(capsys, "bytes", "--width", "2048", "--tensors", "2")
    assert "compression (bf16 = 1)" in out
    assert status == 0
    for name, size in TABLE.items():
        line = next(line for line in out.splitlines() if f" {name} " in line)
        assert str(size) in line
    ratios = {"1.00", "2.00", "3.98", "1.94", "3.76", "3.54"}
    assert all(ratio in out for ratio in ratios)


def test_tokens_and_all_codecs(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "bytes", "--width", "33", "--tokens", "3", "--json")
    assert json.loads(out)["mxfp4"] == 3 * 19
    _, out, _ = run(capsys, "bytes", "--width", "64", "--all", "--json")
    found = json.loads(out)
    assert found["f32"] == 256
    assert found["e2m1-e8m0-16"] == 36
    assert found["e2m1-e4m3-32"] == 38
    status, out, _ = run(capsys, "bytes", "--width", "0")
    assert status == 0
    assert "-" in out


@pytest.mark.parametrize(
    "args",
    [
        ("bytes",),
        ("bytes", "--width", "-1"),
        ("bytes", "--width", "8", "--tensors", "0"),
        ("bytes", "--width", str(1 << 33)),
        ("describe", "mxfp4", "--variant", "scale=best"),
        ("describe", "mxfp4", "--variant", "path=numba"),
        ("describe", "mxfp4", "--variant", "scale"),
    ],
)
def test_wrong_usage(capsys: pytest.CaptureFixture[str], args: tuple[str, ...]) -> None:
    status, out, err = run(capsys, *args)
    assert (status, out) == (2, "")
    assert "Error" in err


def test_describe_a_variant(capsys: pytest.CaptureFixture[str]) -> None:
    args = ("describe", "nvfp4", "--variant", "order=divide",
            "--variant", "global_scale=encode", "--json")  # fmt: skip
    facts = json.loads(run(capsys, *args)[1])
    assert facts["order"] == "y = x / (s * D)"
    assert facts["scale_rule"].startswith("E = 2688 / A stored")
    assert facts["variants"].count(";") == 3


def test_verify_scaled_formats(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(
        capsys, "verify", "mxfp4", "nvfp4", "--path", "numpy", "--json"
    )
    report = json.loads(out)
    assert (status, report["failed"]) == (0, 0)
    assert report["ran"] > 600
    subjects = {row["subject"] for row in report["verdicts"]}
    assert "mxfp4 BlockEncode scale=rceil" in subjects
    assert "nvfp4 BlockDecode global_scale=encode" in subjects
