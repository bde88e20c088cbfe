"""A gate that fails: exact texts, limits, and what the diagnosis says."""

from __future__ import annotations

import struct

import pytest

from ds4proto.link.ds4t_gates import GateFailed, GateLink
from ds4proto.link.ds4t_limits import GateLimits
from tests.link.ds4t.gates import VEC, give, link, opened, take, views
from tests.link.ds4t.pair import V4_FLASH, settings

DESYNC: list[tuple[str, bytes, str, str]] = [
    ("row", struct.pack("<IHHQ", 0xDEADBEEF, 0, 0, 1),
     "ds4-tp: gate desync: got l=0 g=0 seq=1, want l=0 g=0 seq=1", "DS4T-GATE-01"),
    ("row", struct.pack("<IHHQ", 0x44533454, 1, 0, 1),
     "ds4-tp: gate desync: got l=1 g=0 seq=1, want l=0 g=0 seq=1", "DS4T-GATE-02"),
    ("row", struct.pack("<IHHQ", 0x44533454, 0, 1, 1),
     "ds4-tp: gate desync: got l=0 g=1 seq=1, want l=0 g=0 seq=1", "DS4T-GATE-03"),
    ("row", struct.pack("<IHHQ", 0x44533454, 0, 0, 99),
     "ds4-tp: gate desync: got l=0 g=0 seq=99, want l=0 g=0 seq=1", "DS4T-GATE-04"),
    ("batch", struct.pack("<IHHQ", 0x44533442, 0, 0, 1),
     "ds4-tp: batch gate desync: got l=0 rows=0 seq=1, want l=0 rows=3 seq=1",
     "DS4B-BATCH-03"),
    ("batch", struct.pack("<IHHQ", 0x44533454, 0, 3, 1),
     "ds4-tp: batch gate desync: got l=0 rows=3 seq=1, want l=0 rows=3 seq=1",
     "DS4B-BATCH-01"),
    ("bulk", struct.pack("<IHHQ", 0x44533442, 1, 0x0B16, 1),
     "ds4-tp: big gate desync: got l=1 tag=b16 seq=1, want l=0 seq=1", "DS4B-BULK-02"),
    ("bulk", struct.pack("<IHHQ", 0x44533442, 0, 0x0B17, 1),
     "ds4-tp: big gate desync: got l=0 tag=b17 seq=1, want l=0 seq=1", "DS4B-BULK-03"),
    ("bulk", struct.pack("<IHHQ", 0x44533442, 0, 0x0B16, 0),
     "ds4-tp: big gate desync: got l=0 tag=b16 seq=0, want l=0 seq=1", "DS4B-BULK-04"),
]  # fmt: skip


@pytest.mark.parametrize("dialect", ["v7", "v10", "v14"])
@pytest.mark.parametrize(("shape", "head", "text", "clause"), DESYNC)
def test_every_wrong_word_of_a_header(
    dialect: str, shape: str, head: bytes, text: str, clause: str
) -> None:
    machine = link(dialect=dialect)
    peer = opened(shape, machine)
    take(machine)
    with pytest.raises(GateFailed) as caught:
        give(machine, head + b"\x77" * 64)
    failure = caught.value.failure
    assert failure.log[0] == text
    assert failure.problem.clause == clause
    assert failure.text == "tp: gate transport failed"
    # nothing of the payload may reach the slot of the engine
    assert bytes(peer) == bytes(len(peer))
    if dialect == "v14" and shape != "bulk":
        assert failure.log[1].startswith("ds4: TP gate exchange failed (layer 0 gate")
    with pytest.raises(GateFailed) as again:
        machine.begin_row(0, 1, *views(), 0.0)
    assert again.value.failure is failure


def test_the_own_gate_can_still_be_written_after_a_desync() -> None:
    machine = link()
    opened("row", machine)
    with pytest.raises(GateFailed):
        give(machine, bytes(16))
    assert machine.sending
    assert len(take(machine)) == 16 + VEC


@pytest.mark.parametrize(
    ("head", "clue"),
    [
        (struct.pack("<IHHQ", 0x44533454, 1, 0, 3), "the peer is 2 gates ahead, at "
         "token 1, layer 1, ATTN"),
        (struct.pack("<IHHQ", 0x44533454, 3, 1, 2), "fires other gates"),
        (struct.pack("<IHHII", 0x44533454, 9, 0, 2, 0), "hello of a version 9 rank"),
        (struct.pack("<IHHII", 0x44533454, 14, 0, 2, 1), "hello of a version 14 rank"),
        (b"GET / HTTP/1.1\r\n", "another program"),
        (struct.pack("<IHHQ", 0x44533442, 0, 3, 1), "may be payload"),
    ],
)  # fmt: skip
def test_a_desync_says_what_the_bytes_are(head: bytes, clue: str) -> None:
    machine = link()
    opened("row", machine)
    with pytest.raises(GateFailed) as caught:
        give(machine, head)
    assert clue in caught.value.diagnosis.next_step


