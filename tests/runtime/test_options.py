# ruff: noqa: E501 -- one refusal a line reads as a table
"""ds4's option grammar: every text of the clauses, and what passes."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds4proto_runtime.cli.options import LayerRange, layer_range, parse_options
from ds4proto_runtime.pipeline.settings import (
    SettingError,
    SocketSettings,
    prefill_settings,
    worker_limits,
)

from ds4proto.cli import run
from ds4proto.errors import ExitCode, WrongUsage
from ds4proto.link.ds4d_limits import LinkLimits

COORDINATOR = "--role coordinator --layers 0:3 --listen 127.0.0.1 5000"
WORKER = "--role worker --layers 4:output --coordinator 127.0.0.1 5000"

REFUSED = [
    ("--role boss", "invalid distributed role: boss (valid roles: none, coordinator, worker)"),
    ("--role Worker", "invalid distributed role: Worker (valid roles: none, coordinator, worker)"),
    ("--layers 5", "invalid --layers 5: expected A:B or A:output"),
    ("--layers :5", "invalid --layers :5: expected A:B or A:output"),
    ("--layers 1:2:3", "invalid --layers 1:2:3: layer range has too many ':' separators"),
    ("--layers x:5", "invalid --layers x:5: invalid start layer in x:5"),
    ("--layers -1:5", "invalid --layers -1:5: invalid start layer in -1:5"),
    ("--layers 1:Output", "invalid --layers 1:Output: invalid end layer in 1:Output"),
    ("--layers 5:4", "invalid --layers 5:4: layer range end precedes start in 5:4"),
    ("--listen 127.0.0.1 0", "invalid value for --listen: 0"),
    ("--listen 127.0.0.1 65536", "invalid value for --listen: 65536"),
    ("--listen h 1 --listen h 2", "specify --listen only once"),
    ("--coordinator h x", "invalid value for --coordinator: x"),
    ("--coordinator h 1 --coordinator h 1", "specify --coordinator only once"),
    ("--dist-prefill-chunk 0", "invalid value for --dist-prefill-chunk: 0"),
    ("--dist-prefill-chunk ten", "invalid value for --dist-prefill-chunk: ten"),
    (f"{COORDINATOR} --dist-prefill-window 65", "--dist-prefill-window must be <= 64"),
    (f"{COORDINATOR} --dist-activation-bits 4", "--dist-activation-bits must be 32, 16, or 8"),
    ("--dist-replay-check", "--dist-replay-check requires --role coordinator"),
    (f"{WORKER} --dist-replay-check", "--dist-replay-check requires --role coordinator"),
    ("-p", "-p requires an argument"),
    ("--listen 127.0.0.1", "--listen requires an argument"),
    ("--layers 0:3", "distributed options require --role coordinator or --role worker"),
    ("--dist-activation-bits 8", "distributed options require --role coordinator or --role worker"),
    ("--role worker --dist-prefill-window 65", "--role worker requires --layers"),
    ("--role coordinator", "--role coordinator requires --layers"),
    ("--role coordinator --layers 0:3", "--role coordinator requires --listen HOST PORT"),
    (f"{COORDINATOR} --coordinator h 1", "--role coordinator must not use --coordinator"),
    ("--role worker --layers 4:output", "--role worker requires --coordinator HOST PORT"),
    (f"{WORKER} --dist-prefill-chunk 8", "--dist-prefill-chunk requires --role coordinator"),
    (f"{WORKER} --dist-prefill-window 8", "--dist-prefill-window requires --role coordinator"),
    (f"{WORKER} --dist-activation-bits 8", "--dist-activation-bits requires --role coordinator"),
    ("--local-decode", "--local-decode requires --role coordinator"),
    (
        "--role worker --layers 4:6 --coordinator h 1 --local-decode",
        "--local-decode requires --layers N:output",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("line", "words"), REFUSED, ids=[line for line, _ in REFUSED])
def test_a_wrong_command_line_gets_ds4s_text(line: str, words: str) -> None:
    with pytest.raises(WrongUsage) as caught:
        parse_options(line.split())
    assert str(caught.value) == words
    assert caught.value.exit_code == ExitCode.NOTHING_RAN


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("0:3", LayerRange(0, 3)),
        (" +4:output", LayerRange(4, None)),
        ("5:5", LayerRange(5, 5)),
        ("0" * 31 + ":1", LayerRange(0, 1)),
    ],
)
def test_layer_ranges_that_ds4_takes(words: str, wanted: LayerRange) -> None:
    assert layer_range(words) == wanted


def test_a_component_has_at_most_31_characters() -> None:
    words = "0" * 32 + ":1"
    with pytest.raises(WrongUsage, match="invalid start layer"):
        layer_range(words)


@pytest.mark.parametrize(
    ("words", "coordinator", "told"),
    [
        ("8:output", False, "layer range starts past final model layer 7"),
        ("4:8", False, "layer range ends past final model layer 7"),
        ("1:3", True, "coordinator layer range must start at layer 0"),
    ],
)
def test_the_model_bounds_a_range(words: str, coordinator: bool, told: str) -> None:
    with pytest.raises(WrongUsage) as caught:
        layer_range(words).resolve(8, coordinator=coordinator)
    assert str(caught.value) == told


@pytest.mark.parametrize("word", ["-h", "--help"])
@pytest.mark.parametrize(
    ("form", "told"),
    [
        ([], "ds4proto run --role worker"),
        (["--tensor-parallel"], "--gate-timeout TIME"),
        (["--plan-handover"], "ds4proto run --plan-handover --tokens"),
    ],
)
def test_every_form_of_run_has_a_help_of_its_own(
    capsys: pytest.CaptureFixture[str], form: list[str], told: str, word: str
) -> None:
    assert run(["run", *form, word]) == 0
    out = capsys.readouterr().out
    assert told in out
    assert "Example" in out


def test_a_trace_of_one_process_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "-p", "1", "--trace", "x.pcapng"]) == 2
    assert "--trace records connections" in capsys.readouterr().err


def test_a_file_that_is_no_model_is_named_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "text.gguf"
    path.write_text("hello, this is no model")
    assert run(["run", "-p", "hi", "-m", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"ds4proto: {path}: magic at byte 0: expected 'GGUF'")


def test_ranges_resolve() -> None:
    assert layer_range("4:output").resolve(8, coordinator=False) == range(4, 8)
    assert layer_range("0:3").resolve(8, coordinator=True) == range(4)


def test_a_whole_command_line() -> None:
    options = parse_options(
        f"{COORDINATOR} --dist-activation-bits 16 --dist-prefill-chunk 128"
        " --dist-prefill-window 4 --ctx 512 -m x.gguf -n 7 --temp 0.5 --seed 3"
        " --debug --json --trace t.pcapng".split()
    )
    assert (options.role, options.listen) == ("coordinator", ("127.0.0.1", 5000))
    assert (options.bits, options.prefill_chunk, options.prefill_window) == (16, 128, 4)
    assert (options.ctx, options.model, options.n_predict) == (512, "x.gguf", 7)
    assert (options.temp, options.seed) == (0.5, 3)
    assert options.debug
    assert options.as_json
    assert options.trace == "t.pcapng"


# the environment


def test_socket_settings_of_the_environment() -> None:
    env = {
        "DS4_DIST_SOCKET_BUFFER_MB": "0",
        "DS4_DIST_SOCKET_TIMEOUT_SEC": "3600",
        "DS4_DIST_SOCKET_RECV_TIMEOUT_SEC": "7",
        "DS4_DIST_CONNECT_BIND_HOST": "127.0.0.9",
        "DS4_DIST_CONNECT_TRACE": "",
    }
    found = SocketSettings.of(env)
    assert (found.buffer, found.send_s, found.receive_s) == (0, 3600, 7)
    assert (found.bind_host, found.trace, found.profile) == ("127.0.0.9", True, False)
    wrong = {
        "DS4_DIST_SOCKET_BUFFER_MB": "513",
        "DS4_DIST_SOCKET_TIMEOUT_SEC": "0",
        "DS4_DIST_SOCKET_RECV_TIMEOUT_SEC": "x",
    }
    assert SocketSettings.of(wrong) == SocketSettings.of({})
    assert SocketSettings.of({}).buffer == 128 << 20


def test_prefill_settings_of_the_environment() -> None:
    env = {
        "DS4_DIST_PREFILL_CHUNK": "8",
        "DS4_DIST_PREFILL_WINDOW": "64",
        "DS4_DIST_PREFILL_SEND_DEPTH": "8",
        "DS4_DIST_DISABLE_PREFILL_ACK_ONLY": "0",
    }
    found = prefill_settings(16, env=env)
    assert (found.chunk, found.window, found.send_depth) == (8, 64, 8)
    assert not found.ack_only
    assert found.pipeline
    assert prefill_settings(16, chunk=4, window=2, env=env).chunk == 4
    plain = prefill_settings(16, env={"DS4_DIST_PREFILL_SEND_DEPTH": "9"})
    assert (plain.send_depth, plain.chunk, plain.ack_only) == (2, None, True)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (
            {"DS4_DIST_PREFILL_CHUNK": "0"},
            "invalid value for DS4_DIST_PREFILL_CHUNK: 0",
        ),
        (
            {"DS4_DIST_PREFILL_WINDOW": "x"},
            "invalid value for DS4_DIST_PREFILL_WINDOW: x",
        ),
        (
            {"DS4_DIST_PREFILL_WINDOW": "65"},
            "distributed prefill window 65 exceeds limit 64",
        ),
    ],
)
def test_a_bad_environment_fails_the_request(env: dict[str, str], words: str) -> None:
    with pytest.raises(SettingError) as caught:
        prefill_settings(16, env=env)
    assert str(caught.value) == words


def test_worker_queues_of_the_environment() -> None:
    limits = LinkLimits()
    env = {
        "DS4_DIST_WORKER_PREFETCH_DEPTH": "8",
        "DS4_DIST_WORKER_FORWARD_WINDOW": "64",
    }
    found = worker_limits(limits, env)
    assert (found.queue_depth, found.forward_window) == (8, 64)
    found = worker_limits(limits, {"DS4_DIST_WORKER_PREFETCH_DEPTH": "9"})
    assert (found.queue_depth, found.forward_window) == (2, 4)
    assert (
        worker_limits(limits, {"DS4_DIST_DISABLE_WORKER_PREFETCH": ""}).queue_depth == 1
    )
