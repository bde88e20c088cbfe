"""A finding becomes a conformance case: sound peers pass it, the faulty one fails."""

import json
from pathlib import Path

import pytest
from ds4proto_conformance.cases.promoted import load_folder
from ds4proto_conformance.front import run as check
from ds4proto_conformance.settings import Settings as CheckSettings
from ds4proto_fuzz.case import Case, Step
from ds4proto_fuzz.ds4d.facts import Facts
from ds4proto_fuzz.ds4d.frames import POOL, Frames
from ds4proto_fuzz.effect import Effect
from ds4proto_fuzz.findings import Finding, Store
from ds4proto_fuzz.mutants import spec_of

from ds4proto.cli import run
from ds4proto.errors import ExitCode, WrongUsage

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


def verdict(name: str, peer: str) -> dict[str, str]:
    settings = CheckSettings(peer, "worker", patience=10.0, connect=30.0)
    report, status = check(settings, only=[name])
    assert status in (ExitCode.PASSED, ExitCode.FAILED, ExitCode.PEER_LOST)
    return {line["id"]: line["verdict"] for line in report.cases.values()}


def test_a_sound_worker_passes(case_id: str) -> None:
    assert verdict(case_id, spec_of("worker", "none")) == {case_id: "pass"}


def test_the_worker_of_the_finding_fails(case_id: str) -> None:
    found = verdict(case_id, spec_of("worker", "crash-no-tokens"))
    assert found[case_id] != "pass"


def test_what_a_case_cannot_hold_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    step = Step("data", "WORK", NO_TOKENS)
    for other in (
        finding(step, repeat=8, state="live"),
        finding(Step("control", "WORK", NO_TOKENS)),
    ):
        folder = store.add(other)
        assert run(["fuzz", "promote", str(folder), "--to", str(tmp_path / "c")]) == 2
    folder = store.add(finding(step, state="queued"))
    assert run(["fuzz", "promote", str(folder), "--clause", "DS4D-NONE-01"]) == 2
    (tmp_path / "bad.json").write_text(json.dumps({"format": "other"}))
    with pytest.raises(WrongUsage, match="no promoted case"):
        load_folder(tmp_path)
