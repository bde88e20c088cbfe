"""Captures that began late, ended early or lost packets: nobody is accused of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ds4proto.pcap import build_tcp
from ds4proto.trace.cut import Selection
from ds4proto.trace.decoder import CaptureDecoder
from ds4proto.trace.diagnosis import diagnose
from ds4proto.trace.diagnosis.connections import TRUST
from ds4proto.trace.redact import head_size
from ds4proto.trace.rewriting import rewrite
from tests.link.streams import ds4t, result, work
from tests.trace.diagnosis.built import GATES, LEADER, RANK, STATE
from tests.trace.diagnosis.script import ROOT, Script, of, one, pair, worker

# Runs of two sound peers; packets FIRST to LAST, counted from 0, are what is left, or
# are cut out.
LATE = (
    ("ds4t/v10_auto_no_verbs", 9), ("ds4t/v10_decode8", 36), ("ds4t/v10_decode8", 51),
    ("ds4t/v10_everything", 302), ("ds4t/v10_gate_mask_61", 125),
    ("ds4t/v10_glm_schedule", 58), ("ds4t/v9_rdma_generic", 186),
    ("ds4t/v9_top2", 11), ("ds4t/v9_verify_rows5", 5), ("ds4t/v9_embd4096", 19),
    ("ds4t/v9_rdma_mlx5_waves", 93), ("ds4t/v7_ident_gates_zero", 2),
    ("ds4d/a_s2_decode_f32", 60),
)  # fmt: skip
EARLY = (
    ("ds4t/v7_decode8", 1), ("ds4d/f_snapshot_load_s3", 11),
)  # fmt: skip
HOLES = (
    ("ds4t/v10_ident_gates_zero", 5, 6), ("ds4t/v10_glm_schedule", 16, 21),
    ("ds4t/v10_verify_rows1", 22, 42), ("ds4t/v10_verify_rows9_bulk", 45, 46),
    ("ds4t/v7_verify_replay0", 38, 58), ("ds4t/v7_worker_first", 15, 20),
    ("ds4t/v7_batch_two_sessions", 22, 42), ("ds4t/v9_bulk_over_2mib_cut", 176, 177),
    ("ds4t/v9_long_prompt_control", 26, 28), ("ds4t/v10_everything", 178, 198),
    ("ds4d/a_s2_decode_f32", 90, 95), ("ds4d/c_s2_decode_e4m3", 72, 92),
)  # fmt: skip
Packets = list[bytes]


def without(name: str, target: Path, choose: Callable[[Packets], Packets]) -> list[str]:
    """Diagnose some packets of a classic pcap; return what is more than a note."""
    data = (ROOT / f"{name}.pcap").read_bytes()
    packets, at = [], 24
    while at < len(data):
        size = 16 + int.from_bytes(data[at + 8 : at + 12], "little")
        packets.append(data[at : at + size])
        at += size
    target.write_bytes(data[:24] + b"".join(choose(packets)))
    return [
        f"{f.severity} {f.code}: {f.sentence}"
        for f in diagnose([target]) if f.severity != "note"
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "first"), LATE)
def test_a_capture_that_began_late_accuses_nobody(
    name: str, first: int, tmp_path: Path
) -> None:
    assert without(name, tmp_path / "part.pcap", lambda one: one[first:]) == []


@pytest.mark.parametrize(("name", "last"), EARLY)
def test_a_capture_that_ended_early_accuses_nobody(
    name: str, last: int, tmp_path: Path
) -> None:
    assert without(name, tmp_path / "part.pcap", lambda one: one[:last]) == []


@pytest.mark.parametrize(("name", "first", "last"), HOLES)
def test_packets_that_the_capture_lost_accuse_nobody(
    name: str, first: int, last: int, tmp_path: Path
) -> None:
    target = tmp_path / "part.pcap"
    assert without(name, target, lambda one: one[:first] + one[last:]) == []
    assert of(diagnose([target]), "unknown.lost")


def gates(script: Script, numbers: range) -> None:
    """Exchange row gates of a pair with two layers, from both sides."""
    data = script.dial(GATES, LEADER)
    for seq in numbers:
        place = (seq - 1) % 4
        gate = ds4t("GATE_ROW", layer=place // 2, gate=place % 2, seq=seq)
        script.say(data, "b>a", gate + bytes(range(64)))
        if seq == 5:
            data.skip("a>b", 80)  # the recorder missed this one
            continue
        wrong = {"layer": 1 - place // 2} if seq == numbers[-1] else {}
        gate = ds4t("GATE_ROW", **{"layer": place // 2, "gate": place % 2, "seq": seq,
                                   **wrong})  # fmt: skip
        script.say(data, "a>b", gate + bytes(range(64)))


@pytest.mark.parametrize(("last", "severity"), [(8, "note"), (4 + TRUST, "severe")])
def test_behind_enough_frames_a_hole_excuses_nothing(
    script: Script, last: int, severity: str
) -> None:
    control = pair(script)
    script.say(control, "b>a", ds4t("SESSION_CREATE", session_id=1, ctx_size=256))
    script.say(control, "a>b", ds4t("COMMAND_ACK", session_id=1, status=0))
    gates(script, range(1, last + 1))
    found = [f for f in of(script.done(), "rule.broken") if f.clause == "DS4T-GATE-02"]
    assert [finding.severity for finding in found] == [severity]
    assert ("its own doing" in found[0].sentence) is (severity == "note")


def test_each_direction_that_begins_with_a_hello_is_read_from_it(
    tmp_path: Path,
) -> None:
    # from packet 5 on the leader's hello is there, the worker's is not
    target = tmp_path / "part.pcap"
    without("ds4t/v9_verify_rows5", target, lambda one: one[5:])
    rows = [row for row in CaptureDecoder(target) if row.is_frame]
    assert [row.src_role for row in rows if row.type == "HELLO"] == ["leader"]
    assert [row.type for row in rows if row.src_role == "worker"].count("LOGITS") == 2


def test_a_gate_that_was_not_over_at_the_end_is_no_fault(script: Script) -> None:
    control = pair(script)
    script.say(control, "b>a", ds4t("SESSION_CREATE", session_id=1, ctx_size=256))
    script.say(control, "a>b", ds4t("COMMAND_ACK", session_id=1, status=0))
    script.say(control, "b>a", ds4t("SYNC", session_id=1, tokens=range(1, 13)))
    data = script.dial(GATES, LEADER)
    # 12 rows of 64 bytes are expected; the capture ends inside a longer one
    gate = ds4t("DS4B.GATE_BULK", layer=0, tag=0x0B16, seq=1)
    script.say(data, "a>b", gate + bytes(range(1, 17)) * 80 + bytes(40))
    findings = script.done()
    assert [f.sentence for f in findings if f.severity != "note"] == []


def test_one_syn_is_no_machine_that_does_not_answer(script: Script) -> None:
    syn = build_tcp(RANK, LEADER, seq=1, ack=0, flags=2, linktype=101)
    script.sink.packet(script.tick(), syn)
    assert one(script.done(), "connect.no-answer").severity == "note"


def test_bytes_lost_inside_a_payload_are_told(tmp_path: Path) -> None:
    target = tmp_path / "part.pcap"
    name = "ds4t/v9_bulk_over_2mib_cut"
    without(name, target, lambda packets: packets[:176] + packets[177:])
    found = one(diagnose([target]), "unknown.lost")
    assert float(found.numbers["bytes"]) > 0


@pytest.mark.parametrize(
    ("seen", "lost", "captured"),
    [(100, 1056, 0), (200, 956, 68), (100, 100, 956), (400, 128, 896)],
)
def test_lost_bytes_of_a_payload_are_no_zeros(
    script: Script, seen: int, lost: int, captured: int
) -> None:
    line = worker(script)
    script.say(line, "b>a", work(1, STATE))
    answer = result(1)  # 1156 bytes, of which the last 1024 are logits
    script.say(line, "a>b", answer[:seen])
    line.skip("a>b", lost)
    script.say(line, "a>b", answer[seen + lost :] + result(2))
    script.sink.close()
    row = next(row for row in CaptureDecoder(script.path) if row.type == "RESULT")
    assert row.fields["request"] == 1
    assert row.payload is not None
    assert (row.length, row.payload.length) == (1156, 1024)
    assert (row.payload.captured, row.payload.zeros) == (captured, captured // 4)


def test_payloads_that_were_left_out_excuse_nobody(tmp_path: Path) -> None:
    whole, headers = tmp_path / "whole.pcap", tmp_path / "headers.pcapng"
    script = Script(whole)
    line = worker(script)
    for request, answer in (*((n, n) for n in range(1, 300)), (300, 999)):
        script.say(line, "b>a", work(request, STATE))
        script.say(line, "a>b", result(answer))
    script.sink.close()
    with headers.open("wb") as target:
        choice = Selection(headers_only=True)
        rewrite(str(whole), target, choice=choice, head=head_size, comment="")
    for file in (whole, headers):
        stray = one(diagnose([file]), "route.stray-answer")
        assert stray.severity == "severe", file


def test_a_gate_of_another_layer_is_told_though_the_capture_ends_with_it(
    script: Script,
) -> None:
    control = pair(script)
    script.say(control, "b>a", ds4t("SESSION_CREATE", session_id=1, ctx_size=256))
    script.say(control, "a>b", ds4t("COMMAND_ACK", session_id=1, status=0))
    data, rows = script.dial(GATES, LEADER), bytes(range(64)) * 4
    script.say(control, "b>a", ds4t("SYNC", session_id=1, tokens=range(1, 5)))
    first = ds4t("DS4B.GATE_BULK", layer=0, tag=0x0B16, seq=1)
    script.say(data, "b>a", first + rows)
    other = ds4t("DS4B.GATE_BULK", layer=7, tag=0x0B16, seq=1)
    script.say(data, "a>b", other + rows)
    broken = one(script.done(), "rule.broken")
    assert (broken.severity, broken.clause) == ("severe", "DS4B-BULK-02")
