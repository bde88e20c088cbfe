"""A finding becomes a conformance case: sound peers pass it, the faulty one fails."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ds4proto_conformance.cases.promoted import load_folder
from ds4proto_conformance.front import run as check
from ds4proto_conformance.settings import Settings as CheckSettings
from ds4proto_fuzz.case import Case, Step
from ds4proto_fuzz.ds4d.coordinator_cases import COPIES, CoordinatorCases
from ds4proto_fuzz.ds4d.facts import Facts
from ds4proto_fuzz.ds4d.frames import POOL, Frames
from ds4proto_fuzz.effect import Effect
from ds4proto_fuzz.findings import Finding, Store
from ds4proto_fuzz.mutants import spec_of
from ds4proto_fuzz.mutants.small_tp_worker import IDENTITY, settings_of
from ds4proto_fuzz.promote import promoted

from ds4proto.cli import run
from ds4proto.errors import ExitCode, WrongUsage
from ds4proto.link.ds4t_texts import TpRole
from ds4proto.peer import Role
from ds4proto.schema.registry import frame, to_bytes

FACTS = Facts(0, "Toy V4", 8, 5, 7, True, 2, 256, 1, 64, 256)
NO_TOKENS = Frames(FACTS).work(POOL[0], ())
PEER = {"spec": "exec:x", "role": "worker", **FACTS.identity()}


def finding(*steps: Step, repeat: int = 1, state: str = "open") -> Finding:
    effect = Effect("crash", "the process ends with status 1")
    return Finding(effect, Case(1, 2, state, "coherent", steps, repeat), PEER)


@pytest.fixture(scope="module")
def case_id(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("promote")
    folder = Store(root / "findings").add(finding(Step("data", "WORK", NO_TOKENS)))
    words = ["fuzz", "promote", str(folder), "--to", str(root / "cases")]
    assert run([*words, "--clause", "DS4D-WORK-08", "--json"]) == 0
    (name,) = load_folder(root / "cases")
    return name


def verdict(name: str, peer: str, role: Role = "worker") -> dict[str, str]:
    settings = CheckSettings(peer, role, patience=30.0, connect=120.0)
    report, status = check(settings, only=[name])
    assert status in (ExitCode.PASSED, ExitCode.FAILED, ExitCode.PEER_LOST)
    return {line["id"]: line["verdict"] for line in report.cases.values()}


def test_a_sound_worker_passes(case_id: str) -> None:
    assert verdict(case_id, spec_of("worker", "none")) == {case_id: "pass"}


def test_the_worker_of_the_finding_fails(case_id: str) -> None:
    found = verdict(case_id, spec_of("worker", "crash-no-tokens"))
    assert found[case_id] != "pass"


MAKER = CoordinatorCases(
    Facts(0, "Toy V4", 8, 2, 0, False, 2, 256, 0, 64, 256), asks=True
)
COORDINATOR = {"spec": "exec:x", "role": "coordinator", **MAKER.facts.identity()}
PAIR: dict[str, Any] = {
    "spec": "exec:x", "role": "tp-worker", "dialect": "v14", **IDENTITY.words(),
}  # fmt: skip
STRANGE = settings_of("tp-leader", replace(IDENTITY, model_id=1)).hello()


def behind_work(data: bytes) -> tuple[Step, ...]:
    hello = Step("control", "HELLO", MAKER.hello(), then="wait")
    return hello, Step("control", "RESULT", data, copy=COPIES[:1])


def command(name: str, **values: int) -> Step:
    spec = frame(f"DS4T.{name}", dialect="v14")
    return Step("control", name, to_bytes(spec, values, dialect="v14"))


OTHERS: list[tuple[Role, str, Any, str, tuple[Step, ...]]] = [
    ("coordinator", "accepts-hash", COORDINATOR, "asked", behind_work(MAKER.result())),
    ("tp-worker", "crash-large-context", PAIR, "paired",
     (command("SESSION_CREATE", session_id=1, ctx_size=1 << 20),)),
]  # fmt: skip


@pytest.mark.parametrize(("role", "faulty", "peer", "state", "steps"), OTHERS)
def test_cases_of_other_roles_tell_a_sound_peer_from_the_faulty_one(
    role: Role, faulty: str, peer: Any, state: str, steps: tuple[Step, ...],
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    effect = Effect("silent accept", f"what {faulty} does")
    found = Finding(effect, Case(1, 2, state, "bits", steps), peer)
    folder, cases = Store(tmp_path / "findings").add(found), tmp_path / "cases"
    assert run(["fuzz", "promote", str(folder), "--to", str(cases), "--json"]) == 0
    (name,) = load_folder(cases)
    assert name == f"{role}/promoted/{state}-{found.name[-8:]}"
    assert verdict(name, spec_of(role, "none"), role) == {name: "pass"}
    assert verdict(name, spec_of(role, faulty), role)[name] != "pass"


def due(peer: Any, step: Step) -> tuple[str, str]:
    found = Finding(Effect("crash", "x"), Case(1, 2, "hello", "x", (step,)), peer)
    told = promoted(found)
    assert told["facts"]["model_id"] == 0
    return told["due"], told["clause"]


def hello(**changes: int) -> Step:
    return Step("control", "HELLO", MAKER.hello(**changes))


def test_what_is_due_for_a_hello_is_worked_out() -> None:
    range_ = {"layer_start": 3, "layer_end": 8, "has_output": 0}
    assert due(COORDINATOR, hello(**range_)) == ("refused", "DS4D-HELLO-12")
    assert due(COORDINATOR, hello()) == ("accepted", "")
    cut = Step("control", "HELLO", MAKER.hello()[:20], then="half-close")
    assert due(COORDINATOR, cut)[0] == "closed"
    rank: dict[TpRole, TpRole] = {"tp-worker": "tp-leader", "tp-leader": "tp-worker"}
    for role, other in rank.items():
        own = settings_of(other, IDENTITY).hello()
        step = Step("control", "HELLO", own)
        assert due(PAIR | {"role": role}, step) == ("agreed", "")
        assert due(PAIR | {"role": role}, replace(step, data=own[:9]))[0] == "waiting"
    assert due(PAIR, Step("control", "HELLO", STRANGE)) == ("failed", "DS4T-HELLO-05")


GATE = Step("data", "gate", b"x" * 16, "bits")
HELD: list[tuple[Finding, str]] = [
    (finding(Step("data", "WORK", NO_TOKENS), repeat=8, state="live"), "8 repetitions"),
    (finding(Step("control", "WORK", NO_TOKENS)), "the worker's control connection"),
    (finding(Step("above", "WORK", NO_TOKENS), state="route"), "a next hop"),
    (Finding(Effect("crash", "x"), Case(1, 2, "gate", "x", (GATE,)), PAIR), "a gate"),
    (Finding(Effect("crash", "x"), Case(1, 2, "asked", "x", (GATE,)),
             PAIR | {"role": "tp-leader"}), "gate"),
    (Finding(Effect("crash", "x"), Case(1, 2, "asked", "x", behind_work(b"x")),
             PAIR | {"role": "tp-leader"}), "what this leader asked"),
]  # fmt: skip


@pytest.mark.parametrize(("held", "why"), HELD)
def test_what_a_case_cannot_hold_is_refused_with_a_way_on(
    held: Finding, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Store(tmp_path).add(held)
    assert run(["fuzz", "promote", str(folder), "--to", str(tmp_path / "c")]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert why in told
    assert "Next: keep its folder" in told
    assert "frames.txt" in told
    assert not (tmp_path / "c").exists()


def test_a_clause_that_is_none_and_a_file_that_is_none_are_refused(
    tmp_path: Path,
) -> None:
    step = Step("data", "WORK", NO_TOKENS)
    folder = Store(tmp_path).add(finding(step, state="queued"))
    assert run(["fuzz", "promote", str(folder), "--clause", "DS4D-NONE-01"]) == 2
    (tmp_path / "bad.json").write_text(json.dumps({"format": "other"}))
    with pytest.raises(WrongUsage, match="no promoted case"):
        load_folder(tmp_path)
