"""Runs that ended on one frame: the rank that sent it is named, not the other."""

from __future__ import annotations

from typing import Any

import pytest

from ds4proto.trace.diagnosis import Finding
from tests.link.streams import ds4t
from tests.trace.diagnosis.built import GATES, LEADER
from tests.trace.diagnosis.script import Script, capture, of, one, pair

# Who wrote the bad frame is recorded beside each capture: a raw socket did.
BY_WORKER = (
    ("v9_to_leader_ack_wrong_session", "DS4T-ACK-05", "COMMAND_ACK.session_id is 99"),
    ("v10_to_leader_ack_wrong_session", "DS4T-ACK-05", "COMMAND_ACK.session_id is 99"),
    ("v9_to_leader_logits_short", "DS4T-LOGITS-03", "LOGITS.logits is 32, expected 64"),
    ("v10_to_leader_ack_short", "DS4T-ACK-04", "COMMAND_ACK.reserved0 is the end"),
    ("v9_to_leader_ack_wrong_type", "DS4T-ACK-04", "SYNC_ACK.header.type is 8"),
)
BY_LEADER = (
    ("v10_to_worker_commit_out_of_place", "no VERIFY is open"),
    ("v10_to_worker_commit_missing", "VERIFY_COMMIT is due, found EVAL"),
    ("v10_to_worker_commit_prefix_all", "a prefix of 3 is to be kept of 3 drafts"),
    ("v10_to_worker_type_6", "HASH is no command"),
    ("v10_to_worker_type_255", "TYPE_255.header.type is 255"),
    ("v10_to_worker_eval_token_negative", "token -5 is outside the vocabulary of 32"),
    ("v10_to_worker_eval_after_destroy", "session 1 does not exist"),
    ("v10_to_worker_sync_count_smaller", "SYNC.count is 3, expected 4"),
    ("v10_to_worker_batch_count_zero", "EVAL_BATCH.count is 0"),
    ("v10_to_worker_frame_bad_magic", "header.magic is 0xdeadbeef"),
    ("v10_to_worker_verify_17", "VERIFY.count is 17, expected 1..16"),
)
STATUS = (
    ("v10_to_worker_sync_too_long", "8 tokens do not leave one free in a context of 8"),
    ("v10_to_worker_sync_token_negative", "token -1 is outside the vocabulary of 32"),
    ("v10_to_worker_batch_unknown_session", "session 9 does not exist"),
    ("v10_to_worker_create_duplicate", "session 1 exists already"),
    ("v10_to_worker_destroy_unknown", "session 9 does not exist"),
)


def severe(findings: list[Finding]) -> list[str]:
    return [finding.code for finding in findings if finding.severity == "severe"]


@pytest.mark.parametrize(("name", "clause", "said"), BY_WORKER)
def test_an_answer_that_the_leader_refuses_is_the_workers_fault(
    name: str, clause: str, said: str
) -> None:
    findings = capture(f"ds4t/{name}")
    assert severe(findings) == ["rule.refused"]
    found = findings[0]
    assert found.clause == clause
    assert found.sentence.startswith("the leader has to refuse the worker's")
    assert said in found.sentence
    assert "it did, and sent STOP" in found.sentence
    assert found.numbers["sender"] == "worker"
    assert "the fault is the worker's" in found.next_step


def captures_with(names: tuple[tuple[str, str], ...]) -> list[Any]:
    return [pytest.param(*one_of, id=one_of[0]) for one_of in names]


@pytest.mark.parametrize(("name", "said"), captures_with(BY_LEADER))
def test_a_command_that_the_worker_refuses_is_the_leaders_fault(
    name: str, said: str
) -> None:
    findings = capture(f"ds4t/{name}")
    assert findings[0].code == "rule.refused"
    assert not of(findings, "tp.peer-gone")
    found = findings[0]
    assert found.sentence.startswith("the worker has to refuse the leader's")
    assert said in found.sentence
    assert found.numbers["sender"] == "leader"
    assert "the control connection" in found.sentence


