"""The data stream of every capture runs through a gate link of either rank."""

from __future__ import annotations

import pytest

from tests.link.ds4t.captured import load, names
from tests.link.ds4t.replay import over_rdma, replay_gates, replay_leader
from tests.link.ds4t.test_replay_pairs import PAIRS

# The stand-in engine's own order (GLM_MTP), and its chunks after a prefix, which do
# not stop at a multiple of the chunk as those of real engines do.
OTHER_PLAN = {"v10_glm_mtp", "v9_prefill_chunked"}
TCP = [
    name
    for name in PAIRS
    if name not in OTHER_PLAN
    and len(load(name).streams) > 1
    and not over_rdma(load(name))
]
WHOLE = [
    name for name in TCP if load(name).exit("leader") == load(name).exit("worker") == 0
]


@pytest.mark.parametrize("name", TCP)
def test_the_plan_of_the_commands_has_the_recorded_number_of_gates(name: str) -> None:
    planned = replay_leader(load(name)).gates
    assert len(planned) == load(name).about["gates_expected_from_control"]


@pytest.mark.parametrize("role", ["tp-leader", "tp-worker"])
@pytest.mark.parametrize("name", WHOLE)
def test_a_rank_exchanges_the_recorded_gates(name: str, role: str) -> None:
    captured = load(name)
    gates = replay_leader(captured).gates
    sent, got, failure, done = replay_gates(captured, role, gates)
    assert failure is None
    assert done == len(gates)
    leader = role == "tp-leader"
    own, peer = captured.data.from_leader, captured.data.from_worker
    assert sent == (own if leader else peer)
    assert len(got) == len(peer if leader else own) - 16 * done


@pytest.mark.parametrize(
    "name", [n for n in WHOLE if len(load(n).data.from_leader) < 20000]
)
def test_single_bytes_are_gates_too(name: str) -> None:
    captured = load(name)
    gates = replay_leader(captured).gates
    whole = replay_gates(captured, "tp-worker", gates)
    assert replay_gates(captured, "tp-worker", gates, step=1) == whole


def wrong_headers() -> list[tuple[str, str, str]]:
    """Return (capture, our role, the line that the recorded peer printed)."""
    found = []
    for name in names():
        captured = load(name)
        if "_asym_" in name:
            continue  # each rank of such a pair has a plan of its own
        for role in ("leader", "worker"):
            if role not in captured.about["roles"] or not captured.real(role):
                continue
            lines = [x for x in captured.log(role).splitlines() if "desync: got" in x]
            if lines and len(captured.streams) > 1 and not over_rdma(captured):
                found.append((name, f"tp-{role}", lines[0]))
    return found


WRONG = wrong_headers()


def test_the_recorded_desyncs_are_all_there() -> None:
    assert len(WRONG) == 21
    kinds = {line.split(":")[1].split()[0] for _, _, line in WRONG}
    assert kinds == {"gate", "batch", "big"}


@pytest.mark.parametrize(("name", "role", "line"), WRONG)
def test_a_wrong_header_is_named_as_the_recorded_peer_named_it(
    name: str, role: str, line: str
) -> None:
    captured = load(name)
    gates = replay_leader(captured).gates
    _, _, failure, _ = replay_gates(captured, role, gates)
    assert failure is not None
    assert failure.failure.log[0] in line
    assert failure.failure.text == "tp: gate transport failed"
    assert failure.diagnosis.rank == (0 if role == "tp-leader" else 1)
