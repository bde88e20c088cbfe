"""The schedule and the lockstep plan, against the facts' own examples and tables."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4proto.link.plan import (
    Chunk,
    PlanOptions,
    chunk_gates,
    chunk_limit,
    gate_of,
    plan_sync,
    seq_of,
    sync_gates,
    verify_gates,
)
from ds4proto.link.schedule import Schedule
from ds4proto.model.known import known_model

FLASH = Schedule(43, 86, 0, 1)
TOY = Schedule(2, 4, 0, 1)
GLM53 = Schedule(45, 53, 6, 1, (0xEAEAEAEAEAEAEAC0, 0x2EAEAEA, 0))


@pytest.mark.parametrize(
    ("seq", "place"),
    [
        (1, (1, 0, "ATTN")),
        (128, (2, 20, "FFN")),
        (214, (3, 20, "FFN")),
        (86, (1, 42, "FFN")),
        (87, (2, 0, "ATTN")),
    ],
)
def test_gate_of_flash(seq: int, place: tuple[int, int, str]) -> None:
    assert gate_of(seq, FLASH) == place


def test_the_mask_of_glm_53_fires_the_slots_of_the_table() -> None:
    assert len(GLM53.slots) == 53
    assert GLM53.slots[:7] == (6, 7, 9, 11, 13, 14, 15)
    assert GLM53.slots[-4:] == (85, 86, 87, 89)
    assert GLM53.ffn_layers == tuple(range(3, 45))


def test_a_wrong_number_of_gates_leaves_mask_bits_unused() -> None:
    assert Schedule(45, 3, mask=(0b1011_0010, 0, 0)).slots == (1, 4, 5)


def test_glm_52_streaming_fires_ffn_slots_only() -> None:
    schedule = Schedule(78, 75, 7, 2)
    assert schedule.slots[0] == 7
    assert schedule.ffn_layers == tuple(range(3, 78))
    assert gate_of(75, schedule) == (1, 77, "FFN")


def test_without_gates_per_token_every_slot_fires() -> None:
    assert Schedule(2).slots == (0, 1, 2, 3)


def test_every_known_model_has_its_schedule() -> None:
    seen = 0
    for model in map(known_model, range(5)):
        assert model is not None
        for gates in (model.gates, model.gates_streaming):
            if gates is None:
                continue
            schedule = Schedule(
                model.layers,
                gates.gates_per_token,
                gates.start,
                gates.step,
                gates.mask,
            )
            assert schedule.slots == gates.slots()
            assert max(schedule.slots) < 2 * model.layers
            seen += 1
    assert seen >= 6


@given(
    st.sampled_from([FLASH, TOY, GLM53, Schedule(78, 75, 7, 2)]), st.integers(1, 10**6)
)
def test_seq_of_is_the_inverse(schedule: Schedule, seq: int) -> None:
    assert seq_of(*gate_of(seq, schedule), schedule) == seq


@pytest.mark.parametrize("seq", [0, -1])
def test_no_gate_has_a_number_below_one(seq: int) -> None:
    with pytest.raises(ValueError, match="from 1 on"):
        gate_of(seq, FLASH)


def test_a_gate_that_never_fires_has_no_number() -> None:
    with pytest.raises(ValueError, match="the schedule"):
        seq_of(1, 0, "ATTN", GLM53)


def test_an_equal_prompt_causes_no_gate() -> None:
    plan = plan_sync((1, 2, 3), (1, 2, 3), 256)
    assert plan == (3, (), 0)
    assert list(sync_gates(plan, TOY)) == []


def test_a_short_continuation_goes_token_by_token() -> None:
    plan = plan_sync((1, 2, 3), (1, 2, 3, 4, 5), 256)
    assert plan == (3, (), 2)
    gates = list(sync_gates(plan, TOY))
    assert [g.kind for g in gates] == ["row"] * 8


def test_from_zero_any_length_is_a_chunk() -> None:
    assert plan_sync((), (1, 2), 256).chunks == (Chunk(0, 2),)


@pytest.mark.parametrize(
    "prompt", [(1, 2), (9, 2, 3, 4), (1, 9, 3, 4, 5, 6, 7, 8)], ids=str
)
def test_a_prompt_that_does_not_extend_the_prefix_starts_over(
    prompt: tuple[int, ...],
) -> None:
    plan = plan_sync((1, 2, 3), prompt, 256)
    assert plan.start == 0
    assert plan.chunks == (Chunk(0, len(prompt)),)


@pytest.mark.parametrize(
    ("context", "model_id", "limit"),
    [
        (256, 0, 256),
        (4096, 0, 4096),
        (8192, 0, 4096),
        (8192, 1, 8192),
        (100_000, 1, 8192),
    ],
)
def test_chunk_limit(context: int, model_id: int, limit: int) -> None:
    assert chunk_limit(context, PlanOptions(), model_id) == limit


def test_chunk_options() -> None:
    assert chunk_limit(256, PlanOptions(chunk=8)) == 8
    assert chunk_limit(256, PlanOptions(chunk=0)) == 256
    assert chunk_limit(256, PlanOptions(chunk=1000)) == 256


def test_chunks_from_zero_and_behind_a_prefix() -> None:
    options = PlanOptions(chunk=100)
    assert plan_sync((), tuple(range(250)), 8192, options).chunks == (
        Chunk(0, 100),
        Chunk(100, 100),
        Chunk(200, 50),
    )
    held = tuple(range(130))
    # the first chunk ends at the next multiple of the limit
    assert plan_sync(held, tuple(range(350)), 8192, options).chunks == (
        Chunk(130, 70),
        Chunk(200, 100),
        Chunk(300, 50),
    )


def test_row_swap_of_the_first_chunk_only() -> None:
    first = [g.rows for g in chunk_gates(Chunk(0, 40), TOY)]
    assert first == [20, 40, 20, 40]
    assert [g.rows for g in chunk_gates(Chunk(0, 31), TOY)] == [31, 31]
    assert [g.rows for g in chunk_gates(Chunk(40, 40), TOY)] == [40, 40]
    assert [g.rows for g in chunk_gates(Chunk(0, 33), TOY)] == [17, 33, 17, 33]
    assert [g.gate for g in chunk_gates(Chunk(0, 40), TOY)][:2] == ["ATTN", "FFN"]


def test_subgates_halve_the_swap() -> None:
    options = PlanOptions(subgate_pipeline=True)
    rows = [g.rows for g in chunk_gates(Chunk(0, 512), Schedule(1), options)]
    assert rows == [128, 128, 512]


@pytest.mark.parametrize(("rows", "kind"), [(1, "batch"), (8, "batch"), (9, "bulk")])
def test_verify_blocks(rows: int, kind: str) -> None:
    gates = list(verify_gates(rows, TOY))
    assert [(g.kind, g.layer, g.rows) for g in gates] == [
        (kind, 0, rows),
        (kind, 1, rows),
    ]


def test_glm_runs_up_to_64_new_tokens_one_by_one() -> None:
    assert plan_sync((), tuple(range(64)), 8192, model_id=2).single_tokens == 64
    plan = plan_sync((), tuple(range(65)), 8192, model_id=2)
    assert plan.chunks == (Chunk(0, 65),)
    gates = list(sync_gates(plan, Schedule(78, 75, 7, 2), model_id=2))
    assert {g.layer for g in gates} == set(range(3, 78))
    assert {g.rows for g in gates} == {65}
