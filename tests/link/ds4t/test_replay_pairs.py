"""Two real peers were recorded: our machines, told the same, write the same bytes."""

from __future__ import annotations

import pytest

from ds4proto.errors import WrongUsage
from ds4proto.link.ds4t_hello import HelloAgreed, HelloExchange
from ds4proto.link.ds4t_states import Leader, Worker
from tests.link.ds4t.captured import Captured, frames_of, load, names
from tests.link.ds4t.replay import (
    BRING_UP,
    HASH,
    over_rdma,
    replay_leader,
    replay_worker,
)

# 33 tokens cannot be halved: ours refuses what the recorded stub rounds down
ODD_VOCABULARY = {"v7_odd_vocab"}
# frames placed by the stand-in engine alone
HASHES = {"v7_debug_hash_divergence", "v9_debug_hash_divergence"}


def is_pair(captured: Captured) -> bool:
    kinds = {role: entry.get("kind") for role, entry in captured.about["roles"].items()}
    return kinds == {"leader": "real peer", "worker": "real peer"}


PAIRS = [
    name
    for name in names()
    if is_pair(load(name))
    and load(name).streams
    and not load(name).cut
    and name not in ODD_VOCABULARY | HASHES
    and len(load(name).control.from_leader) > load(name).hello_size
    and len(load(name).control.from_worker) >= load(name).hello_size
]


def body_of(captured: Captured, side: str) -> bytes:
    """Return the recorded control bytes behind hello and bring-up."""
    stream = captured.control
    data = stream.from_leader if side == "leader" else stream.from_worker
    data = data[captured.hello_size :]
    if not over_rdma(captured):
        return data
    return b"".join(frame for code, frame in frames_of(data) if code not in BRING_UP)


def test_the_captures_of_whole_pairs_are_all_there() -> None:
    assert len(PAIRS) == 91
    assert {load(name).version for name in PAIRS} == {7, 9, 10}


@pytest.mark.parametrize("name", PAIRS)
def test_both_hellos_are_rebuilt_and_agreed(name: str) -> None:
    captured = load(name)
    size = captured.hello_size
    leader = HelloExchange(captured.settings("tp-leader"))
    worker = HelloExchange(captured.settings("tp-worker"))
    from_leader = b"".join(leader.start(0.0))
    from_worker = b"".join(worker.start(0.0))
    if not over_rdma(captured):
        assert from_leader[:12] + from_leader[16:] == (
            captured.control.from_leader[:12] + captured.control.from_leader[16:size]
        )
    leader.receive_data(captured.control.from_worker[:size], 0.0)
    worker.receive_data(captured.control.from_leader[:size], 0.0)
    assert from_worker[16:] == captured.control.from_worker[16:size]
    for machine in (leader, worker):
        (event,) = list(machine.events())
        assert isinstance(event, HelloAgreed)
        assert event.rest == b""


@pytest.mark.parametrize("name", PAIRS)
def test_a_leader_writes_the_recorded_commands(name: str) -> None:
    captured = load(name)
    run = replay_leader(captured)
    recorded = body_of(captured, "leader")
    assert recorded.startswith(run.out)
    if captured.exit("leader") == 0:
        assert run.out == recorded
        assert run.failure is None or "idle" in run.failure.text
    assert [str(e)[:30] for e in run.refused] == (
        ["dialect v7 has no prefix verdic"[:30]] if name == "v7_everything" else []
    )


@pytest.mark.parametrize("name", PAIRS)
def test_a_worker_writes_the_recorded_answers(name: str) -> None:
    captured = load(name)
    run = replay_worker(captured)
    recorded = body_of(captured, "worker")
    if captured.exit("worker") not in (0, 1):
        # it was killed: ours says what a worker says whose gate failed
        common = min(len(recorded), len(run.out))
        assert run.out[:common] == recorded[:common]
        return
    assert run.out == recorded
    if captured.exit("worker") == 0:
        assert (run.state, run.failure) == (Worker.STOPPED, None)
    else:
        assert run.failure is not None
        assert run.failure.line("tp-worker") in captured.log("worker")


@pytest.mark.parametrize("name", PAIRS)
def test_the_split_of_the_bytes_changes_nothing(name: str) -> None:
    captured = load(name)
    step = 97 if len(captured.control.from_leader) > 20000 else 1
    for run in (replay_leader, replay_worker):
        whole, pieces = run(captured), run(captured, step=step)
        assert pieces.out == whole.out
        assert pieces.texts == whole.texts
        assert pieces.state == whole.state
        assert len(pieces.events) == len(whole.events)


@pytest.mark.parametrize("name", sorted(HASHES))
def test_a_hash_frame_is_no_answer_and_no_command(name: str) -> None:
    captured = load(name)
    assert HASH in {code for code, _ in frames_of(body_of(captured, "worker"))}
    leader, worker = replay_leader(captured), replay_worker(captured)
    assert leader.texts[0] == "ds4-tp: bad logits frame (type 6 bytes 16)"
    assert leader.state is Leader.FAILED
    assert worker.texts == ["tp: invalid command frame type 6 (16 bytes)"]


@pytest.mark.parametrize("name", sorted(ODD_VOCABULARY))
def test_an_odd_vocabulary_is_refused_before_anything_is_sent(name: str) -> None:
    with pytest.raises(WrongUsage, match="n_vocab 33 is odd"):
        load(name).settings("tp-leader")