@pytest.mark.parametrize(("name", "said"), captures_with(STATUS))
def test_a_status_says_what_was_wrong_with_the_command(name: str, said: str) -> None:
    findings = capture(f"ds4t/{name}")
    assert severe(findings) == ["tp.command-failed"]
    assert said in findings[0].sentence
    assert "what the leader asked for" in findings[0].next_step


@pytest.mark.parametrize(
    "name",
    ["v10_to_leader_ack_reserved_nonzero", "v9_to_worker_sync_reserved_nonzero",
     "v10_to_worker_eval_seq_ignored", "v10_to_worker_commit_replay_huge",
     "v9_debug_hash_divergence", "v10_leader_dies_before_commit"],
)  # fmt: skip
def test_what_a_real_peer_took_was_not_refused(name: str) -> None:
    assert not of(capture(f"ds4t/{name}"), "rule.refused")


def start(script: Script) -> Any:
    control = pair(script)
    script.say(control, "b>a", ds4t("SESSION_CREATE", session_id=1, ctx_size=256))
    return control


def test_an_answer_that_the_leader_took_is_a_warning_alone(script: Script) -> None:
    control = start(script)
    script.say(control, "a>b", ds4t("COMMAND_ACK", session_id=99, status=0))
    script.say(control, "b>a", ds4t("EVAL", session_id=1, seq=1, token=5))
    findings = script.done()
    assert not of(findings, "rule.refused")
    found = [f for f in of(findings, "rule.broken") if f.clause == "DS4T-ACK-10"]
    assert [finding.severity for finding in found] == ["warning"]


def test_an_answer_behind_which_the_capture_ends_is_likely_the_cause(
    script: Script,
) -> None:
    control = start(script)
    script.say(control, "a>b", ds4t("COMMAND_ACK", session_id=99, status=0))
    found = one(script.done(), "rule.refused")
    assert (found.severity, found.confidence) == ("severe", "likely")


def test_a_session_that_could_not_be_created_may_be_asked_for_again(
    script: Script,
) -> None:
    control = start(script)
    script.say(control, "a>b", ds4t("COMMAND_ACK", session_id=1, status=1))
    again = {"session_id": 1, "ctx_size": 128}
    script.say(control, "b>a", ds4t("SESSION_CREATE", **again))
    script.say(control, "a>b", ds4t("COMMAND_ACK", session_id=1, status=1))
    failed = of(script.done(), "tp.command-failed")
    assert len(failed) == 2
    assert not any("exists already" in finding.sentence for finding in failed)
    assert not any(finding.clause for finding in failed)


def test_a_worker_that_went_long_after_a_bad_command_did_not_refuse_it(
    script: Script,
) -> None:
    control = start(script)
    script.say(control, "a>b", ds4t("COMMAND_ACK", session_id=1, status=0))
    script.say(control, "b>a", ds4t("EVAL", session_id=1, seq=1, token=50_000))
    control.fin(script.tick(5000), "a>b")
    assert not of(script.done(), "rule.refused")


def test_a_command_that_fails_for_want_of_a_gate_leaves_the_gate_as_the_cause(
    script: Script,
) -> None:
    control = start(script)
    script.say(control, "a>b", ds4t("COMMAND_ACK", session_id=1, status=0))
    data = script.dial(GATES, LEADER)
    tokens = {"session_id": 1, "tokens": range(1, 5)}
    script.say(control, "b>a", ds4t("SYNC", **tokens))
    gate = ds4t("DS4B.GATE_BULK", layer=0, tag=0x0B16, seq=1) + bytes(range(64)) * 4
    script.say(data, "a>b", gate)
    wait = 1500.0
    script.say(control, "a>b", ds4t("COMMAND_ACK", session_id=1, status=1), wait=wait)
    control.fin(script.tick(), "a>b")
    findings = script.done()
    found = one(findings, "tp.gate-missing")
    assert "leader's partial of layer 0, bulk gate (seq 1) never came" in (
        found.sentence
    )
    assert one(findings, "tp.command-failed").sentence.startswith(
        "the worker answered SYNC of session 1 with status 1"
    )
