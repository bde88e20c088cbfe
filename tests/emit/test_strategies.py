"""The strategies keep their word: valid is valid, and a fault is the one named."""

from collections.abc import Callable
from typing import Any

import pytest
from construct import Float32l, Int8ub, Int32ub
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from ds4proto.emit.boundaries import FLOATS, boundary_values, integer_range
from ds4proto.emit.coherence import MENDS, cycled
from ds4proto.emit.faults import faults as possible_faults
from ds4proto.emit.strategies import (
    NearlyValid,
    breakable,
    hostile,
    nearly_valid,
    valid_frames,
    valid_values,
)
from ds4proto.schema import frame, frames, read
from ds4proto.schema.declare import FieldSpec, Limit, Name
from ds4proto.schema.dsv4 import CONTAINERS
from tests.schema.forms import bounded

WORK = frame("DS4D.WORK", dialect="upstream")
EVAL = frame("DS4T.EVAL", dialect="v14")


def drawn(strategy: st.SearchStrategy[Any], examples: int = 40) -> list[Any]:
    """Return what a strategy draws, the same each time."""
    found: list[Any] = []

    @bounded(examples)
    @given(strategy)
    def collect(value: Any) -> None:
        found.append(value)

    collect()
    return found


def reaches(strategy: st.SearchStrategy[Any], *wanted: Callable[[Any], bool]) -> None:
    """Require that a strategy draws, sooner or later, a value of each kind.

    How many draws that takes differs: hypothesis also tries constants of whatever
    modules happen to be loaded.
    """
    left = list(wanted)

    def note(value: Any) -> bool:
        left[:] = [holds for holds in left if not holds(value)]
        return not left

    every = settings(bounded(5000), phases=(Phase.generate,))
    find(strategy, note, settings=every)


def test_what_is_never_drawn_is_missed() -> None:
    with pytest.raises(NoSuchExample):
        reaches(st.integers(0, 3), lambda n: n == 2, lambda n: n == 4)


def test_draws_are_the_same_each_time() -> None:
    assert drawn(valid_frames(WORK, "upstream")) == drawn(
        valid_frames(WORK, "upstream")
    )
    assert drawn(hostile(EVAL, "v14")) == drawn(hostile(EVAL, "v14"))


def hosts(values: dict[str, Any]) -> set[int]:
    """Return the lengths of the hosts on a route, in bytes."""
    texts = (record["host"] for record in values["route"])
    return {len(text.encode("utf-8", "surrogateescape")) for text in texts}


def test_valid_work_covers_its_variants() -> None:
    work = valid_values(WORK, "upstream")
    assert {v["input_hc_bits"] for v in drawn(work, 100)} <= {0, 8, 16, 32}
    reaches(
        work,
        *(lambda v, bits=bits: v["input_hc_bits"] == bits for bits in (0, 8, 16, 32)),
        *(lambda v, hops=hops: len(v["route"]) == hops for hops in (1, 2, 3)),
        lambda v: v["route_index"] > 0,
        lambda v: v["flags"] & 2 != 0,
        lambda v: v["layer_start"] == 0,
        lambda v: v["layer_start"] > 0,
        lambda v: not v["hidden"],
        lambda v: bool(v["hidden"]),
        lambda v: 1 in hosts(v),
        lambda v: 1024 in hosts(v),
    )


def test_valid_results_cover_every_kind() -> None:
    spec = frame("DS4D.RESULT", dialect="upstream")
    results = valid_values(spec, "upstream")
    good = [v for v in drawn(results, 100) if v["status"] == 0]
    assert {v["result_kind"] for v in good} <= {0, 1, 2}
    reaches(
        results,
        *(
            lambda v, kind=kind: v["status"] == 0 and v["result_kind"] == kind
            for kind in (0, 1, 2)
        ),
        lambda v: v["status"] != 0,
    )


def test_a_question_mark_is_no_other_dialect() -> None:
    assert drawn(valid_frames(EVAL, "v14?")) == drawn(valid_frames(EVAL, "v14"))


def test_faults_of_every_kind_are_drawn() -> None:
    faults: list[NearlyValid] = drawn(nearly_valid(WORK, "upstream"), 60)
    clauses = {fault.clause for fault in faults}
    assert len(clauses) > 6
    assert clauses <= set(WORK.clauses)
    kinds = ("limit", "rule", "record", "short", "long")
    assert {fault.kind for fault in faults} <= set(kinds)
    reaches(
        nearly_valid(WORK, "upstream"),
        *(lambda fault, kind=kind: fault.kind == kind for kind in kinds),
    )
    sync = frame("DS4T.SYNC", dialect="v1")
    assert {f.kind for f in drawn(nearly_valid(sync, "v1"))} == {"ragged"}


