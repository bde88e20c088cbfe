"""Coverage of the clauses: what counts, what does not, and that claims are true."""

import json

import pytest
from click.testing import CliRunner
from hypothesis import Phase, find, settings

from ds4proto import clauses, rule_vectors
from ds4proto.cli import _spec_coverage as coverage
from ds4proto.cli._spec_coverage import (
    Coverage,
    gather,
    planted_faults,
    reason,
    vectors,
)
from ds4proto.cli.spec import cmd
from ds4proto.emit.faults import Fault, faults
from ds4proto.emit.strategies import nearly_valid
from ds4proto.schema import all_dialects, frame, frames, read
from tests.schema.forms import bounded


def test_only_clauses_of_the_register_are_claimed() -> None:
    known = set(clauses.ids())
    assert set(planted_faults()) <= known
    assert set(vectors()) <= known


def test_every_vector_that_is_claimed_exists() -> None:
    assert {clause for clause, _, _ in coverage._VECTORS} == set(vectors())
    assert vectors()["CODEC-E4M3-08"] == ["2 vectors e4m3/DoubleRounding"]


def claimed() -> dict[str, tuple[str, str, Fault]]:
    """Return a frame, dialect and fault for each clause that planted faults cover."""
    found: dict[str, tuple[str, str, Fault]] = {}
    for entry in all_dialects():
        for spec in frames(dialect=entry.name):
            for fault in faults(spec, entry.name):
                clause = coverage._clause_of(fault, spec)
                if clause:
                    found.setdefault(clause, (spec.full_name, entry.name, fault))
    return found


CLAIMED = claimed()


@pytest.mark.parametrize("clause", CLAIMED)
def test_a_planted_fault_is_caught_under_its_clause(clause: str) -> None:
    name, dialect, fault = CLAIMED[clause]
    spec = frame(name, dialect=dialect)
    found = find(
        nearly_valid(spec, dialect, fault=fault),
        lambda f: f.clause == clause,
        settings=settings(bounded(300), phases=[Phase.generate]),
    )
    problems = read(spec, found.data, dialect=dialect).problems
    assert clause in {problem.clause for problem in problems}


def test_figures_add_up() -> None:
    everything = gather()
    musts = [clause for clause in clauses.load() if clause.mandatory]
    assert everything.must_total == len(musts)
    covered = [c for c in musts if c.id in everything.by_clause]
    assert everything.must_covered == len(covered)
    assert len(everything.uncovered()) == len(musts) - len(covered)
    by_chapter = everything.by_chapter().values()
    assert sum(total for _, total in by_chapter) == len(musts)
    assert sum(done for done, _ in by_chapter) == len(covered)
    assert gather("CODEC").must_total < everything.must_total


def test_a_contributor_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        coverage, "contributors", lambda: [lambda: {"DS4D-OPT-01": ["case a"], "X": []}]
    )
    for own in ("planted_faults", "vectors", "proofs"):
        monkeypatch.setattr(coverage, own, dict)
    monkeypatch.setattr(coverage.rule_vectors, "by_clause", dict)
    found = gather("DS4D-OPT")
    assert found.by_clause == {"DS4D-OPT-01": ("case a",)}
    assert found.must_covered == 1


def test_rows_of_vector_files_count() -> None:
    rows = rule_vectors.by_clause()
    assert rows
    assert set(rows) <= set(clauses.ids())
    assert set(rows) <= set(gather().by_clause) | {
        c.id for c in clauses.load() if not c.mandatory
    }


def test_proofs_count_as_the_index_says() -> None:
    found = gather()
    for clause, what in coverage.proofs().items():
        assert set(what) <= set(found.by_clause[clause])


def test_what_rests_on_our_own_code_alone_is_told() -> None:
    found = gather()
    own = found.own_code_only
    assert f"Behind {len(own)} stand checks of this package's own code" in (
        found.sentence()
    )
    assert found.as_dict()["own_code_only"] == list(own)
    assert "DS4D-SNAP-06" in own  # a proof alone
    assert "DS4D-WORKER-08" not in own  # a recording beside it
    assert "CODEC-E4M3-05" not in own  # vectors
    assert "DS4D-WORK-07" not in own  # a case


def test_the_registered_contributors_answer() -> None:
    for contributor in coverage.contributors():
        assert set(contributor()) <= set(clauses.ids())


def test_the_target_leaves_out_what_the_main_dialect_lacks() -> None:
    found = gather()
    outside = {c.id for c in found.musts} - {c.id for c in found.target}
    assert outside
    assert all(name.startswith(("DS4T-", "DS4B-")) for name in outside)
    for name in outside:
        assert not {"*", "v14"} & set(clauses.get(name).dialects)
    assert found.target_total == found.must_total - len(outside)
    assert found.target_covered == sum(c.id in found.by_clause for c in found.target)


def test_a_share_is_never_rounded_up() -> None:
    assert coverage._percent(949, 1000) == 94
    assert coverage._percent(95, 100) == 95
    assert coverage._percent(0, 0) == 0


def test_nothing_covered_says_so() -> None:
    empty = Coverage(tuple(c for c in clauses.load() if c.chapter == "slab"))
    assert empty.must_covered == 0
    assert empty.sentence().startswith("0 of ")
    assert set(empty.uncovered()) == {c.id for c in empty.musts}


def test_every_gap_has_a_reason() -> None:
    assert all(reason(clause) for clause in clauses.load())
    assert "the engine decides" in reason(clauses.get("DS4T-SPLIT-10"))
    assert "options" in clauses.get("DS4D-OPT-01").chapter
    assert reason(clauses.get("DS4D-OPT-01")).startswith("an option")


def test_the_command_gives_json() -> None:
    words = ["coverage", "--family", "CODEC", "--json"]
    result = CliRunner().invoke(cmd, words, standalone_mode=False)
    assert result.exception is None
    found = json.loads(result.output)
    assert found["must_total"] == gather("CODEC").must_total
    assert found["target_total"] == found["must_total"]
    assert found["target_covered"] == found["must_covered"]
    assert found["must_covered"] + len(found["uncovered"]) == found["must_total"]
    assert "24 vectors e4m3/Clip" in found["covered"]["CODEC-E4M3-05"]


def test_an_unknown_family_is_wrong_usage() -> None:
    result = CliRunner().invoke(cmd, ["coverage", "--family", "NO"])
    assert "no clause begins with 'NO'" in str(result.exception)
