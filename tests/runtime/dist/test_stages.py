"""Stages over torch.distributed: the same numbers as in one process, exact bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ds4proto_runtime.dist.wire import Boundary, rebuilt
from ds4proto_runtime.engines.decoder import DecoderEngine
from ds4proto_runtime.engines.tokenizer import Tokenizer
from ds4proto_runtime.quality.measure import token_losses

from ds4proto import codec

MODEL = Path(__file__).parents[2] / "data" / "tiny-moe-3m-q8_0.gguf"
TEXT = "The people of the United States have been asked to keep the peace. " * 20
WIDTH, WINDOW, WINDOWS = 128, 64, 2
# bytes of one token, two tensors: 128 values each, scales as the formats have them
BYTES = {"bf16": 512, "int8": 264, "fp8": 264, "mxfp4": 136}
CUTS = {2: (4,), 3: (3, 5)}


def _torchrun(stages: int, name: str, folder: Path) -> dict[str, Any]:
    text = folder / "text.txt"
    text.write_text(TEXT, encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(stages), "-m", "ds4proto_runtime.dist"]
    command += ["--model", str(MODEL), "--text", str(text), "--format", name]
    command += ["--windows", str(WINDOWS), "--window", str(WINDOW)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=900, env=env, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    report: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return report


def _in_one_process(stages: int, name: str) -> list[float]:
    engine = DecoderEngine(MODEL, ctx=WINDOW, prefill_cap=WINDOW)
    tokens = Tokenizer(engine.weights.metadata).encode(TEXT)
    edges = (0, *CUTS[stages], 8)
    wire = codec.get(name)
    means = []
    for start in range(0, WINDOWS * WINDOW, WINDOW):
        window = tokens[start : start + WINDOW]
        x = torch.from_numpy(engine.embed(window))
        for index in range(stages):
            session = engine.open(range(edges[index], edges[index + 1]))
            hidden, residual = engine.run_parts(session, x, window, 0)
            if index + 1 < stages:
                sides = []
                for side in (hidden, residual):
                    flat = rebuilt(side).reshape(-1).numpy()
                    data = wire.encode(flat, rows=WINDOW)
                    back = wire.decode(data, values=flat.size, rows=WINDOW)
                    sides.append(rebuilt(torch.from_numpy(np.asarray(back))))
                x = (sides[1] + sides[0]).view(WINDOW, WIDTH)
        out = (residual + hidden).numpy()
        means.append(float(token_losses(engine, out, window)[0].mean()))
    return means


@pytest.mark.parametrize(("stages", "name"), [(2, "bf16"), (3, "mxfp4")])
def test_stages_give_the_numbers_of_one_process(
    stages: int, name: str, tmp_path: Path
) -> None:
    report = _torchrun(stages, name, tmp_path)
    assert report["windows"] == _in_one_process(stages, name)
    assert report["bytes_per_token_and_boundary"] == BYTES[name]
    sent = [traffic["sent_bytes"] for traffic in report["traffic"]]
    received = [traffic["received_bytes"] for traffic in report["traffic"]]
    assert sent[:-1] == received[1:] == [BYTES[name] * WINDOW * WINDOWS] * (stages - 1)


@pytest.mark.parametrize("name", sorted(BYTES))
def test_a_boundary_takes_the_bytes_of_its_format(name: str) -> None:
    boundary = Boundary(codec.get(name), WIDTH)
    x = torch.randn((3, WIDTH), generator=torch.Generator().manual_seed(1))
    wire = boundary.encode(x, x * 2)
    assert wire.numel() == boundary.bytes_of(3) == 3 * BYTES[name]
    hidden, residual = boundary.decode(wire, 3)
    assert hidden.shape == residual.shape == (3, WIDTH)
    assert torch.equal(hidden, rebuilt(hidden))
    limit = {"bf16": 2**-8, "int8": 0.02, "fp8": 2**-4, "mxfp4": 0.3}[name]
    scale = x.abs().amax(-1, keepdim=True)
    assert ((hidden - x).abs() / scale).max() < limit


def test_one_stage_is_no_pipeline(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT, encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "1", "-m", "ds4proto_runtime.dist"]
    command += ["--model", str(MODEL), "--text", str(text)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode != 0
    assert "a pipeline has at least 2 stages" in done.stderr
