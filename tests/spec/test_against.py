"""``ds4proto spec vectors --against``: programs that refuse rightly, wrongly, never."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ds4proto import rule_vectors
from ds4proto.cli import _output, _spec_against, spec
from ds4proto.cli._spec_against import ask
from ds4proto.errors import WrongUsage

FILE = rule_vectors.load("options-ds4d")
FEW = replace(
    FILE,
    rows=tuple(
        row
        for row in FILE.rows
        if row.values.get("argv") in (["--role", "boss"], ["--layers", "5:4"])
        or "n_layers" in row.values
        or "dialect" in row.values
    ),
)


def program(folder: Path, text: str) -> str:
    path = folder / "program.py"
    path.write_text(text)
    return f"{sys.executable} -I -S {path}"


RIGHT = """
import sys
if sys.argv[1] == "--role":
    roles = "(valid roles: none, coordinator, worker)"
    sys.exit(f"ds4: invalid distributed role: boss {roles}")
sys.exit("ds4: invalid --layers 5:4: layer range end precedes start in 5:4")
"""
WRONG = "import sys\nsys.exit('usage: ds4 [options]')\n"


def outcomes(command: str, **more: Any) -> list[str]:
    return sorted(one.outcome for one in ask(FEW, command, **more))


def test_a_program_that_refuses_in_these_words_passes(tmp_path: Path) -> None:
    found = outcomes(program(tmp_path, RIGHT))
    assert found.count("pass") == 2
    assert found.count("fail") == 0
    assert found.count("not asked") > 5


def test_a_program_with_words_of_its_own_fails(tmp_path: Path) -> None:
    found = outcomes(program(tmp_path, WRONG))
    assert (found.count("pass"), found.count("fail")) == (0, 2)


def test_options_of_a_fork_are_asked_where_that_is_wanted(tmp_path: Path) -> None:
    plain = outcomes(program(tmp_path, WRONG))
    fork = outcomes(program(tmp_path, WRONG), dialect="local-decode")
    assert fork.count("fail") == plain.count("fail") + 3


def test_a_program_that_goes_on_is_ended(tmp_path: Path) -> None:
    command = program(tmp_path, "import time\ntime.sleep(3600)\n")
    few = replace(FILE, rows=FILE.rows[:1])
    (one,) = ask(few, command, seconds=0.5)
    assert (one.outcome, one.found) == ("fail", "(still running)")


@pytest.mark.parametrize("command", ["", "/no/such/program"])
def test_no_program_is_wrong_usage(command: str) -> None:
    with pytest.raises(WrongUsage, match="--against"):
        list(ask(FEW, command))


def test_a_file_without_command_lines_is_wrong_usage() -> None:
    with pytest.raises(WrongUsage, match="no command lines"):
        list(ask(rule_vectors.load("sizes"), "true"))


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(spec.cmd, list(words), standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return int(result.return_value), result.output


def test_the_command_counts_and_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rule_vectors, "load", lambda _name: FEW)
    right, wrong = program(tmp_path, RIGHT), tmp_path / "wrong"
    wrong.mkdir()
    code, text = run("vectors", "options-ds4d", "--against", right)
    assert (code, text.splitlines()[-1][-6:]) == (0, "2 pass")
    bad = ("vectors", "options-ds4d", "--against", program(wrong, WRONG))
    code, text = run(*bad, "--json")
    found = json.loads(text)
    assert (code, found["counts"]["fail"]) == (1, 2)
    assert found["failed"][0]["found"] == "usage: ds4 [options]"
    assert "expected: invalid distributed role: boss" in run(*bad)[1]
    monkeypatch.setattr(rule_vectors, "load", lambda _name: replace(FEW, rows=()))
    assert run(*bad)[0] == 2
    assert _spec_against.SECONDS > 1


def test_each_row_moves_the_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[float | None] = []

    @contextmanager
    def bar(_title: str, total: float | None) -> Iterator[Callable[[float], None]]:
        told.append(total)
        yield told.append

    monkeypatch.setattr(rule_vectors, "load", lambda _name: FEW)
    monkeypatch.setattr(_output, "progress", bar)
    command = program(tmp_path, RIGHT)
    assert run("vectors", "options-ds4d", "--against", command)[0] == 0
    assert told == [len(FEW.rows)] + [1] * len(FEW.rows)
