"""Gates of a rank: the lockstep that leads to one, the attack, what follows."""

import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ds4proto_fuzz.case import Case, rng_of
from ds4proto_fuzz.mutants import spec_of
from ds4proto_fuzz.mutants.small_tp_worker import IDENTITY, settings_of
from ds4proto_fuzz.roles import target_of
from ds4proto_fuzz.target import Settings
from ds4proto_fuzz.tp.cases import STATES, WorkerCases
from ds4proto_fuzz.tp.gate_cases import GATE_STATES, GateCases
from ds4proto_fuzz.tp.pair import hello_verdict

from ds4proto.schema.registry import frame, read

HELLO: dict[str, Any] = {
    "version": 14, "role": 1, "weights_size": 86720111488, "model_id": 0, "n_layer": 2,
    "n_embd": 16, "n_vocab": 32, "routed_quant_bits": 2, "gate_slot_start": 0,
    "gate_slot_step": 1, "gates_per_token": 4, "ctx_size": 0, "rdma_ok": 0,
}  # fmt: skip
"""A model of two layers with all four row gates a token; 16 values a row."""
PATIENCE = 20.0


@pytest.fixture(scope="module")
def gated() -> list[Case]:
    make = GateCases(HELLO, "v14")
    made = [
        make.make(rng_of(1, index), 1, index, state, 1 + index)
        for state in GATE_STATES
        for index in range(100)
    ]
    return [case for case in made if case is not None]


def header(data: bytes) -> tuple[int, int, int, int]:
    words: tuple[int, int, int, int] = struct.unpack_from("<IHHQ", data)
    return words


def test_every_kind_of_gate_is_attacked_in_every_way(gated: list[Case]) -> None:
    make = WorkerCases(HELLO, "v14", b"hello")
    assert {make.make(1, index).state for index in range(150)} == set(STATES)
    kinds = Counter((case.state, case.kind) for case in gated)
    for state in GATE_STATES:
        found = {kind for known, kind in kinds if known == state}
        assert {"gate header", "gate bits", "gate cut", "gate surplus"} <= found
    assert ("decode gate", "gate floats") in kinds
    assert ("inner gate", "gate ahead") in kinds
    assert ("block gate", "gate again") in kinds


def test_a_hello_of_another_model_differs_in_one_word() -> None:
    own = settings_of("tp-leader", IDENTITY).hello()
    make = WorkerCases(IDENTITY.words() | {"version": 14}, "v14", own)
    made = [make.hello_attack(rng_of(1, index)) for index in range(60)]
    others = [step.data for kind, (step,) in made if kind == "another model"]
    assert others
    for data in others:
        assert len(data) == len(own)
        pieces: list[bytes | None] = [data]
        verdict = hello_verdict(settings_of("tp-worker", IDENTITY), pieces)
        assert verdict.startswith("failed DS4T-HELLO-")


def test_a_case_is_made_again_and_survives_its_file(gated: list[Case]) -> None:
    make = WorkerCases(HELLO, "v14", b"hello")
    for index in range(60):
        assert make.make(1, index) == make.make(1, index)
    for case in gated[::5]:
        assert Case.from_json(case.as_json()) == case


def test_the_lockstep_before_a_gate_is_sound(gated: list[Case]) -> None:
    for case in gated:
        assert sum(bool(step.how) for step in case.steps) <= 1
        for step in case.steps:
            assert step.on == "control" or step.data == step.base or step.how
            if step.on == "control":
                spec = frame(f"DS4T.{step.name}", dialect="v14")
                assert not read(spec, step.data, dialect="v14").problems


def numbers(case: Case) -> list[tuple[int, int, int, int, int]]:
    """Return header and payload bytes of each gate, the last as it should be."""
    gates = [step.base for step in case.steps if step.on == "data"]
    return [(*header(data), len(data) - 16) for data in gates]


def test_gates_have_the_numbers_and_sizes_of_the_plan(gated: list[Case]) -> None:
    """A prefill of 8 tokens has one FFN bulk gate a layer; 40 tokens swap rows too."""
    t, b, row = 0x44533454, 0x44533442, 16 * 4
    short = [(b, 0, 0x0B16, 1, 8 * row), (b, 1, 0x0B16, 2, 8 * row)]
    long = [(b, 0, 0x0B16, 1, 20 * row), (b, 0, 0x0B16, 2, 40 * row),
            (b, 1, 0x0B16, 3, 20 * row), (b, 1, 0x0B16, 4, 40 * row)]  # fmt: skip
    token = [(t, 0, 0, 1, row), (t, 0, 1, 2, row), (t, 1, 0, 3, row), (t, 1, 1, 4, row)]
    seen: dict[str, set[int]] = {state: set() for state in GATE_STATES}
    blocks = set()
    for case in gated:
        found = numbers(case)
        seen[case.state].add(len(found))
        if case.state == "decode gate":
            assert found == (short + token)[: len(found)]
        elif case.state == "block gate":
            rows = (found[2][4] // row) if len(found) > 2 else 0
            word = rows if rows <= 8 else 0x0B16  # longer blocks go as bulk
            due = [(b, layer, word, 3 + layer, rows * row) for layer in (0, 1)]
            assert found == (short + due)[: len(found)]
            blocks.add(rows)
        else:
            assert found in (short[: len(found)], long[: len(found)])
    assert seen == {"gate": {1}, "inner gate": {2, 3, 4},
                    "decode gate": {3, 4, 5, 6}, "block gate": {3, 4}}  # fmt: skip
    assert blocks == {1, 2, 9}


@pytest.mark.parametrize("dialect", ["v7", "v9", "v9w", "v10", "v12"])
def test_every_dialect_with_sessions_has_gates(dialect: str) -> None:
    make = WorkerCases(HELLO, dialect, b"hello")
    states = Counter(make.make(1, index).state for index in range(200))
    assert set(GATE_STATES) - set(states) <= {"block gate"}
    assert states["session"]


@pytest.mark.parametrize("name", ["gates", "any-gate-number"])
def test_a_late_gate_of_a_rank_is_judged(name: str, tmp_path: Path) -> None:
    spec = spec_of("tp-worker", name)
    under_fire = target_of(Settings(spec, "tp-worker", patience=PATIENCE))
    try:
        under_fire.start()
        made = [under_fire.make(1, i) for i in range(120)]
        late = [c for c in made if c.state in ("inner gate", "decode gate")]
        fits = [c for c in late if c.kind in ("gate floats", "gate sound")]
        wrong = [c for c in late if c.kind == "gate ahead"]
        played = [under_fire.play(case) for case in (*fits[:2], *wrong[:2])]
    finally:
        under_fire.stop()
    assert [outcome.reached for outcome in played[:2]] == ["went on"] * 2
    wrong_led = "ended" if name == "gates" else "went on"
    assert {outcome.reached for outcome in played[2:]} == {wrong_led}
    whats = [o.effect.what if o.effect else "" for o in played]
    assert whats[:2] == ["", ""]
    if name == "gates":
        assert whats[2:] == ["", ""]
    else:
        for what in whats[2:]:
            assert "behind a gate that does not fit" in what or "behind one" in what
