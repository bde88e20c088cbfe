"""The packaged vectors are well formed, up to date, and say what was measured."""

from __future__ import annotations

import copy
import json
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ds4proto.codec import CodecError, vectors
from ds4proto.codec.registry import SCALED
from ds4proto.codec.vectors.__main__ import main
from ds4proto.codec.vectors.generate import generate, render
from ds4proto.codec.vectors.lint import lint

# It has no type hints, and the stubs are no dependency worth having.
jsonschema: Any = import_module("jsonschema")

DATA = Path(__file__).parent / "data"
FLAGS = {
    "f32": {"Zero", "NegativeZero", "NaN", "Infinity", "WrongSize"},
    "f16": {"Tie", "NearTie", "NaN", "Overflow", "Measured", "WrongSize"},
    "bf16": {"Tie", "NearTie", "NaN", "Random", "WrongSize"},
    "e4m3": {"Tie", "SubnormalClamp", "DoubleRounding", "Clip", "NaN", "NeverEncoded",
             "NegativeZero", "Denormal", "Measured", "ForeignScale"},
    "token_hash": {"Prefix", "Measured", "BadToken"},
    **dict.fromkeys(SCALED, frozenset({"ZeroBlock", "TinyBlock", "NaNBlock", "InfBlock",
                             "ShortBlock", "OddScale", "WrongSize"})),
}  # fmt: skip


def entries(name: str, kind: str) -> list[dict[str, Any]]:
    groups = vectors.load(name)["testGroups"]
    return [test for g in groups if g["type"] == kind for test in g["tests"]]


@pytest.mark.parametrize("name", vectors.names())
def test_schema_and_lint(name: str) -> None:
    content = vectors.load(name)
    jsonschema.Draft202012Validator.check_schema(vectors.schema())
    jsonschema.Draft202012Validator(vectors.schema()).validate(content)
    assert lint(name, content) == []
    assert set(content["notes"]) >= FLAGS[name]


def test_every_file_is_named_and_the_whole_is_small() -> None:
    folder = files("ds4proto.codec.vectors")
    found = {f.name: len(f.read_bytes()) for f in folder.iterdir()
             if f.name.endswith(".json")}  # fmt: skip
    assert set(found) == {f"{n}.json" for n in vectors.names()} | {vectors.SCHEMA_FILE}
    assert sum(found.values()) < 2_000_000
    with pytest.raises(CodecError, match="no vectors"):
        vectors.load("f8")


def test_files_are_what_the_tool_writes() -> None:
    for name, content in generate(DATA).items():
        text = files("ds4proto.codec.vectors").joinpath(f"{name}.json").read_text()
        assert render(content) == text, f"{name}.json is stale"
        assert json.loads(text) == content


def test_all_measured_boundary_rows_are_inside() -> None:
    rows = json.loads((DATA / "e4m3_encode_boundary.json").read_text())["rows"]
    tests = {test["input"]: test for test in entries("e4m3", "Encode")}
    for note, bits, byte in rows:
        test = tests[bits[2:]]
        assert test["expected"] == byte[2:], (note, bits)
        assert "Measured" in test["flags"]


def test_rules_alone_reach_every_measured_boundary() -> None:
    """Inputs that only the measurement knows would be a gap in the rules."""
    gaps = [
        test["input"]
        for test in entries("e4m3", "Encode")
        if test["flags"] == ["Measured"] and test["comment"]
    ]
    # Twelve values far above the clip, where nothing changes any more.
    assert all(int(bits, 16) & 0x7FFFFFFF > 0x4377FF00 for bits in gaps), gaps


def test_acceptable_rows_are_the_build_dependent_ones() -> None:
    tests = entries("e4m3", "Encode")
    acceptable = [test for test in tests if test["result"] == "acceptable"]
    assert len(acceptable) >= 15
    for test in tests:
        bits = int(test["input"], 16)
        magnitude = bits & 0x7FFFFFFF
        nan = magnitude > 0x7F800000
        tiny = bits >> 31 == 1 and magnitude < 0x00800000
        assert (test["result"] == "acceptable") == (nan or tiny), test
        if tiny:
            assert list(test["acceptable"].values()) == ["80", "00", "80", "00"]
        elif nan and bits >> 31:
            assert list(test["acceptable"].values()) == ["f7", "77", "80", "00"]
        elif nan:
            assert list(test["acceptable"].values()) == ["77", "77", "00", "00"]


@pytest.mark.parametrize("name", [n for n in vectors.names() if n != "token_hash"])
def test_wrong_sizes_are_invalid(name: str) -> None:
    for test in entries(name, "WireSize"):
        width = next(g["width"] for g in vectors.load(name)["testGroups"])
        fits = len(test["wire"]) // 2 * 8 == test["values"] * width
        assert (test["result"] == "valid") == fits


def broken(change: str) -> dict[str, Any]:
    content = copy.deepcopy(vectors.load("e4m3"))
    tests = content["testGroups"][0]["tests"]
    if change == "count":
        content["numberOfTests"] += 1
    elif change == "number":
        tests[3]["tcId"] = 3
    elif change == "flag":
        tests[3]["flags"] = ["Unheard"]
    elif change == "note":
        content["notes"]["Unused"] = {"bugType": "BASIC", "description": "not used"}
    elif change == "digits":
        tests[3]["expected"] = "0"
    elif change == "twice":
        tests[3]["input"] = tests[4]["input"]
    elif change == "strict":
        next(t for t in tests if "acceptable" in t)["expected"] = "12"
    else:
        content["algorithm"] = "f16"
    return content


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("count", "numberOfTests is"),
        ("number", "tcId 3 at position 4"),
        ("flag", "flag Unheard"),
        ("note", "flag Unused"),
        ("digits", "wrong number of hex digits"),
        ("twice", "is asked twice"),
        ("strict", "expected is not strict's code"),
        ("name", "algorithm 'f16' in file e4m3.json"),
    ],
)
def test_lint_finds(change: str, message: str) -> None:
    problems = lint("e4m3", broken(change))
    assert any(message in problem for problem in problems), problems


def test_generator_refuses_a_measured_code_that_differs(tmp_path: Path) -> None:
    for source in DATA.iterdir():
        (tmp_path / source.name).write_bytes(source.read_bytes())
    text = (tmp_path / "token_hash.json").read_text()
    changed = text.replace("0x315446a086a23133", "0x315446a086a23134")
    assert changed != text
    (tmp_path / "token_hash.json").write_text(changed)
    result = CliRunner().invoke(main, ["--measured", str(tmp_path), "--check"])
    assert result.exit_code == 1
    assert "315446a086a23134" in result.output
    assert "Traceback" not in result.output


def test_tool_writes_and_checks(tmp_path: Path) -> None:
    runner = CliRunner()
    assert runner.invoke(main, ["--check", "--output", str(tmp_path)]).exit_code == 1
    assert runner.invoke(main, ["--output", str(tmp_path)]).exit_code == 0
    assert runner.invoke(main, ["--check", "--output", str(tmp_path)]).exit_code == 0
    (tmp_path / "f16.json").write_text("{}")
    result = runner.invoke(main, ["--check", "--output", str(tmp_path)])
    assert result.exit_code == 1
    assert "f16" in result.output
