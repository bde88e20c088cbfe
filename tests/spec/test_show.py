"""``ds4proto spec show`` in a terminal: names whole, lines no longer than it is."""

import io

import pytest
from rich.console import Console

from ds4proto import clauses
from ds4proto.cli import _spec_tables as tables
from ds4proto.cli import spec
from ds4proto.emit.tables import layout_table
from ds4proto.schema import all_dialects, frames


def shown(width: int, markdown: str) -> str:
    out = io.StringIO()
    tables.print_layout(Console(file=out, width=width, highlight=False), markdown)
    return out.getvalue()


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_no_name_is_broken(width: int) -> None:
    for entry in all_dialects():
        for frame in frames(dialect=entry.name):
            markdown = layout_table(frame.body, entry.name)
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
