"""The graph of states and transitions as a picture (extra ``plot``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ds4proto.errors import WrongUsage
from ds4proto.trace.output import output_file

__all__ = ["dot", "picture"]

Edges = Mapping[tuple[str, str], int]


def dot(edges: Edges, states: Mapping[str, str]) -> str:
    """Return the graph as text for graphviz."""
    lines = ["digraph reached {", "  rankdir=LR;"]
    for name, doc in states.items():
        lines.append(f'  "{name}" [shape=box, tooltip="{doc}"];')
    for (state, led), count in sorted(edges.items()):
        lines.append(f'  "{state}" -> "{led}" [label="{count}"];')
    return "\n".join([*lines, "}"]) + "\n"


def picture(edges: Edges, states: Mapping[str, str], path: Path | str) -> None:
    """Draw states on the left, where cases led on the right, lines by number.

    States that no case reached are grey.

    Raises
    ------
    WrongUsage
        matplotlib is not installed, or the file's ending names no format.
    """
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        mpl.rcParams["svg.hashsalt"] = "ds4proto"
        from matplotlib import pyplot
    except ImportError:
        raise WrongUsage(
            "a picture needs matplotlib. Next: pip install 'ds4proto[plot]'"
        ) from None
    reached = {state for state, _ in edges}
    left = [
        *(s for s in states if s in reached),
        *(s for s in states if s not in reached),
    ]
    right = sorted({led for _, led in edges})
    step = len(left) / max(1, len(right))
    start = {name: (0.0, float(-at)) for at, name in enumerate(left)}
    end = {name: (1.0, -at * step) for at, name in enumerate(right)}
    figure, axes = pyplot.subplots(figsize=(9, 1 + 0.6 * max(len(left), len(right))))
    try:
        _draw(axes, edges, start, end)
        for name, (x, y) in start.items():
            colour = "white" if name in reached else "0.8"
            _box(axes, name, x, y, "right", colour)
        for name, (x, y) in end.items():
            _box(axes, name, x, y, "left", "white")
        axes.axis("off")
        axes.margins(0.25, 0.1)
        axes.set_title("states of the peer, and where cases led", fontsize=10)
        ending = Path(path).suffix[1:]
        told = {"Date": None} if ending == "svg" else None  # else it holds the date
        with output_file(str(path), "--graph") as stream:
            figure.savefig(
                stream, format=ending, dpi=120, bbox_inches="tight", metadata=told
            )
    except ValueError as error:
        raise WrongUsage(f"{path}: {error}") from None
    finally:
        pyplot.close(figure)


Places = Mapping[str, tuple[float, float]]


def _draw(axes: Any, edges: Edges, start: Places, end: Places) -> None:
    most = max(edges.values(), default=1)
    for number, ((state, led), count) in enumerate(sorted(edges.items())):
        (x0, y0), (x1, y1) = start[state], end[led]
        width = 0.6 + 5 * (count / most) ** 0.5
        axes.plot((x0, x1), (y0, y1), lw=width, alpha=0.45, color="C0", zorder=1)
        at = 0.2 + 0.12 * (number % 4)
        x, y = x0 + at * (x1 - x0), y0 + at * (y1 - y0)
        axes.text(x, y, str(count), fontsize=7, ha="center", va="center", zorder=3)


def _box(axes: Any, name: str, x: float, y: float, side: str, colour: str) -> None:
    box = {"boxstyle": "round", "fc": colour, "ec": "0.4"}
    axes.text(x, y, name, ha=side, va="center", bbox=box, zorder=4)
