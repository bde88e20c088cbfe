"""What users of such clusters reported, as inputs, and the answers that they needed.

Each test feeds the input of one report and expects the sentence that names its cause.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from ds4proto.link.schedule import Schedule
from ds4proto.pcap import Endpoint, PcapngWriter, PcapWriter, TcpConversation
from ds4proto.testing import captures_dir
from ds4proto.trace.diagnosis import Finding, diagnose, examine
from tests.link.streams import ds4d, ds4t, result, telemetry, work
from tests.trace.diagnosis.built import (
    COORDINATOR,
    GATES,
    HELLO,
    LEADER,
    MS,
    RANK,
    START,
    STATE,
    TP_HELLO,
    WORKER,
    delayed_acks,
    slow_round_trip,
)

ROOT = captures_dir()
Way = Literal["a>b", "b>a"]
DATA = Endpoint("10.0.0.2", 21101)


class Script:
    """Connections and what crosses them, a millisecond apart."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sink = PcapWriter(path, linktype=101)
        self.now = START

    def tick(self, milliseconds: float = 1.0) -> int:
        self.now += round(milliseconds * MS)
        return self.now

    def dial(self, a: Endpoint, b: Endpoint) -> TcpConversation:
        found = TcpConversation(self.sink, a, b)
        found.open(self.tick())
        return found

    def say(
        self, line: TcpConversation, way: Way, data: bytes, wait: float = 1
    ) -> None:
        line.data(self.tick(wait), way, data)

    def done(self) -> list[Finding]:
        self.sink.close()
        return diagnose([self.path])


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path / "run.pcap")


def of(findings: Sequence[Finding], code: str) -> list[Finding]:
    return [finding for finding in findings if finding.code == code]


def one(findings: Sequence[Finding], code: str) -> Finding:
    found = of(findings, code)
    assert len(found) == 1, [f"{f.code}: {f.sentence}" for f in findings]
    return found[0]


def capture(name: str) -> list[Finding]:
    return diagnose([ROOT / f"{name}.pcap"])


def pair(script: Script, **worker: Any) -> TcpConversation:
    """Bring a pair's control connection through both hellos."""
    control = script.dial(RANK, LEADER)
    leads = {**TP_HELLO, "role": 1, "ctx_size": 4096}
    script.say(control, "b>a", ds4t("HELLO", **leads))
    script.say(control, "a>b", ds4t("HELLO", **{**TP_HELLO, "role": 2, **worker}))
    return control


def worker(script: Script) -> TcpConversation:
    """Register a worker at a coordinator."""
    control = script.dial(WORKER, COORDINATOR)
    script.say(control, "a>b", ds4d("HELLO", **HELLO))
    return control


# -- who speaks what


def test_fr_001_the_other_byte_order_is_named(script: Script) -> None:
    good, odd = worker(script), script.dial(Endpoint("10.0.0.3", 40001), COORDINATOR)
    script.say(odd, "a>b", struct.pack("<III", 0x44533444, 1, 40) + bytes(40))
    script.say(good, "b>a", work(1, STATE))
    script.say(good, "a>b", result(1))
    found = one(script.done(), "identity.byte-order")
    assert found.severity == "severe"
    assert "bad frame magic 0x44345344" in found.sentence
    assert "stream 2" in found.sentence


def test_fr_002_and_045_extensions_are_told_by_bit(script: Script) -> None:
    line = worker(script)
    script.say(line, "b>a", work(1, STATE, flags=0x11 | 2 | 4))
    script.say(line, "b>a", work(2, STATE, flags=0x1 | 0x4000))
    found = of(script.done(), "identity.extension")
    said = {f.numbers["extension"]: f for f in found}
    assert "WORK flag 0x10 (INPUT_HC_IPC)" in said
    assert "known fork extension" in said["WORK flag 0x10 (INPUT_HC_IPC)"].sentence
    unknown = said["WORK flag 0x4000 (unknown bit 14)"]
    assert unknown.severity == "warning"


