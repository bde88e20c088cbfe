"""``ds4proto demo``: two real runs decoded, the codecs verified, a verdict."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Final

import click

from ds4proto.cli._output import printable, stdout
from ds4proto.errors import ExitCode
from ds4proto.printable import counted

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from rich.console import Console

    from ds4proto.trace.rows import FrameRow

__all__ = ["STEPS", "Check", "Step", "cmd"]

_SHOWN: Final = 14
_PIPELINE: Final = "pipeline-three-stages.pcap.gz"
_PAIR: Final = "tensor-parallel-pair.pcap.gz"
# What the recording of each run counted, frame by frame.
_PIPELINE_FRAMES: Final = {"DS4D.HELLO": 2, "DS4D.WORK": 18, "DS4D.RESULT": 18}
_PAIR_FRAMES: Final = {
    "DS4T.HELLO": 2, "DS4T.SESSION_CREATE": 2, "DS4T.SESSION_DESTROY": 2,
    "DS4T.SYNC": 5, "DS4T.EVAL": 7, "DS4T.EVAL_BATCH": 1, "DS4T.MIXED_BATCH": 1,
    "DS4T.VERIFY": 3, "DS4T.VERIFY_COMMIT": 3, "DS4T.REWIND": 1, "DS4T.INVALIDATE": 1,
    "DS4T.STOP": 1, "DS4T.COMMAND_ACK": 11, "DS4T.LOGITS": 17,
    "DS4T.GATE_ROW": 120, "DS4B.GATE_BATCH": 12, "DS4B.GATE_BULK": 20,
}  # fmt: skip
_HELP = """Decode two real runs, run a pipeline live, verify the codecs; takes seconds.

The runs were recorded between real peers: a pipeline of three stages in which a worker
forwards to the next one, and a tensor-parallel pair. Both ship with the package. Then a
pipeline of three stages runs on this machine, is recorded, and decoded.

\b
Examples:
  ds4proto demo"""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the verdict."""

    name: str
    passed: bool
    text: str


@dataclass(frozen=True, slots=True)
class Step:
    """One part of the demonstration; returns what it found out."""

    title: str
    run: Callable[[Console], list[Check]]


@click.command("demo", help=_HELP)
def cmd() -> int:
    """Run every step, then print the verdict."""
    console = stdout()
    checks: list[Check] = []
    for number, step in enumerate([*STEPS, *live_steps()], 1):
        console.print(f"\n{number}. {step.title}", style="bold")
        checks += step.run(console)
    return _verdict(console, checks)


def _verdict(console: Console, checks: list[Check]) -> int:
    from rich.table import Table

    table = Table(title="verdict", title_justify="left")
    for column in ("check", "", "found"):
        table.add_column(column)
    for check in checks:
        mark, style = ("ok", "green") if check.passed else ("FAILED", "bold red")
        table.add_row(check.name, mark, printable(check.text), style=style)
    console.print()
    console.print(table)
    passed = bool(checks) and all(check.passed for check in checks)
    console.print("All is well." if passed else "Something failed.", style="bold")
    return ExitCode.PASSED if passed else ExitCode.FAILED


def _pipeline(console: Console) -> list[Check]:
    rows = _show(console, _PIPELINE, ["coordinator", "worker 3:5", "worker 6:output"])
    return [*_counted("pipeline run", _PIPELINE, _PIPELINE_FRAMES), _hashes(rows)]


def _pair(console: Console) -> list[Check]:
    _show(console, _PAIR, ["leader", "worker"])
    return _counted("tensor-parallel run", _PAIR, _PAIR_FRAMES)


def _codecs(console: Console) -> list[Check]:
    from ds4proto.codec.vectors import names
    from ds4proto.codec.verify import verify_vectors

    # The plain definition: compiled code would first have to be compiled.
    verdicts = list(verify_vectors(names(), ["numpy"], lambda _done: None))
    ran = sum(verdict.ran for verdict in verdicts)
    failed = [verdict for verdict in verdicts if not verdict.passed]
    console.print(f"{counted(ran, 'row')} of {len(verdicts)} groups of test vectors")
    found = [Check("codec vectors", bool(ran) and not failed, f"{counted(ran, 'row')}")]
    found += [Check(f"codec {v.subject}", False, v.first) for v in failed]
    return found


