"""Sound plans, and ways to spoil them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ds4proto.preflight.finding import Finding
from ds4proto.preflight.plan import read_plan
from ds4proto.preflight.rules import judge

FLASH = """
[model.flash]
id = 0
gguf_bytes = 86720111488
layer_gib = 1.8
expert_gib = 1.6
other_gib = 2.0
"""
V41 = """
[model.v41]
id = 4
gguf_bytes = 120000000000
layer_gib = 2.5
expert_gib = 2.2
other_gib = 2.0
"""
HEAD = """
[run]
prompt_tokens = 2000
answer_tokens = 500
"""
PIPELINE = (
    HEAD
    + FLASH
    + """
[[machine]]
name = "a"
command = "./ds4 --role coordinator --layers 0:20 --listen 10.0.0.1 9000 --ctx 32768"
system = "macos"
memory_gib = 96
rdma = false
[[machine.interface]]
name = "en5"
kind = "thunderbolt"
addresses = ["10.0.0.1/24"]
mtu = 9000
[[machine]]
name = "b"
command = "./ds4 --role worker --layers 21:output --coordinator 10.0.0.1 9000\
 --ctx 32768"
system = "macos"
memory_gib = 96
[[machine.interface]]
name = "en5"
kind = "thunderbolt"
addresses = ["10.0.0.2/24"]
mtu = 9000
[[link]]
between = ["a", "b"]
rtt_ms = 0.3
gbit = 20
"""
)
PAIR = (
    HEAD
    + FLASH
    + """
[[machine]]
name = "a"
command = "./ds4-server --tensor-parallel --role coordinator --listen 10.0.0.1 9911\
 --ctx 32768"
env = { DS4_TP_TIMEOUT_SEC = "300" }
system = "macos"
memory_gib = 128
tp_dialect = "v14"
rdma = true
addresses = ["10.0.0.1/24"]
[[machine]]
name = "b"
command = "./ds4 --tensor-parallel --role worker --coordinator 10.0.0.1 9911"
env = { DS4_TP_TIMEOUT_SEC = "300" }
system = "macos"
memory_gib = 128
tp_dialect = "v14"
rdma = true
addresses = ["10.0.0.2/24"]
[[link]]
between = ["a", "b"]
rtt_ms = 0.03
gbit = 40
"""
)
CUDA = (
    (HEAD + V41 + PAIR.split(FLASH)[1])
    .replace('system = "macos"', 'system = "linux"\nbackend = "cuda"\ngpus = 1')
    .replace("memory_gib = 128", "memory_gib = 256\ngpu_limit_gib = 141")
)


def findings(folder: Path, text: str) -> list[Finding]:
    """Judge a plan given as text."""
    path = folder / "cluster.toml"
    path.write_text(text)
    return judge(read_plan(path))


def spoiled(text: str, *changes: tuple[str, str]) -> str:
    """Replace each part once; a part that is not there is a fault of the test."""
    for old, new in changes:
        assert old in text, old
        place = text.rindex(old) if new.startswith("<") else text.index(old)
        text = text[:place] + new.removeprefix("<") + text[place + len(old) :]
    return text


def checks(found: list[Finding], *severities: str) -> dict[str, Any]:
    """Return findings by name of their check."""
    wanted = severities or ("error", "warning", "note")
    return {f.check: f for f in found if f.severity in wanted}
