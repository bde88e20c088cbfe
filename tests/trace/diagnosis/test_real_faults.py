"""Recordings of real peers that met a fault, each with the cause it has to be given."""

from __future__ import annotations

from pathlib import Path

import pytest

from ds4proto import clauses
from ds4proto.trace.cut import Selection
from ds4proto.trace.diagnosis import Finding, diagnose
from ds4proto.trace.diagnosis.finding import worst
from ds4proto.trace.diagnosis.known_texts import meaning_of
from ds4proto.trace.redact import REDACTED, Redactor, head_size
from ds4proto.trace.rewriting import rewrite
from tests.trace.diagnosis.script import ROOT, capture, of, one


def test_a_hash_where_logits_are_due_is_named() -> None:
    found = one(capture("ds4t/v10_to_leader_worker_sends_hash"), "rule.wrong-answer")
    assert found.severity == "severe"
    assert "answered EVAL (seq 1) with HASH, where LOGITS are due" in found.sentence
    assert [e.frame for e in found.evidence] == ["DS4T.EVAL", "DS4T.HASH"]


def test_an_rdma_info_without_an_answer_is_named() -> None:
    found = one(capture("ds4t/v9_to_leader_rdma_silent"), "tp.answer-missing")
    assert found.severity == "severe"
    assert "the leader's RDMA_INFO was never answered" in found.sentence
    assert float(found.numbers["waited_ms"]) > 3000


def test_a_status_is_named() -> None:
    found = one(capture("ds4t/v10_to_leader_sync_ack_status"), "tp.command-interrupted")
    assert "answered SYNC of session 1 with status 2 (interrupted)" in found.sentence
    assert found.severity == "warning"
    assert "no command followed" in found.sentence


def test_logits_that_never_followed_an_acknowledgement_are_named() -> None:
    name = "ds4t/v9_to_leader_sync_ack_missing_logits"
    found = one(capture(name), "tp.answer-missing")
    assert "the worker's LOGITS never came" in found.sentence
    assert "after the acknowledgement of SYNC" in found.sentence


@pytest.mark.parametrize(
    ("name", "command"),
    [("v10_leader_dies_before_commit", "VERIFY"),
     ("v10_leader_dies_mid_prefill", "SYNC")],
)  # fmt: skip
def test_a_leader_that_dies_inside_a_command_is_no_pause(
    name: str, command: str
) -> None:
    findings = capture(f"ds4t/{name}")
    found = one(findings, "tp.peer-gone")
    assert worst(findings) == "severe"
    assert "the leader went away first" in found.sentence
    assert f"with {command} open" in found.sentence
    assert not of(findings, "end.no-stop")


def part(name: str, begin: float, end: float, tmp_path: Path) -> list[Finding]:
    """Diagnose a part of a capture; what is outside it becomes a hole."""
    output = tmp_path / "part.pcapng"
    with output.open("wb") as target:
        rewrite(
            str(ROOT / name), target, choice=Selection(begin=begin, end=end),
            head=head_size, comment="cut from a capture",
        )  # fmt: skip
    return diagnose([output])


def test_an_answer_inside_a_hole_is_not_missing(tmp_path: Path) -> None:
    findings = part("ds4d/d_s3_forward_f16.pcap", 0.018, 0.0195, tmp_path)
    assert worst(findings) == "note"
    found = one(findings, "unknown.lost-answer")
    assert "whether request 1 (position 0" in found.sentence
    assert "worker 3:5's direction" in found.sentence


@pytest.mark.parametrize(
    ("name", "end"),
    [("v10_decode8", 0.0008), ("v10_decode8", 0.0014), ("v10_decode8", 0.00143),
     ("v10_decode8", 0.0016), ("v7_prefill_decode", 0.0012), ("v9_top2", 0.0012),
     ("v10_glm_schedule", 0.0012), ("v9_verify_rows8", 0.0012),
     ("v7_everything", 0.0012), ("v10_prefill_attn_split", 0.0012)],
)  # fmt: skip
def test_nothing_behind_a_hole_is_missing_or_wrong(
    name: str, end: float, tmp_path: Path
) -> None:
    findings = part(f"ds4t/{name}.pcap", 0, end, tmp_path)
    assert one(findings, "unknown.lost")
    assert worst(findings) == "note", findings[0].sentence


