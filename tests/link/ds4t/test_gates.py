"""The gate link: schedule, counters, headers, deadlines, and what a failure says."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import pytest

from ds4proto.link.ds4t_gate_headers import header_bytes, read_gate_header
from ds4proto.link.ds4t_gates import GateLink
from ds4proto.link.ds4t_texts import LocalProtocolError
from ds4proto.model.known import KNOWN_MODELS
from tests.link.ds4t.gates import VEC, give, link, take, views
from tests.link.ds4t.pair import SMALL, V4_FLASH, settings


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
    grown = []
    for _ in range(3):  # a thread that another test left may allocate meanwhile
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        run(8000)
        grown.append(tracemalloc.get_traced_memory()[0] - before)
        tracemalloc.stop()
    assert min(grown) < 2000


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
