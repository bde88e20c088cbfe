"""What a session holds after each operation, against sessions that came there fresh.

A pair and a single process share the runner, so that comparing them cannot show its
mistakes; here two different ways to the same tokens have to give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from ds4proto_runtime.engines.base import F32, EngineError
from ds4proto_runtime.tp.errors import PairError
from ds4proto_runtime.tp.runner import Runner
from ds4proto_runtime.tp.toy import ToyShape, ToyTpEngine

from ds4proto.errors import PeerLost
from ds4proto.link.ds4t_events import (
    CHUNK,
    END,
    KEEP_ALL,
    KEEP_PREFIX,
    OK,
    PROGRESS,
    REPLAY,
    START,
    BatchItem,
    RunSync,
    RunVerify,
    SyncDone,
)
from ds4proto.link.plan import PlanOptions
from tests.runtime.tp.rig import options, pair, toy

SHAPE = ToyShape(n_layer=2, n_embd=16, n_vocab=32)
A, B = 1, 2
PROMPT = [3, 1, 4, 1, 5, 9]


@pytest.fixture
def runner() -> Runner:
    made = Runner(ToyTpEngine(SHAPE))
    made.create(A, 64)
    made.create(B, 64)
    return made


def _equal(runner: Runner) -> None:
    """Both sessions hold the same and go on alike."""
    assert runner[A].tokens == runner[B].tokens
    rows = [runner.eval(known, 7) for known in (A, B)]
    assert rows[0].tobytes() == rows[1].tobytes()


def test_another_prompt_starts_over(runner: Runner) -> None:
    runner.sync(A, PROMPT)
    found = runner.sync(A, [2, 7, 1, 8, 2])
    fresh = runner.sync(B, [2, 7, 1, 8, 2])
    assert found is not None
    assert fresh is not None
    assert found.tobytes() == fresh.tobytes()
    _equal(runner)


def test_a_shorter_prompt_starts_over_too(runner: Runner) -> None:
    """There is no implicit rewind."""
    runner.sync(A, PROMPT)
    assert runner.plan(A, PROMPT[:4]).start == 0
    runner.sync(A, PROMPT[:4])
    runner.sync(B, PROMPT[:4])
    _equal(runner)


def test_a_rewind_forgets_what_follows(runner: Runner) -> None:
    runner.sync(A, PROMPT)
    runner.rewind(A, 4)
    runner.sync(B, PROMPT[:4])
    _equal(runner)


@pytest.mark.parametrize(("position", "left"), [(-3, 0), (99, 6), (6, 6), (0, 0)])
def test_a_rewind_is_clamped(runner: Runner, position: int, left: int) -> None:
    runner.sync(A, PROMPT)
    runner.rewind(A, position)
    assert len(runner[A].tokens) == left


def test_an_invalidated_session_is_like_new(runner: Runner) -> None:
    runner.sync(A, PROMPT)
    runner.invalidate(A)
    _equal(runner)


def _block(
    runner: Runner, known: int, drafts: Sequence[int], mode: int, count: int
) -> F32 | None:
    runner.sync(known, PROMPT)
    runner.block(known, drafts)
    assert runner[known].tokens == PROMPT  # not valid before the verdict
    return runner.commit(mode, count)


def test_a_kept_block_extends_the_session(runner: Runner) -> None:
    assert _block(runner, A, [4, 5, 6], KEEP_ALL, 0) is None
    assert runner[A].tokens == [*PROMPT, 4, 5, 6]


def test_a_kept_prefix_is_as_if_only_it_had_run(runner: Runner) -> None:
    assert _block(runner, A, [4, 5, 6, 7, 8], KEEP_PREFIX, 3) is None
    _block(runner, B, [4, 5, 6], KEEP_ALL, 0)
    assert runner[A].hidden is not None
    assert runner[B].hidden is not None
    assert runner[A].hidden.tobytes() == runner[B].hidden.tobytes()
    _equal(runner)


def test_a_rolled_back_block_leaves_nothing(runner: Runner) -> None:
    assert _block(runner, A, [4, 5, 6, 7], REPLAY, 0) is None
    runner.sync(B, PROMPT)
    _equal(runner)


def test_a_replay_is_the_drafts_one_by_one(runner: Runner) -> None:
    last = _block(runner, A, [4, 5, 6, 7], REPLAY, 2)
    runner.sync(B, PROMPT)
    rows = [runner.eval(B, token) for token in (4, 5)]
    assert last is not None
    assert last.tobytes() == rows[-1].tobytes()
    _equal(runner)


def test_a_mixed_batch_is_a_sync_and_a_batch(runner: Runner) -> None:
    runner.create(3, 64)
    runner.create(4, 64)
    for known in (A, B):
        runner.sync(known, PROMPT)
    longer = [*PROMPT, 1, 2, 3, 4]
    mixed = runner.mixed(A, longer, [BatchItem(3, 5)])
    apart = [runner.sync(B, longer), *runner.batch([BatchItem(4, 5)])]
    for one, two in zip(mixed, apart, strict=True):
        assert two is not None
        assert one.tobytes() == two.tobytes()
    _equal(runner)


def test_a_stopped_prefill_says_how_far_it_came(runner: Runner) -> None:
    seen: list[int] = []

    def progress(at: int) -> bool:
        seen.append(at)
        return at >= 8

    stopped = Runner(ToyTpEngine(SHAPE), PlanOptions(chunk=4))
    stopped.create(A, 64)
    assert stopped.sync(A, list(range(16)), progress=progress) is None
    assert seen == [4, 8]


def test_sessions_that_are_not_there_or_not_valid_are_refused(runner: Runner) -> None:
    with pytest.raises(EngineError, match="session 9 is not open"):
        runner.eval(9, 1)
    runner[A].valid = False
    with pytest.raises(EngineError, match="not valid"):
        runner.eval(A, 1)
    runner.sync(A, PROMPT)
    runner.sync(B, PROMPT)
    _equal(runner)


def test_a_leader_that_reports_more_progress_is_answered() -> None:
    """How many points 1 and 2 a prefill has depends on the engine."""
    settings = options(plan=PlanOptions(chunk=4))
    with pair(toy(SHAPE), settings) as found:
        leader = found.leader
        known = leader.create(64)
        prompt = tuple(range(8))
        leader._send(RunSync(known, prompt))
        assert not leader._meet(START, 0, 8, False)
        assert not leader._meet(PROGRESS, 1, 8, False)

        def progress(at: int) -> bool:
            stop = leader._meet(CHUNK, at, 8, False)
            return stop or leader._meet(PROGRESS, at, 8, False)

        hidden = leader.rank.runner.sync(known, prompt, (), progress)
        assert not leader._meet(END, OK, 8, False)
        done = leader._await(SyncDone)
        assert done.status == OK
        assert hidden is not None
        leader.eval(known, 3)
    assert found.worker_error is None


def test_after_a_failed_gate_nothing_but_stop_is_said() -> None:
    with pair(toy(SHAPE), options(dialect="v14")) as found:
        known = found.leader.create(64)
        assert found.worker is not None
        rank = found.worker.rank
        rank.gates.on_gate = lambda _: rank.close()
        with pytest.raises(PairError, match="gate transport failed"):
            found.leader.eval(known, 3)
        machine = found.leader.machine
        assert machine.failure is not None
        assert machine.state.name == "FAILED"
        for again in (
            lambda: found.leader.rewind(known, 0),
            lambda: found.leader.invalidate(known),
            lambda: found.leader.destroy(known),
        ):
            with pytest.raises(PairError, match="gate transport failed"):
                again()
    assert found.worker_error is not None


def test_a_leader_that_leaves_before_its_verdict_is_named() -> None:
    """The text is measured."""
    with pair(toy(SHAPE)) as found:
        leader = found.leader
        known = leader.create(64)
        leader.sync(known, PROMPT)
        leader._send(RunVerify(known, (4, 5, 6)))
        leader.rank.runner.block(known, (4, 5, 6))
        leader.rank.close()
    assert isinstance(found.worker_error, PeerLost)
    assert "tp worker verify: tp: verify commit frame missing" in str(
        found.worker_error
    )


def test_a_leader_that_leaves_between_commands_is_named() -> None:
    with pair(toy(SHAPE)) as found:
        known = found.leader.create(64)
        found.leader.eval(known, 3)
        found.leader.rank.close()
    assert isinstance(found.worker_error, PeerLost)
    assert "tp worker: tp: control channel closed" in str(found.worker_error)


@pytest.mark.parametrize("operation", ["create", "sync", "batch", "destroy"])
def test_a_worker_that_leaves_instead_of_an_answer_is_named(operation: str) -> None:
    words = {
        "create": "session create",
        "sync": "prefill sync",
        "batch": "decode batch",
        "destroy": "session destroy",
    }
    with pair(toy(SHAPE), options(dialect="v10")) as found:
        leader = found.leader
        first, second = leader.create(64), leader.create(64)
        assert found.worker is not None
        worker = found.worker
        # the gates are done, the answer is not said
        worker._pipe.say = lambda _: worker.rank.close()  # type: ignore[method-assign]
        asked = {
            "create": lambda: leader.create(64),
            "sync": lambda: leader.sync(first, PROMPT),
            "batch": lambda: leader.batch([(first, 1), (second, 2)]),
            "destroy": lambda: leader.destroy(first),
        }
        text = f"tp: worker failed during {words[operation]}"
        with pytest.raises(PeerLost, match=text):
            asked[operation]()