@pytest.mark.parametrize("name", ["ds4t/v10_decode8", "ds4d/a_s2_decode_f32"])
def test_a_redacted_file_has_no_values_to_judge(name: str, tmp_path: Path) -> None:
    original, output = ROOT / f"{name}.pcap", tmp_path / "redacted.pcapng"
    with output.open("wb") as target:
        rewrite(
            str(original), target, choice=Selection(), head=head_size,
            change=Redactor(bytes(16)).frame, comment=REDACTED,
        )  # fmt: skip
    part_of_it = tmp_path / "part.pcapng"
    with part_of_it.open("wb") as target:
        rewrite(
            str(output), target, choice=Selection(begin=0), head=head_size,
            comment="cut from a capture",
        )  # fmt: skip
    for file in (output, part_of_it):
        alone = diagnose([file])
        assert one(alone, "unknown.redacted")
        assert worst(alone) == "note", alone[0].sentence
    both = diagnose([original, output])
    assert one(both, "compare.redacted")
    assert worst(both) == "note", both[0].sentence
    assert not of(both, "compare.tokens")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("v10_to_leader_big_tag_b17", "tag 0x0b17, the leader's tag 0x0b16"),
        ("v9_to_leader_big_tag_b17", "tag 0x0b17, the leader's tag 0x0b16"),
        ("v10_to_leader_big_tag_rows", "tag 0x0004, the leader's tag 0x0b16"),
        ("v10_to_leader_big_magic_row", "magic 'DS4T', the leader's magic 'DS4B'"),
        ("v9_to_leader_big_layer_off", "layer 1, the leader's layer 0"),
    ],
)
def test_a_wrong_word_of_a_gate_header_is_named(name: str, said: str) -> None:
    findings = capture(f"ds4t/{name}")
    severe = [finding for finding in findings if finding.severity != "note"]
    assert [finding.code for finding in severe] == ["rule.gate-header"]
    assert f"the worker's says {said}." in severe[0].sentence


def test_equal_headers_of_a_gate_are_no_fault_of_theirs() -> None:
    findings = capture("ds4t/v10_leader_dies_mid_prefill")
    assert not of(findings, "rule.gate-header")


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("ds4d/a_s2_decode_f32", "pipeline.in-flight", "at most 1 request in flight"),
        ("ds4t/v10_leader_dies_mid_prefill", "tp.time", "1 gate exchanged"),
    ],
)
def test_one_of_a_kind_is_told_in_the_singular(name: str, code: str, said: str) -> None:
    assert said in one(capture(name), code).sentence


def test_a_rule_is_told_without_its_full_stop() -> None:
    texts = [clauses.get(name).error or "" for name in clauses.ids()]
    meanings = [meaning_of(text).meaning for text in texts if text]
    told = [meaning for meaning in meanings if meaning.startswith("the rule is: ")]
    assert told
    assert not [meaning for meaning in told if meaning.endswith(".")]


@pytest.mark.parametrize(
    ("name", "begin", "end"),
    [("ds4t/v7_prefill_decode", 0.001, 0.003), ("ds4t/v9_no_destroy", 0.001, 0.003),
     ("ds4t/v9_verify_rows8", 0.001, 0.003), ("ds4d/a_s2_decode_f32", 0, 0.003)],
)  # fmt: skip
def test_what_a_hole_may_hold_is_not_called_wrong(
    name: str, begin: float, end: float, tmp_path: Path
) -> None:
    findings = part(f"{name}.pcap", begin, end, tmp_path)
    codes = {finding.code for finding in findings if finding.severity != "note"}
    assert not codes & {"tp.unknown-session", "end.worker-left"}


def test_another_program_is_told_once_and_in_its_own_words() -> None:
    findings = capture("ds4t/v10_to_leader_hello_http")
    severe = [f for f in findings if f.severity == "severe"]
    assert [f.code for f in severe] == ["rule.broken"]
    assert "HELLO.magic is 47455420 ('GET '), expected 54345344" in severe[0].sentence
    assert "87 bytes are no frame" in severe[0].sentence