def test_fr_002_the_inbox_frame_of_a_fork_is_known() -> None:
    found = of(capture("ds4d/l_s2_ipc_anyei"), "identity.extension")
    assert "type 10 (IPC_INBOX)" in {f.numbers["extension"] for f in found}


def test_fr_004_a_wrong_layer_count_is_refused_in_words() -> None:
    found = one(capture("ds4d/h_hello_reject_layers"), "route.error")
    assert found.severity == "severe"
    assert "layer count mismatch: worker=9 coordinator=8" in found.sentence
    assert found.clause == "DS4D-HELLO-08"


def test_fr_005_the_older_side_and_what_changed_are_named() -> None:
    found = one(capture("ds4t/x_leader7_worker9"), "identity.version")
    assert "the leader speaks version 7, the worker version 9" in found.sentence
    assert "the leader is older" in found.sentence
    assert "RDMA_INFO carries decode_max_msg" in found.sentence


@pytest.mark.parametrize(
    ("bit", "name"),
    [(1, ""), (5, "GREEDY_TOP2"), (8, "FIRST_EXPERT=1"), (27, "bit 27")],
)
def test_fr_006_the_differing_switch_is_named(
    script: Script, bit: int, name: str
) -> None:
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


def test_fr_007_settings_that_no_hello_carries_are_compared(tmp_path: Path) -> None:
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


def test_fr_008_contexts_that_differ_are_flagged_though_accepted(
    script: Script,
) -> None:
    control = pair(script, ctx_size=8192)
    script.say(control, "b>a", ds4t("SESSION_CREATE", session_id=1, ctx_size=4096))
    script.say(control, "a>b", ds4t("COMMAND_ACK", session_id=1, status=0))
    found = one(script.done(), "identity.context")
    assert "leader 4096, worker 8192" in found.sentence
    assert "SESSION_CREATE uses 4096" in found.sentence


def test_fr_010_a_reverse_topology_is_no_fault(script: Script) -> None:
    line = script.dial(WORKER, COORDINATOR)
    first = {**HELLO, "layer_start": 0, "layer_end": 3, "has_output": 0}
    script.say(line, "a>b", ds4d("HELLO", **first))
    findings = script.done()
    assert any("reverse topology" in f.sentence for f in findings)
    assert not [f for f in findings if f.code == "rule.broken"]


def test_fr_075_the_side_without_rdma_is_named(script: Script) -> None:
    control = script.dial(RANK, LEADER)
    script.say(control, "b>a", ds4t("HELLO", **TP_HELLO, role=1, rdma_ok=1))
    script.say(control, "a>b", ds4t("HELLO", **TP_HELLO, role=2, rdma_ok=0))
    found = one(script.done(), "identity.transport")
    assert "the worker does not" in found.sentence


# -- how far it came


def test_fr_012_refusals_before_the_partner_listens_are_no_fault(
    script: Script,
) -> None:
    for number in range(3):
        line = TcpConversation(
            script.sink, Endpoint("10.0.0.2", 41000 + number), LEADER
        )
        refuse(line, script)
    pair(script)
    found = one(script.done(), "connect.refused")
    assert found.severity == "note"
    assert found.sentence.startswith("3 connections from 10.0.0.2 to 10.0.0.1:9911")
    assert "brought one that works" in found.sentence


def refuse(line: TcpConversation, script: Script) -> None:
    """Let a SYN be answered by RST."""
    from ds4proto.pcap import build_tcp

    a, b = Endpoint("10.0.0.2", 41000 + script.now % 997), LEADER
    script.sink.packet(
        script.tick(), build_tcp(a, b, seq=1, ack=0, flags=2, linktype=101)
    )
    script.sink.packet(
        script.tick(), build_tcp(b, a, seq=0, ack=2, flags=20, linktype=101)
    )
    assert line is not None


