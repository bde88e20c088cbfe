"""Options and variables: ds4's rules and texts, honoured or refused by name."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from ds4proto_runtime.tp import cli
from ds4proto_runtime.tp.environment import read_environment, v9w_features
from ds4proto_runtime.tp.options import FLAGS, VALUES, parse_options, toy_shape
from ds4proto_runtime.tp.peers import leader, worker
from ds4proto_runtime.tp.rank import log_line
from ds4proto_runtime.tp.script import tokens
from ds4proto_runtime.tp.toy import ToyTpEngine
from ds4proto_runtime.tp.worker import TpWorker

from ds4proto.cli import run as command_line
from ds4proto.errors import Ds4ProtoError, WrongUsage
from ds4proto.link.ds4t_prefill import GLM_MODELS
from ds4proto.peer import open_peer
from tests.runtime.ports import held_port
from tests.runtime.tp.rig import PATIENCE, options

LEAD = ["--role", "coordinator", "--listen", "127.0.0.1", "0"]
WORK = ["--role", "worker", "--coordinator", "127.0.0.1", "9"]
# the left column and the text are the table of facts, chapter 11.1
REFUSED = [
    ([], "--tensor-parallel requires --role coordinator or --role worker"),
    (["--role", "none"], "invalid tensor-parallel role"),
    (
        [*LEAD, "--layers", "0:3"],
        "tensor parallelism always uses one 50/50 worker; omit --layers",
    ),
    (
        [*LEAD, "--dist-prefill-chunk", "8"],
        "--dist-* and distributed debug options cannot be used with --tensor-parallel",
    ),
    (
        [*LEAD, "--debug"],
        "--dist-* and distributed debug options cannot be used with --tensor-parallel",
    ),
    (
        ["--role", "coordinator"],
        "--role coordinator --tensor-parallel requires --listen HOST PORT",
    ),
    (
        [*LEAD, "--coordinator", "127.0.0.1", "9"],
        "--role coordinator must not use --coordinator",
    ),
    (
        ["--role", "worker"],
        "--role worker --tensor-parallel requires --coordinator HOST PORT",
    ),
    (
        [*WORK, "--listen", "127.0.0.1", "9"],
        "--role worker --tensor-parallel must not use --listen",
    ),
    ([*LEAD, "--role", "worker"], "--tensor-parallel selects its role through --role"),
    ([*LEAD, "--transport", "udp"], "invalid --transport value: udp"),
    ([*LEAD, "--rdma-gid-index", "-1"], "invalid --rdma-gid-index -1"),
    ([*LEAD, "--rdma-gid-index", "2147483648"], "invalid --rdma-gid-index 2147483648"),
    ([*LEAD, "--rdma-device"], "--rdma-device requires an argument"),
    ([*LEAD, "--listen", "127.0.0.1"], "--listen requires an argument"),
]


@pytest.mark.parametrize(("words", "text"), REFUSED)
def test_ds4_texts_of_wrong_options(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line(["run", "--tensor-parallel", *words]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--dialect", "v15"], "40-byte"),
        (["--dialect", "v1"], "one implicit session"),
        (["--toy", "n_layers=3"], "n_layer"),
        (["--engine", "toy", "-m", "x.gguf"], "no file"),
        (["--engine", "decoder"], "needs a model"),
        (["-p", "99"], "outside the vocabulary"),
        (["-p", "1,2", "--ctx", "2"], "1 to 1 tokens"),
        ([], "nothing to do"),
        (["--toy", "n_vocab=33", "-p", "1"], "even width"),
        (["--batch-from", "1"], "from 2"),
        (["--fault", "x"], "nothing to do"),
        (["--what"], "unknown option: --what"),
    ],
)
def test_our_own_refusals_say_what_is_expected(
    words: list[str], found: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line(["run", "--tensor-parallel", *LEAD, *words]) == 2
    err = capsys.readouterr().err
    assert found in err
    assert "internal error" not in err


@pytest.mark.parametrize(
    ("words", "first"), [("coordinator", "tp-leader"), ("worker", "tp-worker")]
)
def test_who_sends_first_is_an_option(words: str, first: str) -> None:
    found = parse_options([*LEAD, "--rdma-first-sender", words])
    transport: Any = cli.load_rdma(found, read_environment({}, "v9w"))
    assert transport.options.first_sender == first


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--help"]) == 0
    text = capsys.readouterr().out
    hidden = {"--fault", "--model", "--prompt", "--tokens", "-c", "--role"}
    missing = [name for name in (*VALUES, *FLAGS) if name not in text]
    assert set(missing) <= hidden | {"--json"}


def test_values_are_taken() -> None:
    found = parse_options(
        [*LEAD, "--transport", "rdma", "--rdma-device", "mlx5_0", "--rdma-gid-index",
         "3", "-c", "512", "--debug-hash", "4", "--gate-timeout", "250ms",
         "--tensor-parallel-token-prefill", "--prefill-chunk", "-1"]
    )  # fmt: skip
    assert (found.transport, found.rdma_device, found.rdma_gid_index) == (
        "rdma",
        "mlx5_0",
        3,
    )
    assert (found.ctx, found.debug_hash, found.gate_timeout) == (512, 4, 0.25)
    assert (found.token_prefill, found.prefill_chunk) == (True, -1)
    shape = toy_shape("n_layer=4,n_embd=64,mask=0x3,split=0")
    assert (shape.n_layer, shape.n_embd, shape.mask, shape.split) == (
        4,
        64,
        (3, 0, 0),
        False,
    )


@pytest.mark.parametrize(
    ("name", "value", "dialect", "field", "expected"),
    [
        # defaults and ranges: facts, chapter 11.2
        ("DS4_TP_TIMEOUT_SEC", "12", "v14", "dial_seconds", 12.0),
        ("DS4_TP_TIMEOUT_SEC", "word", "v14", "dial_seconds", 0.0),
        ("X", "", "v14", "dial_seconds", 300.0),
        ("DS4_TP_CONNECT_TIMEOUT_SEC", "86401", "v9w", "dial_seconds", 1800.0),
        ("DS4_TP_CONNECT_TIMEOUT_SEC", "7", "v9w", "dial_seconds", 7.0),
        ("DS4_TP_GATE_TIMEOUT_MS", "200", "v10", "gate_idle", 0.2),
        ("DS4_TP_GATE_TIMEOUT_MS", "0", "v10", "gate_idle", None),
        ("DS4_TP_GATE_TIMEOUT_MS", "60001", "v10", "gate_idle", None),
        ("DS4_TP_GATE_TIMEOUT_MS", "200", "v7", "gate_idle", None),
        ("DS4_TP_GATE_TIMEOUT_MS", "200", "v9w", "gate_idle", None),
        ("DS4_METAL_TP_SESSION_BATCH", "0", "v14", "session_batch", False),
        ("DS4_METAL_TP_SESSION_BATCH", "1", "v14", "session_batch", True),
        ("DS4_TP_DISABLE_RDMA_WARMUP", "", "v14", "warm_up", False),
        ("DS4_TP_DISABLE_VERIFY_WINDOW", "", "v14", "verify_window", False),
        ("DS4_TP_GATE_TRACE", "1", "v14", "trace", True),
        ("DS4_TP_GATE_PROFILE", "1", "v14", "profile", True),
        ("DS4_TP_GREEDY_TOP2", "1", "v9w", "top2", True),
        ("DS4_TP_GREEDY_TOP2", "1", "v14", "top2", False),
    ],
)
def test_variables(
    name: str, value: str, dialect: str, field: str, expected: Any
) -> None:
    assert getattr(read_environment({name: value}, dialect), field) == expected


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("DS4_METAL_PREFILL_CHUNK", "64", "chunk", 64),
        ("DS4_METAL_PREFILL_CHUNK", "-1", "chunk", -1),
        ("DS4_TP_PREFILL_SPLIT_MIN", "8", "split_min", 8),
        ("DS4_TP_PREFILL_SPLIT_MIN", "1", "split_min", 32),
        ("DS4_TP_SUBGATE_PIPELINE", "2", "subgate_pipeline", True),
        ("DS4_METAL_RESUME_PREFILL_MIN", "9", "resume_min", 9),
    ],
)
def test_variables_of_the_plan(
    name: str, value: str, field: str, expected: Any
) -> None:
    assert getattr(read_environment({name: value}, "v14").plan, field) == expected


@pytest.mark.parametrize(
    ("name", "dialect"),
    [
        ("DS4_METAL_GRAPH_RAW_CAP", "v14"),
        ("DS4_GLM_ABLATE_COMBINE", "v14"),
        ("DS4_GLM_TP_HEAD_SPLIT_MIN", "v14"),
        ("DS4_GLM_TP_EXACT_PREFILL_MAX", "v14"),
        ("DS4_TP_EXPERT_SPLIT", "v9w"),
        ("DS4_TP_RDMA_LOGITS", "v9w"),
        ("DS4_TP_RANK0_FULL_LOGITS", "v9w"),
        ("DS4_TP_BATCH_ATTN_HEAD_SPLIT", "v9w"),
        ("DS4_TP_ODINLINK_BATCH_ASYNC", "v9w"),
        ("DS4_TP_RDMA_DECODE_MAX_MSG", "v9w"),
    ],
)
def test_variables_that_change_the_wire_are_refused_by_name(
    name: str, dialect: str
) -> None:
    with pytest.raises(WrongUsage, match=name):
        read_environment({name: "7"}, dialect)


def test_local_variables_are_named_as_without_effect() -> None:
    found = read_environment({"DS4_TP_EVENT_GATES": "1"}, "v14")
    assert found.notes
    assert "DS4_TP_EVENT_GATES" in found.notes[0]


TABLE = (
    "DS4_TP_TIMEOUT_SEC", "DS4_TP_GATE_TIMEOUT_MS", "DS4_TP_DISABLE_RDMA_WARMUP",
    "DS4_TP_DISABLE_VERIFY_WINDOW", "DS4_METAL_PREFILL_CHUNK",
    "DS4_METAL_GRAPH_RAW_CAP",
    "DS4_GLM_ABLATE_COMBINE", "DS4_TP_PREFILL_SPLIT_MIN", "DS4_TP_SUBGATE_PIPELINE",
    "DS4_GLM_TP_HEAD_SPLIT_MIN", "DS4_GLM_TP_EXACT_PREFILL_MAX",
    "DS4_METAL_RESUME_PREFILL_MIN", "DS4_METAL_TP_SESSION_BATCH", "DS4_TP_EVENT_GATES",
    "DS4_TP_NO_KEEPALIVE", "DS4_TP_KEEPALIVE_TGS", "DS4_TP_KEEPALIVE_ITERS",
    "DS4_TP_GATE_TRACE", "DS4_TP_GATE_PROFILE", "DS4_TP_BIG_GATE_DEBUG",
    "DS4_GLM_TP_DEBUG", "DS4_TP_CONNECT_TIMEOUT_SEC", "DS4_TP_RDMA_DECODE_MAX_MSG",
    "DS4_TP_EXPERT_SPLIT", "DS4_TP_GREEDY_TOP2", "DS4_TP_RDMA_LOGITS",
    "DS4_TP_RANK0_FULL_LOGITS", "DS4_TP_BATCH_ATTN_HEAD_SPLIT",
    "DS4_TP_ODINLINK_BATCH_ASYNC", "DS4_TP_NULL_SPLIT",
)  # fmt: skip
"""The names of the facts, 11.2; DS4_GLM_RESUME_PREFILL_MIN counts for GLM alone."""


@pytest.mark.parametrize("dialect", ["v7", "v9w", "v10", "v14"])
@pytest.mark.parametrize("name", TABLE)
def test_every_variable_is_honoured_refused_or_named(name: str, dialect: str) -> None:
    told = []
    for value in ("0", "7", "200"):
        try:
            found = read_environment({name: value}, dialect)
        except WrongUsage as refused:
            told.append(name in str(refused))
            continue
        same = found == read_environment({}, dialect)
        told.append(not same and all(name in note for note in found.notes))
    assert any(told), f"{name} is passed over in silence under {dialect}"


def test_the_resume_variable_of_glm() -> None:
    name, glm = "DS4_GLM_RESUME_PREFILL_MIN", next(iter(GLM_MODELS))
    found = read_environment({name: "9"}, "v14", model_id=glm)
    assert found.plan.resume_min == 9


def test_the_feature_word_of_v9w() -> None:
    assert v9w_features(256, top2=False) == 0x8000  # measured
    assert v9w_features(256, top2=True) == 0x8020


def test_explicit_rdma_without_a_device_fails_closed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "load_rdma", lambda *_: None)
    # signals belong to the main thread alone
    monkeypatch.setattr(cli, "_answering_sigterm", contextlib.nullcontext)
    word = ["--engine", "toy", "--dialect", "v14"]
    statuses: list[int] = []
    with held_port() as port:
        address = ["127.0.0.1", str(port)]

        def lead() -> None:
            statuses.append(
                command_line_rank("--role", "coordinator", "--listen", *address,
                                  "--script", "create", *word)
            )  # fmt: skip

        thread = threading.Thread(target=lead, daemon=True)
        thread.start()
        status = command_line_rank(
            "--role", "worker", "--coordinator", *address, "--transport", "rdma", *word
        )
        thread.join(PATIENCE)
    assert not thread.is_alive()
    assert status == 1
    err = capsys.readouterr().err
    assert "tp: --transport rdma but this side has no active device" in err


def command_line_rank(*words: str) -> int:
    """Run one rank in this thread."""
    try:
        return cli.run([*words, "--hello-wait", "60"])
    except Ds4ProtoError as error:
        log_line(str(error))
        return int(error.exit_code)


def test_tokens_of_a_script() -> None:
    assert tokens("1-4,9,5x3") == [1, 2, 3, 4, 9, 5, 5, 5]
    assert tokens("-1") == [-1]
    for bad in ("a", "1x99999999999", "0-99999999", ""):
        with pytest.raises(WrongUsage):
            tokens(bad)


def test_the_reference_peers_serve_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A harness starts them by name; here our own worker joins the leader."""
    for dialect in ("v7", "v9w", "v10", "v14"):
        monkeypatch.setenv("DS4PROTO_TP_DIALECT", dialect)
        with open_peer(
            "reference:tp-leader", "tp-leader", deadline=time.monotonic() + 60
        ) as session:
            address = session.address
            assert address is not None
            engine = ToyTpEngine(rank=1)
            if dialect == "v9w":
                word = v9w_features(8, top2=False)
                engine.identity = replace(engine.identity, runtime_features=word)
            rank = TpWorker(
                engine, *address, options(dialect=dialect), say=lambda _: None
            )
            with rank:
                rank.serve()


def test_the_reference_peers_are_no_mutants() -> None:
    for factory in (leader, worker):
        with pytest.raises(ValueError, match="no mutants"):
            factory("wrong-seq")
        assert any("{port}" in word for word in factory())
