"""Captures that lack packets: no peer is blamed for what the recording lost."""

from __future__ import annotations

import io
import random
from pathlib import Path

import pytest

from ds4proto.testing import captures_dir
from ds4proto.trace import decode
from tests.link.streams import ds4d, result, work
from tests.trace.diagnosis.built import HELLO, Wire

ANSWERS = {"DS4D-RESULT-21", "DS4D-RESULT-27", "DS4T-ACK-02", "DS4T-ACK-10"}
"""Rules by which an answer belongs to what the other direction asked."""
CAPTURES = [
    "ds4d/a_s2_decode_f32.pcap",
    "ds4d/d_s3_forward_f16.pcap",
    "ds4d/e_s2_prefill_c16_w3.pcap",
    "ds4d/g_kill_mid_request_s2.pcap",
    "ds4t/v10_everything.pcap",
]


def thinned(data: bytes, seed: int) -> bytes:
    """Return a capture without one packet in ten to a hundred."""
    rng = random.Random(seed)
    share = (0.01, 0.03, 0.1)[seed % 3]
    kept, at = [data[:24]], 24
    while at < len(data):
        end = at + 16 + int.from_bytes(data[at + 8 : at + 12], "little")
        if rng.random() >= share:
            kept.append(data[at:end])
        at = end
    return b"".join(kept)


def blamed(data: bytes) -> list[tuple[str, str]]:
    """Return (clause, what was found) of answers without a request."""
    rows = decode(io.BytesIO(data), payload="none")
    return [
        (p.clause, p.found) for row in rows for p in row.problems if p.clause in ANSWERS
    ]


@pytest.mark.parametrize("name", CAPTURES)
def test_no_answer_lacks_its_request_for_what_the_capture_lost(name: str) -> None:
    data = (captures_dir() / name).read_bytes()
    assert not blamed(data)
    for seed in range(12):
        assert not blamed(thinned(data, seed)), seed


@pytest.mark.parametrize("seed", [2, 5, 8])
def test_no_answer_lacks_a_request_that_went_with_the_opening(seed: int) -> None:
    """Short connections: of some no SYN, of one no SYN-ACK and no request is left."""
    data = (captures_dir() / "ds4d/i_worker_work.pcap").read_bytes()
    assert not blamed(thinned(data, seed))


def recorded(path: Path, *, lost: bool, answer: int = 2) -> bytes:
    """Return a run of three requests, of which the second may not be captured."""
    wire = Wire(path)
    wire.send(0, ds4d("HELLO", **HELLO))
    wire.send(1, work(1))
    wire.send(0, result(1))
    asked = work(2)
    if lost:
        wire.seq[1] += len(asked)
    else:
        wire.send(1, asked)
    wire.send(0, result(answer))
    for request in (3, 4):
        wire.send(1, work(request))
        wire.send(0, result(request))
    wire.close()
    return path.read_bytes()


def test_a_request_in_a_hole_is_not_missed(tmp_path: Path) -> None:
    assert blamed(recorded(tmp_path / "lost.pcap", lost=True)) == []


def test_an_answer_that_nobody_asked_for_is_told_where_nothing_is_lost(
    tmp_path: Path,
) -> None:
    whole = recorded(tmp_path / "whole.pcap", lost=False)
    assert blamed(whole) == []
    stray = recorded(tmp_path / "stray.pcap", lost=False, answer=9)
    assert ("DS4D-RESULT-21", "9") in blamed(stray)
