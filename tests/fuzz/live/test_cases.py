"""Cases: the same for the same address, sound up to the attack, of every kind."""

from collections import Counter

import pytest
from ds4proto_fuzz.case import Case, rng_of
from ds4proto_fuzz.ds4d.coordinator_cases import COPIES, CoordinatorCases
from ds4proto_fuzz.ds4d.coordinator_cases import STATES as COORDINATOR_STATES
from ds4proto_fuzz.ds4d.facts import Facts
from ds4proto_fuzz.ds4d.frames import Frames
from ds4proto_fuzz.ds4d.worker_cases import STATES, WorkerCases
from ds4proto_fuzz.mutate import FAMILIES, mutate

from ds4proto.schema import frame, read

TOY = Facts(0, "Toy V4", 8, 5, 7, True, 2, 256, 4000, 64, 256, b"SHRD" + bytes(60))
MANY = 3000


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    maker = WorkerCases(TOY)
    return [maker.make(1, index) for index in range(MANY)]


def test_an_address_is_enough_to_make_a_case_again(cases: list[Case]) -> None:
    again = WorkerCases(TOY)
    for index in reversed(range(0, MANY, 7)):
        assert again.make(1, index) == cases[index]
    assert again.make(2, 5) != cases[5]


def test_a_case_survives_its_file(cases: list[Case]) -> None:
    for case in cases[:300]:
        assert Case.from_json(case.as_json()) == case


def test_no_case_shares_its_chance_with_another() -> None:
    drawn = {rng_of(seed, index).random() for seed in (0, 1) for index in range(500)}
    assert len(drawn) == 1000


def test_every_state_and_every_family_is_met(cases: list[Case]) -> None:
    rare = {WorkerCases(TOY).make(9, index).state for index in range(8000)}
    assert {case.state for case in cases} | rare == set(STATES) - {"forwarded"}
    kinds = Counter(case.kind for case in cases)
    assert set(FAMILIES) <= set(kinds)
    more = {"repeat", "drip", "half-close", "id reuse", "cut", "missing", "id flood"}
    assert more <= set(kinds)
    names = {step.name for case in cases for step in case.steps if step.how}
    assert {"WORK", "SNAPSHOT_SAVE_REQ", "SNAPSHOT_LOAD_BEGIN"} <= names


def test_steps_that_are_not_mutated_are_sound(cases: list[Case]) -> None:
    for case in cases[:600]:
        for step in case.steps:
            sound = step.base or (b"" if step.how else step.data)
            if not sound:
                continue
            spec = frame(f"DS4D.{step.name}", dialect="upstream")
            assert not read(spec, sound, dialect="upstream").problems, step


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_changes_a_frame_and_says_how(family: str) -> None:
    spec = frame("DS4D.WORK", dialect="upstream")
    sound = Frames(TOY).probe
    changed = set()
    for index in range(40):
        name, found = mutate(rng_of(3, index), spec, "upstream", sound, family)
        assert name == family
        assert found.how
        changed.add(found.data)
    assert len(changed - {sound}) > 3


def test_a_flood_names_another_session_each_time() -> None:
    case = WorkerCases(TOY).make(1, 100)
    assert case.kind == "id flood"
    (step,) = case.steps
    spec = frame("DS4D.WORK", dialect="upstream")
    sessions = set()
    for turn in range(case.repeat):
        reading = read(spec, step.varied(turn), dialect="upstream")
        assert not reading.problems
        sessions.add(reading.values["session"])
    assert len(sessions) == case.repeat


def test_a_coordinator_that_never_asks_gets_hello_alone() -> None:
    facts = Facts(0, "Toy V4", 8, 2, 0, False, 2, 256, 0, 64, 256)
    quiet = [CoordinatorCases(facts, asks=False).make(1, i) for i in range(200)]
    assert {case.state for case in quiet} == {"connected"}
    asked = [CoordinatorCases(facts, asks=True).make(1, i) for i in range(400)]
    assert {case.state for case in asked} == set(COORDINATOR_STATES)


def test_an_answer_repeats_the_ids_of_its_question() -> None:
    facts = Facts(0, "Toy V4", 8, 2, 0, False, 2, 256, 0, 64, 256)
    cases = [CoordinatorCases(facts, asks=True).make(1, i) for i in range(400)]
    step = next(s for c in cases for s in c.steps if s.copy and s.name == "RESULT")
    work = frame("DS4D.WORK", dialect="upstream")
    asked = Frames(TOY).work(1, (1, 2), request=0x1122334455667788)
    said = read(work, asked, dialect="upstream").values
    sent = step.copied(step.data, asked)
    answer = read(frame("DS4D.RESULT", dialect="upstream"), sent, dialect="upstream")
    kept = {at for at, _, _ in step.copy}
    assert kept
    for name, (at, _, _) in zip(("request", "result_hash"), COPIES, strict=True):
        if at in kept:
            assert answer.values[name] == said[name]
