"""Plans, command lines, memory, predictions, proposals, and the command itself."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ds4proto.cli import run
from ds4proto.codec import Codec
from ds4proto.codec.cost import Cost
from ds4proto.errors import WrongUsage
from ds4proto.preflight.case import make_case
from ds4proto.preflight.command import parse_command
from ds4proto.preflight.facts import GIB, stated_model
from ds4proto.preflight.memory import kv_bytes
from ds4proto.preflight.plan import read_plan
from ds4proto.preflight.predict import predict
from ds4proto.preflight.propose import propose
from ds4proto.preflight.widths import which_pays
from tests.model.gguf_writer import model as gguf_model
from tests.preflight.plans import FLASH, PAIR, PIPELINE, checks, findings, spoiled

Preflight = Callable[..., tuple[int, str, str]]


@pytest.fixture
def preflight(capfd: pytest.CaptureFixture[str]) -> Preflight:
    def call(*args: Any) -> tuple[int, str, str]:
        status = run(["preflight", *map(str, args)])
        out, err = capfd.readouterr()
        return status, out, err

    return call


def plan_file(folder: Path, text: str) -> Path:
    path = folder / "cluster.toml"
    path.write_text(text)
    return path


# -- command lines


def test_a_command_line_gives_its_environment_and_program() -> None:
    command = parse_command(
        "env DS4_X=1 DS4_Y='a b' /opt/ds4-bench --role worker --layers ' +3:output' "
        "--coordinator h 1 --seed 4 --mtp-file x"
    )
    assert command.env == {"DS4_X": "1", "DS4_Y": "a b"}
    assert command.program == "ds4-bench"
    assert str(command.layers) == "3:output"
    assert command.features == {"mtp"}
    assert command.unknown == ["--seed", "4", "x"]
    assert command.refusals == []


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--layers 1:2:3", "layer range has too many ':' separators"),
        ("--listen h 0", "invalid value for --listen: 0"),
        ("--listen h 1 --listen h 2", "specify --listen only once"),
        ("--coordinator h", "--coordinator requires an argument"),
        ("--role worker", "--role worker requires --layers"),
        ("--dist-prefill-window 65 --role coordinator --layers 0:1 --listen h 1",
         "--dist-prefill-window must be <= 64"),
        ("--dist-replay-check", "--dist-replay-check requires --role coordinator"),
        ("--transport rdma",
         "tensor-parallel options require --tensor-parallel and --role"),
        ("--tensor-parallel",
         "--tensor-parallel requires --role coordinator or --role worker"),
        ("--tensor-parallel --role coordinator --listen h 1 --rdma-gid-index -1",
         "invalid --rdma-gid-index -1"),
        ("--tensor-parallel --role worker --coordinator h 1 --debug",
         "--dist-* and distributed debug options cannot be used with "
         "--tensor-parallel"),
    ],
)  # fmt: skip
def test_ds4_prints_this_first(words: str, text: str) -> None:
    assert parse_command(f"./ds4 {words}").prints.endswith(text)


# -- plans that cannot be read


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "memory_gib",
            "memory_gb",
            "unknown key 'memory_gb'; did you mean memory_gib?",
        ),
        ("memory_gib = 96", "memory_gib = -1", "expected 0 or more"),
        ("memory_gib = 96", "memory_gib = nan", "expected 0 or more"),
        ("memory_gib = 96", "memory_gib = true", "expected a number"),
        ('system = "macos"', 'system = "windows"', "expected one of linux, macos"),
        ('name = "b"', 'name = "a"', "two machines are named 'a'"),
        ('between = ["a", "b"]', 'between = ["a", "c"]', "expected two of a, b"),
        ("[model.flash]\nid = 0", "[model.flash]", "or id = N of a model"),
        ("gguf_bytes = 86720111488", 'quant = "Q9_Z"', "no tensor type 'Q9_Z'"),
        ('name = "a"', "name = ", "no sound TOML"),
        ('command = "./ds4', "command = \"'./ds4", "No closing quotation"),
    ],
)
def test_a_plan_that_cannot_be_read_says_where(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    path = plan_file(tmp_path, spoiled(PIPELINE, (old, new)))
    with pytest.raises(WrongUsage, match=re.escape(says)) as told:
        read_plan(path)
    assert str(told.value).startswith(f"{path}: ")


def test_a_model_that_is_not_here_may_be_stated(tmp_path: Path) -> None:
    text = spoiled(PIPELINE, (FLASH, '[model.flash]\ngguf = "flash.gguf"\n'))
    with pytest.raises(WrongUsage) as told:
        read_plan(plan_file(tmp_path, text))
    assert f"no file {str(tmp_path / 'flash.gguf')!r}" in str(told.value)
    assert "model.flash.gguf" in str(told.value)
    assert "or state the model instead" in str(told.value)


def test_a_gguf_header_is_read_for_the_plan(tmp_path: Path) -> None:
    made = gguf_model("deepseek4", blocks=43, width=4096, vocabulary=129280)
    (tmp_path / "tiny.gguf").write_bytes(made.bytes() + bytes(1024))
    text = spoiled(
        PIPELINE,
        (PIPELINE[PIPELINE.index("id = 0") : PIPELINE.index("[[machine]]")],
         'gguf = "tiny.gguf"\n'),
    )  # fmt: skip
    plan = read_plan(plan_file(tmp_path, text))
    facts = plan.models["flash"].facts
    assert facts.file_size == (tmp_path / "tiny.gguf").stat().st_size
    assert facts.layers_present == tuple(range(43))
    assert facts.known is not None
    assert facts.known.name == "DeepSeek V4 Flash"


# -- memory


def test_caches_follow_the_layout_of_a_saved_session() -> None:
    flash = stated_model("flash", model_id=0)
    # layers 0 and 1 hold raw rows only: 8192 rows of 512 values of 4 bytes
    assert kv_bytes(flash.facts, 0, 1, 32768) == 2 * 8192 * 512 * 4
    # an even layer: ratio 4, with indexer; fixed cost 2 x 32768 + 2 x 8192
    rows = 32768 // 4 + 2
    even = 8192 * 512 * 4 + rows * (512 + 128) * 4 + 2 * 32768 + 2 * 8192
    assert kv_bytes(flash.facts, 2, 2, 32768) == even
    # an odd layer: ratio 128; fixed cost 2 x 262144
    odd = 8192 * 512 * 4 + (32768 // 128 + 2) * 512 * 4 + 2 * 262144
    assert kv_bytes(flash.facts, 3, 3, 32768) == odd


def test_memory_counts_sessions_and_half_of_the_experts(tmp_path: Path) -> None:
    text = spoiled(PAIR, ("memory_gib = 128", "memory_gib = 48"))
    short = checks(findings(tmp_path, text))["memory.short"]
    # 43 x 1.8 + 2.0 less half of 43 x 1.6 is 45.0 GiB of weights
    assert "weights 45.0" in short.what
    assert "sysctl iogpu.wired_limit_mb=" not in short.next_step  # it cannot help
    assert "36.0 GiB" in short.expected


# -- predictions


def test_a_slow_link_is_predicted_before_the_run(tmp_path: Path) -> None:
    # 77 ms of delay and decode of one token a round trip: about 13 tokens a second
    text = spoiled(PIPELINE, ("rtt_ms = 0.3", "rtt_ms = 77"), ("gbit = 20", "gbit = 1"))
    plan = read_plan(plan_file(tmp_path, text))
    found = predict(make_case(plan))[0]
    assert found.decode == pytest.approx(1 / (0.077 + (65536 + 517120) * 8e-9), 1e-6)
    assert found.decode < 13
    assert found.bound == "latency"
    # a quarter second for the 32 MiB of a 512-token chunk at 1 Gbit/s
    assert found.prefill == pytest.approx(1e9 / 8 / 65536)


def test_narrower_widths_double_prefill_where_the_link_is_thin(tmp_path: Path) -> None:
    text = spoiled(PIPELINE, ("gbit = 20", "gbit = 1"))
    found = predict(make_case(read_plan(plan_file(tmp_path, text))))
    assert [one.bits for one in found] == [32, 16, 8]
    assert found[1].prefill == pytest.approx(2 * (found[0].prefill or 0))
    assert found[2].chunk_bytes == 512 * 16384


@pytest.mark.parametrize(
    ("seconds", "says"),
    [
        (0.0, "8 bits is best on 1 Gbit/s, 4.00 times as fast a hop as 32 bits"),
        (1.0, "on 1 Gbit/s no width is notably faster than 32 bits"),
    ],
)
def test_a_width_is_best_only_where_the_gain_is_notable(
    seconds: float, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def costs(codec: Codec, rows: int, width: int, *, rounds: int) -> Cost:
        size = codec.wire_bytes(rows * width, rows=rows)
        coding = 0.0 if codec.describe()["name"] == "f32" else seconds
        return Cost(str(codec.describe()["name"]), size, coding, coding)

    monkeypatch.setattr("ds4proto.preflight.widths.measure", costs)
    lines = which_pays(make_case(read_plan(plan_file(tmp_path, PIPELINE))), 1.0)
    assert lines[0] == f"decode: {says}, coded on this machine"
    assert ("clip at 240" in lines[1]) == (seconds == 0.0)


def test_gates_wait_half_a_round_trip_each(tmp_path: Path) -> None:
    found = predict(make_case(read_plan(plan_file(tmp_path, PAIR))))[0]
    assert found.messages == 86
    assert found.message_bytes == 4 * 4096
    wait = 86 * 0.03e-3 / 2 + (86 * 16384 + 4 * 129280 // 2) * 8 / 40e9
    assert found.decode_ms == pytest.approx(1e3 * wait)


# -- proposals


def test_layers_go_by_speed(tmp_path: Path) -> None:
    text = spoiled(PIPELINE, ('name = "a"', 'name = "a"\nprefill_speed = 200'),
                   ('name = "b"', 'name = "b"\nprefill_speed = 100'),
                   ("memory_gib = 96", "memory_gib = 256"))  # fmt: skip
    found = propose(read_plan(plan_file(tmp_path, text)))
    assert [(one.machine, one.layers) for one in found] == [
        ("a", "0:28"),  # 29 and 14 layers take 0.145 and 0.140; 28 and 15, 0.150
        ("b", "29:output"),
    ]


@pytest.mark.parametrize(("memory", "first"), [(32, 10), (35, 12), (37, 13), (38, 13)])
def test_layers_go_no_further_than_memory(
    tmp_path: Path, memory: int, first: int
) -> None:
    text = spoiled(PIPELINE, ("memory_gib = 96", f"memory_gib = {memory}"))
    found = propose(read_plan(plan_file(tmp_path, text)))
    # Three quarters of the memory, less 2 GiB of the runtime and 2 outside the layers,
    # at 1.8 GiB a layer and its cache of up to 0.04.
    limit = 0.75 * memory * GIB
    assert found[0].layers == f"0:{first - 1}"
    assert (found[0].need or 0) <= limit < (found[0].need or 0) + 1.85 * GIB
    assert found[1].layers == f"{first}:output"


def test_a_proposal_is_silent_when_it_is_taken(tmp_path: Path) -> None:
    text = spoiled(PIPELINE, ("memory_gib = 96", "memory_gib = 48"))
    parts = propose(read_plan(plan_file(tmp_path, text)))
    text = spoiled(text, ("--layers 0:20", f"--layers {parts[0].layers}"),
                   ("--layers 21:output", f"--layers {parts[1].layers}"))  # fmt: skip
    assert not checks(findings(tmp_path, text), "error")


def test_what_does_not_fit_is_said_with_numbers(tmp_path: Path) -> None:
    text = PIPELINE.replace("memory_gib = 96", "memory_gib = 32")
    with pytest.raises(WrongUsage, match=r"does not fit .* 48\.0 GiB are there"):
        propose(read_plan(plan_file(tmp_path, text)))


# -- the command


def test_exit_statuses(preflight: Preflight, tmp_path: Path) -> None:
    sound = plan_file(tmp_path, PIPELINE)
    assert preflight("--plan", sound)[0] == 0
    assert preflight("--plan", sound, "--strict")[0] == 0
    slow = plan_file(tmp_path, spoiled(PIPELINE, ("rtt_ms = 0.3", "rtt_ms = 77")))
    assert preflight("--plan", slow)[0] == 0
    assert preflight("--plan", slow, "--strict")[0] == 1
    gap = spoiled(PIPELINE, ("--layers 21:output", "--layers 23:output"))
    assert preflight("--plan", plan_file(tmp_path, gap))[0] == 1
    assert preflight("--plan", tmp_path / "none.toml")[0] == 2
    assert preflight()[0] == 2
    (tmp_path / "cluster.toml").write_text("machine = 3")
    status, _, err = preflight("--plan", tmp_path / "cluster.toml")
    assert status == 2
    assert "[[machine]]" in err


def test_text_and_json_say_the_same(preflight: Preflight, tmp_path: Path) -> None:
    gap = spoiled(PIPELINE, ("--layers 21:output", "--layers 23:output"))
    path = plan_file(tmp_path, gap)
    status, out, _ = preflight("--plan", path)
    assert "verdict: no go" in out
    assert "ds4 prints: distributed route incomplete: missing layer 21" in out
    status, out, _ = preflight("--plan", path, "--json")
    report = json.loads(out)
    assert status == 1
    assert report["verdict"] == "no go"
    assert report["areas"]["layers"] == "error"
    assert report["areas"]["memory"] == "ok"
    assert report["machines"][0]["layers"] == "0:20"
    assert report["prediction"][0]["bits"] == 32
    assert report["machines"][1]["announces"]["layer_start"] == 23
    assert report["machines"][1]["announces"]["quant_bits"] == 2
    assert report["models"]["flash"]["per_layer"]["7"]["experts"] == "IQ2_XXS"
    found = report["findings"][0]
    assert found["prints"] == "distributed route incomplete: missing layer 21"
    assert found["found"] == "a 0:20, b 23:output"


def test_proposals_on_the_command_line(preflight: Preflight, tmp_path: Path) -> None:
    path = plan_file(tmp_path, PIPELINE)
    _, out, _ = preflight("--plan", path, "--propose")
    assert out.startswith("a: --layers 0:21 ")
    _, out, _ = preflight("--plan", path, "--propose", "--json")
    assert json.loads(out)["proposal"][1]["layers"] == "22:output"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--join", "127.0.0.1:1", "--", "./ds4"), "--join needs --code"),
        (("--join", "nowhere", "--code", "x", "--", "./ds4"), "expected HOST:PORT"),
        (("--plan", "x", "--", "./ds4"), "--plan goes without"),
        (("--propose", "--", "./ds4"), "--propose needs --plan"),
        (("--listen", "0.0.0.0:0", "--", "./ds4"), "is not a loopback address"),
    ],
)
def test_wrong_usage(preflight: Preflight, args: tuple[str, ...], says: str) -> None:
    status, _, err = preflight(*args)
    assert status == 2
    assert says in err


def test_a_host_that_is_not_there_is_lost(preflight: Preflight) -> None:
    from ds4proto.peer import listen

    with listen() as listener:
        port = listener.address[1]
    status, _, err = preflight(
        "--join", f"127.0.0.1:{port}", "--code", "x", "--", "./ds4", "--role", "worker"
    )
    assert status == 3
    assert "refused" in err


def test_sessions_are_bounded_on_the_command_line_and_in_a_plan(
    tmp_path: Path, preflight: Preflight
) -> None:
    status, out, err = preflight("--sessions", 10**25, "--", "./ds4")
    assert (status, out) == (2, "")
    assert "1<=x<=1000000" in err
    text = spoiled(PIPELINE, ("[run]", f"[run]\nsessions = {10**7}"))
    status, out, err = preflight("--plan", plan_file(tmp_path, text))
    assert (status, out) == (2, "")
    assert "run.sessions: expected 1 to 1000000, found 10000000" in err
