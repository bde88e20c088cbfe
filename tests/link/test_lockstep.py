"""What the lockstep plan expects, and what it learns from proven gates."""

import pytest

from ds4proto.link.lockstep import Lockstep
from ds4proto.link.plan import PlanOptions
from ds4proto.link.schedule import Schedule

TOY = Schedule(2, 4)


def followed(*prompts: int, context: int = 256) -> Lockstep:
    """Return a plan that saw one session a prompt of so many tokens."""
    plan = Lockstep(TOY, 0)
    for session, size in enumerate(prompts, 1):
        plan.command("SESSION_CREATE", {"session_id": session, "ctx_size": context})
        sync(plan, session, range(size))
    return plan


def sync(plan: Lockstep, session: int, tokens: range) -> None:
    plan.command("SYNC", {"session_id": session, "tokens": tuple(tokens)})


def rows(plan: Lockstep, *seqs: int) -> list[int | None]:
    """Return the rows expected of gates; two gates a layer or one, layers in turn."""
    found = []
    for seq in seqs:
        gate = plan.planned(seq)
        found.append(None if gate is None else gate.rows)
    return found


def test_the_default_plan() -> None:
    plan = followed(10, 40)
    assert rows(plan, 1, 2, 3, 4, 5, 6, 7) == [10, 10, 20, 40, 20, 40, None]
    assert plan.expected_rows(2, 1) == 10


def test_a_chunk_is_learned_from_the_first_gate() -> None:
    plan = followed(20, 24)
    assert rows(plan, 1, 2, 3) == [20, 20, 24]
    plan.confirm(1, 0, 8, proven=True)
    assert plan.options.chunk == 8
    assert rows(plan, *range(1, 13)) == [8, 8, 8, 8, 4, 4, 8, 8, 8, 8, 8, 8]


def test_a_chunk_is_learned_behind_a_prefix() -> None:
    plan = followed(10)
    sync(plan, 1, range(70))
    plan.confirm(1, 0, 10, proven=True)
    plan.confirm(2, 1, 10, proven=True)
    # the first chunk ends where the position reaches the chunk size: 10 + 23
    plan.confirm(3, 0, 23, proven=True)
    assert plan.options.chunk == 33
    assert rows(plan, 3, 4, 5, 6, 7, 8) == [23, 23, 33, 33, 4, 4]


def test_a_threshold_is_learned() -> None:
    plan = followed(40, 50)
    plan.confirm(1, 0, 40, proven=True)
    assert rows(plan, 1, 2, 3, 4) == [40, 40, 50, 50]


def test_nothing_is_learned_from_a_guess() -> None:
    plan = followed(20)
    plan.confirm(1, 0, 8, proven=False)
    assert plan.options == PlanOptions()
    assert plan.confirmed(1) == 8
    # the other direction is asked before the plan
    assert plan.expected_rows(1, 0) == 8


def test_gates_that_no_plan_explains_stay_with_their_command() -> None:
    plan = followed(20, 10)
    plan.confirm(1, 0, 7, proven=True)
    plan.confirm(2, 0, 3, proven=True)
    plan.confirm(3, 1, 5, proven=True)
    assert plan.planned(4) is None
    # the next command begins at the first layer, with the rows that it has
    assert plan.planned(1) is None


@pytest.mark.parametrize(
    ("mode", "count", "held"), [(1, 0, 13), (0, 2, 12), (2, 1, 11), (0, 99, 13)]
)
def test_verdicts_extend_the_session(mode: int, count: int, held: int) -> None:
    plan = followed(10)
    plan.command("VERIFY", {"session_id": 1, "tokens": (1, 2, 3)})
    plan.command("VERIFY_COMMIT", {"mode": mode, "token_count": count})
    assert len(plan.sessions[1].tokens) == held
    assert rows(plan, 3, 4) == [3, 3]


def test_other_commands_follow_the_tokens() -> None:
    plan = followed(10, 4)
    plan.command("EVAL", {"session_id": 1, "token": 5})
    plan.command("EVAL_BATCH", {"items": [{"session_id": 1, "token": 6},
                                          {"session_id": 2, "token": 7}]})  # fmt: skip
    assert len(plan.sessions[1].tokens) == 12
    plan.command("REWIND", {"session_id": 1, "position": 3})
    assert plan.sessions[1].tokens == [0, 1, 2]
    plan.command("INVALIDATE", {"session_id": 2})
    assert plan.sessions[2].tokens == []
    plan.command("SESSION_DESTROY", {"session_id": 2})
    assert 2 not in plan.sessions
    plan.command(
        "MIXED_BATCH",
        {
            "prefill_session_id": 1,
            "tokens": tuple(range(9)),
            "items": [{"session_id": 3, "token": 1}],
        },
    )
    assert rows(plan, 5, 6) == [6, 6]
    assert plan.sessions[3].tokens == [1]


def test_a_prompt_that_was_not_captured_is_taken_to_extend_the_session() -> None:
    plan = followed(10)
    plan.command("SYNC", {"session_id": 1, "count": 30})
    assert rows(plan, 3, 4) == [20, 20]
