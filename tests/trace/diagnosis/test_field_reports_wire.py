"""Field reports about gates, RDMA, the network and the recording itself."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ds4proto.link.schedule import Schedule
from ds4proto.pcap import Endpoint, PcapngWriter, TcpConversation
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
from tests.trace.diagnosis.script import (
    DATA,
    ROOT,
    Script,
    capture,
    of,
    one,
    pair,
    worker,
)

# -- gates and logs


@pytest.mark.parametrize(
    ("seq", "place"),
    [(128, "token 2, layer 20, FFN"), (214, "token 3, layer 20, FFN"),
     (1, "token 1, layer 0, ATTN")],
)  # fmt: skip
def test_gate_numbers_of_a_log_become_places(
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


def test_a_glm_schedule_follows_its_three_numbers(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    log.write_text("ds4-tp: timeout waiting gate seq 77 (recv_done 76)\n")
    glm = Schedule(78, 75, 7, 2)
    # slots 7, 9, ..: the second gate of a token is slot 9, the FFN of layer 4
    found = one(examine([log], schedule=glm).findings, "log.gate")
    assert "token 2, layer 4, FFN" in found.sentence


def test_a_hello_beside_the_log_gives_the_schedule(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    log.write_text("ds4-tp: timeout waiting gate seq 6 (recv_done 5)\n")
    findings = diagnose([ROOT / "ds4t/v10_gate_timeout_50ms.pcap", log])
    assert "token 2, layer 0, FFN" in one(findings, "log.gate").sentence
    late = one(findings, "tp.gate-timeout")
    assert "token 2, layer 0, FFN (seq 6)" in late.sentence
    assert "the leader gave up first" in late.sentence


def test_gates_times_gate_time_stand_beside_the_token() -> None:
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
def test_a_gid_without_ipv4_is_the_cause(
    script: Script, name: str, gid: bytes, sound: bool
) -> None:
    control = pair(script, rdma_ok=1)
    script.say(control, "a>b", ds4t("RDMA_INFO", **INFO, gid=gid))
    found = of(script.done(), "rdma.gid")
    assert bool(found) is not sound, name
    if found:
        assert "no IPv4-mapped GID: give the interface an IPv4" in found[0].sentence


def test_a_gid_that_changes_between_set_ups(script: Script) -> None:
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


MAPPED = {**INFO, "gid": bytes(10) + b"\xff\xff" + bytes((169, 254, 10, 1))}


def rdma_pair(script: Script, *, ready: bool = True) -> TcpConversation:
    """Bring a pair up over RDMA, as far as its control connection shows it."""
    control = script.dial(RANK, LEADER)
    for way, role in (("b>a", 1), ("a>b", 2)):
        hello = {**TP_HELLO, "role": role, "rdma_ok": 1}
        script.say(control, way, ds4t("HELLO", **hello))  # type: ignore[arg-type]  # both are ways
    for kind, words in (("RDMA_INFO", MAPPED), ("RDMA_READY", {}))[: 1 + ready]:
        script.say(control, "b>a", ds4t(kind, **words))
        script.say(control, "a>b", ds4t(kind, **words))
    return control


@pytest.mark.parametrize(("pause", "stale"), [(1800, True), (2, False)])
def test_a_port_that_slept_is_no_gate_timeout(
    script: Script, pause: int, stale: bool
) -> None:
    control = rdma_pair(script)
    script.say(control, "b>a", ds4t("SESSION_CREATE", session_id=1, ctx_size=256))
    script.say(control, "a>b", ds4t("COMMAND_ACK", session_id=1, status=0))
    script.say(control, "b>a", ds4t("EVAL", session_id=1, seq=1, token=5))
    script.say(control, "a>b", ds4t("LOGITS", logits=bytes(64)))
    evaluation = ds4t("EVAL", session_id=1, seq=2, token=6)
    script.say(control, "b>a", evaluation, wait=1000 * pause)
    control.fin(script.tick(750), "b>a")
    found = [f for f in script.done() if f.severity == "severe"]
    assert [f.code for f in found] == ["rdma.stale-link" if stale else "tp.peer-gone"]
    if stale:
        assert "EVAL 2 came after the pair had stood idle for 1800 s" in (
            found[0].sentence
        )
        assert "the gate timeout is not the cause" in found[0].sentence
        assert "start the pair again" in found[0].next_step


def test_a_start_that_fails_at_the_queue_pair_is_told_by_its_step(
    script: Script,
) -> None:
    control = rdma_pair(script, ready=False)
    control.fin(script.tick(5), "a>b")
    control.fin(script.tick(), "b>a")
    found = [f for f in script.done() if f.severity == "severe"]
    assert [f.code for f in found] == ["rdma.no-queue-pair"]
    assert "before RDMA_READY: its queue pair did not come up" in found[0].sentence
    assert "stood idle since is taken down and up again" in found[0].next_step


def test_native_infiniband_gets_no_address_advice(script: Script) -> None:
    control = pair(script, rdma_ok=1)
    info = {**INFO, "link_layer": 1, "lid": 17}
    gid = bytes((0xFE, 0x80)) + bytes(13) + b"\x01"
    script.say(control, "a>b", ds4t("RDMA_INFO", **info, gid=gid))
    findings = script.done()
    found = one(findings, "rdma.infiniband")
    assert "native InfiniBand (lid 17" in found.sentence
    assert "needs RoCE or Thunderbolt" in found.sentence
    assert not of(findings, "rdma.gid")


def test_a_message_before_its_receive_is_lost_on_uc() -> None:
    findings = diagnose(
        [ROOT / f"rdma/uc_first_gate_lost.{kind}.pcap" for kind in ("control", "roce")]
    )
    found = one(findings, "rdma.lost")
    assert "token 1, layer 0, ATTN" in found.sentence
    assert "UC drops such a message in silence" in found.sentence


def test_a_late_receive_names_the_timer() -> None:
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


def test_a_link_of_77_ms_is_called_slow(tmp_path: Path) -> None:
    found = one(diagnose(slow_round_trip(tmp_path)), "tcp.round-trip")
    assert found.sentence.startswith("slow link")
    assert "77 ms" in found.sentence


def test_small_writes_and_delayed_acknowledgements(tmp_path: Path) -> None:
    findings = diagnose(delayed_acks(tmp_path))
    pauses = one(findings, "tcp.delayed-ack")
    assert pauses.severity == "warning"
    assert pauses.numbers["pauses"] == 8
    split = one(findings, "tcp.small-writes")
    # 8 WORK frames in two segments; HELLO and 8 RESULT frames in one
    assert (split.numbers["split"], split.numbers["frames"]) == (8, 17)
    told = one(findings, "pipeline.bytes")
    assert told.numbers["hidden_bytes_per_token"] == 256


def test_a_recording_that_was_broken_off_says_so(tmp_path: Path) -> None:
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


def test_older_builds_count_snapshots_among_their_requests(
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


def test_a_header_that_goes_alone_counts(script: Script) -> None:
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


def test_a_hop_that_stands_still_inside_a_frame(script: Script) -> None:
    line = worker(script)
    script.say(line, "b>a", work(1, STATE))
    script.say(line, "a>b", result(1))
    hop = script.dial(Endpoint("10.0.0.3", 47000), DATA)
    script.say(hop, "a>b", work(7, STATE)[:400])
    script.say(line, "b>a", work(2, STATE), wait=4000)
    script.say(line, "a>b", result(2))
    found = one(script.done(), "stall.inside-frame")
    whole = len(work(7, STATE))
    assert f"inside WORK: 400 of {whole} bytes came" in found.sentence
    assert "-> worker 4:output stood still" in found.sentence
    assert "4.0 s until the capture ends" in found.sentence


def test_a_command_for_a_session_that_is_not_there(script: Script) -> None:
    control = pair(script)
    script.say(control, "b>a", ds4t("SESSION_CREATE", session_id=1, ctx_size=256))
    script.say(control, "a>b", ds4t("COMMAND_ACK", session_id=1, status=0))
    script.say(control, "b>a", ds4t("EVAL", session_id=9, seq=1, token=5))
    control.fin(script.tick(), "a>b")
    findings = script.done()
    assert findings[0].code == "rule.refused"
    assert "the leader's EVAL: session 9 does not exist" in findings[0].sentence
    assert not of(findings, "tp.peer-gone")  # the worker is not to blame
    assert "with EVAL 1 open" in one(findings, "end.follows").sentence


def test_a_command_for_a_session_that_is_not_there_before_any_end(
    script: Script,
) -> None:
    control = pair(script)
    script.say(control, "b>a", ds4t("EVAL", session_id=9, seq=1, token=5))
    found = one(script.done(), "tp.unknown-session")
    assert found.severity == "severe"
    assert "EVAL is for session 9" in found.sentence


def test_a_rank_that_stays_and_sends_nothing_is_not_gone(script: Script) -> None:
    control = pair(script)
    data = script.dial(GATES, LEADER)
    script.say(control, "b>a", ds4t("SESSION_CREATE", session_id=1, ctx_size=256))
    script.say(control, "a>b", ds4t("COMMAND_ACK", session_id=1, status=0))
    script.say(control, "b>a", ds4t("EVAL", session_id=1, seq=1, token=5))
    gate = ds4t("GATE_ROW", layer=0, gate=0, seq=1) + bytes(range(64))
    script.say(data, "b>a", gate)
    control.fin(script.tick(2000), "a>b")
    found = one(script.done(), "tp.gate-missing")
    assert "the worker's partial of token 1, layer 0, ATTN (seq 1) never came" in (
        found.sentence
    )
    assert "stayed connected for 2.0 s" in found.sentence
