"""Faults planted in one rank: the other ends within a bound and says what happened."""

from __future__ import annotations

import re
import signal

import pytest

from tests.runtime.tp.rig import Rank, processes, until

# gates of this run on two layers: 1-2 bulk, 3-10 rows of two tokens, 11-12 batch
SCRIPT = "create;sync:1:1-10;eval:1:5,6;verify:1:8,9,10:full;eval:1:3;destroy:1"
PHASES = {
    "bulk": (2, "layer 1, bulk gate, seq 2"),
    "row": (4, "token 1, layer 0, FFN row gate, seq 2"),
    "batch": (11, "layer 0, batch gate of 3 rows, seq 3"),
}
SILENT = ("freeze", "half-header")
"""Faults that only the gate timeout shows; with any other nobody waits for it."""
LOST, FAILED = 3, 1


def _struck(
    role: str, fault: str, *both: str, dialect: str = "v14"
) -> tuple[Rank, int]:
    """Plant a fault in one role; return the other rank and its status.

    A healthy rank that is not scheduled for as long as the gate timeout ends the pair
    before the fault strikes. That run shows nothing: the next one is more patient.
    """
    planted = ("--fault", fault)
    leader = ("--script", SCRIPT, *(planted if role == "leader" else ()))
    worker = planted if role == "worker" else ()
    waits = ("1", "4", "16") if fault.startswith(SILENT) else ("60",)
    for idle in waits:
        words = ("--gate-timeout", idle, "--dialect", dialect, *both)
        with processes(leader, worker, *words) as (lead, work):
            victim, other = (lead, work) if role == "leader" else (work, lead)
            status = other.end()
            if not fault.startswith(SILENT) or victim.stands_still():
                break
    return other, status


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("fault", ["die", "freeze", "cut-data"])
def test_a_worker_that_stops_is_named_with_gate_and_bytes(
    fault: str, phase: str
) -> None:
    gate, place = PHASES[phase]
    leader, status = _struck("worker", f"{fault}={gate}")
    assert status == LOST
    assert "tp: gate transport failed" in leader.err
    assert f"rank 0: {place}" in leader.err
    assert re.search(r"received \d+ of \d+ bytes, sent \d+ of \d+", leader.err)
    assert "the peer stopped first" in leader.err
    assert "largest skew" in leader.err
    assert "Next: " in leader.err
    assert "Traceback" not in leader.err


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("fault", ["die", "freeze"])
def test_a_leader_that_stops_is_named_by_the_worker(fault: str, phase: str) -> None:
    gate, place = PHASES[phase]
    worker, status = _struck("leader", f"{fault}={gate}")
    assert status == LOST
    assert f"rank 1: {place}" in worker.err
    assert "the peer stopped first" in worker.err
    assert "Traceback" not in worker.err


@pytest.mark.parametrize("role", ["leader", "worker"])
def test_a_wrong_sequence_number_is_told_apart(role: str) -> None:
    """The text is measured: got and want, then the end of the gate."""
    other, status = _struck(role, "skip-seq=4")
    assert status == FAILED
    assert "ds4-tp: gate desync: got l=0 g=1 seq=3, want l=0 g=1 seq=2" in other.err
    assert "1 gates ahead" in other.err or "other gates" in other.err


def test_a_wrong_batch_sequence_number_has_its_own_text() -> None:
    leader, status = _struck("worker", "skip-seq=11")
    assert status == FAILED
    assert (
        "ds4-tp: batch gate desync: got l=0 rows=3 seq=4, want l=0 rows=3 seq=3"
        in leader.err
    )


def test_a_wrong_bulk_sequence_number_has_its_own_text() -> None:
    leader, status = _struck("worker", "skip-seq=2")
    assert status == FAILED
    assert (
        "ds4-tp: big gate desync: got l=1 tag=b16 seq=3, want l=1 seq=2" in leader.err
    )


def test_half_a_header_is_counted() -> None:
    leader, status = _struck("worker", "half-header=4")
    assert status == LOST
    assert "received 8 of 80 bytes" in leader.err
    assert "cut off inside this gate" in leader.err


def test_half_a_payload_is_counted() -> None:
    leader, status = _struck("worker", "half-payload=4")
    assert status == LOST
    assert "received 28 of 80 bytes" in leader.err


def test_foreign_bytes_on_the_data_connection_are_shown() -> None:
    leader, status = _struck("worker", "garbage=4")
    assert status == FAILED
    assert "GET / HTTP/1.1" in leader.err


