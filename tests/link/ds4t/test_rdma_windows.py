"""Windows of the RDMA data plane: what is posted, sent, awaited, refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ds4proto.link.ds4t_identity import Identity
from ds4proto.link.ds4t_rdma_bulk import BulkGate, bulk_over_rdma
from ds4proto.link.ds4t_rdma_verify import VerifyWindow
from ds4proto.link.ds4t_rdma_windows import (
    DecodeWindow,
    RdmaFailed,
    check_barrier,
    check_depth,
    pieces,
    slab_region,
)
from ds4proto.link.ds4t_texts import LocalProtocolError
from ds4proto.link.rdma_attributes import attributes_for
from tests.link.ds4t.pair import V4_FLASH, settings

UC = attributes_for("v14", "macos")
V4_PRO = Identity(1, 1, 61, 7168, 129280, 2, 0, 1, 122)
FLASH = settings("tp-leader", identity=V4_FLASH)
PRO = settings("tp-leader", identity=V4_PRO)
BIT61, BIT63 = 1 << 61, 1 << 63


def test_attributes_by_dialect_and_system() -> None:
    linux, mac = attributes_for("v14", "linux"), UC
    assert (linux.qp_type, mac.qp_type) == ("RC", "UC")
    assert linux.depths == ((1024, 1024), (256, 64))
    assert (linux.min_rnr_timer, linux.timeout, linux.retry_cnt, linux.rnr_retry) == (
        12, 14, 3, 3,
    )  # fmt: skip
    assert (linux.hop_limit, linux.rd_atomic, linux.cq_entries) == (1, 1, 512)
    old = attributes_for("v7", "linux")
    assert (old.qp_type, old.depths, old.signal_all) == ("UC", ((256, 64),), False)
    mlx5 = attributes_for("v9w", "linux", device="mlx5_0")
    assert (mlx5.qp_type, mlx5.hop_limit, mlx5.retry_cnt, mlx5.rnr_retry) == (
        "RC", 64, 7, 7,
    )  # fmt: skip
    assert (mlx5.bulk_message, mlx5.bulk_window) == (131072, 32)
    fallback = attributes_for("v9w", "linux", device="rxe0", qp_type="RC")
    assert (fallback.qp_type, fallback.hop_limit) == ("RC", 1)


def test_vectors_are_one_or_two_messages() -> None:
    assert pieces(0, 16384, 16384) == ((0, 16384),)
    assert pieces(100, 28672, 16384) == ((100, 16384), (16484, 12288))
    wide = replace(V4_FLASH, n_embd=8193)
    with pytest.raises(
        LocalProtocolError, match="gate vector 32772 bytes exceeds twice"
    ):
        DecodeWindow(settings("tp-leader", identity=wide), UC)


def test_a_decode_window_posts_sixteen_gates_ahead() -> None:
    window = DecodeWindow(FLASH, UC)
    posted = window.open(80)
    assert [p.wr_id for p in posted] == list(range(80, 96))
    into = slab_region(FLASH, "in").offset
    assert into == 1409024
    # seq 80 is slot 79, the 17th in-slot of the window wraps to slot 8
    assert posted[0].offset == into + 79 * 16384
    assert posted[-1].offset == into + (95 - 1) % 86 * 16384
    assert window.barrier == 0xD1
    with pytest.raises(LocalProtocolError, match="not open"):
        window.sends(39, 1, 80)
    window.opened()
    (send,) = window.sends(39, 1, 80)
    assert send == (80, 79 * 16384, 16384)
    assert window.receive_completed(80, 0.0)
    assert [p.wr_id for p in window.refill()] == [96]
    assert window.refill() == []
    with pytest.raises(LocalProtocolError, match="layer 0 gate 0 vs seq 81"):
        window.sends(0, 0, 81)


def test_a_wide_vector_is_marked_on_its_last_message() -> None:
    window = DecodeWindow(PRO, UC)
    posted = window.open(1)
    assert len(posted) == 32
    assert [p.wr_id for p in posted[:4]] == [0, 1, 0, 2]
    assert [p.length for p in posted[:2]] == [16384, 12288]
    window.opened()
    assert [p.wr_id for p in window.sends(0, 0, 1)] == [1, 1]
    assert not window.receive_completed(0, 0.0)
    assert window.receive_completed(1, 0.0)


def test_a_lost_message_shows_as_a_gate_out_of_order() -> None:
    window = DecodeWindow(FLASH, UC)
    window.open(1)
    window.opened()
    with pytest.raises(RdmaFailed, match="a message was lost"):
        window.receive_completed(2, 0.0)
    late = window.late(4, 1.0).failure
    assert late.text == "ds4-tp: timeout waiting gate seq 4 (recv_done 0)"


@pytest.mark.parametrize(("own", "chunks"), [(FLASH, 1), (PRO, 2)])
def test_a_drain_uses_up_what_is_posted(own: object, chunks: int) -> None:
    window = DecodeWindow(own, UC)  # type: ignore[arg-type]
    window.open(1)
    window.opened()
    for seq in (1, 2, 3):
        window.sends((seq - 1) // 2, (seq - 1) % 2, seq)
        for k in range(chunks):
            window.receive_completed(seq if k == chunks - 1 else 0, 0.0)
        window.refill()
        window.send_completed(chunks)
    dummies = window.drain()
    assert len(dummies) == 16 * chunks
    assert all(p.wr_id >> 63 for p in dummies)
    assert sum(p.length for p in dummies) == 16 * own.identity.vector_bytes  # type: ignore[attr-defined]
    with pytest.raises(LocalProtocolError, match="not drained"):
        window.close()
    for k in range(16 * chunks):
        window.receive_completed(4 + k, 0.0)
    assert not window.drained
    window.send_completed(16 * chunks)
    window.close()
    assert (window.active, window.received) == (False, 3)
    assert window.open(4)[chunks - 1].wr_id == 4


def test_dialects_without_a_barrier_byte() -> None:
    for name in ("v7", "v9w"):
        own = settings("tp-leader", name, identity=V4_FLASH)
        assert DecodeWindow(own, attributes_for(name, "linux")).barrier is None


def test_bulk_windows_follow_the_granted_depth() -> None:
    size = 40 * 16384 + 100
    gate = BulkGate(FLASH, UC, size, granted=16, staged=False)
    numbers, firsts, seen = [], [], 0
    for window in gate.windows():
        numbers.append(window.barrier)
        firsts.append(window.first)
        assert len(window.receives) == len(window.sends) <= 16
        for post in window.receives:
            gate.receive_completed(post.wr_id, post.length, 0.0)
            seen += post.length
        assert not gate.window_done
        gate.send_completed(len(window.sends))
        assert gate.window_done
    assert numbers == [1, 2, 3]
    assert firsts == [0, 16, 32]
    assert seen == size
    assert len(gate) == 3


def test_a_full_window_fits_the_completion_queue_and_goes_in_chains() -> None:
    gate = BulkGate(FLASH, UC, 300 * 16384, granted=1024, staged=False)
    window = next(gate.windows())
    assert len(window.receives) == 256
    assert [len(chain) for chain in window.chains()] == [64] * 4
    with pytest.raises(LocalProtocolError, match="514 completions"):
        check_depth(514)


def test_staged_bulk_uses_the_batch_areas() -> None:
    gate = BulkGate(FLASH, UC, 10 * 16384, granted=4, staged=True)
    first, second, third = gate.windows()
    out, into = (slab_region(FLASH, n).offset for n in ("batch_out", "batch_in"))
    assert [p.offset for p in second.sends] == [out + k * 16384 for k in range(4)]
    assert [p.offset for p in first.receives] == [into + k * 16384 for k in range(4)]
    assert len(third.sends) == 2


def test_bulk_barriers_wrap_and_restart() -> None:
    gate = BulkGate(FLASH, UC, 300 * 16384, granted=1, staged=False)
    values = [w.barrier for w in gate.windows()]
    assert values[0] == 1
    assert values[254:258] == [255, 0, 1, 2]


def test_completions_of_a_bulk_window_are_judged() -> None:
    gate = BulkGate(FLASH, UC, 3 * 16384 + 5, granted=2, staged=False)
    windows = gate.windows()
    next(windows)
    with pytest.raises(RdmaFailed) as caught:
        gate.receive_completed(BIT63 | 1, 100, 0.0)
    text = "ds4-tp: big gate chunk 0 received 100 bytes, expected 16384"
    assert caught.value.failure.text == text
    gate.receive_completed(BIT63 | 1, 16384, 0.0)
    for wr_id in (BIT63 | 1, BIT63 | 3):
        with pytest.raises(RdmaFailed) as caught:
            gate.receive_completed(wr_id, 16384, 0.0)
        index = (wr_id & ~BIT63) - 1
        assert caught.value.failure.text == (
            f"ds4-tp: duplicate or invalid big gate completion {index}"
        )
    assert "1 messages missing" in gate.late(1.0).failure.problem.found


def test_small_batch_regions_send_bulk_over_tcp() -> None:
    assert bulk_over_rdma(FLASH)
    small = settings(
        "tp-leader", identity=replace(V4_FLASH, n_layer=2, gates_per_token=4)
    )
    assert not bulk_over_rdma(small)
    edge = replace(V4_FLASH, n_layer=8, gates_per_token=16)
    assert bulk_over_rdma(settings("tp-leader", identity=edge))
    assert not bulk_over_rdma(settings("tp-leader", "v9w", identity=edge))


def test_a_verify_window_runs_one_layer_ahead() -> None:
    window = VerifyWindow(FLASH, UC, 3)
    assert window.barrier == 0xB5
    posted = window.open()
    into = slab_region(FLASH, "batch_in").offset
    assert posted == [(BIT61 | r + 1, into + r * 16384, 16384) for r in range(3)]
    receives, sends = window.layer(0)
    assert [p.wr_id for p in receives] == [BIT61 | 3 + r + 1 for r in range(3)]
    assert receives[0].offset == into + 8 * 16384
    assert {p.wr_id for p in sends} == {BIT61 | 1}
    for post in posted:
        assert not window.layer_done(0)
        window.receive_completed(post.wr_id, 0.0)
    assert window.layer_done(0)
    with pytest.raises(RdmaFailed, match="verify-block gate out of order"):
        window.receive_completed(receives[1].wr_id, 0.0)
    for ordinal in range(1, 43):
        following, _ = window.layer(ordinal)
        for post in receives:
            window.receive_completed(post.wr_id, 0.0)
        receives = following
    assert receives == []
    assert not window.done
    window.send_completed(3 * 43)
    assert window.done


def test_a_verify_window_has_eight_rows_at_most() -> None:
    with pytest.raises(LocalProtocolError, match="1 to 8 rows"):
        VerifyWindow(FLASH, UC, 9)
    assert VerifyWindow(PRO, UC, 8).chunks == 2


@pytest.mark.parametrize(
    ("due", "found", "clause", "clue"),
    [
        (0xD1, 0xB5, "DS4T-RDMA-61", "verify window"),
        (0xB5, 0xD1, "DS4T-RDMA-90", "decode window"),
        (3, 2, "DS4T-ROBUST-10", "bulk window 2"),
    ],
)
def test_barrier_bytes_are_compared(
    due: int, found: int, clause: str, clue: str
) -> None:
    check_barrier(due, due, 0.0)
    with pytest.raises(RdmaFailed) as caught:
        check_barrier(due, found, 0.0, granted=64)
    problem = caught.value.failure.problem
    assert problem.clause == clause
    assert clue in problem.found
    assert "granted 64 receives" in problem.found
