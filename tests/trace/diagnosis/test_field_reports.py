"""What users of such clusters reported, as inputs, and the answers that they needed.

Each test feeds the input of one report and expects the sentence that names its cause.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ds4proto.pcap import Endpoint, build_tcp
from ds4proto.trace.diagnosis import diagnose
from tests.link.streams import ds4d, ds4t, result, work
from tests.trace.diagnosis.built import (
    COORDINATOR,
    HELLO,
    LEADER,
    RANK,
    STATE,
    TP_HELLO,
    WORKER,
)
from tests.trace.diagnosis.script import (
    DATA,
    Script,
    capture,
    of,
    one,
    pair,
    worker,
)

# -- who speaks what


def test_the_other_byte_order_is_named(script: Script) -> None:
    good, odd = worker(script), script.dial(Endpoint("10.0.0.3", 40001), COORDINATOR)
    script.say(odd, "a>b", struct.pack("<III", 0x44533444, 1, 40) + bytes(40))
    script.say(good, "b>a", work(1, STATE))
    script.say(good, "a>b", result(1))
    found = one(script.done(), "identity.byte-order")
    assert found.severity == "severe"
    assert "bad frame magic 0x44345344" in found.sentence
    assert "stream 2" in found.sentence


def test_extensions_are_told_by_bit(script: Script) -> None:
    line = worker(script)
    script.say(line, "b>a", work(1, STATE, flags=0x11 | 2 | 4))
    script.say(line, "b>a", work(2, STATE, flags=0x1 | 0x4000))
    found = of(script.done(), "identity.extension")
    said = {f.numbers["extension"]: f for f in found}
    assert "WORK flag 0x10 (INPUT_HC_IPC)" in said
    assert "known fork extension" in said["WORK flag 0x10 (INPUT_HC_IPC)"].sentence
    unknown = said["WORK flag 0x4000 (unknown bit 14)"]
    assert unknown.severity == "warning"


def test_the_inbox_frame_of_a_fork_is_known() -> None:
    found = of(capture("ds4d/l_s2_ipc_anyei"), "identity.extension")
    assert "type 10 (IPC_INBOX)" in {f.numbers["extension"] for f in found}


def test_a_wrong_layer_count_is_refused_in_words() -> None:
    found = one(capture("ds4d/h_hello_reject_layers"), "route.error")
    assert found.severity == "severe"
    assert "layer count mismatch: worker=9 coordinator=8" in found.sentence
    assert found.clause == "DS4D-HELLO-08"


def test_the_older_side_and_what_changed_are_named() -> None:
    found = one(capture("ds4t/x_leader7_worker9"), "identity.version")
    assert "the leader speaks version 7, the worker version 9" in found.sentence
    assert "the leader is older" in found.sentence
    assert "RDMA_INFO carries decode_max_msg" in found.sentence


@pytest.mark.parametrize(
    ("bit", "name"),
    [(1, ""), (5, "GREEDY_TOP2"), (8, "FIRST_EXPERT=1"), (27, "bit 27")],
)
def test_the_differing_switch_is_named(script: Script, bit: int, name: str) -> None:
    control = script.dial(RANK, LEADER)
    base = {**TP_HELLO, "version": 9, "runtime_features": 0}
    script.say(control, "b>a", ds4t("HELLO", "v9w", **base, role=1, ctx_size=256))
    other = {**base, "runtime_features": 1 << bit}
    script.say(control, "a>b", ds4t("HELLO", "v9w", **other, role=2))
    found = one(script.done(), "identity.mismatch")
    assert "runtime_features: only here: none; only peer:" in found.sentence.replace(
        "only the leader", "only here"
    ).replace("only the worker", "only peer")
    assert f"{1 << bit:#010x}" in found.sentence
    assert name in found.sentence


def test_settings_that_no_hello_carries_are_compared(tmp_path: Path) -> None:
    logs = []
    for rank, limit in (("worker", 750), ("leader", 5000)):
        log = tmp_path / f"{rank}.log"
        log.write_text(
            f"ds4-tp: {rank} connected, transport=tcp gate-timeout={limit}ms\n"
        )
        logs.append(log)
    found = one(diagnose(logs), "log.settings")
    assert "gate timeout" in found.sentence
    assert "750 ms" in found.sentence
    assert "5000 ms" in found.sentence
    assert "the wire does not check it" in found.sentence


def test_contexts_that_differ_are_flagged_though_accepted(
    script: Script,
) -> None:
    control = pair(script, ctx_size=8192)
    script.say(control, "b>a", ds4t("SESSION_CREATE", session_id=1, ctx_size=4096))
    script.say(control, "a>b", ds4t("COMMAND_ACK", session_id=1, status=0))
    found = one(script.done(), "identity.context")
    assert "leader 4096, worker 8192" in found.sentence
    assert "SESSION_CREATE uses 4096" in found.sentence


def test_a_reverse_topology_is_no_fault(script: Script) -> None:
    line = script.dial(WORKER, COORDINATOR)
    first = {**HELLO, "layer_start": 0, "layer_end": 3, "has_output": 0}
    script.say(line, "a>b", ds4d("HELLO", **first))
    findings = script.done()
    assert any("reverse topology" in f.sentence for f in findings)
    assert not [f for f in findings if f.code == "rule.broken"]


def test_the_side_without_rdma_is_named(script: Script) -> None:
    control = script.dial(RANK, LEADER)
    script.say(control, "b>a", ds4t("HELLO", **TP_HELLO, role=1, rdma_ok=1))
    script.say(control, "a>b", ds4t("HELLO", **TP_HELLO, role=2, rdma_ok=0))
    found = one(script.done(), "identity.transport")
    assert "the worker does not" in found.sentence


def test_an_odd_word_for_rdma_is_an_offer_as_well(script: Script) -> None:
    control = script.dial(RANK, LEADER)
    script.say(control, "b>a", ds4t("HELLO", **TP_HELLO, role=1, rdma_ok=1))
    script.say(control, "a>b", ds4t("HELLO", **TP_HELLO, role=2, rdma_ok=7))
    findings = script.done()
    assert not of(findings, "identity.transport")
    assert [f.clause for f in of(findings, "rule.broken")] == ["DS4T-HELLO-20"]


# -- how far it came


def refuse(script: Script, listener: Endpoint, port: int) -> None:
    """Let a SYN be answered by RST."""
    a = Endpoint("10.0.0.2", port)
    syn = build_tcp(a, listener, seq=1, ack=0, flags=2, linktype=101)
    reset = build_tcp(listener, a, seq=0, ack=2, flags=20, linktype=101)
    script.sink.packet(script.tick(), syn)
    script.sink.packet(script.tick(), reset)


def test_refusals_before_the_partner_listens_are_no_fault(
    script: Script,
) -> None:
    for number in range(3):
        refuse(script, LEADER, 41000 + number)
    pair(script)
    found = one(script.done(), "connect.refused")
    assert found.severity == "note"
    assert found.sentence.startswith("3 connections from 10.0.0.2 to 10.0.0.1:9911")
    assert "brought one that works" in found.sentence


def test_refusals_of_other_traffic_are_no_alarm(script: Script) -> None:
    refuse(script, Endpoint("10.0.0.1", 443), 41000)
    pair(script)
    assert one(script.done(), "connect.refused").severity == "note"


def test_a_partner_that_never_listens_is_one(script: Script) -> None:
    refuse(script, LEADER, 41000)
    found = one(script.done(), "connect.refused")
    assert found.severity == "severe"
    assert "nothing listened there" in found.sentence


def test_a_listener_that_never_answers_is_told_by_phase(script: Script) -> None:
    control = script.dial(RANK, LEADER)
    script.say(control, "a>b", ds4t("HELLO", **TP_HELLO, role=2))
    control.fin(script.tick(10_000), "a>b")
    found = one(script.done(), "connect.no-hello")
    assert found.severity == "severe"
    assert "the worker sent its hello and 0 bytes came back in 10 s" in found.sentence


def test_a_connection_without_a_byte_waits_for_hello(script: Script) -> None:
    pair(script)
    silent = script.dial(Endpoint("10.0.0.9", 45000), LEADER)
    silent.fin(script.tick(10_000), "a>b")
    found = one(script.done(), "connect.silent")
    assert "connected, waiting for HELLO, 0 bytes" in found.sentence
    assert "10 s" in found.sentence


def test_half_open_peers_are_listed(script: Script) -> None:
    for number in range(100):
        line = script.dial(Endpoint("10.0.0.7", 42000 + number), COORDINATOR)
        script.say(line, "a>b", ds4d("HELLO", **HELLO)[:11])
    worker(script)
    found = one(script.done(), "connect.half-open")
    assert found.sentence.startswith("100 connections to 10.0.0.1:9000")
    assert "10.0.0.7:42000 (11 bytes)" in found.sentence


# -- frames and rules


def test_absent_is_not_valid_and_four_faults_have_four_names(
    script: Script,
) -> None:
    line = worker(script)
    script.say(line, "b>a", work(1, b"", flags=1))
    script.say(line, "b>a", work(2, STATE, flags=0))
    script.say(line, "a>b", result(1, payload=b""))
    clauses = {f.clause for f in of(script.done(), "rule.broken")}
    assert len(clauses) >= 3
    assert any(clause.startswith("DS4D-RESULT") for clause in clauses)
    assert any(clause.startswith("DS4D-WORK") for clause in clauses)


CUTS: tuple[tuple[str, Callable[[bytes], bytes], str, str], ...] = (
    ("header", lambda frame: frame[:7], "end.cut-off", "inside a header: 7 bytes"),
    ("payload", lambda frame: frame[:500], "end.cut-off", "inside RESULT: 500 of 644"),
    ("between", lambda _frame: b"", "end.peer-gone", "went away first"),
)


@pytest.mark.parametrize(
    ("where", "cut", "code", "said"), CUTS, ids=lambda v: str(v)[:9]
)
def test_a_cut_link_says_who_where_and_how_much(
    script: Script, where: str, cut: Callable[[bytes], bytes], code: str, said: str
) -> None:
    line = worker(script)
    script.say(line, "b>a", work(1, STATE))
    script.say(line, "a>b", result(1))
    script.say(line, "b>a", work(2, STATE))
    rest = cut(result(2, payload=bytes(512)))
    if rest:
        script.say(line, "a>b", rest)
    line.fin(script.tick(), "a>b")
    findings = script.done()
    found = one(findings, code)
    assert found.severity == "severe", where
    assert said in found.sentence
    if rest:
        assert "worker 4:output closed the connection first" in found.sentence
        assert "RESULT 1 from worker 4:output" in found.sentence
        assert "WORK 2 from coordinator" in found.sentence
        assert found.numbers["received"] == len(rest)


# -- pipelines


def test_snapshot_ids_leave_no_gap(script: Script) -> None:
    line = worker(script)
    for number in (10, 11, 12):
        script.say(line, "b>a", work(number, STATE, pos0=2 * number))
        script.say(line, "a>b", result(number))
        if number == 10:
            other = script.dial(Endpoint("10.0.0.1", 46000), DATA)
            save = ds4d("SNAPSHOT_SAVE_REQ", model_id=0, session=1,
                        request=(1 << 63) + 4, layer_start=4, layer_end=7,
                        token_count=0, token_hash=0)  # fmt: skip
            script.say(other, "a>b", save)
    findings = script.done()
    assert "two id spaces" in one(findings, "pipeline.id-spaces").sentence
    assert not of(findings, "route.request-missing")


def test_a_refusal_on_the_same_route_and_a_lost_one_are_told_apart() -> None:
    kept = one(capture("ds4d/g_kill_between_requests_s2"), "route.replay")
    assert "refused request 4 ('worker KV prefix hash mismatch')" in kept.sentence
    assert "on a route that stayed up" in kept.sentence
    lost = one(capture("ds4d/g_kill_mid_request_s2"), "route.replay")
    assert "registered again: the connection was lost" in lost.sentence


def test_sessions_on_one_connection_and_idle_nodes(script: Script) -> None:
    line = worker(script)
    script.say(line, "b>a", work(1, STATE, session=1))
    script.say(line, "b>a", work(1, STATE, session=2))
    script.say(line, "b>a", work(2, STATE, session=1))
    script.say(line, "a>b", result(1), wait=5)
    script.say(line, "a>b", result(2), wait=5)
    findings = script.done()
    notes = " ".join(f.sentence for f in of(findings, "pipeline.note"))
    assert "ambiguous: two sessions use request id 1 at once" in notes
    idle = one(findings, "pipeline.idle")
    assert "worker 4:output computes" in idle.sentence


def test_a_killed_worker_and_a_stopped_one(script: Script) -> None:
    killed = one(capture("ds4d/g_kill_mid_request_s2"), "end.peer-gone")
    assert killed.sentence.startswith("worker 4:output went away first")
    assert "the last request it answered is 3" in killed.sentence
    line = worker(script)
    script.say(line, "b>a", work(1, STATE))
    script.say(line, "a>b", result(1))
    script.say(line, "b>a", work(2, STATE))
    line.fin(script.tick(30_000), "b>a")
    stopped = one(script.done(), "end.gave-up")
    assert "coordinator gave up first: it closed the connection 30 s after" in (
        stopped.sentence
    )
    assert "the last request it answered is 1" in stopped.sentence


def test_a_worker_that_stops_while_the_capture_goes_on(script: Script) -> None:
    line = worker(script)
    script.say(line, "b>a", work(1, STATE))
    script.dial(Endpoint("10.0.0.9", 45000), COORDINATOR).open(script.tick(5000))
    found = one(script.done(), "stall.request")
    assert "waits for worker 4:output" in found.sentence
    assert "5.0 s until the capture ends" in found.sentence


# -- values


def test_an_8_bit_row_of_four_more_bytes_is_ambiguous(script: Script) -> None:
    line = worker(script)
    script.say(line, "b>a", work(1, STATE))
    narrow = bytes(range(1, 69)) * 2
    script.say(line, "b>a", work(2, narrow, input_hc_bits=8))
    found = of(script.done(), "numeric.layout")
    assert any("ambiguous" in f.sentence for f in found)


def test_swapped_16_bit_values_are_recognised(script: Script) -> None:
    line = worker(script)
    values = np.tile(np.array([1.0, 2.0], "<f2"), 32)
    script.say(line, "b>a", work(1, values.tobytes(), input_hc_bits=16))
    script.say(line, "b>a", work(2, values.byteswap().tobytes(), input_hc_bits=16))
    found = one(script.done(), "numeric.layout")
    assert found.severity == "severe"
    assert "payload looks byte-swapped" in found.sentence


def test_a_value_of_70000_is_named_by_hop(script: Script) -> None:
    line = worker(script)
    values = np.linspace(-1, 1, 128, dtype="<f4")
    values[7], values[8] = 70_000, 1e-9
    script.say(line, "b>a", work(1, values.tobytes()))
    findings = script.done()
    found = one(findings, "numeric.above-65504")
    assert found.sentence.startswith("16-bit unsafe: coordinator -> worker 4:output")
    assert found.numbers["largest"] == 70_000
    flush = one(findings, "numeric.would-flush")
    assert flush.numbers["at_16"] == 1
    # 1e-9 and the two values of least magnitude, 1/127, stay above 2^-10
    assert flush.numbers["at_8"] == 1


def test_ranks_that_hold_different_states() -> None:
    found = one(capture("ds4t/v9_debug_hash_divergence"), "tp.diverged")
    assert "from comparison 2 on" in found.sentence
    assert "1 comparison before agreed" in found.sentence
    assert "own half" in found.next_step


def test_a_control_that_differs_makes_no_verdict(tmp_path: Path) -> None:
    def run(name: str, noise: float) -> Path:
        made = Script(tmp_path / name)
        line = worker(made)
        for number in (1, 2):
            values = np.linspace(-1, 1, 128, dtype="<f4")
            values[3] += noise if number == 2 else 0
            made.say(line, "b>a", work(number, values.tobytes(), pos0=2 * number))
            made.say(line, "a>b", result(number))
        made.sink.close()
        return made.path

    same = [run("a.pcap", 0), run("b.pcap", 1e-6)]
    alone = of(diagnose(same), "compare.diverged")
    assert alone[0].severity == "warning"
    # the second request holds the tokens at positions 4 and 5; value 3 is in the first
    assert "token at position 4, input of layer" in alone[0].sentence
    assert "run one side twice" in alone[0].next_step
    noisy = of(diagnose([*same, run("c.pcap", 2e-6)]), "compare.diverged")
    assert {f.severity for f in noisy} == {"note"}
    assert all("Not discriminating" in f.sentence for f in noisy)
