"""``ds4proto run`` as users start it: processes, a real model, interruptions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4proto.codec.widths import activation_codec
from ds4proto.peer import PeerProcess, spawn
from ds4proto.peer.connect import free_ports
from ds4proto.trace.decoder import decode
from tests.runtime.cluster import ENV, PATIENCE
from tests.runtime.ports import held_port

MODEL = str(Path(__file__).parents[1] / "data" / "tiny-moe-3m-q8_0.gguf")
RUN = (sys.executable, "-m", "ds4proto", "run")
TEXT = ["-m", MODEL, "--ctx", "256"]
PROMPT = [*TEXT, "-p", "It was the best", "-n", "12", "--json"]


def finish(words: Sequence[str], **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RUN, *words],
        capture_output=True,
        text=True,
        timeout=5 * PATIENCE,
        check=False,
        env={**os.environ, **ENV, **more},
    )


def distributed(
    stages: Sequence[str], *words: str, model: Sequence[str] = PROMPT
) -> subprocess.CompletedProcess[str]:
    first, *rest = stages
    workers: list[PeerProcess] = []
    with held_port() as number:
        at = ["127.0.0.1", str(number)]
        try:
            for layers in rest:
                workers.append(
                    spawn(
                        [*RUN, "--role", "worker", "--layers", layers,
                         "--coordinator", *at, *model[:4]],
                        env=ENV,
                    )
                )  # fmt: skip
            return finish(
                ["--role", "coordinator", "--layers", first, "--listen", *at,
                 "--route-wait", "240s", *model, *words]
            )  # fmt: skip
        finally:
            for worker in workers:
                worker.end()


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    done = finish(PROMPT)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_one_process_writes_the_models_text(whole: dict[str, Any]) -> None:
    assert whole["text"] == " way to be made to the United States. The United States"
    assert whole["prompt_tokens"] == 5


def test_three_stages_write_the_same_text(
    whole: dict[str, Any], tmp_path: Path
) -> None:
    trace = tmp_path / "run.pcapng"
    done = distributed(
        ["0:2", "3:5", "6:output"], "--dist-replay-check", "--trace", str(trace)
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["text"], found["tokens"]) == (whole["text"], whole["tokens"])
    assert (
        "distributed replay check passed: logits exact match across reset/replay"
        in (done.stderr)
    )
    assert [hop["layers"] for hop in found["hops"]] == ["3:5", "6:7"]
    rows = list(decode(str(trace)))
    assert sum(row.type == "WORK" for row in rows) == 2 + 11
    assert not any(row.problems for row in rows)


def by_hand(bits: int, cut: int, count: int) -> list[int]:
    """Decode in one process with the hop's codec between two slices."""
    from ds4proto_runtime.engines.decoder import DecoderEngine
    from ds4proto_runtime.engines.tokenizer import Tokenizer

    path = Path(MODEL)
    lower = DecoderEngine(path, range(cut), ctx=256, has_head=False)
    upper = DecoderEngine(path, range(cut, 8), ctx=256)
    below, above = lower.open(), upper.open()
    codec = activation_codec(bits)
    span, at = Tokenizer(lower.weights.metadata).encode("It was the best"), 0
    found: list[int] = []
    while len(found) < count:
        rows = lower.run(below, lower.embed(span), span, at)
        wire = codec.encode(np.ascontiguousarray(rows).reshape(-1))
        rows = codec.decode(wire, values=rows.size).reshape(rows.shape)
        logits = upper.head(upper.run(above, rows, span, at)[-1])
        at += len(span)
        span = [int(logits.argmax())]
        found += span
    return found


@pytest.mark.parametrize("bits", [16, 8])
def test_packed_widths_round_at_the_hop_and_nowhere_else(bits: int) -> None:
    done = distributed(["0:3", "4:output"], "--dist-activation-bits", str(bits))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tokens"] == by_hand(bits, 4, 12)


def test_local_decode_writes_the_same_text(whole: dict[str, Any]) -> None:
    done = distributed(["0:3", "4:output"], "--local-decode")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["tokens"] == whole["tokens"]
    assert found["handover"]["same_tokens"]
    # four layers, four tokens of 2 x 64 floats each
    assert found["handover"]["predicted_bytes"] == 4 * 4 * 128 * 4


def test_the_toy_model_takes_token_ids() -> None:
    done = finish(["-p", "1,2,3", "-n", "3"])
    assert (done.returncode, done.stdout) == (0, "2,3,2\n")
    assert finish(["-p", "1,256"]).stderr.endswith("outside the vocabulary of 256\n")


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        ("--role worker", 2, "--role worker requires --layers"),
        ("--role coordinator --layers 1:3 --listen 127.0.0.1 1 -p 1", 2,
         "coordinator layer range must start at layer 0"),
        ("--role coordinator --layers 0:8 --listen 127.0.0.1 1 -p 1", 2,
         "layer range ends past final model layer 7"),
        ("--engine decoder -p 1", 2, "needs a model"),
        ("-m /nowhere.gguf -p 1", 2, "No such file"),
        ("-n 3", 2, "give a prompt"),
        ("-p 1 --load /dev/null", 1, "--load /dev/null: truncated distributed payload"),
        ("--bogus", 2, "unknown option: --bogus"),
    ],
)  # fmt: skip
def test_wrong_usage_is_one_line(words: str, status: int, told: str) -> None:
    done = finish(words.split())
    assert done.returncode == status
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_worker_is_exit_status_3() -> None:
    done = finish(
        f"--role coordinator --layers 0:3 --listen 127.0.0.1 {free_ports(1)[0]}"
        " --route-wait 300ms -p 1,2".split()
    )
    assert done.returncode == 3
    assert "distributed route incomplete: missing layer 4" in done.stderr


def waiting(role: str) -> PeerProcess:
    port = str(free_ports(1)[0])
    if role == "coordinator":
        words = ["--layers", "0:3", "--listen", "127.0.0.1", port, "-p", "1"]
    else:
        words = ["--layers", "4:output", "--coordinator", "127.0.0.1", port]
    return spawn([*RUN, "--role", role, "--debug", *words], env=ENV)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("role", ["coordinator", "worker"])
def test_an_interrupted_run_leaves_nothing(role: str, number: int) -> None:
    process = waiting(role)
    try:
        if role == "coordinator":
            process.wait_line("waiting for workers", deadline=deadline())
        else:
            process.wait_line("unable to connect", deadline=deadline())
        os.kill(process.pid, number)
        status = process.wait(deadline=deadline())
        assert status in (130, -number, 0)
        assert "Traceback" not in process.output()
    finally:
        process.end()


def deadline() -> float:
    return time.monotonic() + PATIENCE


def test_the_peers_need_no_torch() -> None:
    words = "import ds4proto_runtime.peer_main, ds4proto_runtime.cli.run, sys"
    code = f"{words}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
