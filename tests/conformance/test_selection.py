"""What a run may ask for."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds4proto_conformance.front import run
from ds4proto_conformance.mutants import find
from ds4proto_conformance.peers.loop import loop_opener
from ds4proto_conformance.registry import all_cases
from ds4proto_conformance.runner import Runner
from ds4proto_conformance.selection import refuse_dialect, refuse_keyword, select
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


def test_a_keyword_that_would_steer_a_terminal_is_shown_escaped() -> None:
    with pytest.raises(WrongUsage, match=r"-k a\\x1b\[31m\(: expected") as caught:
        run(Settings("reference:worker", "worker"), keyword="a\x1b[31m(")
    assert "\x1b" not in str(caught.value)


def test_a_tab_in_a_keyword_is_a_space() -> None:
    refuse_keyword("not\tflag")


def test_a_model_that_is_not_there_is_told_though_no_case_is_asked_for(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "absent.gguf")
    settings = Settings("reference:worker", "worker", model=path)
    with pytest.raises(WrongUsage, match=r"--model .*absent\.gguf: no such file"):
        run(settings, keyword="no_such_case")


def test_a_worker_that_takes_other_layers_is_judged_for_that_alone() -> None:
    """The route record has the layers of the WORK: no other check has a reason."""
    settings = Settings(
        "loop:x", "worker", patience=20.0, connect=20.0, retry=False, keep_frames=False
    )
    runner = Runner(settings, loop_opener(find("worker", "skip-WORK-06")))
    try:
        found = runner.run(
            next(c for c in all_cases("worker") if c.id == "worker/work/layers")
        )
    finally:
        runner.close()
    first = found.deviations[0]
    assert first["clause"] == "DS4D-WORK-06"
    assert first["found"].startswith("RESULT status 0"), first
