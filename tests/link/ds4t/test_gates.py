"""The gate link: schedule, counters, headers, deadlines, and what a failure says."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import pytest

from ds4proto.link.ds4t_gate_headers import header_bytes, read_gate_header
from ds4proto.link.ds4t_gates import GateFailed, GateLink
from ds4proto.link.ds4t_limits import GateLimits
from ds4proto.link.ds4t_texts import LocalProtocolError
from ds4proto.model.known import KNOWN_MODELS
from tests.link.ds4t.pair import SMALL, V4_FLASH, settings

VEC = 4 * SMALL.n_embd


def views(size: int = VEC) -> tuple[memoryview, memoryview]:
    return memoryview(bytearray(b"\x11" * size)), memoryview(bytearray(size))


def link(role: str = "tp-leader", dialect: str = "v14", **more: Any) -> GateLink:
    return GateLink(settings(role, dialect), **more)


def take(machine: GateLink) -> bytes:
    """Write all of the own gate."""
    data = b"".join(map(bytes, machine.send_views))
    assert machine.sent(len(data), 0.0)
    return data


def give(machine: GateLink, data: bytes, now: float = 0.0) -> None:
    while data and machine.receiving:
        room = machine.receive_view
        count = min(len(room), len(data))
        room[:count] = data[:count]
        data = data[count:]
        machine.received(count, now)


@pytest.mark.parametrize("dialect", ["v7", "v9w", "v10", "v12", "v14"])
def test_headers_equal_the_golden_vectors(dialect: str) -> None:
    machine = GateLink(
        settings("tp-leader", dialect, identity=V4_FLASH), check_order=False
    )
    vec = V4_FLASH.vector_bytes
    own, peer = views(vec)
    machine.row_seq = 6
    machine.begin_row(2, 1, own, peer, 0.0)
    row = take(machine)
    give(machine, row)
    machine.batch_seq = 9
    machine.begin_batch(2, 5, *views(5 * vec), 0.0)
    batch = take(machine)
    give(machine, batch)
    machine.begin_bulk(2, own, peer, 0.0)
    bulk = take(machine)
    assert [row[:16].hex(), batch[:16].hex(), bulk[:16].hex()] == [
        "54345344020001000600000000000000",
        "42345344020005000900000000000000",
        "423453440200160b0a00000000000000",
    ]


def test_counters_are_two_and_never_reset() -> None:
    a, b = link(), link("tp-worker")
    for _ in range(2):
        for layer in range(4):
            for kind in (0, 1):
                for machine in (a, b):
                    machine.begin_row(layer, kind, *views(), 0.0)
                x, y = take(a), take(b)
                give(a, y)
                give(b, x)
    for machine in (a, b):
        machine.begin_batch(0, 2, *views(2 * VEC), 0.0)
    give(a, take(b))
    take(a)
    a.begin_bulk(1, *views(3 * VEC), 0.0)
    assert (a.row_seq, a.batch_seq) == (17, 3)
    assert struct.unpack("<Q", bytes(a.send_views[0])[8:]) == (2,)


@pytest.mark.parametrize("model", KNOWN_MODELS, ids=lambda m: m.name)
def test_every_known_schedule_goes_round(model: Any) -> None:
    gates = model.gates
    identity = SMALL.__class__(
        1, model.model_id, model.layers, 4, 128, 2,
        gates.start, gates.step, gates.gates_per_token, gates.mask,
    )  # fmt: skip
    machine = GateLink(settings("tp-leader", identity=identity))
    for _ in range(2):
        for slot in gates.slots():
            machine.begin_row(slot // 2, slot % 2, *views(16), 0.0)
            give(machine, take(machine))
    wrong = gates.slots()[0] ^ 1
    text = (
        f"ds4-tp: gate order broke: layer {wrong // 2} gate {wrong % 2} "
        f"vs seq {2 * gates.gates_per_token + 1}"
    )
    with pytest.raises(LocalProtocolError, match=text):
        machine.begin_row(wrong // 2, wrong % 2, *views(16), 0.0)


def test_a_wrong_size_or_an_open_gate_is_our_own_mistake() -> None:
    machine = link()
    with pytest.raises(LocalProtocolError, match="256 bytes"):
        machine.begin_row(0, 0, *views(255), 0.0)
    with pytest.raises(LocalProtocolError, match="1 to 8 rows"):
        machine.begin_batch(0, 9, *views(9 * VEC), 0.0)
    with pytest.raises(LocalProtocolError, match="v9w alone"):
        machine.begin_bulk(0, *views(), 0.0, waves=4)
    assert (machine.row_seq, machine.batch_seq) == (1, 1)
    machine.begin_row(0, 0, *views(), 0.0)
    with pytest.raises(LocalProtocolError, match="gate is open"):
        machine.begin_row(0, 1, *views(), 0.0)


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


def opened(shape: str, machine: GateLink, size: int = VEC) -> memoryview:
    own, peer = views(3 * size if shape == "batch" else size)
    if shape == "row":
        machine.begin_row(0, 0, own, peer, 0.0)
    elif shape == "batch":
        machine.begin_batch(0, 3, own, peer, 0.0)
    else:
        machine.begin_bulk(0, own, peer, 0.0)
    return peer


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


def test_skew_is_the_longest_wait_for_a_header() -> None:
    machine = link()
    for kind, lag in ((0, 0.002), (1, 0.005)):
        machine.begin_row(0, kind, *views(), 1.0)
        give(machine, take(machine), 1.0 + lag)
    machine.begin_row(1, 0, *views(), 2.0)
    give(machine, take(machine), 2.001)
    assert machine.skew == pytest.approx(0.005)


def test_partial_writes_go_on_where_they_stopped() -> None:
    machine = link()
    own, peer = views()
    own[:] = bytes(range(256))
    machine.begin_row(0, 0, own, peer, 0.0)
    whole = b"".join(map(bytes, machine.send_views))
    sent = b""
    while machine.sending:
        piece = b"".join(map(bytes, machine.send_views))[:13]
        sent += piece
        machine.sent(len(piece), 0.0)
    assert sent == whole
    give(machine, whole)
    assert machine.done
    machine.begin_row(0, 1, own, peer, 0.0)
    assert len(machine.send_views) == 2


def test_wave_groups_carry_their_last_number() -> None:
    # recorded over RDMA: 4 waves a layer give 4, 8, 12
    machine = link(dialect="v9w")
    empty = memoryview(bytearray())
    seqs = []
    for layer in range(3):
        machine.begin_bulk(layer, empty, empty, 0.0, waves=4)
        head = take(machine)
        give(machine, head)
        assert machine.done
        found = read_gate_header(head, "v9w")
        assert found is not None
        assert found.third == 0x0B17
        seqs.append(found.seq)
    assert seqs == [4, 8, 12]
    machine.begin_logits(empty, empty, 0.0)
    assert take(machine)[:8].hex() == "42345344feff160b"


def test_the_hot_path_allocates_nothing_that_stays() -> None:
    machine = link()
    own, peer = views()
    slots = machine.schedule.slots

    def run(count: int) -> None:
        for k in range(count):
            slot = slots[k % len(slots)]
            machine.begin_row(slot >> 1, slot & 1, own, peer, 0.0)
            machine.receive_view[:] = machine.send_views[0]
            machine.sent(16 + VEC, 0.0)
            machine.received(16, 0.0)
            machine.received(VEC, 0.0)

    run(80)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    run(8000)
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert after - before < 2000


@pytest.mark.parametrize(
    ("dialect", "size"), [("v14", 16), ("v14-odinlink", 24), ("v15", 40), ("v1", 16)]
)
def test_header_sizes(dialect: str, size: int) -> None:
    assert header_bytes(dialect) == size


def test_headers_of_dialects_that_are_not_spoken_are_read() -> None:
    odin = struct.pack("<IHHQQ", 0x44533454, 2, 1, 6, 16384)
    found = read_gate_header(odin, "v14-odinlink")
    assert found == ("row", 2, 1, 6, 16384, None, 24)
    v15 = struct.pack("<IIIIQQQ", 0x44533454, 3, 7, 0, 0xABC, 5, 4096)
    assert read_gate_header(v15, "v15") == ("bulk", 7, 0, 5, 4096, 0xABC, 40)
    assert read_gate_header(v15[:39], "v15") is None
    assert read_gate_header(b"\0" * 40, "v15") is None
    assert read_gate_header(struct.pack("<IHHQ", 0x44533442, 1, 4, 2), "v10") == (
        "batch", 1, 4, 2, None, None, 16,
    )  # fmt: skip
