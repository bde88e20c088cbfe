"""A hello claims what it likes; no plan costs more for it than the frames hold."""

from __future__ import annotations

from collections.abc import Iterator

from ds4proto.link.lockstep import MAX_LISTED, MAX_PLANNED, MAX_SIZES, Lockstep
from ds4proto.link.plan import PlannedGate, PlanOptions
from ds4proto.link.schedule import MAX_SLOTS, Schedule

CLAIMS = Schedule((1 << 32) - 1)


def listed(pair: Lockstep) -> list[int]:
    return [len(operation.gates) for operation in pair._operations]


def test_layers_that_are_claimed_are_cut() -> None:
    assert len(CLAIMS.slots) == MAX_SLOTS
    assert len(Schedule(1, (1 << 32) - 1).slots) == MAX_SLOTS
    assert len(Schedule(78).slots) == 156  # the most that a known model has


def test_plans_of_many_commands_share_one_budget() -> None:
    pair = Lockstep(CLAIMS, 0, PlanOptions(chunk=1))
    for number in range(9):
        tokens = tuple(range(number, number + 40))
        pair.command("SYNC", {"session_id": 1, "tokens": tokens})
        assert max(listed(pair)) <= MAX_PLANNED
        assert sum(listed(pair)) <= MAX_LISTED
    assert len(listed(pair)) == MAX_LISTED // (40 * MAX_SLOTS // 2)
    # the last one is followed all the same
    assert pair._operations[-1].base is not None


def test_lengths_without_end_are_not_fitted_to_any_plan() -> None:
    pair = Lockstep(Schedule(1000), 0)
    pair.command("VERIFY", {"session_id": 1, "tokens": (5,)})
    operation = pair._operations[0]
    made = 0
    real = operation.make

    def counted(options: PlanOptions) -> Iterator[PlannedGate]:
        nonlocal made
        made += 1
        return real(options)

    operation.make = counted
    for number in range(500):
        pair.confirm(1 + number, number, 2 + number, proven=True)
    assert operation.odd
    # four chunks a length, three splits, odd or even rows: for each of the first few
    assert made <= sum(6 * (1 + 4 * sizes) for sizes in range(1, MAX_SIZES + 1))
