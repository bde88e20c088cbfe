"""Planted mismatches are found, each by its own check, and sound plans are silent.

A row plants one fault into a sound plan. ``prints`` is what ds4 prints in that place,
from the tables of checks of both protocols.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.preflight.plans import CUDA, FLASH, PAIR, PIPELINE, checks, findings, spoiled

A, B = 'name = "a"', 'name = "b"'
WORKER = "--layers 21:output"


class Planted(NamedTuple):
    kind: str
    plan: str
    changes: tuple[tuple[str, str], ...]
    check: str
    severity: str = "error"
    prints: str = ""
    where: str = ""


def p(
    kind: str, plan: str, check: str, *changes: tuple[str, str],
    severity: str = "error", prints: str = "", where: str = "",
) -> Planted:  # fmt: skip
    return Planted(kind, plan, changes, check, severity, prints, where)


OTHER_FLASH = '[model.other]\nid = 0\ngguf_bytes = 86720111489\n[[machine]]\nname = "a"'
BOTH_MODELS = (
    ('[[machine]]\nname = "a"', OTHER_FLASH + '\nmodel = "flash"'),
    (B, B + '\nmodel = "other"'),
)
PRO = ("id = 0\ngguf_bytes = 86720111489", "id = 1\ngguf_bytes = 86720111488")


def env(rank: str, name: str, value: str) -> tuple[str, str]:
    old = 'env = { DS4_TP_TIMEOUT_SEC = "300" }'
    new = f'env = {{ {name} = "{value}" }}'
    return (old, ("<" if rank == "b" else "") + new)


PLANTED = [
    # command lines: what ds4 itself prints
    p("option", PIPELINE, "command.refused", ("--layers 0:20", "--layers 0-20"),
      prints="invalid --layers 0-20: expected A:B or A:output", where="a"),
    p("option", PIPELINE, "command.refused", ("--listen 10.0.0.1 9000 ", ""),
      prints="--role coordinator requires --listen HOST PORT", where="a"),
    p("option", PIPELINE, "command.refused",
      ("--role worker", "--role worker --dist-activation-bits 16"), where="b"),
    p("option", PIPELINE, "command.refused", ("--role coordinator", "--role leader"),
      prints="invalid distributed role: leader (valid roles: none, coordinator, "
      "worker)", where="a"),
    p("tp-option", PAIR, "command.refused", ("--ctx 32768", "--layers 0:20"),
      prints="tensor parallelism always uses one 50/50 worker; omit --layers"),
    p("tp-option", PAIR, "command.refused",
      ("--role worker", "--role worker --listen 10.0.0.2 9912"),
      prints="--role worker --tensor-parallel must not use --listen", where="b"),
    p("tp-option", PAIR, "command.refused",
      ("--role worker", "--role worker --transport ib"),
      prints="invalid --transport value: ib", where="b"),
    p("program", PAIR, "command.worker-program",
      ("./ds4 --tensor", "./ds4-server --tensor"), where="b"),
    # roles and addresses
    p("roles", PIPELINE, "roles.coordinator",
      ("--role worker --layers 21:output --coordinator 10.0.0.1 9000",
       "--role coordinator --layers 21:output --listen 10.0.0.2 9000")),
    p("roles", PIPELINE, "roles.mixed",
      ("--role worker --layers 21:output", "--tensor-parallel --role worker")),
    p("address", PIPELINE, "dial.port", ("--coordinator 10.0.0.1 9000",
                                         "--coordinator 10.0.0.1 9001"), where="b"),
    p("address", PIPELINE, "dial.loopback", ("--coordinator 10.0.0.1",
                                             "--coordinator 127.0.0.1"), where="b"),
    p("address", PIPELINE, "dial.listens-on-loopback",
      ("--listen 10.0.0.1", "--listen 127.0.0.1"), where="a"),
    p("address", PIPELINE, "dial.listen-address",
      ("--listen 10.0.0.1", "--listen 10.0.0.7"), where="a"),
    p("port", PIPELINE, "dial.port-taken",
      ("10.0.0.2/24", "10.0.0.1/24"),
      (WORKER, WORKER + " --listen 10.0.0.1 9000")),
    # layers
    p("coverage", PIPELINE, "layers.gap", (WORKER, "--layers 23:output"),
      prints="distributed route incomplete: missing layer 21"),
    p("coverage", PIPELINE, "layers.overlap", (WORKER, "--layers 20:output"),
      prints="distributed route incomplete: missing layer 21"),
    p("coverage", PIPELINE, "layers.outside", (WORKER, "--layers 21:60"),
      prints="layer range ends past final model layer 42", where="b"),
    p("coverage", PIPELINE, "layers.outside", ("--layers 0:20", "--layers 1:20"),
      prints="coordinator layer range must start at layer 0", where="a"),
    p("head", PIPELINE, "head.owners", ("--layers 0:20", "--layers 0:output")),
    p("head", PIPELINE, "head.missing", (WORKER, "--layers 21:42"),
      ("other_gib = 2.0", "other_gib = 2.0\noutput = false")),
    p("head", PIPELINE, "head.returns", (WORKER, "--layers 21:42"),
      severity="warning"),
    p("split file", PIPELINE, "layers.not-in-file",
      ("other_gib = 2.0", 'other_gib = 2.0\nlayers = "0:30"'), where="b"),
    p("split file", PIPELINE, "layers.no-embedding",
      ("other_gib = 2.0", "other_gib = 2.0\nembedding = false"), where="a"),
    p("split file", PIPELINE, "layers.no-head",
      ("other_gib = 2.0", "other_gib = 2.0\noutput = false"), where="b"),
    # registration
    p("hello", PIPELINE, "hello.refused", *BOTH_MODELS, PRO,
      prints="layer count mismatch: worker=61 coordinator=43", where="b"),
    p("hello", PIPELINE, "hello.refused", *BOTH_MODELS,
      ("id = 0\ngguf_bytes = 86720111489", 'id = 0\nlabel = "Flash"'),
      prints="model family mismatch: worker=Flash coordinator=DeepSeek V4 Flash"),
    p("hello", PIPELINE, "hello.refused", ("9000 --ctx 32768", "<9000 --ctx 8192"),
      prints="worker context too small: worker=8192 coordinator=32768", where="b"),
    p("hello", PIPELINE, "hello.refused",
      ("other_gib = 2.0", 'other_gib = 2.0\nquant = ""'),
      prints="unsupported worker quant profile Q0", where="b"),
    p("labels", PIPELINE, "model.labels", *BOTH_MODELS,
      ("gguf_bytes = 86720111489", 'quant = "Q4_K"'), severity="warning"),
    p("dialect", PIPELINE, "build.dialect", (A, A + '\ndialect = "upstream"'),
      (B, B + '\ndialect = "swift"')),
    p("dialect", PIPELINE, "width.bf16",
      ("--role coordinator", "--role coordinator --dist-activation-bits 16"),
      (A, A + '\ndialect = "upstream"'), (B, B + '\ndialect = "bf16"')),
    p("width", PIPELINE, "width.e4m3",
      ("--role coordinator", "--role coordinator --dist-activation-bits 8"),
      severity="warning"),
    p("back end", PIPELINE, "build.cpu", (B, B + '\nbackend = "cpu"'), where="b"),
    # the hello of a pair
    p("identity", PAIR, "model.gguf_bytes", *BOTH_MODELS,
      prints="tp hello: model mismatch (peer gguf=86720111489 id=0 layers=43 "
      "embd=4096 vocab=129280 qbits=2)"),
    p("identity", PAIR, "model.n_layer", *BOTH_MODELS, PRO),
    p("identity", PAIR, "model.quant_bits", *BOTH_MODELS,
      ("gguf_bytes = 86720111489", 'gguf_bytes = 86720111488\nquant = "Q4_K"')),
    p("identity", PAIR, "model.gates_per_token", ("id = 0", "id = 2"),
      ("./ds4 --tensor-parallel", "./ds4 --ssd-streaming --tensor-parallel")),
    p("version", PAIR, "build.version", ('tp_dialect = "v14"', '<tp_dialect = "v10"'),
      prints="tp hello: protocol version 10 != 14"),
    p("version", PAIR, "build.dialect", ('tp_dialect = "v14"', 'tp_dialect = "v9"'),
      ('tp_dialect = "v14"', 'tp_dialect = "v9w"')),
    p("vocabulary", CUDA, "model.vocabulary-split",
      ('backend = "cuda"', '<backend = "metal"')),
    p("vocabulary", PAIR, "model.odd-vocabulary",
      ("id = 0", "id = 0\nvocabulary = 129281")),
    # transport
    p("transport", PAIR, "rdma.missing",
      ("--role worker", "--role worker --transport rdma"),
      ("rdma = true", "rdma = false"),
      prints="tp: --transport rdma but the peer side has no active device", where="b"),
    p("transport", PAIR, "rdma.missing",
      ("--role worker", "--role worker --transport rdma"),
      ("rdma = true", "<rdma = false"),
      prints="tp: --transport rdma but this side has no active device", where="b"),
    p("transport", PAIR, "rdma.one-side", ("rdma = true", "rdma = false"),
      severity="warning"),
    # features that no hello carries
    p("features", PAIR, "features.vision",
      ("./ds4-server", "./ds4-server --mmproj eyes.gguf"), where="b"),
    p("features", PAIR, "features.mtp", (B, B + '\nfeatures = ["mtp"]'), where="a"),
    p("features", PAIR, "features.dspark", (A, A + '\nfeatures = ["dspark"]')),
    p("features", PAIR, "features.v41", ("id = 0", "id = 4"),
      (A, A + '\nfeatures = ["mtp"]'), (B, B + '\nfeatures = ["mtp"]')),
    # back ends
    p("cuda", CUDA, "backend.cuda-rank", ("gpus = 1", "gpus = 2"), where="a",
      prints="network CUDA TP requires one GPU per rank and resident expert shards"),
    p("cuda", CUDA, "backend.cuda-rank",
      (B, B + '\nfeatures = ["ssd-streaming"]'), where="b"),
    p("cuda", CUDA, "backend.cuda-vision", (A, A + '\nfeatures = ["vision"]'),
      (B, B + '\nfeatures = ["vision"]')),
    p("cuda", CUDA, "backend.cuda-model", ("id = 4", "id = 0"),
      prints="tensor parallelism requires Metal or V4.1 CUDA"),
    p("back end", PAIR, "backend.kind", (B, B + '\nbackend = "rocm"'), where="b",
      prints="network tensor parallelism requires Metal or supported CUDA models"),
    p("back end", PAIR, "backend.streaming", ('tp_dialect = "v14"',
      'tp_dialect = "v7"'), ('tp_dialect = "v14"', 'tp_dialect = "v7"'),
      (B, B + '\nfeatures = ["ssd-streaming"]'),
      prints="tensor parallelism requires resident weights (no --ssd-streaming)"),
    # settings that must match
    p("settings", PAIR, "settings.differ", env("a", "DS4_METAL_PREFILL_CHUNK", "2048")),
    p("settings", PAIR, "settings.differ", env("b", "DS4_TP_PREFILL_SPLIT_MIN", "64")),
    p("settings", PAIR, "settings.differ", env("a", "DS4_TP_DISABLE_RDMA_WARMUP", "1")),
    p("settings", PAIR, "settings.differ",
      ("--role worker", "--role worker --tensor-parallel-token-prefill")),
    p("settings, local", PAIR, "settings.gate-timeout",
      env("a", "DS4_TP_GATE_TIMEOUT_MS", "5000"), severity="warning"),
    p("settings, local", PIPELINE, "settings.ignored",
      (B, B + '\nenv = { DS4_DIST_WORKER_FORWARD_WINDOW = "100" }'),
      severity="warning", where="b"),
    p("settings, local", PIPELINE, "settings.wrong-role",
      (B, B + '\nenv = { DS4_DIST_PREFILL_SEND_DEPTH = "4" }'),
      severity="warning", where="b"),
    p("settings, local", PIPELINE, "settings.bind-host",
      (B, B + '\nenv = { DS4_DIST_CONNECT_BIND_HOST = "10.0.0.9" }'), where="b"),
    p("settings, interface", PIPELINE, "settings.bind-if",
      (A, A + '\nenv = { DS4_DIST_CONNECT_BIND_IF = "en5" }'),
      ('system = "macos"', 'system = "linux"'), where="a"),
    p("prefill", PIPELINE, "settings.prefill",
      (A, A + '\nenv = { DS4_DIST_PREFILL_WINDOW = "65" }'),
      prints="distributed prefill window 65 exceeds limit 64", where="a"),
    p("prefill", PIPELINE, "settings.chunk", (B, B + "\nprefill_cap = 512"),
      ("--role coordinator", "--role coordinator --dist-prefill-chunk 1024"),
      prints="layer-slice chunk 1024 exceeds prefill cap 512", where="b"),
    p("context", PIPELINE, "context.too-small",
      ("prompt_tokens = 2000", "prompt_tokens = 40000"), where="a"),
    p("context", PAIR, "context.ignored", ("--role worker", "--role worker --ctx 4096"),
      severity="warning", where="b"),
    # memory
    p("memory", PIPELINE, "memory.short", ("memory_gib = 96", "memory_gib = 32"),
      where="a"),
    p("memory", PIPELINE, "memory.short", ("[run]", "[run]\nsessions = 600")),
    p("memory", PIPELINE, "memory.short",
      ("memory_gib = 96", "memory_gib = 96\nwired_limit_mb = 20000"), where="a"),
    p("memory", PIPELINE, "memory.tight",
      ("memory_gib = 96", "memory_gib = 96\ngpu_limit_gib = 43"), severity="warning"),
    # links, builds, clocks
    p("link", PIPELINE, "link.bridge", ('name = "en5"\nkind = "thunderbolt"',
      'name = "bridge0"\nkind = "bridge"\nmembers = ["en5", "en6"]'),
      severity="warning", where="a"),
    p("link", PIPELINE, "link.slow", ("rtt_ms = 0.3", "rtt_ms = 77"),
      severity="warning"),
    p("link", PIPELINE, "link.mtu", ("mtu = 9000", "mtu = 1500"), severity="warning"),
    p("link", PIPELINE, "link.subnet", ("10.0.0.2/24", "10.0.1.2/24"),
      severity="warning", where="b"),
    p("other way", PIPELINE, "link.better",
      ('kind = "thunderbolt"\naddresses = ["10.0.0.1/24"]',
       'kind = "ethernet"\naddresses = ["10.0.0.1/24"]\n[[machine.interface]]\n'
       'name = "en6"\nkind = "thunderbolt"\naddresses = ["10.9.0.1/30"]'),
      ('addresses = ["10.0.0.2/24"]', 'addresses = ["10.0.0.2/24", "10.9.0.2/30"]'),
      severity="warning", where="a"),
    p("build", PIPELINE, "build.differs", (A, A + '\nbuild = "b4c5cc8a"'),
      (B, B + '\nbuild = "d881f2a0"'), severity="warning"),
    p("clock", PIPELINE, "clock.differs", (B, B + "\nclock = -3.5"),
      severity="warning", where="b"),
]  # fmt: skip


@pytest.mark.parametrize(
    "planted", PLANTED, ids=[f"{n}-{x.check}" for n, x in enumerate(PLANTED)]
)
def test_a_planted_mismatch_is_found(tmp_path: Path, planted: Planted) -> None:
    found = findings(tmp_path, spoiled(planted.plan, *planted.changes))
    mine = [f for f in found if f.check == planted.check]
    assert mine, [f"{f.check}: {f.what}" for f in found]
    assert planted.severity in {f.severity for f in mine}
    if planted.prints:
        assert planted.prints in {f.prints for f in mine}
    if planted.where:
        assert planted.where in {f.where for f in mine}
    for one in found:
        assert one.what
        assert one.next_step
        assert one.severity == "note" or one.found


@pytest.mark.parametrize("plan", [PIPELINE, PAIR])
def test_a_sound_plan_is_silent(tmp_path: Path, plan: str) -> None:
    assert findings(tmp_path, plan) == []


def test_a_sound_cuda_pair_is_told_only_what_could_not_be_checked(
    tmp_path: Path,
) -> None:
    found = findings(tmp_path, CUDA)
    assert {(f.severity, f.check) for f in found} == {("note", "memory.kv-unknown")}


def test_contexts_are_compared_without_any_model(tmp_path: Path) -> None:
    bare = PIPELINE.replace(FLASH, "")
    small = spoiled(bare, ("9000 --ctx 32768", "<9000 --ctx 2048"))
    found = findings(tmp_path, small)
    (refused,) = [f for f in found if f.check == "hello.refused"]
    # the words of the specification, chapter of the HELLO
    assert refused.prints == "worker context too small: worker=2048 coordinator=32768"
    assert (refused.severity, refused.where) == ("error", "b")
    assert refused.clause == "DS4D-HELLO-14"
    assert "--ctx" in refused.next_step
    for sound in ("", " --ctx 32768", " --ctx 65536"):  # unknown, equal, larger
        text = spoiled(bare, ("9000 --ctx 32768", f"<9000{sound}"))
        hello = [f for f in findings(tmp_path, text) if f.check.startswith("hello.")]
        assert [(f.severity, f.check) for f in hello] == [("note", "hello.not-checked")]


def test_memory_is_not_called_sound_without_the_weights(tmp_path: Path) -> None:
    # the size of the file alone says nothing of a slice
    found = findings(tmp_path, spoiled(PIPELINE, ("layer_gib = 1.8\n", "")))
    unknown = [f for f in found if f.check == "memory.weights-unknown"]
    assert [f.severity for f in unknown] == ["note", "note"]
    assert all("layer_gib" in f.next_step for f in unknown)


def test_there_are_enough_mismatches_and_none_crowds_out_the_others() -> None:
    kinds = Counter(planted.kind for planted in PLANTED)
    assert len(PLANTED) >= 40
    assert max(kinds.values()) <= 4
    assert len({planted.check for planted in PLANTED}) >= 40


def test_all_faults_are_listed_at_once(tmp_path: Path) -> None:
    text = spoiled(
        PIPELINE, *BOTH_MODELS, PRO, ("9000 --ctx 32768", "<9000 --ctx 100"),
        ("memory_gib = 96", "memory_gib = 16"),
    )  # fmt: skip
    found = findings(tmp_path, text)
    said = [f.prints for f in found if f.check == "hello.refused"]
    assert said == [
        "model id mismatch: worker=1 coordinator=0",
        "model family mismatch: worker=DeepSeek V4 Pro coordinator=DeepSeek V4 Flash",
        "layer count mismatch: worker=61 coordinator=43",
        "worker context too small: worker=100 coordinator=32768",
    ] or said[:3] == [
        "model id mismatch: worker=1 coordinator=0",
        "model family mismatch: worker=DeepSeek V4 Pro coordinator=DeepSeek V4 Flash",
        "layer count mismatch: worker=61 coordinator=43",
    ]
    assert "worker context too small: worker=100 coordinator=32768" in said
    assert "memory.short" in checks(found)


def test_every_fault_of_a_command_line_is_listed(tmp_path: Path) -> None:
    text = spoiled(PIPELINE, ("--layers 0:20 --listen 10.0.0.1 9000",
                              "--layers 5:2 --dist-activation-bits 12"))  # fmt: skip
    said = [f.prints for f in findings(tmp_path, text) if f.check == "command.refused"]
    assert said[0] == "invalid --layers 5:2: layer range end precedes start in 5:2"
    assert "--dist-activation-bits must be 32, 16, or 8" in said
    assert "--role coordinator requires --listen HOST PORT" in said


def test_settings_that_differ_are_marked_in_the_table(tmp_path: Path) -> None:
    from ds4proto.preflight.case import make_case
    from ds4proto.preflight.plan import read_plan
    from ds4proto.preflight.rules_settings import settings_table

    path = tmp_path / "cluster.toml"
    path.write_text(spoiled(PAIR, env("a", "DS4_TP_GATE_TIMEOUT_MS", "5000")))
    rows = settings_table(make_case(read_plan(path)))
    assert rows == [("DS4_TP_GATE_TIMEOUT_MS", {"a": "5000 ms", "b": "750 ms"}, True)]
    path.write_text(spoiled(PAIR, env("a", "DS4_TP_PREFILL_SPLIT_MIN", "1")))
    rows = settings_table(make_case(read_plan(path)))
    # below 2 ds4 keeps its default of 32, so that nothing differs
    assert rows == [("DS4_TP_PREFILL_SPLIT_MIN", {"a": "32", "b": "32"}, False)]