def test_what_can_be_broken_is_read_off_the_declaration() -> None:
    broken = {
        part[1].clause if isinstance(part, tuple) else getattr(part, "clause", part)
        for part in possible_faults(WORK, "upstream")
    }
    assert broken >= {
        "DS4D-WORK-04", "DS4D-WORK-07", "DS4D-WORK-08", "DS4D-WORK-10", "DS4D-WORK-11",
        "DS4D-WORK-17", "DS4D-WORK-21", "DS4D-WORK-22", "DS4D-ROUTE-04",
        "DS4D-ROUTE-12", "DS4D-ROUTE-13", "short", "long",
    }  # fmt: skip


def test_a_fault_is_one_fault_more_often_than_not() -> None:
    alone = 0
    faults = drawn(nearly_valid(EVAL, "v14"), 80)
    for fault in faults:
        problems = read(EVAL, fault.data, dialect="v14").problems
        alone += [(p.path, p.clause) for p in problems] == [(fault.path, fault.clause)]
    assert alone == len(faults)


def test_free_text_has_no_rule_to_break() -> None:
    spec = frame("DS4D.ERROR", dialect="upstream")
    assert not breakable(spec, "upstream")
    with pytest.raises(
        ValueError, match=r"DS4D.ERROR has no rule to break in upstream"
    ):
        nearly_valid(spec, "upstream")


def test_hostile_bytes_hold_lies_and_truncations() -> None:
    datas = drawn(hostile(WORK, "upstream"), 200)
    readings = [read(WORK, data, dialect="upstream") for data in datas]
    assert sum(not reading.whole for reading in readings) > 50
    clauses = {p.clause for reading in readings for p in reading.problems}
    assert {"DS4D-WORK-01", "DS4D-WORK-02", "DS4D-FRAME-03"} <= clauses
    assert any(len(data) < WORK.header_size for data in datas)


def test_faults_shrink_to_something_small() -> None:
    smallest = find(
        nearly_valid(EVAL, "v14"),
        lambda fault: fault.kind == "limit",
        settings=settings(derandomize=True, database=None, deadline=None),
    )
    assert len(smallest.data) == 12 + 24


# -- boundaries


def field(**other: Any) -> FieldSpec:
    return FieldSpec("word", other.pop("type", Int32ub), "a word", **other)


def test_boundaries_of_a_plain_word() -> None:
    assert set(boundary_values(field())) == {
        0, 1, 2, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF,
    }  # fmt: skip
    assert integer_range(field()) == (0, 0xFFFFFFFF)


def test_boundaries_lie_on_both_sides_of_a_limit() -> None:
    assert {4, 5, 6, 8, 9, 10} <= set(boundary_values(field(limit=Limit(5, 9))))
    assert {6, 7, 8} <= set(boundary_values(field(limit=Limit(one_of=(7,)))))
    assert {0x11223343, 0x11223344, 0x11223345, 0x44332211} <= set(
        boundary_values(field(const=0x11223344))
    )


def test_boundaries_name_values_and_bits() -> None:
    names = (Name(5, "OWN"), Name(9, "FORK", dialects=frozenset({"anyei"})))
    assert {5, 9} <= set(boundary_values(field(enum=names)))
    assert 9 not in boundary_values(field(enum=names), "upstream")
    bits = boundary_values(field(flags=(Name(1, "ONE"),)))
    assert {1 << bit for bit in range(32)} <= set(bits)


def test_boundaries_fit_the_type() -> None:
    for spec in (*frames(), *CONTAINERS):
        for one in spec.body.fields:
            for value in boundary_values(one):
                assert len(one.type.build(value)) == one.size
    assert max(boundary_values(field(type=Int8ub, limit=Limit(0, 255)))) == 255


def test_boundaries_of_other_kinds() -> None:
    assert boundary_values(field(type=Float32l)) == FLOATS
    with pytest.raises(TypeError, match="word is a f32le, not an integer"):
        integer_range(field(type=Float32l))


# -- mending


def test_every_mend_belongs_to_a_layout() -> None:
    names = {spec.full_name for spec in (*frames(), *CONTAINERS)} | {"ROUTE"}
    assert MENDS.keys() <= names


@pytest.mark.parametrize(("size", "found"), [(0, b""), (2, b"ab"), (5, b"abcab")])
def test_cycled(size: int, found: bytes) -> None:
    assert cycled(b"abc", size) == found
    assert cycled(b"", size) == bytes(size)
