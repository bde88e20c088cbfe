"""Speed against width: what a hop takes in each format at given link speeds.

    python -m bench.width [--json] [--width 16384] [--tokens 1024] [--png FILE]

The link is a number, not a network: coding times are measured here, sending times are
bytes over speed. The chart shows a prefill chunk (stages overlap) and one token.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ds4proto import codec
from ds4proto.codec.cost import FORMATS, LINKS, Cost, as_rows, measure, pays, rule


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--width", type=int, default=16384, help="values a token")
    parser.add_argument("--tokens", type=int, default=256, help="tokens a chunk")
    parser.add_argument("--png", type=Path, help="draw the chart into this file")
    words = parser.parse_args()
    modes = {"chunk": (words.tokens, True), "token": (1, False)}
    costs = {
        mode: [measure(codec.get(name), rows, words.width) for name in FORMATS]
        for mode, (rows, _) in modes.items()
    }
    if words.png:
        draw(words.png, costs)
    if words.json:
        found = {
            mode: {
                "rows": as_rows(costs[mode], LINKS, overlapped=overlapped),
                "rule": rule(costs[mode], overlapped=overlapped),
            }
            for mode, (_, overlapped) in modes.items()
        }
        print(json.dumps({"benchmark": "width", "width": words.width, **found}))
        return
    for mode, (rows, overlapped) in modes.items():
        show(f"{rows} tokens x {words.width} values", costs[mode], overlapped)


def show(title: str, costs: list[Cost], overlapped: bool) -> None:
    console = Console(width=118)
    table = Table(title=title, caption="milliseconds a hop by link, Gbit/s")
    for head in ("format", "bytes", "encode ms", "decode ms"):
        table.add_column(head)
    for link in LINKS:
        table.add_column(f"{link:g}", justify="right")
    for cost in costs:
        times = (1e3 * cost.hop(link, overlapped=overlapped) for link in LINKS)
        table.add_row(
            cost.name,
            str(cost.wire_bytes),
            f"{1e3 * cost.encode:.3f}",
            f"{1e3 * cost.decode:.3f}",
            *(f"{value:.3g}" for value in times),
        )
    console.print(table)
    for line in rule(costs, overlapped=overlapped):
        console.print(f"  {line}")
    best = pays(costs, LINKS[0], overlapped=overlapped)[0]
    console.print(f"  on {LINKS[0]:g} Gbit/s the best is {best[0]}: {best[1]:.1f} x")


def draw(path: Path, costs: dict[str, list[Cost]]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4.5), sharex=True)
    for place, (mode, found) in zip(axes, costs.items(), strict=True):
        panel(place, mode, found)
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})


def panel(place: Any, mode: str, found: list[Cost]) -> None:
    overlapped = mode == "chunk"
    for cost in found:
        times = [1e3 * cost.hop(link, overlapped=overlapped) for link in LINKS]
        place.plot(LINKS, times, "o-", label=cost.name)
    place.set_xscale("log")
    place.set_yscale("log")
    place.set_xticks(LINKS, [f"{link:g}" for link in LINKS])
    place.set_xlabel("link, Gbit/s")
    place.set_ylabel("milliseconds a hop")
    place.set_title("prefill chunk" if overlapped else "one token")
    place.legend(fontsize=7)


if __name__ == "__main__":
    main()
