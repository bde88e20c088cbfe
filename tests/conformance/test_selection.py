"""Dialects that a run may ask for."""

from __future__ import annotations

import pytest
from ds4proto_conformance.front import run
from ds4proto_conformance.registry import all_cases
from ds4proto_conformance.selection import refuse_dialect, select
from ds4proto_conformance.settings import Settings

from ds4proto.errors import WrongUsage

ROLES = ("worker", "coordinator", "tp-leader", "tp-worker", "codec")


@pytest.mark.parametrize(
    ("role", "name"), [("worker", "v9w"), ("worker", "abc"), ("tp-worker", "june1")]
)
def test_a_dialect_that_the_role_cannot_speak_is_refused(role: str, name: str) -> None:
    settings = Settings("tcp:127.0.0.1:1", role, dialect=name)  # type: ignore[arg-type]  # a word of ROLES
    with pytest.raises(WrongUsage, match=rf"a {role} has no dialect '{name}'; known: "):
        run(settings)


def test_a_profile_of_an_unknown_dialect_is_refused() -> None:
    with pytest.raises(WrongUsage, match="no dialect 'zzz'"):
        select([], "dialect:zzz")


@pytest.mark.parametrize("role", ROLES)
def test_every_dialect_that_a_case_names_can_be_asked_for(role: str) -> None:
    for case in all_cases(role):
        for name in {*case.dialects} - {"*"}:
            refuse_dialect(name, role, "--dialect")
