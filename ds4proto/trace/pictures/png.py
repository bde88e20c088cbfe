"""The main pictures as PNG files; needs matplotlib (the extra ``plot``)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from ds4proto.errors import WrongUsage
from ds4proto.trace.output import output_file
from ds4proto.trace.pictures.model import Picture

__all__ = ["png_folder", "write_png"]

_SHOWN: Final = 20_000
_LONGEST: Final = 40


def write_png(folder: str, picture: Picture) -> list[Path]:
    """Write the pictures of a capture to a folder; each appears whole or not at all.

    ``timeline.png``, ``throughput.png``, and ``heat-N-NAME.png`` for each heat map.

    Parameters
    ----------
    folder : str
        Made where it is not there.
    picture : Picture

    Raises
    ------
    ModuleNotFoundError
        Without matplotlib.
    WrongUsage
        Where the folder is a file.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    target = png_folder(folder)
    target.mkdir(parents=True, exist_ok=True)
    made = []
    for name, figure in _figures(plt, picture):
        path = target / name
        with output_file(str(path)) as stream:
            # no date and no version in the file: the same capture, the same bytes
            figure.savefig(stream, format="png", dpi=110, metadata={"Software": None})
        plt.close(figure)
        made.append(path)
    return made


def png_folder(folder: str) -> Path:
    """Return where the pictures go.

    Raises
    ------
    WrongUsage
        Where that is a file.
    """
    target = Path(folder)
    if target.exists() and not target.is_dir():
        raise WrongUsage(f"--png {folder}: expected a folder, found a file")
    return target


def _figures(plt: Any, picture: Picture) -> Iterator[tuple[str, Any]]:
    yield "timeline.png", _timeline(plt, picture)
    yield "throughput.png", _throughput(plt, picture)
    for number, heat in enumerate(picture.heat, 1):
        name = heat["name"].replace(" ", "-")
        yield f"heat-{number}-{name}.png", _heat(plt, heat)


def _plain(text: str) -> str:
    """Return a label that matplotlib does not read as mathematics."""
    return (text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...").replace(
        "$", r"\$"
    )


def _timeline(plt: Any, picture: Picture) -> Any:
    lanes = len(picture.nodes)
    figure, axes = plt.subplots(figsize=(11, 1.2 + 0.6 * max(lanes, 1)))
    frames = picture.frames
    source, kind = frames["source"], frames["type"]
    every = max(1, len(source) // _SHOWN)
    for number, one in enumerate(picture.types):
        chosen = np.flatnonzero(kind == number)[::every]
        if not len(chosen):
            continue
        begin, end = frames["first"][chosen], frames["time"][chosen]
        axes.hlines(source[chosen], begin, end, lw=6, color=f"C{number % 10}")
        axes.plot(
            end, source[chosen], "|", ms=11, color=f"C{number % 10}",
            label=_plain(one["name"]),
        )  # fmt: skip
    for lane, begin, passed_on, end, _ in picture.spans[:_SHOWN]:
        axes.hlines(lane + 0.28, begin, passed_on, lw=3, color="0.35")
        axes.hlines(lane + 0.28, passed_on, end, lw=3, color="0.8")
    axes.set_yticks(range(lanes), [_plain(node["name"]) for node in picture.nodes])
    axes.set_ylim(lanes - 0.4, -0.6)
    axes.set_xlabel("seconds; grey: requests at the node, dark busy, light waiting")
    _legend(axes)
    figure.tight_layout()
    return figure


def _throughput(plt: Any, picture: Picture) -> Any:
    series = picture.series
    width = series["width"]
    figure, (above, below) = plt.subplots(2, figsize=(11, 6), sharex=True)
    times = width * (np.arange(len(series["frames"])) + 0.5)
    for lane, values in series["bytes"].items():
        name = _plain(picture.nodes[int(lane)]["name"])
        rate = np.array(values) / width / 1e6
        above.plot(times, rate, drawstyle="steps-mid", label=f"from {name}")
    above.set_ylabel("MB/s")
    _legend(above)
    below.plot(times, series["in_flight"], drawstyle="steps-mid")
    below.set_ylabel("in flight")
    below.set_xlabel("seconds")
    figure.tight_layout()
    return figure


def _heat(plt: Any, heat: dict[str, Any]) -> Any:
    rows = heat["cells"]
    cells = np.array(
        [[np.nan if c is None else abs(c[1]) for c in row] for row in rows]
    )
    figure, axes = plt.subplots(figsize=(11, 1.5 + 0.22 * min(len(rows), 60)))
    drawn = axes.imshow(cells, aspect="auto", interpolation="nearest", cmap="viridis")
    step = max(1, len(rows) // 60 + 1) if len(rows) > 60 else 1
    axes.set_yticks(
        range(0, len(rows), step), [_plain(t) for t in heat["labels"]][::step]
    )
    joined = f" ({heat['join']} a column)" if heat["join"] > 1 else ""
    axes.set_xlabel(heat["column"] + joined)
    unit = f", {heat['unit']}" if heat["unit"] else ""
    figure.colorbar(drawn, label=f"greatest {heat['name']}{unit}")
    axes.set_title(f"run {heat['run']}: {heat['name']}", fontsize=10)
    figure.tight_layout()
    return figure


def _legend(axes: Any) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7, ncols=4, loc="upper center", bbox_to_anchor=(0.5, 1.25))
