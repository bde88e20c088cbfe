"""Every figure in the tables of docs/quality.md is one of the files beside it."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from ds4proto_runtime.quality.report import as_csv, words
from ds4proto_runtime.quality.study import Plan
from ds4proto_runtime.quality.wire import LABELS, boundaries, format_of

DOCS = Path(__file__).parents[3] / "docs"
FACTS: dict[str, Any] = json.loads((DOCS / "quality" / "smollm2.json").read_text())
ROWS = {(row["boundaries"], row["format"]): row for row in FACTS["rows"]}
NAMES = {label: name for name, label in LABELS.items()}
NAMES["ds4 8 bit, unscaled"] = NAMES["ds4 8 bit"] = "e4m3"
NAMES |= {"INT8": "int8", "FP8": "fp8", "NVFP4": "nvfp4", "INT4": "int4"}
SMOLLM2_LAYERS, SMOLLM2_WIDTH = 30, 576


def tables() -> list[list[list[str]]]:
    """Return the tables of the page, cells without markup."""
    found: list[list[list[str]]] = [[]]
    for line in (DOCS / "quality.md").read_text().splitlines():
        if not line.startswith("|"):
            found.append([])
        elif not line.startswith("|---"):
            cells = line.replace("*", "").strip("|").split("|")
            found[-1].append([cell.strip() for cell in cells])
    return [table for table in found if table]


def percent(text: str) -> tuple[float, int]:
    """Return a share and the digits behind its point."""
    number = text.removesuffix("%").strip()
    return float(number) / 100, len(number.partition(".")[2])


def same_share(text: str, value: float) -> bool:
    told, digits = percent(text)
    return abs(told - value) <= 0.5000001 * 10.0 ** -(digits + 2)


def test_cost_by_depth() -> None:
    head, *rows = tables()[0]
    depths = [int(re.findall(r"\d+", title)[0]) for title in head[2:]]
    assert depths == [1, 3, 7]
    assert {NAMES[row[0]] for row in rows} == set(LABELS)
    for label, size, *cells in rows:
        name = NAMES[label]
        assert int(size) == format_of(name).row_bytes(SMOLLM2_WIDTH)
        for depth, cell in zip(depths, cells, strict=True):
            added, _, share = cell.partition(" / ")
            row = ROWS[depth, name]
            told = f"{row['delta']:+.4f}" if name != "f32" else "0"
            assert (added, same_share(share, row["top1"])) == (told, True), cell


def test_agreement_by_position_and_answers() -> None:
    _, *rows = tables()[1]
    assert {NAMES[row[0]] for row in rows} == set(LABELS)
    for label, *cells in rows:
        row = ROWS[7, NAMES[label]]
        for cell, share in zip(cells[:4], row["segments"], strict=True):
            assert same_share(cell, share), (label, cell)
        right, _, equal = cells[4].partition(" / ")
        assert same_share(right, row["correct"]), label
        assert same_share(equal, row["same_answer"]), label


def test_activations_by_boundary() -> None:
    head, *rows = tables()[2]
    cuts = boundaries(SMOLLM2_LAYERS, 7)
    assert [int(row[0]) for row in rows] == list(cuts)
    for index, cells in enumerate(rows):
        plain = ROWS[7, "f32"]["at"][index]
        told = (plain["max"], plain["kurtosis"], plain["share_ge_240"])
        assert cells[1:4] == [f"{told[0]:.0f}", f"{told[1]:.0f}", f"{told[2]:.1e}"]
        for title, cell in zip(head[4:], cells[4:], strict=True):
            place = ROWS[7, NAMES[title]]["at"][index]
            assert cell == f"{place['sqnr_db']:.1f}", (title, cells[0])


def test_both_files_and_the_reading_are_of_one_study() -> None:
    text = (DOCS / "quality" / "smollm2.csv").read_text()
    assert text == as_csv(FACTS["rows"])
    assert len(list(csv.DictReader(text.splitlines()))) == 3 * len(LABELS)
    choices = dict(FACTS["plan"])
    for key in ("counts", "formats"):
        choices[key] = tuple(choices[key])
    plan = Plan(**choices)
    assert words(plan, FACTS["rows"], plumbing=False) == FACTS["reading"]
    assert (plan.windows, plan.window) == (24, 1024)


@pytest.mark.parametrize(
    "name", ["quality-by-depth", "agreement-by-position", "bytes-by-format"]
)
def test_pictures_are_shown(name: str) -> None:
    assert f"quality/{name}.png" in (DOCS / "quality.md").read_text()
    assert (DOCS / "quality" / f"{name}.png").stat().st_size > 10_000
