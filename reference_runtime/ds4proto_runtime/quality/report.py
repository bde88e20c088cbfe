"""The report: JSON, CSV, three plots, one HTML page, and a reading in plain words."""

from __future__ import annotations

import base64
import csv
import html
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ds4proto_runtime.quality.study import Cell, Plan, table
from ds4proto_runtime.quality.tasks import ENOUGH
from ds4proto_runtime.quality.wire import LABELS, REFERENCE, format_of

HARMLESS = 0.01
"""Relative loss of likelihood below which a width is called harmless."""
VISIBLE = 0.05
ERRORS = 2.0
"""Standard errors by which right answers have to fall before the reading says so."""
NO_CONCLUSION = (
    "This is a plumbing check: no quality conclusion can be drawn from this model."
)


def words(plan: Plan, rows: Sequence[Cell], *, plumbing: bool) -> list[str]:
    """Return the reading of a table, one sentence each."""
    lines = [NO_CONCLUSION] if plumbing else []
    deepest = max(plan.counts)
    deep = [row for row in rows if row["boundaries"] == deepest]
    plain = next((row for row in deep if row["format"] == REFERENCE), None)
    for row in deep:
        if row["format"] == REFERENCE:
            continue
        label = LABELS.get(row["format"], row["format"])
        clipped = sum(place["clipped"] for place in row["at"])
        cost = (
            f"{row['relative']:+.2%} likelihood loss at {deepest} boundaries"
            f" ({row['delta_low']:+.4f} to {row['delta_high']:+.4f} nats)"
        )
        if plumbing:
            verdict = "measured"
        elif row["delta"] <= 0 or row["relative"] < HARMLESS:
            verdict = "harmless here"
        elif row["relative"] < VISIBLE:
            verdict = "a visible cost; check your own task"
        else:
            verdict = "do not use"
        answers, fell = _answers(plan, row, plain)
        if fell and verdict == "harmless here":
            verdict = "the likelihood hardly moves, the answers do; check your own task"
        line = f"{label}: {cost}{answers}: {verdict}."
        if row["format"] == "e4m3" and clipped:
            line += (
                f" The unscaled byte clips {clipped} values of magnitude 240 and more."
            )
        lines.append(line)
    return lines


def _answers(plan: Plan, row: Cell, plain: Cell | None) -> tuple[str, bool]:
    """Return the right answers in words, and whether they fell beyond chance.

    Nothing where there was no task, or one that the plain wire does not answer.
    """
    before = plain["correct"] if plain is not None else None
    after = row["correct"]
    if before is None or after is None or before < ENOUGH:
        return "", False
    # the error of a difference of two shares, as if the questions were not the same
    spread = (before * (1 - before) + after * (1 - after)) / plan.questions
    fell = before - after > ERRORS * spread**0.5
    return f", right answers {before:.0%} -> {after:.0%}", fell


