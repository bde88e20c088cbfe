r"""One stage of the pipeline, started by ``torchrun``.

    torchrun --nproc-per-node 4 -m ds4proto_runtime.dist --model M.gguf --text wiki \
        --format mxfp4 --windows 2 --window 256

Rank 0 reads the text and embeds; the last rank scores. Ranks may sit on several
machines: torchrun's own ``--nnodes`` and ``--rdzv-endpoint`` say where.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
import torch.distributed as dist

from ds4proto import codec
from ds4proto.errors import Ds4ProtoError, WrongUsage
from ds4proto_runtime.dist.wire import Boundary
from ds4proto_runtime.engines.decoder import DecoderEngine
from ds4proto_runtime.engines.tokenizer import Tokenizer
from ds4proto_runtime.quality.measure import token_losses
from ds4proto_runtime.quality.texts import load_text
from ds4proto_runtime.quality.wire import boundaries

PATIENCE = timedelta(minutes=5)
"""Longest wait for another stage; a dead one ends the run instead of hanging it."""


class Stage:
    """The layers of one process, with a boundary on either side where there is one."""

    def __init__(
        self, model: Path, name: str, device: str, ctx: int, rank: int, world: int
    ) -> None:
        self.rank, self.world = rank, world
        probe = DecoderEngine(model, range(0, 1), ctx=1, has_head=False)
        layers = probe.shape.n_layers
        edges = (0, *boundaries(layers, world - 1), layers)
        self.engine = DecoderEngine(
            model,
            range(edges[rank], edges[rank + 1]),
            ctx=ctx,
            prefill_cap=ctx,
            has_head=self.last,
            device=device,
        )
        self.device = device
        width = self.engine.shape.hidden_values
        self.inward = Boundary(codec.get(name), width, device)
        self.outward = Boundary(codec.get(name), width, device)

    @property
    def last(self) -> bool:
        """True on the stage that owns the head."""
        return self.rank == self.world - 1

    def score(self, window: list[int]) -> float:
        """Pass one window through; return the mean loss on the last stage, else 0."""
        session = self.engine.open()
        if self.rank == 0:
            rows = torch.from_numpy(self.engine.embed(window)).to(self.device)
        else:
            hidden, residual = self.inward.receive(len(window), self.rank - 1)
            rows = residual + hidden
        hidden, residual = self.engine.run_parts(session, rows, window, 0)
        if not self.last:
            self.outward.send(hidden, residual, self.rank + 1)
            return 0.0
        out = (residual + hidden).cpu().numpy()
        losses, _ = token_losses(self.engine, out, window)
        return float(losses.mean())


def backend_of(device: str) -> str:
    """Return the point-to-point backend: NCCL between GPUs, gloo otherwise."""
    return "nccl" if device.startswith("cuda") else "gloo"


@click.command()
@click.option("--model", required=True, type=click.Path(path_type=Path))
@click.option("--text", required=True)
@click.option("--format", "name", default="bf16", show_default=True)
@click.option("--windows", default=2, show_default=True, type=click.IntRange(1))
@click.option("--window", default=256, show_default=True, type=click.IntRange(2))
@click.option("--device", default="cpu", show_default=True)
@click.option("--backend", type=click.Choice(["gloo", "nccl"]))
def main(
    model: Path,
    text: str,
    name: str,
    windows: int,
    window: int,
    device: str,
    backend: str | None,
) -> None:
    """Run one stage; rank and world come from torchrun's environment."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if device == "cuda":
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    dist.init_process_group(backend or backend_of(device), timeout=PATIENCE)
    try:
        rank, world = dist.get_rank(), dist.get_world_size()
        if world < 2:
            raise WrongUsage("a pipeline has at least 2 stages: --nproc-per-node 2")
        stage = Stage(model, name, device, window, rank, world)
        tokens = _tokens(model, text, windows * window)
        losses = [
            stage.score(tokens[i * window : (i + 1) * window]) for i in range(windows)
        ]
        report = _gathered(stage, losses)
    finally:
        dist.destroy_process_group()
    if report is not None:
        sys.stdout.write(json.dumps(report) + "\n")


def _tokens(model: Path, text: str, count: int) -> list[int]:
    """Return the text's tokens; every stage needs them, for their number alone."""
    from ds4proto_runtime.engines.weights import Weights

    tokenizer = Tokenizer(Weights(model).metadata)
    found = tokenizer.encode(load_text(text)[: 12 * count])[:count]
    if len(found) < count:
        raise WrongUsage(f"the text has {len(found)} tokens, {count} are needed")
    return found


def _gathered(stage: Stage, losses: list[float]) -> dict[str, Any] | None:
    """Return the report on the last stage, None on the others."""
    own = asdict(stage.outward.traffic) | {
        "decode_seconds": stage.inward.traffic.decode_seconds,
        "wait_seconds": stage.inward.traffic.wait_seconds,
        "received_bytes": stage.inward.traffic.received_bytes,
    }
    found: list[Any] = [None] * stage.world
    dist.all_gather_object(found, own)
    if not stage.last:
        return None
    sent = [traffic["sent_bytes"] for traffic in found[:-1]]
    tokens = found[0]["tokens"]
    return {
        "stages": stage.world,
        "windows": losses,
        "nll": float(np.mean(losses)),
        "bytes_per_token_and_boundary": sum(sent) / len(sent) / tokens,
        "traffic": found,
    }


def run() -> None:
    """Run the command; a documented error is a line, not a traceback."""
    try:
        main(standalone_mode=False)
    except (Ds4ProtoError, click.ClickException) as error:
        sys.stderr.write(f"ds4proto dist: {error}\n")
        raise SystemExit(2) from None