def test_fr_012_a_listener_that_never_answers_is_told_by_phase(script: Script) -> None:
    control = script.dial(RANK, LEADER)
    script.say(control, "a>b", ds4t("HELLO", **TP_HELLO, role=2))
    control.fin(script.tick(10_000), "a>b")
    found = one(script.done(), "connect.no-hello")
    assert found.severity == "severe"
    assert "the worker sent its hello and 0 bytes came back in 10 s" in found.sentence


def test_fr_012_a_connection_without_a_byte_waits_for_hello(script: Script) -> None:
    pair(script)
    silent = script.dial(Endpoint("10.0.0.9", 45000), LEADER)
    silent.fin(script.tick(10_000), "a>b")
    found = one(script.done(), "connect.silent")
    assert "connected, waiting for HELLO, 0 bytes" in found.sentence
    assert "10 s" in found.sentence


def test_fr_015_half_open_peers_are_listed(script: Script) -> None:
    for number in range(100):
        line = script.dial(Endpoint("10.0.0.7", 42000 + number), COORDINATOR)
        script.say(line, "a>b", ds4d("HELLO", **HELLO)[:11])
    worker(script)
    found = one(script.done(), "connect.half-open")
    assert found.sentence.startswith("100 connections to 10.0.0.1:9000")
    assert "10.0.0.7:42000 (11 bytes)" in found.sentence


# -- frames and rules


