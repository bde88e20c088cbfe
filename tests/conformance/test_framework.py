"""Cases, parameters, verdicts: what every run rests on."""

from typing import Any

import pytest
from ds4proto_conformance.mutants import all_mutants, find
from ds4proto_conformance.parameters import combinations, shrink
from ds4proto_conformance.peers.engine import Engine
from ds4proto_conformance.registry import Case, all_cases, case
from ds4proto_conformance.report.diff import changes, unexpected
from ds4proto_conformance.report.stream import Report
from ds4proto_conformance.runner import Runner
from ds4proto_conformance.settings import Settings
from ds4proto_conformance.verdicts import Outcome, Verdict

from ds4proto import clauses

PARAMS = {"bits": (32, 16, 8), "tokens": (1, 3), "split": ("a", "b", "c", "d")}


def test_every_two_values_meet_in_some_row() -> None:
    rows = combinations(PARAMS)
    assert len(rows) < 3 * 2 * 4
    for one, two in (("bits", "tokens"), ("bits", "split"), ("tokens", "split")):
        met = {(row[one], row[two]) for row in rows}
        assert met == {(a, b) for a in PARAMS[one] for b in PARAMS[two]}


def test_rows_do_not_depend_on_the_run() -> None:
    assert combinations(PARAMS, salt="x") == combinations(PARAMS, salt="x")
    assert combinations({}) == [{}]
    assert combinations({"one": (1, 2)}) == [{"one": 1}, {"one": 2}]


def test_the_failing_combination_is_named_by_what_matters() -> None:
    failing = {"bits": 8, "tokens": 3, "split": "d"}
    passing = [{"bits": 8, "tokens": 1, "split": "a"}]
    assert shrink(failing, passing, lambda row: row["tokens"] == 3) == {"tokens": 3}
    both = shrink(failing, passing, lambda r: r["tokens"] == 3 and r["split"] == "d")
    assert both == {"tokens": 3, "split": "d"}


def test_a_case_needs_a_known_clause_and_a_mutant() -> None:
    told = {"role": "worker", "category": "framing"}
    with pytest.raises(clauses.UnknownClauseError):
        case("x/1", clauses=("DS4D-NO-99",), mutants=("m",), **told)(lambda _p: None)
    with pytest.raises(ValueError, match="needs a clause and a mutant"):
        case("x/2", clauses=("DS4D-WORK-01",), mutants=(), **told)(lambda _p: None)


@pytest.mark.parametrize("role", ["worker", "coordinator", "codec"])
def test_every_mutant_that_a_case_names_exists(role: str) -> None:
    cases = all_cases(role)
    assert len(cases) >= {"worker": 150, "coordinator": 60, "codec": 10}[role]
    known = all_mutants()
    missing = {m for c in cases for m in c.mutants if m not in known}
    assert missing == set()
    assert {known[m].role for c in cases for m in c.mutants} == {role}


def test_no_case_is_contained_in_another() -> None:
    cases = all_cases()
    contained = [
        (one.id, two.id)
        for one in cases
        for two in cases
        if one is not two
        and one.role == two.role
        and set(one.clauses) <= set(two.clauses)
        and set(one.mutants) <= set(two.mutants)
        and one.id.split("/")[0] in ("worker", "coordinator", "codec")
    ]
    assert contained == []


def test_the_least_numbers_of_cases() -> None:
    ids = [c.id for c in all_cases()]
    least = {
        "worker/framing/": 10,
        "coordinator/hello/": 12,
        "worker/work/": 22,
        "worker/forward/": 10,
        "coordinator/result/": 10,
        "worker/snapshot/": 12,
        "codec/": 10,
    }
    for start, number in least.items():
        assert sum(name.startswith(start) for name in ids) >= number, start


def test_an_unknown_mutant_names_the_known_ones() -> None:
    assert find("worker", "skip-WORK-07").category == "limits"
    with pytest.raises(ValueError, match="skip-WORK-07"):
        find("worker", "no-such-mutant")
    with pytest.raises(ValueError, match="no mutant"):
        find("coordinator", "skip-WORK-07")


def report(**verdicts: str) -> Report:
    return Report({"role": "worker"}, {k: {"verdict": v} for k, v in verdicts.items()})


def test_only_changes_count_where_verdicts_are_expected() -> None:
    expected = {"a": "pass", "b": "fail"}
    assert unexpected(report(a="pass", b="fail"), expected) == []
    assert unexpected(report(a="pass", b="pass"), expected) != []
    assert unexpected(report(a="pass", c="pass"), expected) == []
    assert unexpected(report(c="fail"), expected) == [
        ("c", "expected nothing, found fail")
    ]
    assert changes({"a": "pass"}, {"a": "fail", "b": "pass"}) == [
        ("a", "pass -> fail"),
        ("b", "absent -> pass"),
    ]


def test_a_fault_of_the_suite_is_a_verdict() -> None:
    def opener(_settings: Settings) -> Any:
        raise TypeError("ours")

    runner = Runner(Settings("loop:none", "codec"), opener)
    outcome = runner.run(all_cases("codec")[0])
    assert outcome.verdict is Verdict.SUITE_ERROR
    assert "TypeError: ours" in outcome.notes[0]
    assert outcome.verdict.bad


def test_other_combinations_that_fail_are_no_doubt() -> None:
    case = next(c for c in all_cases("worker") if c.params)

    class Told(Runner):
        def _once(self, case: Case) -> Outcome:
            return Outcome(case.id, verdicts.pop(0))

    verdicts = [Verdict.PARTIAL, Verdict.FAIL, Verdict.FAIL, Verdict.PASS]
    runner = Told(Settings("loop:none", "worker"))
    assert runner.run(case).verdict is Verdict.PARTIAL
    assert runner.run(case).verdict is Verdict.FLAKY


@pytest.mark.parametrize(
    "body",
    [b"{}\0\0\xff", b"\xff\xfe", b"[" * 100_000, b"", b"[1, 2]"],
    ids=["tail", "no text", "nested", "empty", "other"],
)
def test_a_small_peer_refuses_a_damaged_shard_and_lives(body: bytes) -> None:
    engine = Engine()
    assert engine.restore(1, b"SHRD" + body, (1, 2)) != ""
    assert engine.sessions == {}