STEPS: list[Step] = [
    Step(
        "A pipeline of three stages, with forwarding (16-bit hidden state)", _pipeline
    ),
    Step("A tensor-parallel pair: commands and gates", _pair),
    Step("The codecs against their test vectors", _codecs),
]
"""What the demonstration does, in order."""

LIVE_GROUP: Final = "ds4proto.demo"
"""Entry points: functions that run something live.

Each takes a function that shows a line and returns rows of name, verdict and text.
"""


def live_steps() -> list[Step]:
    """Return the steps of installed packages that run something live."""
    from importlib.metadata import entry_points

    return [
        Step(f"Live: {point.name}", partial(_live, point))
        for point in sorted(entry_points(group=LIVE_GROUP), key=lambda p: p.name)
    ]


def _live(point: EntryPoint, console: Console) -> list[Check]:
    def show(line: str) -> None:
        console.print(printable(line), soft_wrap=True)

    try:
        run = point.load()
    except ModuleNotFoundError as error:
        return [Check(point.name, False, f"needs the package {error.name!r}")]
    return [Check(*row) for row in run(show)]


def _capture(name: str) -> io.BytesIO:
    packed = files("ds4proto").joinpath("data", "captures", name).read_bytes()
    return io.BytesIO(gzip.decompress(packed))


def _show(console: Console, name: str, lanes: list[str]) -> list[FrameRow]:
    from ds4proto.trace.decoder import decode
    from ds4proto.trace.lanes import arrows, draw

    rows = list(decode(_capture(name)))
    lines = list(draw(arrows(rows), lanes))
    for line in lines[: _SHOWN + 1]:
        console.print(printable(line), soft_wrap=True)
    if len(lines) > _SHOWN + 1:
        console.print(
            f"{'...':>12}  {counted(len(lines) - _SHOWN - 1, 'more line')}", style="dim"
        )
    return rows


def _counted(what: str, name: str, expected: dict[str, int]) -> list[Check]:
    from ds4proto.cli.stats import measure

    report, error = measure(_capture(name))
    total, inside = report["stream_bytes"], report["accounted_bytes"]
    frames = report["frames"]
    differing = [
        f"{frame}: {frames.get(frame, 0)} for {expected.get(frame, 0)}"
        for frame in sorted({*expected, *frames})
        if frames.get(frame, 0) != expected.get(frame, 0)
    ]
    return [
        Check(
            f"{what}: bytes",
            not error and total == inside > 0,
            error or f"{inside} of {counted(total, 'byte')} lie in frames",
        ),
        Check(
            f"{what}: frames",
            not differing,
            "; ".join(differing) or f"{sum(frames.values())} as recorded",
        ),
        Check(
            f"{what}: rules",
            not report["problems"],
            ", ".join(report["problems"]) or "no rule is broken",
        ),
    ]


def _hashes(rows: list[FrameRow]) -> Check:
    """Follow the token hash of the first hop from span to span."""
    from ds4proto.codec.token_hash import token_hash

    spans = [r.fields for r in rows if r.type == "WORK" and not r.fields["route_index"]]
    tokens: list[int] = []
    wrong = 0
    for span in spans:
        tokens = [*tokens[: span["pos0"]], *span["tokens"]]
        wrong += token_hash(tokens[: span["pos0"]]) != span["prefix_hash"]
        wrong += token_hash(tokens) != span["result_hash"]
    text = (
        f"{wrong} wrong"
        if wrong
        else f"{counted(len(tokens), 'token')}, "
        f"{counted(2 * len(spans), 'hash', plural='hashes')}"
    )
    return Check("pipeline run: token hashes", bool(spans) and not wrong, text)
