"""Garbage for one pairing of split and transport, told from one command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ds4proto.schema.ds4d_work import RESET_SESSION
from ds4proto.trace.diagnosis import Finding, diagnose
from tests.link.streams import ds4t, result, work
from tests.trace.diagnosis.built import GATES, LEADER, RANK, STATE, TP_HELLO
from tests.trace.diagnosis.script import Script, one, worker

RIGHT = np.sin(np.arange(32), dtype="<f4")
"""Logits of a vocabulary of 32; the best of the upper half is token 20."""
ROUNDED = (RIGHT * np.float32(1.001)).astype("<f4")
WRONG = RIGHT[::-1].copy()


def pipeline(path: Path, logits: np.ndarray) -> Path:
    script = Script(path)
    line = worker(script)
    script.say(line, "b>a", work(1, STATE, flags=1 | RESET_SESSION))
    script.say(line, "a>b", result(1, payload=logits.tobytes()))
    script.sink.close()
    return path


def pair(
    path: Path,
    logits: np.ndarray | None,
    *,
    rdma: bool,
    first: int = 5,
    cut: bool = False,
) -> Path:
    script = Script(path)
    control = script.dial(RANK, LEADER)
    hello = {**TP_HELLO, "rdma_ok": int(rdma)}
    script.say(control, "b>a", ds4t("HELLO", **hello, role=1))
    script.say(control, "a>b", ds4t("HELLO", **hello, role=2))
    data = script.dial(GATES, LEADER)
    script.say(control, "b>a", ds4t("SESSION_CREATE", session_id=1, ctx_size=256))
    script.say(control, "a>b", ds4t("COMMAND_ACK", session_id=1, status=0))
    script.say(control, "b>a", ds4t("SYNC", session_id=1, tokens=(first, 6)))
    if not rdma:
        gate = ds4t("GATE_ROW", layer=0, gate=0, seq=1) + bytes(range(64))
        script.say(data, "b>a", gate)
        script.say(data, "a>b", gate)
    if logits is None and cut:
        script.say(control, "a>b", ds4t("COMMAND_ACK", session_id=1, status=0))
    elif logits is None:
        control.fin(script.tick(6000), "b>a")
    else:
        script.say(control, "a>b", ds4t("COMMAND_ACK", session_id=1, status=0))
        upper = logits[16:].tobytes()
        script.say(control, "a>b", ds4t("LOGITS", logits=upper))
        script.say(control, "b>a", ds4t("STOP"))
    script.sink.close()
    return path


def found(*files: Path) -> Finding:
    return one(diagnose(files), "compare.transports")


def test_rdma_is_told_from_tensor_parallelism(tmp_path: Path) -> None:
    files = [
        pipeline(tmp_path / "a.pcap", RIGHT),
        pair(tmp_path / "b.pcap", ROUNDED, rdma=False),
        pair(tmp_path / "c.pcap", WRONG, rdma=True),
    ]
    told = found(*files)
    assert told.severity == "warning"
    assert f"pipeline over TCP ({files[0]}): held against the others" in told.sentence
    assert (
        f"tensor parallelism over TCP ({files[1]}): 0.1 % away, the same best token"
        in told.sentence
    )
    assert f"tensor parallelism over RDMA ({files[2]})" in told.sentence
    assert "another best token" in told.sentence
    assert "What goes over RDMA is wrong" in told.sentence
    upper, other = RIGHT[16:].astype("f8"), WRONG[16:].astype("f8")
    far = np.linalg.norm(upper - other) / np.linalg.norm(upper)
    assert told.numbers["tensor parallelism over RDMA"] == pytest.approx(far, rel=1e-4)


def test_tensor_parallelism_is_told_from_rdma(tmp_path: Path) -> None:
    told = found(
        pipeline(tmp_path / "a.pcap", RIGHT),
        pair(tmp_path / "b.pcap", WRONG, rdma=False),
        pair(tmp_path / "c.pcap", WRONG, rdma=True),
    )
    assert "Tensor parallelism is wrong over every transport" in told.sentence


def test_a_deadlock_over_both_transports_is_no_transports_fault(
    tmp_path: Path,
) -> None:
    told = found(
        pipeline(tmp_path / "a.pcap", RIGHT),
        pair(tmp_path / "b.pcap", None, rdma=False),
        pair(tmp_path / "c.pcap", None, rdma=True),
    )
    assert told.sentence.count("no logits, ended with tp.") == 2
    assert "Tensor parallelism is wrong over every transport" in told.sentence


def test_a_recording_that_ends_before_the_logits_accuses_no_way(
    tmp_path: Path,
) -> None:
    files = [
        pipeline(tmp_path / "a.pcap", RIGHT),
        pair(tmp_path / "b.pcap", ROUNDED, rdma=False),
        pair(tmp_path / "c.pcap", None, rdma=True, cut=True),
    ]
    told = found(*files)
    assert told.severity == "note"
    assert "RDMA" not in told.sentence
    alone = found(files[0], files[2])
    assert (alone.severity, alone.confidence) == ("note", "possible")
    assert "hold no logits" in alone.sentence


def test_a_file_given_twice_and_half_a_value_end_no_comparison(tmp_path: Path) -> None:
    first = pipeline(tmp_path / "a.pcap", RIGHT)
    wrong = pair(tmp_path / "b.pcap", WRONG, rdma=True)
    assert "do not tell" in found(first, first, wrong, wrong).sentence
    script = Script(tmp_path / "c.pcap")
    line = worker(script)
    script.say(line, "b>a", work(1, STATE, flags=1 | RESET_SESSION))
    script.say(line, "a>b", result(1, payload=RIGHT.tobytes() + b"half"[:2]))
    script.sink.close()
    assert found(tmp_path / "c.pcap", wrong).code == "compare.transports"


def test_what_agrees_is_a_note_and_two_ways_may_not_tell(tmp_path: Path) -> None:
    first = pipeline(tmp_path / "a.pcap", RIGHT)
    agrees = found(first, pair(tmp_path / "b.pcap", ROUNDED, rdma=True))
    assert agrees.severity == "note"
    assert "All of them agree" in agrees.sentence
    open_question = found(first, pair(tmp_path / "c.pcap", WRONG, rdma=True))
    assert "these recordings do not tell" in open_question.sentence
    assert "run the missing ways" in open_question.next_step


def test_other_prompts_are_not_compared(tmp_path: Path) -> None:
    told = found(
        pipeline(tmp_path / "a.pcap", RIGHT),
        pair(tmp_path / "b.pcap", RIGHT, rdma=False, first=9),
    )
    assert (told.severity, told.confidence) == ("note", "possible")
    assert "different prompts" in told.sentence


def test_not_a_number_is_far_from_any_number(tmp_path: Path) -> None:
    broken = RIGHT.copy()
    broken[20] = np.nan
    told = found(
        pair(tmp_path / "a.pcap", RIGHT, rdma=False),
        pair(tmp_path / "b.pcap", broken, rdma=True),
    )
    assert "What goes over RDMA is wrong" in told.sentence
