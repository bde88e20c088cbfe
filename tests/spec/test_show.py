"""``ds4proto spec show`` in a terminal: names whole, lines no longer than it is."""

import io
import json

import pytest
from click.testing import CliRunner
from rich.console import Console

from ds4proto import clauses, rule_vectors
from ds4proto.cli import _spec_tables as tables
from ds4proto.cli import spec
from ds4proto.emit.tables import layout_table
from ds4proto.errors import WrongUsage
from ds4proto.schema import frames


def shown(width: int, markdown: str) -> str:
    out = io.StringIO()
    tables.print_layout(Console(file=out, width=width, highlight=False), markdown)
    return out.getvalue()


@pytest.mark.parametrize("width", [60, 80, 100])
def test_no_name_is_broken(width: int) -> None:
    for dialect in ("upstream", "v14"):
        for frame in frames(dialect=dialect):
            markdown = layout_table(frame.body, dialect)
            text = shown(width, markdown)
            for line in markdown.splitlines()[2:]:
                name = line[2:-2].split(" | ")[3].replace("`", "").strip()
                missing = set(name.split()) - set(text.split())
                assert not missing, frame.full_name


def test_a_table_that_folds_its_names_would_be_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tables, "ROOMY", 0)
    monkeypatch.setattr(tables, "_LONG", frozenset({"meaning", "values", "field"}))
    with pytest.raises(AssertionError):
        test_no_name_is_broken(60)


@pytest.mark.parametrize("width", [80, 40])
def test_the_lines_of_a_clause_are_indented(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False)
    monkeypatch.setattr(spec, "stdout", lambda: console)
    spec._show_clause("DS4D-WORK-07", as_json=False)
    first, *rest = out.getvalue().splitlines()
    assert first.startswith("DS4D-WORK-07")
    assert all(line.startswith("  ") and len(line) <= width for line in rest)
    words = " ".join(line.strip() for line in rest)
    assert clauses.get("DS4D-WORK-07").text in words


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(spec.cmd, list(words), standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return int(result.return_value), result.output


def test_vectors_are_listed_and_given() -> None:
    code, listed = run("vectors", "--json")
    found = {entry["name"]: entry["rows"] for entry in json.loads(listed)}
    assert code == 0
    assert found["sizes"] == len(rule_vectors.load("sizes").rows)
    _, text = run("vectors", "sizes")
    assert json.loads(text)["rows"][0]["name"] == "DeepSeek V4 Flash"
    assert all(name in run("vectors")[1] for name in found)
    with pytest.raises(WrongUsage, match=r"no vectors 'none'; known: .*sizes"):
        run("vectors", "none")


def test_the_difference_of_two_dialects_is_one_document() -> None:
    code, text = run("diff", "v9w", "v14", "--json")
    found = json.loads(text)
    assert code == 0
    assert [entry["name"] for entry in found["dialects"]] == ["v9w", "v14"]
    sizes = {"frame": "DS4T.HELLO",
             "difference": "fixed part of 72 bytes in v9w, 88 in v14"}  # fmt: skip
    assert sizes in found["differences"]
    _, shown_ = run("diff", "v9w", "v14")
    plain = shown_.replace("`", "").replace("\\|", "|")
    assert all(row["difference"] in plain for row in found["differences"])
    assert json.loads(run("diff", "upstream", "v14", "--json")[1])["share_frames"] is (
        False
    )
    with pytest.raises(WrongUsage, match="v14"):
        run("diff", "v9w", "none", "--json")