def test_fr_020_absent_is_not_valid_and_four_faults_have_four_names(
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
def test_fr_047_a_cut_link_says_who_where_and_how_much(
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


def test_fr_039_snapshot_ids_leave_no_gap(script: Script) -> None:
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


def test_fr_043_a_refusal_on_the_same_route_and_a_lost_one_are_told_apart() -> None:
    kept = one(capture("ds4d/g_kill_between_requests_s2"), "route.replay")
    assert "refused request 4 ('worker KV prefix hash mismatch')" in kept.sentence
    assert "on a route that stayed up" in kept.sentence
    lost = one(capture("ds4d/g_kill_mid_request_s2"), "route.replay")
    assert "registered again: the connection was lost" in lost.sentence


def test_fr_046_sessions_on_one_connection_and_idle_nodes(script: Script) -> None:
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


def test_fr_049_a_killed_worker_and_a_stopped_one(script: Script) -> None:
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


def test_fr_049_a_worker_that_stops_while_the_capture_goes_on(script: Script) -> None:
    line = worker(script)
    script.say(line, "b>a", work(1, STATE))
    script.dial(Endpoint("10.0.0.9", 45000), COORDINATOR).open(script.tick(5000))
    found = one(script.done(), "stall.request")
    assert "waits for worker 4:output" in found.sentence
    assert "5.0 s until the capture ends" in found.sentence


# -- values


def test_fr_029_an_8_bit_row_of_four_more_bytes_is_ambiguous(script: Script) -> None:
    line = worker(script)
    script.say(line, "b>a", work(1, STATE))
    narrow = bytes(range(1, 69)) * 2
    script.say(line, "b>a", work(2, narrow, input_hc_bits=8))
    found = of(script.done(), "numeric.layout")
    assert any("ambiguous" in f.sentence for f in found)


def test_fr_030_swapped_16_bit_values_are_recognised(script: Script) -> None:
    line = worker(script)
    values = np.tile(np.array([1.0, 2.0], "<f2"), 32)
    script.say(line, "b>a", work(1, values.tobytes(), input_hc_bits=16))
    script.say(line, "b>a", work(2, values.byteswap().tobytes(), input_hc_bits=16))
    found = one(script.done(), "numeric.layout")
    assert found.severity == "severe"
    assert "payload looks byte-swapped" in found.sentence


def test_fr_032_a_value_of_70000_is_named_by_hop(script: Script) -> None:
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


def test_fr_038_ranks_that_hold_different_states() -> None:
    found = one(capture("ds4t/v9_debug_hash_divergence"), "tp.diverged")
    assert "from comparison 2 on" in found.sentence
    assert "1 comparisons before agreed" in found.sentence
    assert "own half" in found.next_step


def test_fr_055_a_control_that_differs_makes_no_verdict(tmp_path: Path) -> None:
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


# -- gates and logs


@pytest.mark.parametrize(
    ("seq", "place"),
    [(128, "token 2, layer 20, FFN"), (214, "token 3, layer 20, FFN"),
     (1, "token 1, layer 0, ATTN")],
)  # fmt: skip
def test_fr_056_gate_numbers_of_a_log_become_places(
    tmp_path: Path, seq: int, place: str
) -> None:
    log = tmp_path / "worker.log"
    log.write_text(f"ds4-tp: timeout waiting gate seq {seq} (recv_done {seq - 1})\n")
    findings = examine([log], schedule=Schedule(43, 86)).findings
    found = one(findings, "log.gate")
    assert place in found.sentence
    assert found.confidence == "certain"
    guessed = one(diagnose([log]), "log.gate")
    assert place in guessed.sentence
    assert guessed.confidence == "possible"
    assert "is assumed" in guessed.sentence


def test_fr_056_a_glm_schedule_follows_its_three_numbers(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    log.write_text("ds4-tp: timeout waiting gate seq 77 (recv_done 76)\n")
    glm = Schedule(78, 75, 7, 2)
    # slots 7, 9, ..: the second gate of a token is slot 9, the FFN of layer 4
    found = one(examine([log], schedule=glm).findings, "log.gate")
    assert "token 2, layer 4, FFN" in found.sentence


def test_fr_056_a_hello_beside_the_log_gives_the_schedule(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    log.write_text("ds4-tp: timeout waiting gate seq 6 (recv_done 5)\n")
    findings = diagnose([ROOT / "ds4t/v10_gate_timeout_50ms.pcap", log])
    assert "token 2, layer 0, FFN" in one(findings, "log.gate").sentence
    late = one(findings, "tp.gate-timeout")
    assert "token 2, layer 0, FFN (seq 6)" in late.sentence
    assert "the leader gave up first" in late.sentence


def test_fr_103_gates_times_gate_time_stand_beside_the_token() -> None:
    found = one(capture("ds4t/v10_decode8"), "tp.time")
    assert "4 gates a token x" in found.sentence
    assert found.numbers["gates_per_token"] == 4
    assert found.numbers["row_gates"] == 32


# -- RDMA


GIDS: tuple[tuple[str, bytes, bool], ...] = (
    ("zero", bytes(16), False),
    ("link-local", bytes((0xFE, 0x80)) + bytes(13) + b"\x01", False),
    ("mapped", bytes(10) + b"\xff\xff" + bytes((169, 254, 10, 1)), True),
    ("random", bytes(range(1, 17)), False),
)
INFO: dict[str, Any] = {
    "slab_base": 0, "rkey": 0, "lid": 0, "mtu": 5, "link_layer": 2, "qpn": 17, "psn": 5,
}  # fmt: skip


@pytest.mark.parametrize(("name", "gid", "sound"), GIDS, ids=lambda v: str(v)[:10])
def test_fr_061_a_gid_without_ipv4_is_the_cause(
    script: Script, name: str, gid: bytes, sound: bool
) -> None:
    control = pair(script, rdma_ok=1)
    script.say(control, "a>b", ds4t("RDMA_INFO", **INFO, gid=gid))
    found = of(script.done(), "rdma.gid")
    assert bool(found) is not sound, name
    if found:
        assert "no IPv4-mapped GID: give the interface an IPv4" in found[0].sentence


def test_fr_063_a_gid_that_changes_between_set_ups(script: Script) -> None:
    for number, last in enumerate((1, 2)):
        rank = Endpoint("10.0.0.2", 50000 + 10 * number)
        leader = Endpoint("10.0.0.1", 9911 + number)
        control = script.dial(rank, leader)
        script.say(control, "b>a", ds4t("HELLO", **TP_HELLO, role=1, rdma_ok=1))
        script.say(control, "a>b", ds4t("HELLO", **TP_HELLO, role=2, rdma_ok=1))
        gid = bytes(10) + b"\xff\xff" + bytes((169, 254, 10, last))
        script.say(control, "a>b", ds4t("RDMA_INFO", **INFO, gid=gid))
    found = one(script.done(), "rdma.gid-changed")
    assert "changed from 169.254.10.1 to 169.254.10.2" in found.sentence


def test_fr_065_native_infiniband_gets_no_address_advice(script: Script) -> None:
    control = pair(script, rdma_ok=1)
    info = {**INFO, "link_layer": 1, "lid": 17}
    gid = bytes((0xFE, 0x80)) + bytes(13) + b"\x01"
    script.say(control, "a>b", ds4t("RDMA_INFO", **info, gid=gid))
    findings = script.done()
    found = one(findings, "rdma.infiniband")
    assert "native InfiniBand (lid 17" in found.sentence
    assert "needs RoCE or Thunderbolt" in found.sentence
    assert not of(findings, "rdma.gid")


def test_fr_051_a_message_before_its_receive_is_lost_on_uc() -> None:
    findings = diagnose(
        [ROOT / f"rdma/uc_first_gate_lost.{kind}.pcap" for kind in ("control", "roce")]
    )
    found = one(findings, "rdma.lost")
    assert "token 1, layer 0, ATTN" in found.sentence
    assert "UC drops such a message in silence" in found.sentence


def test_fr_073_a_late_receive_names_the_timer() -> None:
    findings = diagnose(
        [ROOT / f"rdma/rc_first_gate_rnr.{kind}.pcap" for kind in ("control", "roce")]
    )
    found = one(findings, "rdma.late-receive")
    assert found.severity == "warning"
    assert "31 RNR NAKs" in found.sentence
    assert "timer 12" in found.sentence
    assert "655 ms" in found.next_step


def test_gates_over_rdma_cannot_be_seen_and_it_says_so() -> None:
    found = one(capture("rdma/rc_two_tokens.control"), "unknown.rdma-gates")
    assert "it cannot tell" in found.sentence
    assert "4791" in found.next_step


# -- the network


def test_fr_099_a_link_of_77_ms_is_called_slow(tmp_path: Path) -> None:
    found = one(diagnose(slow_round_trip(tmp_path)), "tcp.round-trip")
    assert found.sentence.startswith("slow link")
    assert "77 ms" in found.sentence


def test_fr_102_small_writes_and_delayed_acknowledgements(tmp_path: Path) -> None:
    findings = diagnose(delayed_acks(tmp_path))
    pauses = one(findings, "tcp.delayed-ack")
    assert pauses.severity == "warning"
    assert pauses.numbers["pauses"] == 8
    split = one(findings, "tcp.small-writes")
    # 8 WORK frames in two segments; HELLO and 8 RESULT frames in one
    assert (split.numbers["split"], split.numbers["frames"]) == (8, 17)
    told = one(findings, "pipeline.bytes")
    assert told.numbers["hidden_bytes_per_token"] == 256


def test_fr_077_a_recording_that_was_broken_off_says_so(tmp_path: Path) -> None:
    whole = tmp_path / "whole.pcapng"
    with PcapngWriter(whole) as writer:
        line = TcpConversation(writer, WORKER, COORDINATOR)
        line.open(START)
        line.data(START + MS, "a>b", ds4d("HELLO", **HELLO))
        for number in range(1, 4):
            line.data(START + 2 * number * MS, "b>a", work(number, STATE))
            line.data(START + (2 * number + 1) * MS, "a>b", result(number))
    cut = tmp_path / "cut.pcapng"
    cut.write_bytes(whole.read_bytes()[:-900])
    found = examine([cut])
    assert found.unreadable[str(cut)]
    assert found.frames >= 4
    assert not examine([whole]).unreadable


def test_two_copies_of_one_recording_are_no_two_sides(tmp_path: Path) -> None:
    first = ROOT / "ds4t/v10_decode8.pcap"
    second = tmp_path / "copy.pcap"
    shutil.copyfile(first, second)
    findings = diagnose([first, second])
    assert one(findings, "both.one-place").severity == "note"
    assert not of(findings, "both.link")


def evidence_of(findings: Sequence[Finding]) -> Iterator[tuple[Finding, Any]]:
    for finding in findings:
        for evidence in finding.evidence:
            yield finding, evidence


def test_evidence_points_to_real_frames() -> None:
    from ds4proto.trace import decode

    path = ROOT / "ds4d/g_kill_mid_request_s2.pcap"
    rows = {(r.stream, r.direction, r.stream_offset): r for r in decode(path)}
    checked = 0
    for _, evidence in evidence_of(diagnose([path])):
        if evidence.frame:
            row = rows[evidence.stream, evidence.direction, evidence.offset]
            assert row.name == evidence.frame
            assert row.first_packet == evidence.packet
            assert row.length == evidence.length
            checked += 1
    assert checked > 10


def test_a_silent_handshake_is_a_stall(script: Script) -> None:
    control = pair(script)
    script.dial(GATES, LEADER)
    script.say(control, "b>a", ds4t("SESSION_CREATE", session_id=1, ctx_size=256))
    script.say(control, "a>b", ds4t("COMMAND_ACK", session_id=1, status=0))
    script.say(control, "b>a", ds4t("EVAL", session_id=1, seq=1, token=5))
    control.fin(script.tick(5000), "a>b")
    found = one(script.done(), "tp.stall")
    assert "handshake complete, 0 gates, silent since" in found.sentence
    assert "5.0 s" in found.sentence


def test_telemetry_tells_computing_from_the_network(script: Script) -> None:
    line = worker(script)
    for number in range(1, 5):
        script.say(line, "b>a", work(number, STATE))
        hops = telemetry(eval_usec=2000)
        script.say(line, "a>b", result(number, telemetry=hops), wait=30)
    found = one(script.done(), "pipeline.slow-network")
    assert found.numbers["evaluation_ms"] == pytest.approx(2.0, rel=0.05)
    assert found.numbers["rest_ms"] == pytest.approx(28.0, rel=0.05)


def test_a_request_that_never_passed_is_missed(script: Script) -> None:
    line = worker(script)
    for number in (1, 2, 4):
        script.say(line, "b>a", work(number, STATE, pos0=2 * number))
        script.say(line, "a>b", result(number))
    found = one(script.done(), "route.request-missing")
    assert "request 3 never passed here: after request 2 came 4" in found.sentence


def test_fr_039_older_builds_count_snapshots_among_their_requests(
    script: Script,
) -> None:
    line = worker(script)
    for number in (1, 2, 4):
        script.say(line, "b>a", work(number, STATE, pos0=2 * number))
        script.say(line, "a>b", result(number))
        if number == 2:
            other = script.dial(Endpoint("10.0.0.1", 46000), DATA)
            script.say(other, "a>b", ds4d(
                "SNAPSHOT_SAVE_REQ", model_id=0, session=1, request=3, layer_start=4,
                layer_end=7, token_count=0, token_hash=0,
            ))  # fmt: skip
    assert not of(script.done(), "route.request-missing")


def test_fr_102_a_header_that_goes_alone_counts(script: Script) -> None:
    line = worker(script)
    script.say(line, "b>a", work(1, STATE))
    for number in range(2, 6):
        whole = work(number, STATE)
        script.say(line, "b>a", whole[:12])
        # data the other way lies between header and body
        script.say(line, "a>b", result(number - 1))
        script.say(line, "b>a", whole[12:])
    found = one(script.done(), "tcp.small-writes")
    assert found.numbers["split"] == 4
