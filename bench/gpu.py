"""What a CUDA device does: equal bytes first, then speed, then whole runs.

    python -m bench.gpu [--json]

Every kernel's bytes are compared with the definition; then each format's rate is set
beside the device's own copy rate, measured in the same run; then a pipeline and a
tensor-parallel pair run on the device against the CPU's text. Without a CUDA device it
says so and exits with 2: nothing was proven.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "tests" / "data" / "tiny-moe-3m-q8_0.gguf"
VALUES = 64 * 1024 * 1024
WIDTH = 4096
FORMATS = ("bf16", "int8", "fp8", "int4", "mxfp8", "mxfp4", "nvfp4")
PROMPT = "The people of the United States"


def equal_bytes() -> dict[str, Any]:
    """Compare the fused kernels with the definition, in a process of their own."""
    script = ROOT / "tests" / "runtime" / "codec" / "compare_triton.py"
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    lines = (done.stdout + done.stderr).strip().splitlines()
    return {"passed": done.returncode == 0, "said": lines[-1] if lines else ""}


def rates() -> list[dict[str, Any]]:
    """Return GB/s of float32 for each format and direction beside the copy rate."""
    import torch
    from ds4proto_runtime.kernels import enable

    from ds4proto import codec

    enable()
    x = torch.randn(VALUES, device="cuda")
    y = torch.empty_like(x)
    copy = _rate(lambda: y.copy_(x))
    found: list[dict[str, Any]] = [{"case": "copy", "gb_s": copy, "ratio": 1.0}]
    rows = VALUES // WIDTH
    for name in FORMATS:
        wire_codec = codec.get(name)
        wire = wire_codec.encode(x, rows=rows)
        for case, run in (
            ("encode", partial(wire_codec.encode, x, rows=rows)),
            ("decode", partial(wire_codec.decode, wire, values=VALUES, rows=rows)),
        ):
            rate = _rate(run)
            label = f"{name} {case}"
            found.append({"case": label, "gb_s": rate, "ratio": rate / copy})
    return found


def _rate(run: Any, rounds: int = 10) -> float:
    import torch

    run()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(rounds):
        run()
    torch.cuda.synchronize()
    return 4 * VALUES * rounds / (time.perf_counter() - start) / 1e9


def whole_runs() -> list[dict[str, Any]]:
    """Run the small model alone on CPU and GPU, and as stages over NCCL or gloo."""
    from ds4proto_runtime.engines.decoder import DecoderEngine
    from ds4proto_runtime.engines.tokenizer import Tokenizer

    texts = {}
    for device in ("cpu", "cuda"):
        engine = DecoderEngine(MODEL, ctx=256, device=device)
        tokenizer = Tokenizer(engine.weights.metadata)
        texts[device] = tokenizer.decode(_greedy(engine, tokenizer.encode(PROMPT)))
    found = [{"run": "one process", "same_text": texts["cpu"] == texts["cuda"]}]
    found.append(_two_ranks(texts["cuda"]))
    found.append(_stages())
    return found


def _greedy(engine: Any, span: list[int], count: int = 32) -> list[int]:
    session = engine.open()
    out: list[int] = []
    pos = 0
    while len(out) < count:
        hidden = engine.run(session, engine.embed(span), span, pos)
        pos += len(span)
        span = [int(engine.head(hidden[-1]).argmax())]
        out += span
    return out


def _two_ranks(expected: str) -> dict[str, Any]:
    """Join two ranks on one device in threads; partials go through host memory."""
    import threading

    import numpy as np
    from ds4proto_runtime.engines.decoder import DecoderEngine
    from ds4proto_runtime.engines.tokenizer import Tokenizer

    ranks = [DecoderEngine(MODEL, ctx=256, rank=r, device="cuda") for r in (0, 1)]
    tokenizer = Tokenizer(ranks[0].weights.metadata)
    slots: list[Any] = [None, None]
    meet = threading.Barrier(2, timeout=60)
    texts = ["", ""]

    def exchange(rank: int, own: Any) -> list[Any]:
        slots[rank] = own
        meet.wait()
        both = list(slots)
        meet.wait()
        return both

    def run(rank: int) -> None:
        def gate(_layer: int, _kind: str, own: Any) -> Any:
            first, second = exchange(rank, own)
            return first + second

        engine, span, pos = ranks[rank], tokenizer.encode(PROMPT), 0
        session = engine.open()
        out: list[int] = []
        while len(out) < 32:
            hidden = engine.run(session, engine.embed(span), span, pos, gate)
            pos += len(span)
            halves = exchange(rank, engine.head(hidden[-1]))
            span = [int(np.concatenate(halves).argmax())]
            out += span
        texts[rank] = tokenizer.decode(out)

    other = threading.Thread(target=run, args=(1,))
    other.start()
    run(0)
    other.join(60)
    same = texts[0] == texts[1] == expected
    return {"run": "tensor-parallel pair", "same_text": same}


def _stages() -> dict[str, Any]:
    import torch

    count = torch.cuda.device_count()
    backend = "nccl" if count >= 2 else "gloo"
    device = "cuda" if count >= 2 else "cpu"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "-m", "ds4proto_runtime.dist"]
    command += ["--model", str(MODEL), "--text", str(ROOT / "README.md")]
    command += ["--format", "mxfp4", "--device", device, "--backend", backend]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    label = f"two stages over {backend} on {device}"
    return {"run": label, "passed": done.returncode == 0}


def main() -> int:
    """Run everything; return the exit status."""
    try:
        import torch
    except ImportError:
        sys.stderr.write("no torch here: make setup-runtime\n")
        return 2
    if not torch.cuda.is_available():
        sys.stderr.write("no CUDA device here: nothing was proven\n")
        return 2
    kernels, speeds, runs = equal_bytes(), rates(), whole_runs()
    report = {
        "benchmark": "gpu",
        "device": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "equal_bytes": kernels,
        "rates": speeds,
        "runs": runs,
    }
    if "--json" in sys.argv[1:]:
        print(json.dumps(report))
    else:
        print(json.dumps(report, indent=1))
    flags = [kernels["passed"]]
    flags += [run.get("same_text", run.get("passed")) for run in runs]
    return 0 if all(flags) else 1


if __name__ == "__main__":
    raise SystemExit(main())