def as_csv(rows: Sequence[Cell]) -> str:
    """Return the table as CSV; lists stay in the JSON."""
    plain = [
        {k: v for k, v in row.items() if not isinstance(v, list | dict)} for row in rows
    ]
    out = io.StringIO()
    if plain:
        writer = csv.DictWriter(out, list(plain[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(plain)
    return out.getvalue()


def _figure() -> Any:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def plots(
    plan: Plan, rows: Sequence[Cell], folder: Path, width: int, tensors: int = 1
) -> list[Path]:
    """Draw quality by depth, agreement by position, bytes by format; return files."""
    plt = _figure()
    made = []
    by_format: dict[str, list[Cell]] = {}
    for row in rows:
        by_format.setdefault(row["format"], []).append(row)

    figure, axes = plt.subplots(figsize=(7, 4.5))
    for name, found in by_format.items():
        if name == REFERENCE:
            continue
        ordered = sorted(found, key=lambda row: int(row["boundaries"]))
        depth = [row["boundaries"] for row in ordered]
        added = [row["delta"] for row in ordered]
        axes.plot(depth, added, "o-", label=LABELS.get(name, name))
    axes.set_yscale("symlog", linthresh=1e-3)
    axes.set_xlabel("boundaries")
    axes.set_ylabel("added NLL, nats a token")
    axes.set_xticks(list(plan.counts))
    _legend(axes)
    made.append(_saved(plt, figure, folder / "quality-by-depth.png"))

    figure, axes = plt.subplots(figsize=(7, 4.5))
    deepest = max(plan.counts)
    for name, found in by_format.items():
        deep = [row for row in found if row["boundaries"] == deepest]
        if not deep or not deep[0]["segments"]:
            continue
        row = deep[0]
        places = [plan.segment * (i + 0.5) for i in range(len(row["segments"]))]
        shares = [100 * share for share in row["segments"]]
        axes.plot(places, shares, "o-", label=LABELS.get(name, name))
    axes.set_xlabel("position in the continuation, tokens")
    axes.set_ylabel(f"top-1 agreement at {deepest} boundaries, %")
    axes.set_ylim(0, 102)
    _legend(axes)
    made.append(_saved(plt, figure, folder / "agreement-by-position.png"))

    figure, axes = plt.subplots(figsize=(7, 4.5))
    names = list(by_format)
    sizes = [tensors * format_of(name).row_bytes(width) for name in names]
    axes.barh([LABELS.get(name, name) for name in names], sizes)
    axes.invert_yaxis()
    axes.set_xlabel(f"bytes a token and boundary, {tensors} x {width} values")
    made.append(_saved(plt, figure, folder / "bytes-by-format.png"))
    return made


def _legend(axes: Any) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)


def _saved(plt: Any, figure: Any, path: Path) -> Path:
    figure.tight_layout()
    # no date and no version in the file: the same numbers give the same picture
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)
    return path


def as_html(
    plan: Plan, rows: Sequence[Cell], lines: Sequence[str], pictures: Sequence[Path]
) -> str:
    """Return one self-contained page."""
    head = [
        *("boundaries", "format", "NLL", "added", "95 %", "top-1", "agreement"),
        *("correct", "same answer", "max |x|", "share >= 240", "SQNR dB"),
    ]
    body = "".join(_row(row) for row in rows)
    images = "".join(
        f'<img alt="{path.stem}" src="data:image/png;base64,'
        f'{base64.b64encode(path.read_bytes()).decode()}">'
        for path in pictures
    )
    said = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    facts = "".join(
        f"<dt>{html.escape(key)}</dt><dd>{html.escape(str(value))}</dd>"
        for key, value in asdict(plan).items()
    )
    cells = "".join(f"<th>{name}</th>" for name in head)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        "<title>What the wire costs</title><style>"
        "body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;"
        "padding:0 1rem;color-scheme:light dark}"
        "table{border-collapse:collapse;display:block;overflow-x:auto}"
        "td,th{padding:.2rem .6rem;text-align:right;border-bottom:1px solid #8884}"
        "td:nth-child(2){text-align:left}img{max-width:100%;background:#fff}"
        "dl{display:grid;grid-template-columns:max-content 1fr;gap:0 1rem}"
        f"</style><h1>What the wire costs: {html.escape(plan.model)}</h1>"
        f"<ul>{said}</ul><table><thead><tr>{cells}</tr></thead>"
        f"<tbody>{body}</tbody></table>{images}<h2>Choices</h2><dl>{facts}</dl></html>"
    )


def _row(row: Cell) -> str:
    places = row["at"]
    largest = max((place["max"] for place in places), default=0.0)
    share = max((place["share_ge_240"] for place in places), default=0.0)
    ratios = [p["sqnr_db"] for p in places if p["sqnr_db"] is not None]
    cells = (
        str(row["boundaries"]),
        html.escape(str(LABELS.get(row["format"], row["format"]))),
        f"{row['nll']:.5f}",
        f"{row['delta']:+.5f}",
        f"{row['delta_low']:+.4f} .. {row['delta_high']:+.4f}",
        _percent(row["top1"]),
        _percent(row["agreement"]),
        _percent(row["correct"]),
        _percent(row["same_answer"]),
        f"{largest:.1f}",
        f"{share:.2e}",
        f"{min(ratios):.1f}" if ratios else "exact",
    )
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f} %"


def write(
    plan: Plan,
    cells: Mapping[tuple[str, int, str], Cell],
    folder: Path,
    width: int,
    *,
    plumbing: bool,
    draw: bool = True,
) -> list[str]:
    """Write every form of the report; return the reading in plain words.

    Files appear whole: each is written beside its name and then renamed.
    """
    rows = table(plan, cells)
    lines = words(plan, rows, plumbing=plumbing)
    facts = {"plan": asdict(plan), "reading": lines, "rows": rows}
    folder.mkdir(parents=True, exist_ok=True)
    _whole(folder / "quality.json", json.dumps(facts, indent=1) + "\n")
    _whole(folder / "quality.csv", as_csv(rows))
    pictures = plots(plan, rows, folder, width) if draw and rows else []
    _whole(folder / "quality.html", as_html(plan, rows, lines, pictures))
    return lines


def _whole(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
