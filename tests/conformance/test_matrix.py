"""The committed kill matrix: what it holds, and that it is not of another time."""

import json
from pathlib import Path
from typing import Any

import pytest
from ds4proto_conformance.kill.matrix import counted, page
from ds4proto_conformance.kill.survivors import REASONS
from ds4proto_conformance.mutants import all_mutants, sound_names
from ds4proto_conformance.registry import all_cases

FOLDER = Path(__file__).parents[2] / "conformance" / "mutants"
ROLES = ("worker", "coordinator", "tp-leader", "tp-worker", "codec")
NEWER = 0.2
"""Share of cases, and of faults, that may be younger than the matrix."""


@pytest.fixture(scope="module")
def matrix() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "report.json").read_text("utf-8"))
    return found


def test_the_matrix_is_of_these_cases_and_faults(matrix: dict[str, Any]) -> None:
    for kept, declared in (
        (set(matrix["case_mutants"]), {case.id for case in all_cases()}),
        (set(matrix["matrix"]), set(all_mutants())),
    ):
        gone = sorted(kept - declared)
        assert gone == [], "gone or renamed since: run make mutants"
        newer = sorted(declared - kept)
        assert len(newer) <= NEWER * len(declared), "too many new: run make mutants"


def test_faults_are_caught(matrix: dict[str, Any]) -> None:
    assert matrix["mutants"] == len(matrix["matrix"]) >= 120
    alive = [name for name, row in matrix["matrix"].items() if not row["killed_by"]]
    assert matrix["killed"] == matrix["mutants"] - len(alive)
    assert matrix["killed"] >= 0.95 * matrix["mutants"]
    assert [row["mutant"] for row in matrix["survivors"]] == alive
    assert set(alive) == set(REASONS)
    assert all(row["reason"] == REASONS[row["mutant"]] for row in matrix["survivors"])


def test_each_case_catches_a_fault_alone(matrix: dict[str, Any]) -> None:
    assert matrix["cases"] == len(matrix["case_mutants"]) >= 250
    assert matrix["declared_but_alive"] == []
    for name, row in matrix["case_mutants"].items():
        assert set(row["declared"]) & set(row["kills"]), name


def test_both_tables_of_the_matrix_agree(matrix: dict[str, Any]) -> None:
    by_case = {
        (case, mutant)
        for case, row in matrix["case_mutants"].items()
        for mutant in row["kills"]
    }
    by_mutant = {
        (case, mutant)
        for mutant, row in matrix["matrix"].items()
        for case in row["killed_by"]
    }
    assert by_case == by_mutant


def test_sound_peers_pass_all(matrix: dict[str, Any]) -> None:
    due = {f"{role}:{name}": [] for role in ROLES for name in sound_names(role)}
    assert matrix["sound_peers"] == due


def test_faults_of_every_category(matrix: dict[str, Any]) -> None:
    for column in ("matrix", "case_mutants"):
        found = {row["category"] for row in matrix[column].values()}
        assert found >= {
            "framing", "handshake", "state", "codec", "telemetry", "snapshot",
            "gates", "faults", "limits", "liveness",
        }  # fmt: skip


@pytest.mark.parametrize(
    ("topics", "least"),
    [
        (("worker/framing/",), 10),
        (("coordinator/hello/", "worker/hello/"), 12),
        (("worker/work/",), 22),
        (("worker/forward/",), 10),
        (("coordinator/result/",), 10),
        (("worker/snapshot/", "coordinator/snapshot/"), 12),
        (("tp-worker/hello/", "tp-leader/hello/"), 8),
        (("tp-worker/control/", "tp-leader/control/"), 14),
        (("tp-worker/gates/", "tp-leader/gates/"), 12),
        (("codec/",), 10),
    ],
)
def test_enough_cases_count(
    matrix: dict[str, Any], topics: tuple[str, ...], least: int
) -> None:
    found = [case for topic in topics for case in counted(matrix, topic)]
    assert len(found) >= least


def test_a_case_within_another_does_not_count() -> None:
    def case(clauses: str, kills: str, declared: str = "m") -> dict[str, list[str]]:
        return {"clauses": [*clauses], "kills": [*kills], "declared": [*declared]}

    cases = {
        "a/whole": case("xy", "mn"),
        "a/part": case("x", "m"),
        "a/twin": case("xy", "mn"),
        "a/other-clause": case("z", "m"),
        "a/catches-nothing-of-its-own": case("w", "n"),
    }
    found = counted({"case_mutants": cases}, "a/")
    assert found == ["a/twin", "a/other-clause"]


def test_the_page_is_of_the_matrix(matrix: dict[str, Any]) -> None:
    assert (FOLDER / "README.md").read_text("utf-8") == page(matrix)
