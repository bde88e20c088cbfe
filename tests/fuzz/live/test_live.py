"""Real peers in processes: sound ones are not blamed, faulty ones are found."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest
from ds4proto_fuzz.findings import Finding, Store, load
from ds4proto_fuzz.hunt import Hunt
from ds4proto_fuzz.mutants import spec_of
from ds4proto_fuzz.planted import Row, search
from ds4proto_fuzz.roles import target_of
from ds4proto_fuzz.target import Settings, Target
from ds4proto_fuzz.tp.gate_cases import GATE_STATES

from ds4proto.cli import run
from ds4proto.peer import PeerLost, Role

PATIENCE = 20.0
"""Generous: a busy machine must not look like a peer that hangs."""
LIMIT = 900.0
"""Seconds to find and to reduce a fault, which takes a few."""


def target(role: Role, name: str = "none") -> Target:
    return target_of(Settings(spec_of(role, name), role, patience=PATIENCE))


def searched(role: Role, name: str) -> Row:
    """Fuzz one faulty peer; nothing of it is found by silence, so patience is free."""
    return search(role, name, 1, patience=PATIENCE, limit=LIMIT, quick=PATIENCE)


@pytest.fixture(scope="module")
def crashes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the finding about a worker that divides by zero."""
    row = searched("worker", "crash-no-tokens")
    assert row.finding is not None, row
    return Store(tmp_path_factory.mktemp("findings")).add(row.finding)


@pytest.mark.parametrize("role", ["worker", "coordinator"])
def test_a_sound_peer_is_not_blamed(role: Role, tmp_path: Path) -> None:
    under_fire = target(role)
    try:
        tally = Hunt(under_fire, 3, Store(tmp_path)).run(range(300))
    finally:
        under_fire.stop()
    assert tally.cases == 300
    assert not tally.findings
    assert not tally.unproven
    assert tally.restarts == 0
    led = {led for _, _, led in tally.reached.counts}
    assert {"closed", "refused", "waiting for more"} <= led


FAULTS: list[tuple[Role, str]] = [
    ("worker", "accepts-vocabulary"),
    ("coordinator", "crash-many-layers"),
]


@pytest.mark.parametrize(("role", "name"), FAULTS)
def test_a_planted_fault_is_found_and_reduced(role: Role, name: str) -> None:
    row = searched(role, name)
    assert row.finding is not None, row
    assert row.finding.effect.kind == row.kind
    assert len(row.finding.case.steps) <= 3
    assert row.finding.reproduced == (2, 2)


def test_a_finding_replays_on_its_peer_and_not_on_a_sound_one(
    crashes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = load(crashes)
    assert found.effect.kind == "crash"
    assert "ZeroDivisionError" in found.effect.detail
    assert len(found.case.steps) == 1
    once = ["--tries", "1", "--patience", f"{PATIENCE:g}s"]
    assert run(["fuzz", "replay", str(crashes), *once, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["same"], told["times"]) == (True, 1)
    sound = spec_of("worker", "none")
    assert run(["fuzz", "replay", str(crashes), "--peer", sound, *once]) == 0
    assert "seen now:    nothing" in capsys.readouterr().out


def test_the_script_of_a_finding_does_it_alone(crashes: Path, tmp_path: Path) -> None:
    from ds4proto.peer.connect import free_ports

    (port,) = free_ports(1)
    script = subprocess.Popen(
        [sys.executable, "-I", str(crashes / "replay.py"), "127.0.0.1", str(port)],
        stdout=subprocess.PIPE,
        text=True,
    )
    words = [sys.executable, "-m", "ds4proto_fuzz.mutants", "worker", "crash-no-tokens"]
    peer = subprocess.Popen(
        [*words, "127.0.0.1", str(port)], stderr=subprocess.PIPE, text=True
    )
    try:
        _, errors = peer.communicate(timeout=300)
        assert "ZeroDivisionError" in errors
        out, _ = script.communicate(timeout=300)
        assert "closed" in out or "then:" in out
    finally:
        for process in (script, peer):
            process.kill()
            process.wait()


def test_the_command_reports_and_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, graph = tmp_path / "findings", tmp_path / "graph.dot"
    peer = spec_of("worker", "wrong-after-refusal")
    words = ["fuzz", "peer", "--peer", peer, "--role", "worker", "--patience", "20s"]
    words += ["--out", str(out), "--graph", str(graph)]
    assert run([*words, "--cases", "12", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["cases"] + told["muted"] == 12
    assert "request of RESULT is wrong" in {
        row["effect"]["what"] for row in told["findings"]
    }
    for row in told["findings"]:
        assert Finding.from_json({k: v for k, v in row.items() if k != "folder"})
        assert (Path(row["folder"]) / "replay.py").is_file()
    assert '"live" -> "served"' in graph.read_text()
    assert run([*words, "--cases", "12"]) == 2
    assert "--resume" in capsys.readouterr().err
    assert run([*words, "--cases", "14", "--resume"]) == 1
    text = capsys.readouterr().out
    assert "states and transitions reached" in text
    assert "left out as known" in text


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["--peer", "exec:true", "--role", "worker", "--cases", "1"], 3),
        (["--peer", "capture:x.pcap", "--role", "worker"], 2),
        (["--peer", "exec:true", "--role", "codec"], 2),
        (["--peer", "nonsense", "--role", "worker"], 2),
        (["--peer", "exec:true", "--role", "worker", "--graph", "none/x.png"], 2),
        (["--peer", "exec:true", "--role", "worker", "--graph", "x.xyz"], 2),
    ],
)
def test_what_cannot_run_says_so(
    words: list[str],
    status: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["fuzz", "peer", *words, "--out", str(tmp_path / "f")]) == status
    assert capsys.readouterr().err


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["fuzz"], ["fuzz", "peer"], ["fuzz", "replay"]):
        assert run([*words, "--help"]) == 0
        assert "ds4proto fuzz" in capsys.readouterr().out


def test_a_peer_that_never_comes_is_lost(tmp_path: Path) -> None:
    settings = Settings("exec:sleep 60", "worker", patience=0.2, connect=0.3)
    lost = target_of(settings)
    try:
        with pytest.raises(PeerLost):
            Hunt(lost, 1, Store(tmp_path)).run(range(1))
    finally:
        lost.stop()


@pytest.mark.parametrize(
    ("role", "name", "each", "states"),
    [
        ("tp-worker", "gates", 2, {"hello", "paired", "session", *GATE_STATES}),
        ("tp-leader", "none", 4, {"hello", "asked"}),
    ],
)
def test_a_sound_rank_is_not_blamed(
    role: Role, name: str, each: int, states: set[str], tmp_path: Path
) -> None:
    under_fire = target(role, name)
    chosen: dict[str, list[int]] = {state: [] for state in states}
    try:
        under_fire.start()
        for index in range(300):
            known = chosen[under_fire.make(1, index).state]
            known += [index] * (len(known) < each)
        indices = sorted(itertools.chain(*chosen.values()))
        tally = Hunt(under_fire, 1, Store(tmp_path)).run(indices)
    finally:
        under_fire.stop()
    assert tally.cases == each * len(states)
    assert (tally.findings, tally.unproven) == ([], {})
    assert {state for state, _, _ in tally.reached.counts} == states
    assert tally.restarts > 0  # what ends a pair ends its process
