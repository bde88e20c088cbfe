"""``ds4proto run --plan-handover``: predict a hand-over, run nothing."""

from __future__ import annotations

from typing import Any

import click

from ds4proto.cli._options import DURATION, json_option
from ds4proto.cli._output import stdout, write_json
from ds4proto.errors import ExitCode
from ds4proto_runtime.handover import Plan, quantity


class _Quantity(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic in newer click
    name = "quantity"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            found = quantity(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if found <= 0:
            self.fail(f"{value!r}: expected more than zero", param, ctx)
        return found


_QUANTITY = _Quantity()


@click.command(
    "run --plan-handover",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\b\nExample:\n  ds4proto run --plan-handover --tokens 100k --kv 3GB",
)
@click.option("--tokens", type=_QUANTITY, default="1M", help="Tokens of the prompt.")
@click.option("--kv", type=_QUANTITY, default="26GB", help="KV bytes of all of them.")
@click.option("--chunk", type=click.IntRange(1), default=4096, help="Tokens a chunk.")
@click.option("--link", type=_QUANTITY, default="280MB/s", help="Bytes a second.")
@click.option("--width", type=click.IntRange(1), default=4096, help="Floats a stream.")
@click.option(
    "--streams", type=click.IntRange(1), default=1, help="Streams a token; V4 has 4."
)
@click.option("--bits", type=click.Choice([32, 16, 8]), default=32, help="On the wire.")
@click.option("--compute", type=DURATION, help="Time of a chunk on the slowest stage.")
@json_option
def command(
    tokens: float,
    kv: float,
    chunk: int,
    link: float,
    width: int,
    streams: int,
    bits: int,
    compute: float | None,
    as_json: bool,
) -> int:
    """Predict KV and hidden state bytes, link time and latency of a hand-over."""
    found = Plan(int(tokens), kv, chunk, link, width, streams, bits, compute)
    if as_json:
        write_json(found.as_dict())
    else:
        for line in found.lines():
            stdout().print(line, soft_wrap=True)
    return ExitCode.PASSED


def plan(arguments: list[str]) -> int:
    """Run the command on its own arguments."""
    with command.make_context("ds4proto run --plan-handover", arguments) as context:
        status: int = command.invoke(context)
    return status
