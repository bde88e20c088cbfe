"""Three forms of one declaration: interpreted, struct, numpy. They never differ."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4proto.emit.strategies import (
    NearlyValid,
    breakable,
    hostile,
    nearly_valid,
    valid_frames,
    valid_values,
)
from ds4proto.schema import FrameSpec, all_dialects, build, dtype_of, frames, to_bytes
from ds4proto.schema.declare import fields_of
from ds4proto.schema.fast import read_fast, struct_of
from tests.schema.forms import FORMS, IDS, both_forms, bounded, plain, within

every_form = pytest.mark.parametrize(("spec", "dialect"), FORMS, ids=IDS)


@every_form
def test_build_read_build(spec: FrameSpec, dialect: str) -> None:
    @bounded(12)
    @given(valid_values(spec, dialect))
    def holds(values: dict[str, Any]) -> None:
        whole = to_bytes(spec, values, dialect=dialect)
        fast, sound = read_fast(spec, memoryview(whole)[spec.header_size :], dialect)
        assert sound, "the fast form reads it without help"
        reading = both_forms(spec, whole, dialect)
        assert plain(reading.values) == plain(fast)
        assert reading.problems == ()
        assert within(values, reading.values)
        assert to_bytes(spec, reading.values, dialect=dialect) == whole
        assert b"".join(build(spec, reading.values, dialect=dialect)) == whole

    holds()


@every_form
def test_one_broken_rule_is_named_by_both_readers(
    spec: FrameSpec, dialect: str
) -> None:
    if not breakable(spec, dialect):
        assert not spec.body.rules
        assert not any(field.limit for field in spec.fixed(dialect))
        return

    @bounded(15)
    @given(nearly_valid(spec, dialect))
    def holds(fault: NearlyValid) -> None:
        problems = both_forms(spec, fault.data, dialect).problems
        assert (fault.path, fault.clause) in {(p.path, p.clause) for p in problems}

    holds()


@every_form
def test_both_readers_agree_on_hostile_bytes(spec: FrameSpec, dialect: str) -> None:
    @bounded(15)
    @given(hostile(spec, dialect), st.integers(0, 1 << 40))
    def holds(data: bytes, offset: int) -> None:
        reading = both_forms(spec, data, dialect, offset)
        for problem in reading.problems:
            assert problem.clause
            if problem.frame_offset is not None:
                assert 0 <= problem.frame_offset <= len(data)
                assert problem.stream_offset == offset + problem.frame_offset

    holds()


@every_form
def test_fixed_parts_read_alike_as_struct_and_as_columns(
    spec: FrameSpec, dialect: str
) -> None:
    fixed = fields_of(spec.body, dialect)
    size = spec.fixed_size(dialect)
    dtype = dtype_of(spec.body, dialect)
    assert dtype.itemsize == size == struct_of(spec.body, dialect).size
    if not fixed:
        return

    @bounded(5)
    @given(st.lists(valid_frames(spec, dialect), min_size=1, max_size=4))
    def holds(wholes: list[bytes]) -> None:
        head = spec.header_size
        bodies = [whole[head : head + size] for whole in wholes]
        table = np.frombuffer(b"".join(bodies), dtype)
        for row, whole in zip(table, wholes, strict=True):
            values = both_forms(spec, whole, dialect).values
            for field in fixed:
                column = row[field.path]
                found = column.tobytes() if field.kind == "bytes" else column.item()
                assert found == plain(values[field.path]), field.path

    holds()


def test_every_frame_of_every_dialect_has_a_tested_form() -> None:
    from ds4proto.schema.fingerprint import fingerprint

    tested = {(spec.full_name, fingerprint(spec, name)) for spec, name in FORMS}
    declared = {
        (spec.full_name, fingerprint(spec, entry.name))
        for entry in all_dialects()
        for spec in frames(dialect=entry.name)
    }
    assert declared <= tested
    assert {"DS4D.WORK", "DS4T.EVAL", "DS4B.GATE_BULK", "FILE.DSV4"} <= {
        name for name, _ in tested
    }
    assert len(tested) > 80
