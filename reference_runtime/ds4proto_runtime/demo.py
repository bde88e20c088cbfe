"""A live step for ``ds4proto demo``: a pipeline of three stages on this machine.

The coordinator runs here, two workers as processes of their own. What crosses is
recorded, decoded by our own decoder, and the tokens are compared with those of the
whole model in one process.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ds4proto.peer import PeerProcess, Recorder, spawn
from ds4proto_runtime.engines.toy import ToyEngine
from ds4proto_runtime.pipeline.coordinator import PipelineCoordinator
from ds4proto_runtime.pipeline.generation import Alone, OverRoute, Sampler, generate

Row = tuple[str, bool, str]
"""A check: its name, whether it passed, what was found."""

PROMPT: Final = tuple((7 * n + 3) % 256 for n in range(40))
STEPS: Final = 12
PATIENCE_S: Final = 60.0
_COORDINATOR: Final = range(2)
_WORKERS: Final = ("2:4", "5:output")
_LANES: Final = ["coordinator", *(f"worker {layers}" for layers in _WORKERS)]
_SHOWN: Final = 14


def live_pipeline(say: Callable[[str], None] = lambda _line: None) -> list[Row]:
    """Run, record and decode a pipeline of three stages (toy model, 32 bits).

    Parameters
    ----------
    say : callable
        Told each line that is worth showing.

    Returns
    -------
    list of tuple
        Check rows for the verdict.
    """
    sampler = Sampler(0.0, 1)
    alone = generate(Alone(ToyEngine()), PROMPT, STEPS, sampler)
    with tempfile.TemporaryDirectory(prefix="ds4proto-demo") as folder:
        ours, theirs = Path(folder, "coordinator.pcapng"), Path(folder, "w.pcapng")
        with (
            Recorder(ours) as recorder,
            PipelineCoordinator(
                ToyEngine(_COORDINATOR), recorder=recorder
            ) as coordinator,
            _workers(coordinator.address, theirs) as processes,
        ):
            coordinator.wait_route(PATIENCE_S)
            session = coordinator.session(1)
            done = generate(OverRoute(session), PROMPT, STEPS, sampler)
            say(f"tokens: {','.join(map(str, done.tokens))}")
        same = done.tokens == alone.tokens
        rows = [
            (
                "live pipeline: tokens",
                same,
                f"{len(done.tokens)} tokens, as one process decodes them"
                if same
                else f"{done.tokens} for {alone.tokens}",
            )
        ]
        rows += _judged("coordinator's connections", ours, say)
        rows += _judged("forwarding worker's connections", theirs, lambda _line: None)
        rows.append(_ended(processes))
    return rows


@contextmanager
def _workers(address: tuple[str, int], record: Path) -> Iterator[list[PeerProcess]]:
    words = [sys.executable, "-m", "ds4proto_runtime.peer_main", "worker"]
    words += ["--address", address[0], str(address[1]), "--layers"]
    found: list[PeerProcess] = []
    try:
        for layers in _WORKERS:
            more = ["--record", str(record)] if layers == _WORKERS[0] else []
            found.append(spawn([*words, layers, *more]))
        yield found
    finally:
        for process in found:
            process.end()


def _judged(what: str, path: Path, say: Callable[[str], None]) -> list[Row]:
    from ds4proto.cli.stats import measure
    from ds4proto.trace.decoder import decode
    from ds4proto.trace.lanes import arrows, draw

    lines = list(draw(arrows(list(decode(str(path)))), _LANES))
    for line in lines[:_SHOWN]:
        say(line)
    report, error = measure(str(path))
    total, inside = report["stream_bytes"], report["accounted_bytes"]
    frames = sum(report["frames"].values())
    problems = ", ".join(report["problems"])
    return [
        (
            f"live pipeline: {what}",
            not error and total == inside > 0 and frames > 0,
            error or f"{frames} frames, {inside} of {total} bytes lie in them",
        ),
        (f"live pipeline: rules on {what}", not problems, problems or "none is broken"),
    ]


def _ended(processes: list[PeerProcess]) -> Row:
    left = [process.pid for process in processes if process.alive()]
    text = f"processes left: {left}" if left else "no process is left"
    return "live pipeline: end", not left, text