def test_the_recorded_race_for_the_data_connection_is_named() -> None:
    # recorded: got l=9 g=0 seq=2, the hello of another version 9 worker
    machine = link(dialect="v9w")
    opened("row", machine)
    with pytest.raises(GateFailed) as caught:
        give(machine, settings("tp-worker", "v9w").hello())
    text = "ds4-tp: gate desync: got l=9 g=0 seq=2, want l=0 g=0 seq=1"
    assert caught.value.failure.log == (text,)
    assert "another worker connected" in caught.value.diagnosis.next_step


@pytest.mark.parametrize(
    ("dialect", "shape", "first", "later"),
    [
        ("v14", "row", 0.75, 0.75),
        ("v14", "bulk", 2.75, 0.75),
        ("v12", "bulk", 2.75, 0.75),
        ("v10", "bulk", 0.75, 0.75),
        ("v7", "row", 60.0, None),
        ("v9w", "bulk", 600.0, None),
    ],
)
def test_idle_limits_by_dialect(
    dialect: str, shape: str, first: float, later: float | None
) -> None:
    machine = link(dialect=dialect)
    opened(shape, machine)
    assert machine.deadline() == pytest.approx(first)
    head = bytes(machine.send_views[0])
    give(machine, head, 0.5)
    expected = first if later is None else 0.5 + later
    assert machine.deadline() == pytest.approx(expected)


def test_progress_restarts_the_idle_limit_but_not_the_total() -> None:
    machine = link(limits=GateLimits(idle=1.0, total=5.0))
    opened("row", machine)
    times = []

    def drip(data: bytes) -> None:
        for k, byte in enumerate(data):
            times.append(0.9 * (k + 1))
            machine.timeout(times[-1])
            give(machine, bytes([byte]), times[-1])

    with pytest.raises(GateFailed) as caught:
        drip(bytes(machine.send_views[0]) + bytes(VEC))
    assert 5.0 <= times[-1] < 6.0
    assert caught.value.failure.problem.clause == "DS4T-ROBUST-05"
    assert "too long in all" in caught.value.failure.problem.found


def test_writing_is_progress_too() -> None:
    machine = link()
    opened("row", machine)
    machine.sent(100, 0.5)
    assert machine.deadline() == pytest.approx(0.5 + 0.75)


def test_a_silent_peer_is_described() -> None:
    machine = GateLink(settings("tp-worker", identity=V4_FLASH), check_order=False)
    machine.row_seq = 128
    machine.begin_row(20, 1, *views(16384), 10.0)
    take(machine)
    machine.timeout(10.7)
    with pytest.raises(GateFailed) as caught:
        machine.timeout(10.75)
    found = caught.value
    assert (found.diagnosis.token, found.diagnosis.layer) == (2, 20)
    assert found.diagnosis.stopped == "the peer"
    text = str(found)
    for words in (
        "rank 1: token 2, layer 20, FFN row gate, seq 128",
        "received 0 of 16400 bytes, sent 16400 of 16400",
        "the peer stopped first",
        "quiet for 750 ms",
        "DS4_TP_GATE_TIMEOUT_MS",
    ):
        assert words in text
    assert found.failure.problem.clause == "DS4T-GATE-23"
    assert found.failure.peer_lost


def test_a_peer_that_reads_no_more_is_described() -> None:
    machine = link()
    opened("row", machine)
    give(machine, bytes(machine.send_views[0]) + bytes(VEC))
    machine.sent(100, 0.1)
    with pytest.raises(GateFailed) as caught:
        machine.timeout(0.9)
    assert caught.value.diagnosis.stopped == "both"
    assert (caught.value.diagnosis.sent, caught.value.diagnosis.received) == (
        100,
        16 + VEC,
    )


@pytest.mark.parametrize(
    ("shape", "got", "log"),
    [
        ("row", 8, "ds4: TP gate exchange failed (layer 0 gate 0 seq 1)"),
        ("bulk", 8, "ds4-tp: big gate header exchange failed or peer closed (layer 0 "
         "seq 1): the data connection ended"),
        ("bulk", 40, "ds4-tp: big gate payload exchange failed (layer 0): the data "
         "connection ended"),
    ],
)  # fmt: skip
def test_the_end_of_the_data_stream_inside_a_gate(
    shape: str, got: int, log: str
) -> None:
    machine = link()
    opened(shape, machine)
    give(machine, (bytes(machine.send_views[0]) + bytes(VEC))[:got])
    with pytest.raises(GateFailed) as caught:
        machine.received(0, 0.2)
    assert caught.value.failure.log == (log,)
    assert caught.value.diagnosis.received == got
    if got > 16:
        assert "DS4_TP_PREFILL_SPLIT_MIN" in caught.value.diagnosis.next_step


def test_a_control_connection_that_ends_fails_the_open_gate() -> None:
    machine = link()
    opened("row", machine)
    with pytest.raises(GateFailed, match="control connection ended"):
        machine.abort("the control connection ended", 0.3)
    assert machine.failure is not None
