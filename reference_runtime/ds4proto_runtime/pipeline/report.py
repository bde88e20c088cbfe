"""Rates and the table of hops at the end of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from ds4proto_runtime.pipeline.generation import Generated


def show_rates(console: Console, done: Generated) -> None:
    """Print tokens a second of both phases."""
    steps = max(0, len(done.tokens) - 1)
    console.print(
        f"prefill: {len(done.prompt)} tokens in {done.prefill_s:.2f} s,"
        f" {done.prefill_rate:.1f} tokens/s"
    )
    console.print(
        f"decode: {steps} steps in {done.decode_s:.2f} s,"
        f" {done.decode_rate:.1f} tokens/s"
    )


def show_hops(
    console: Console, own: dict[str, Any], rows: Sequence[dict[str, Any]]
) -> None:
    """Print what each stage did and waited for; times are sums."""
    from rich.table import Table

    table = Table(
        title="stages: this one, hops from their telemetry", title_justify="left"
    )
    for name in ("layers", "requests", "tokens", "eval ms", "send ms", "wait ms"):
        table.add_column(name, justify="right")
    table.add_column("in KiB", justify="right")
    table.add_column("out KiB", justify="right")
    for row in (own, *rows):
        times = [row[f"{name}_usec"] / 1000 for name in ("eval", "send", "wait")]
        sizes = [row[f"{name}_bytes"] / 1024 for name in ("input", "output")]
        table.add_row(
            row["layers"],
            str(row["requests"]),
            str(row["tokens"]),
            *(f"{value:.1f}" for value in (*times, *sizes)),
        )
    console.print(table)
