"""Every proof holds, and its planted fault makes it fail."""

import pytest

from ds4proto import clauses
from tests.spec.proving import INDEX, Proof, all_proofs, index

PROOFS = all_proofs()
FAILED = (AssertionError, pytest.fail.Exception)


@pytest.mark.parametrize("one", PROOFS, ids=str)
def test_a_proof_holds_and_its_fault_is_caught(one: Proof) -> None:
    one.check()
    with one.broken(), pytest.raises(FAILED):
        one.check()
    one.check()


def test_proofs_are_of_clauses_that_exist() -> None:
    assert {one.clause for one in PROOFS} <= set(clauses.ids())


def test_no_proof_is_told_twice() -> None:
    told = {(str(one), one.fault_words) for one in PROOFS}
    assert len(told) == len(PROOFS)


def test_the_index_is_that_of_the_proofs() -> None:
    text = INDEX.read_text("utf-8")
    assert text == index(), "run `python -m tests.spec.proving`"
