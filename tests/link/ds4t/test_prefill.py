"""From settings and commands to gates, the same on both ranks."""

from __future__ import annotations

from typing import Any

import pytest

from ds4proto.errors import WrongUsage
from ds4proto.link import ds4t_events as say
from ds4proto.link.ds4t_prefill import c_integer, command_gates, may_mix, plan_options
from ds4proto.link.ds4t_sessions import Session, Sessions
from ds4proto.link.plan import PlanOptions
from tests.link.ds4t.pair import SMALL, settings

LEADER, WORKER = settings("tp-leader"), settings("tp-worker")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, PlanOptions()),
        ({"DS4_METAL_PREFILL_CHUNK": "8"}, PlanOptions(chunk=8)),
        ({"DS4_METAL_PREFILL_CHUNK": "text"}, PlanOptions(chunk=0)),
        ({"DS4_TP_PREFILL_SPLIT_MIN": "64"}, PlanOptions(split_min=64)),
        ({"DS4_TP_PREFILL_SPLIT_MIN": "1"}, PlanOptions()),
        ({"DS4_TP_SUBGATE_PIPELINE": "1"}, PlanOptions(subgate_pipeline=True)),
        ({"DS4_METAL_RESUME_PREFILL_MIN": "0"}, PlanOptions(resume_min=0)),
        ({"DS4_GLM_RESUME_PREFILL_MIN": "9"}, PlanOptions()),
        ({"DS4_GLM_TP_EXACT_PREFILL_MAX": "64"}, PlanOptions()),
    ],
)
def test_variables_become_options(
    environment: dict[str, str], expected: PlanOptions
) -> None:
    assert plan_options(environment) == expected


def test_an_explicit_chunk_wins_and_glm_has_its_own_resume() -> None:
    both = {"DS4_METAL_PREFILL_CHUNK": "8", "DS4_GLM_RESUME_PREFILL_MIN": "9"}
    assert plan_options(both, chunk=16).chunk == 16
    assert plan_options(both, model_id=2).resume_min == 9


@pytest.mark.parametrize(
    "name",
    ["DS4_METAL_GRAPH_RAW_CAP", "DS4_GLM_ABLATE_COMBINE", "DS4_GLM_TP_HEAD_SPLIT_MIN",
     "DS4_GLM_TP_EXACT_PREFILL_MAX"],
)  # fmt: skip
def test_variables_that_are_not_honoured_are_refused_by_name(name: str) -> None:
    with pytest.raises(WrongUsage, match=name):
        plan_options({name: "7"})


def test_c_integers() -> None:
    assert [c_integer(t) for t in ("12", " -3x", "x", "", "+7")] == [12, -3, 0, 0, 7]


def count(command: Any, held: tuple[int, ...] = ()) -> list[tuple[str, int]]:
    """Return (kind, rows) of each gate, equal on both ranks."""
    session = Session(1, 256, list(held))
    found = [
        [(g.kind, g.rows) for g in command_gates(command, session, own, PlanOptions())]
        for own in (LEADER, WORKER)
    ]
    assert found[0] == found[1]
    return found[0]


def test_gates_of_commands() -> None:
    rows = SMALL.gates_per_token
    assert count(say.RunEval(1, 1)) == [("row", 1)] * rows
    assert count(say.RunSync(1, tuple(range(10)))) == [("bulk", 10)] * 4
    assert count(say.RunSync(1, tuple(range(40)))) == [("bulk", 20), ("bulk", 40)] * 4
    assert count(say.RunSync(1, (1, 2, 3)), (1, 2)) == [("row", 1)] * rows
    assert count(say.RunSync(1, (1, 2)), (1, 2)) == []
    assert count(say.RunVerify(1, (1,) * 8)) == [("batch", 8)] * 4
    assert count(say.RunVerify(1, (1,) * 9)) == [("bulk", 9)] * 4
    items = (say.BatchItem(2, 1), say.BatchItem(3, 1))
    assert len(count(say.RunBatch(items))) == 2 * rows
    mixed = say.RunMixed(1, (1, 2, 3, 4, 5, 6), items)
    assert count(mixed, (1, 2)) == [("bulk", 4)] * 4 + [("row", 1)] * 2 * rows
    assert len(count(say.CommitBlock(0, 3))) == 3 * rows
    for quiet in (
        say.CommitBlock(1),
        say.CommitBlock(2, 3),
        say.Rewind(1, 0),
        say.Stop(),
    ):
        assert count(quiet) == []


@pytest.mark.parametrize(
    ("prompt", "options", "model", "draft", "expected"),
    [
        (14, {}, 0, False, True),
        (13, {}, 0, False, False),
        (10, {}, 0, False, False),
        (14, {}, 2, False, False),
        (14, {}, 0, True, False),
        (14, {"chunk": 12}, 0, False, False),
        (14, {"chunk": 7}, 0, False, True),
        (300, {}, 0, False, False),
    ],
)
def test_when_a_leader_may_mix(
    prompt: int, options: dict[str, Any], model: int, draft: bool, expected: bool
) -> None:
    session = Session(1, 256, list(range(10)))
    found = may_mix(
        session,
        tuple(range(prompt)),
        PlanOptions(**options),
        model_id=model,
        draft_model=draft,
    )
    assert found is expected


def test_sessions_keep_what_the_frames_say() -> None:
    book = Sessions()
    book.create(1, 8)
    book.create(5, 8)
    assert (book.next_id, len(book), book.ids) == (6, 2, (1, 5))
    book.synced(1, (1, 2, 3))
    book.extend(1, 4, 5)
    assert book[1].room == 3
    assert book[1].extends((1, 2, 3, 4, 5, 6))
    assert not book[1].extends((1, 2, 3, 4, 5))
    assert book.rewind(1, 2) == 2
    book.destroy(1)
    assert book.get(1) is None
    assert book.get(None) is None
    assert book.was_used(1)