def test_a_dead_worker_is_found_at_once_where_gates_have_no_idle_limit() -> None:
    """v7 waits for ever over TCP; ours looks at the control connection."""
    leader, status = _struck("worker", "cut=4", "--gate-total", "3600", dialect="v7")
    assert status == LOST
    assert "rank 0: token 1, layer 0, FFN row gate, seq 2" in leader.err


def test_a_frozen_worker_of_v7_is_given_up_at_the_total_limit() -> None:
    planted = ("--fault", "freeze=4")
    script = ("--script", SCRIPT)
    for total in ("1.5", "6", "20"):  # see _struck
        words = ("--dialect", "v7", "--gate-total", total)
        with processes(script, planted, *words) as (leader, worker):
            assert leader.end() == LOST
            struck = worker.stands_still()
            worker.kill(signal.SIGCONT)
            # its own wait has the same limit, or it sees the leader gone
            assert worker.end() == LOST
        if struck:
            break
    assert "took too long in all" in leader.err


@pytest.mark.parametrize("role", ["leader", "worker"])
def test_sigterm_is_answered_inside_a_gate(role: str) -> None:
    script = ("--script", SCRIPT)
    freeze = ("--fault", "freeze=4")
    leader_words = script if role == "leader" else (*script, *freeze)
    worker_words = freeze if role == "leader" else ()
    words = ("--gate-timeout", "3000", "--gate-total", "3600")
    with processes(leader_words, worker_words, *words) as (leader, worker):
        held, frozen = (leader, worker) if role == "leader" else (worker, leader)
        until(frozen.stands_still, "the fault did not strike")
        held.kill(signal.SIGTERM)
        assert held.end() == 128 + signal.SIGTERM  # and not at the end of the gate
        assert "ds4-tp: terminated" in held.err
        assert "Traceback" not in held.err


def test_a_leader_that_is_told_to_end_stops_its_worker() -> None:
    with processes(("--script", "create;" * 1), ()) as (leader, worker):
        assert leader.end() == 0
        assert worker.end() == 0
    assert "tp worker: leader finished" in worker.err


@pytest.mark.parametrize("leader_first", [True, False])
def test_either_rank_may_start_first(leader_first: bool) -> None:
    script = ("--script", "create;eval:1:3,4;destroy:1")
    with processes(script, (), leader_first=leader_first) as (leader, worker):
        assert leader.end() == 0
        assert worker.end() == 0
    assert "op=eval rank=0 sid=1 len=2" in leader.out


def test_ranks_with_another_chunk_fail_and_hear_of_it() -> None:
    """Nothing on the wire compares the chunk; the next header shows it (13, 7)."""
    script = ("--script", "create;sync:1:1-20;eval:1:3;destroy:1")
    chunk = ("--prefill-chunk", "8")
    with processes(script, chunk) as (leader, worker):
        assert leader.end() in (FAILED, LOST)
        assert worker.end() in (FAILED, LOST)
    assert "prefill chunk" in leader.err + worker.err or "DS4_METAL_PREFILL_CHUNK" in (
        leader.err + worker.err
    )


def test_another_model_ends_both_with_status_1() -> None:
    words = ("--script", "create")
    other = ("--toy", "gguf_bytes=999")
    with processes(words, other) as (leader, worker):
        assert leader.end() == FAILED
        assert worker.end() in (FAILED, LOST)
    assert "tp hello: model mismatch (peer gguf=999 id=0 layers=2" in leader.err


def test_two_versions_are_told_apart_and_the_way_out_is_named() -> None:
    """v7 says 64 bytes, v14 88: the shorter hello's side prints both."""
    words = ("--script", "create", "--dialect", "v7")
    with processes(words, ("--dialect", "v14")) as (leader, worker):
        assert leader.end() == FAILED
        assert worker.end() in (FAILED, LOST)
    assert "tp hello: protocol version 14 != 7" in leader.err
    assert "start this side with dialect" in leader.err


def test_a_worker_without_a_leader_gives_up_after_its_limit() -> None:
    rank = Rank("worker", 1, DS4_TP_TIMEOUT_SEC="0")
    try:
        assert rank.end() == LOST
    finally:
        rank.kill()
        rank.process.communicate()
    assert "tp connect 127.0.0.1:1: " in rank.err
    assert "1 try" in rank.err
