"""Gates over the simulated queue pair: windows, drain, faults, what an error says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ds4proto_runtime.transport.rdma_gates import RdmaGates

from ds4proto.link.ds4t_gates import GateFailed
from ds4proto.link.rdma_attributes import BULK_ID, VERIFY_ID
from tests.runtime.transport.rig import BULKY, DEEP, TOY, TWO_CHUNKS, WIDE, Rig, pattern

BOTH = pytest.mark.parametrize("qp", ["UC", "RC"])


def failed(found: Any) -> tuple[GateFailed, str]:
    """The failure of a gate, and all it says."""
    assert isinstance(found, GateFailed), found
    return found, "\n".join((*found.failure.log, str(found)))


def first_failure(results: list[list[Any]]) -> list[Any]:
    return next(r for r in results if r != [None, None])


# -- windows ----------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("identity", [TOY, WIDE, TWO_CHUNKS], ids=["toy", "1", "2"])
def test_thirty_tokens_cross_without_a_gap(qp: Any, identity: Any) -> None:
    rig = Rig(identity, qp_type=qp).up()
    for number in range(4 if identity is not TOY else 30):
        rig.token_passes(number)
    count = 4 if identity is not TOY else 30
    for link in rig.links:
        assert link.row_seq == count * 2 * identity.n_layer + 1
    for gates in rig.gates:
        chunks = 2 if identity is TWO_CHUNKS else 1
        pair: Any = gates.brought.pair
        # between gates the receives of exactly 16 gates are posted
        assert len(pair.receives) == 16 * chunks


def test_work_request_ids_are_those_of_the_facts() -> None:
    rig = Rig(TWO_CHUNKS, qp_type="UC").up()
    posts: list[Any] = []
    holder: Any = _Noting(rig.gates[0].brought.pair, posts)
    rig.gates[0]._requests._pair = holder
    rig.fill(0, 1)
    rig.row(0, 0)
    receives = [p for p in posts if p[0] == "receive"]
    sends = [p for p in posts if p[0] == "send"]
    assert receives[:4] == [("receive", n, 16384) for n in (0, 1, 0, 2)]
    assert sends == [("send", 1, 16384), ("send", 1, 16384)]
    assert receives[-1][1] == 17
    posts.clear()
    rig.bulk(0, 16384 * 3 + 5)
    dummies = [p for p in posts if p[0] == "send"][:32]
    assert {wr >> 63 for _, wr, _ in dummies} == {1}
    assert [p[2] for p in dummies] == [16384] * 32
    bulk = [p[1] for p in posts if p[0] == "receive"]
    assert bulk == [BULK_ID | n for n in (1, 2, 3, 4)]
    posts.clear()
    rig.block(2)
    first = [p[1] for p in posts if p[0] == "receive"][:8]
    assert first == [
        0,
        VERIFY_ID | 1,
        0,
        VERIFY_ID | 2,
        0,
        VERIFY_ID | 3,
        0,
        VERIFY_ID | 4,
    ]
    assert {p[1] for p in posts if p[0] == "send"} == {VERIFY_ID | 1}


class _Noting:
    """A queue pair that notes what is posted."""

    def __init__(self, pair: Any, notes: list[Any]) -> None:
        self._pair = pair
        self._notes = notes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pair, name)

    def post_receives(self, memory: Any, posts: Any) -> None:
        self._notes.extend(("receive", p.wr_id, p.length) for p in posts)
        self._pair.post_receives(memory, posts)

    def post_sends(self, memory: Any, posts: Any) -> None:
        self._notes.extend(("send", p.wr_id, p.length) for p in posts)
        self._pair.post_sends(memory, posts)


@BOTH
def test_phases_follow_each_other(qp: Any) -> None:
    rig = Rig(BULKY, qp_type=qp).up()
    rig.token_passes(0)
    assert rig.bulk(0, 5_000_001) == [None, None]
    assert rig.bulk(1, 100) == [None, None]
    assert rig.block(8) == [[None, None]] * 8
    rig.token_passes(1)
    assert rig.block(1) == [[None, None]] * 8
    assert rig.bulk(2, 16384) == [None, None]
    rig.token_passes(2)
    # bulk gates and verify layers share one counter
    assert [link.batch_seq for link in rig.links] == [20, 20]
    assert [link.row_seq for link in rig.links] == [49, 49]


@BOTH
def test_small_regions_send_bulk_over_tcp_and_keep_the_window(qp: Any) -> None:
    rig = Rig(WIDE, qp_type=qp).up()
    rig.token_passes(0)
    before = [len(g.brought.pair.receives) for g in rig.gates]  # type: ignore[attr-defined]
    assert rig.bulk(0, 300_000) == [None, None]
    assert [len(g.brought.pair.receives) for g in rig.gates] == before  # type: ignore[attr-defined]
    rig.token_passes(1)


def test_payloads_in_the_slab_are_sent_from_there() -> None:
    rig = Rig(BULKY, qp_type="RC", verify_window=False).up()
    assert rig.block(3) == [[None, None]] * 8
    staged: list[Any] = []
    for gates in rig.gates:
        stage = gates._stage

        def noted(*words: Any, to: Any = stage) -> None:
            staged.append(words)
            to(*words)

        gates._stage = noted  # type: ignore[method-assign]
    assert rig.block(2) == [[None, None]] * 8
    assert not staged
    rig.bulk(0, 100)
    assert len(staged) == 2


def test_a_verify_window_sends_no_header() -> None:
    for on, nbytes in ((True, 2), (False, 8 * (16 + 1))):
        rig = Rig(BULKY, qp_type="RC", verify_window=on).up()
        sent: list[bytes] = []
        socks = [g._sockets for g in rig.gates]
        data = socks[0]._data
        socks[0]._data = _Tap(data, sent)  # type: ignore[assignment]
        rig.token_passes(0)
        rig.block(1)
        # 0xD1 for the decode window, then 0xB5 alone, or a header and a barrier each
        assert len(b"".join(sent)) == (nbytes if on else nbytes + 1)
        assert sent[0] == b"\xd1"
        if on:
            assert sent[1] == b"\xb5"


class _Tap:
    def __init__(self, sock: Any, sent: list[bytes]) -> None:
        self._sock = sock
        self._sent = sent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def send(self, data: bytes) -> int:
        count: int = self._sock.send(data)
        self._sent.append(data[:count])
        return count

    def sendmsg(self, views: Any) -> int:
        count: int = self._sock.sendmsg(views)
        self._sent.append(b"".join(bytes(v) for v in views)[:count])
        return count


# -- messages that are late or lost --------------------------------------------------


def test_a_late_receive_delays_rc_and_breaks_uc() -> None:
    """Gate 5 meets no receive: the 6th of the pair, after the one of the warm-up."""
    rig = Rig(qp_type="RC").up()
    rig.devices[1].late_receives = {6: 120e-6}
    for number in range(3):
        rig.token_passes(number)
    assert rig.fabric.rnr_waits == {0.00064: 1}
    rig = Rig(qp_type="UC").up()
    rig.devices[1].late_receives = {6: 120e-6}
    rig.token_passes(0)
    leader, worker = first_failure(rig.token(1))
    _, text = failed(worker)
    assert "seq 5 never arrived, transport UC, receive posted 120 us late" in text
    assert "timeout waiting gate seq 5 (recv_done 4)" in text
    assert leader is None
    assert "path MTU 1024, GID index 1, hop limit 1, depths 1024/1024" in text


def test_a_lost_uc_message_shifts_all_later_ones() -> None:
    """Nothing on the wire numbers a message: the next one is taken in its place."""
    rig = Rig(qp_type="UC").up()
    rig.token_passes(0)
    lost = 6  # warm-up, four gates, then the fifth
    rig.fabric.verdict = lambda way, n: (
        "drop" if (way, n) == ("rxe0>rxe1", lost) else "pass"
    )
    rig.fill(0, 1)
    # the worker's message arrives; the leader runs ahead with the next gate
    leader, worker = rig.gates
    rig.fill(1, 2)

    def ahead() -> Any:
        yield from leader.row_steps(0, 0)
        yield from leader.row_steps(0, 1)

    found = rig.together(ahead(), worker.row_steps(0, 0))
    assert found[1] is None
    assert bytes(rig.slabs[1].row_in[0]) == bytes(rig.slabs[0].row_out[1])
    _, text = failed(found[0])
    assert "seq 6 never arrived, transport UC" in text


@BOTH
def test_one_direction_dies_in_the_middle(qp: Any) -> None:
    rig = Rig(qp_type=qp, gate_seconds=2.0).up()
    rig.token_passes(0)
    rig.fabric.dead.add("rxe0>rxe1")
    rig.fill(0, 1)
    leader, worker = rig.row(0, 0)
    error, text = failed(worker)
    if qp == "UC":
        # the leader's own gate is whole: the worker's data has come
        assert leader is None
        assert "timeout waiting gate seq 5 (recv_done 4)" in text
        assert "seq 5 never arrived, transport UC" in text
    else:
        assert "completion RETRY_EXC_ERR: the peer's port acknowledged nothing" in text
        assert leader is None
    assert error.diagnosis.token == 2
    assert (error.diagnosis.layer, error.diagnosis.name) == (0, "ATTN row gate")
    assert error.diagnosis.seq == 5
    assert (error.diagnosis.received, error.diagnosis.expected) == (0, 256)
    assert error.diagnosis.stopped == "the peer"
    assert "before the gate, send" in text
    with pytest.raises(GateFailed):
        next(rig.gates[1].row_steps(0, 1))


def test_a_timer_of_0_costs_655_ms_a_miss() -> None:
    times = {}
    for timer in (12, 0):
        rig = Rig(qp_type="RC", overrides={"min_rnr_timer": timer}, gate_seconds=5.0)
        rig.up()
        rig.devices[1].late_receives = {7: 1e-6, 9: 1e-6, 11: 1e-6}
        spans = []
        for number in range(4):
            for slot in range(4):
                begun = rig.fabric.now
                rig.fill(slot, number)
                assert rig.row(slot // 2, slot % 2) == [None, None]
                spans.append(rig.fabric.now - begun)
        times[timer] = sorted(spans)[-3:]
        assert sum(span > 0.5 for span in spans) == (3 if timer == 0 else 0)
        assert set(rig.fabric.rnr_waits) == {0.65536 if timer == 0 else 0.00064}
    assert all(0.65 < span < 0.66 for span in times[0])
    assert all(span < 0.001 for span in times[12])


def test_a_late_receive_with_the_timer_at_0_outlasts_the_gate() -> None:
    rig = Rig(qp_type="RC", overrides={"min_rnr_timer": 0}, gate_seconds=0.5).up()
    rig.devices[1].late_receives = {3: 1e-6}
    _, text = failed(first_failure(rig.token())[1])
    assert "min_rnr_timer 0" in text


# -- queues that hold less than they say ----------------------------------------------


def test_a_provider_that_accepts_63_of_128() -> None:
    rig = Rig(DEEP, qp_type="RC").up()
    for device, gates in zip(rig.devices, rig.gates, strict=True):
        device.accepts = (63, 63)
        gates.brought.pair.granted = (128, 128)
        gates._requests.granted = 128
    rig.token_passes(0)  # a decode window of 16 fits
    for result in rig.bulk(0, 200 * 16384):
        _, text = failed(result)
        assert "posted 63 of 128 receives: the provider granted 128" in text
        assert "--transport tcp" in text


def test_sends_beyond_what_is_accepted_wait_for_completions() -> None:
    rig = Rig(BULKY, qp_type="RC").up()
    for device in rig.devices:
        device.accepts = (63, 1 << 20)
    assert rig.bulk(0, 200 * 16384) == [None, None]


def test_completions_that_are_lost_are_counted() -> None:
    """A queue that echoes 512 and stores 62 of the 65 of a v7 round."""
    rig = Rig(BULKY, "v7", qp_type="RC", gate_seconds=1.0).up()
    rig.devices[1].cq_holds = 63
    held: Any = _Held(rig.gates[1].brought.pair, 2e-2, rig.fabric)
    rig.gates[1]._requests._pair = held
    leader, worker = rig.bulk(0, 64 * 16384)
    _, text = failed(worker)
    assert "2 completions lost" in text
    assert "timeout in bulk window" in text
    assert leader is None


class _Held(_Noting):
    """A rank that polls late: everything has arrived by then."""

    def __init__(self, pair: Any, seconds: float, fabric: Any) -> None:
        super().__init__(pair, [])
        self._until = fabric.now + seconds
        self._fabric = fabric

    def poll(self, most: int = 16) -> list[Any]:
        if self._fabric.now < self._until:
            return []
        found: list[Any] = self._pair.poll(most)
        return found


def test_a_single_lost_completion() -> None:
    rig = Rig(qp_type="RC", gate_seconds=1.0).up()
    rig.token_passes(0)
    pair: Any = rig.gates[1].brought.pair
    rig.devices[1].lost_completions = {pair._raised + n for n in range(1, 3)}
    rig.fill(0, 1)
    _, worker = rig.row(0, 0)
    _, text = failed(worker)
    assert "2 completions lost: their requests ran" in text


def test_no_completion_is_called_lost_when_a_message_is() -> None:
    rig = Rig(qp_type="UC", gate_seconds=1.0).up()
    rig.token_passes(0)
    rig.fabric.dead.add("rxe0>rxe1")
    _, worker = rig.row(0, 0)
    assert "completions lost" not in failed(worker)[1]


# -- ranks that differ ----------------------------------------------------------------


@BOTH
def test_depths_that_differ_show_at_a_barrier(qp: Any) -> None:
    rig = Rig(DEEP, qp_type=qp, gate_seconds=0.5).up()
    rig.gates[1]._requests.granted = 64
    leader, worker = rig.bulk(0, 100 * 16384)
    _, text = failed(worker)
    assert "barrier 0x02 failed" in text
    assert "this side was granted 64 receives" in text
    assert "compare the granted depths" in text
    # with 128 messages the small side wants a second byte, the other a next gate
    assert leader is None or isinstance(leader, GateFailed)


def test_a_verify_window_on_one_side() -> None:
    rig = Rig(
        BULKY,
        qp_type="RC",
        options=({"verify_window": False}, {}),
        gate_seconds=0.5,
    ).up()
    leader, worker = rig.block(2)[0]
    assert isinstance(worker, GateFailed)
    assert "DS4_TP_DISABLE_VERIFY_WINDOW" in failed(worker)[1]
    assert isinstance(leader, GateFailed)


def test_another_barrier_byte_is_named() -> None:
    rig = Rig(BULKY, qp_type="RC", gate_seconds=0.5).up()
    own, _ = rig.slabs[0].batch(0, 1)
    own[:] = pattern(len(own), 1)
    leader, worker = rig.together(
        rig.gates[0].row_steps(0, 0), rig.gates[1].batch_steps(0, 1)
    )
    assert "barrier mismatch: got 0xb5, want 0xd1" in failed(leader)[1]
    assert "barrier mismatch: got 0xd1, want 0xb5" in failed(worker)[1]


def test_the_wrong_order_is_our_own_mistake() -> None:
    rig = Rig().up()
    with pytest.raises(Exception, match="layer 1 gate 1 vs seq 1"):
        rig.gates[0].row(1, 1)


# -- peers that go away, links that go stale ----------------------------------------


def test_a_peer_that_ends_is_found_before_the_timeout() -> None:
    rig = Rig(gate_seconds=30.0).up()
    rig.token_passes(0)
    rig.sockets[1].close()  # the worker's end of the control connection
    (leader,) = rig.together(rig.gates[0].row_steps(0, 0))
    _, text = failed(leader)
    assert "ds4-tp: peer disconnected during RDMA gate" in text
    assert rig.fabric.now < 1.0


def test_a_link_that_went_stale_is_called_so_and_set_up_again() -> None:
    rig = Rig(gate_seconds=1.0).up()
    rig.token_passes(0)
    rig.fabric.stale_after = 600.0
    rig.fabric.run_until(rig.fabric.now + 1800.0)
    rig.fill(0, 1)
    _, worker = rig.row(0, 0)
    error, text = failed(worker)
    assert "stale link: idle for 1800 s before this gate" in text
    assert "set the queue pair up again" in error.diagnosis.next_step
    for gates in rig.gates:
        gates.close()
    rig.fabric.stale_after = None
    rig.up().token_passes(1)


# -- who sends first -----------------------------------------------------------------


def late_worker(rig: Rig) -> Any:
    """A worker as recorded v9 peers are: it posts its window at its own first gate."""
    gates = rig.gates[1]
    pair: Any = gates.brought.pair
    pair.receives.clear()
    gates._window.active = False
    gates._requests.posted_at.clear()
    gates._requests.unseen = 0
    gates._hold = False
    return gates


def delayed(rig: Rig, gates: RdmaGates, seconds: float) -> Any:
    due = rig.fabric.now + seconds
    while rig.fabric.now < due:
        yield due
    for slot in range(4):
        yield from gates.row_steps(slot // 2, slot % 2)


def at_once(gates: RdmaGates) -> Any:
    for slot in range(4):
        yield from gates.row_steps(slot // 2, slot % 2)


def one_token(rig: Rig, worker_delay: float) -> list[Any]:
    for slot in range(4):
        rig.fill(slot, slot)
    return rig.together(at_once(rig.gates[0]), delayed(rig, rig.gates[1], worker_delay))


def arrived(rig: Rig, rank: int) -> list[bool]:
    """Which slots of a rank hold what the other one sent from there."""
    mine, theirs = rig.slabs[rank], rig.slabs[1 - rank]
    return [bytes(mine.row_in[s]) == bytes(theirs.row_out[s]) for s in range(4)]


def test_a_v9_worker_that_posts_late_loses_the_first_message() -> None:
    """As recorded: message k + 1 is taken for gate k, and gate 4 times out."""
    rig = Rig(dialect="v9w", qp_type="UC", gate_seconds=1.0).up()
    late_worker(rig)
    leader, worker = one_token(rig, 0.4)
    assert leader is None
    _, text = failed(worker)
    assert "timeout waiting gate seq 4 (recv_done 3)" in text
    assert arrived(rig, 1) == [False, False, False, False]
    assert bytes(rig.slabs[1].row_in[0]) == bytes(rig.slabs[0].row_out[1])
    assert "receive posted 400.0 ms late" in text


def test_on_rc_the_same_worker_is_waited_for() -> None:
    rig = Rig(dialect="v9w", qp_type="RC", gate_seconds=1.0).up()
    late_worker(rig)
    assert one_token(rig, 0.4) == [None, None]
    assert arrived(rig, 1) == [True] * 4
    assert rig.fabric.rnr_waits[0.00064] > 100


@BOTH
@pytest.mark.parametrize("delay", [0.0, 0.4, 0.9])
def test_safe_arming_carries_every_message(qp: Any, delay: float) -> None:
    rig = Rig(dialect="v9w", qp_type=qp, gate_seconds=1.0).up()
    assert one_token(rig, delay) == [None, None]
    assert arrived(rig, 0) == arrived(rig, 1) == [True] * 4
    assert not rig.fabric.rnr_waits


def test_a_leader_waits_for_a_foreign_worker() -> None:
    """Ours holds back until the worker's first message shows that it has posted."""
    rig = Rig(
        dialect="v9w",
        qp_type="UC",
        gate_seconds=1.0,
        options=({"first_sender": "tp-worker"}, {}),
    ).up()
    late_worker(rig)
    assert one_token(rig, 0.4) == [None, None]
    assert arrived(rig, 0) == arrived(rig, 1) == [True] * 4


def test_random_losses_never_hang_and_never_lie() -> None:
    """A seeded half hour of loss: RC carries on, UC ends with a reason."""
    for qp in ("UC", "RC"):
        rng = np.random.default_rng(5)
        rig = Rig(
            qp_type=qp,  # type: ignore[arg-type]
            gate_seconds=3.0,
            overrides={"retry_cnt": 6, "timeout": 10} if qp == "RC" else {},
        ).up()
        rig.fabric.verdict = lambda *_, rng=rng: (  # type: ignore[misc]
            "drop" if rng.random() < 0.2 else "pass"
        )
        if qp == "RC":
            for number in range(20):
                rig.token_passes(number)
            continue
        results = [r for n in range(5) for r in rig.token(n)]
        ends = [f for r in results for f in r if isinstance(f, GateFailed)]
        assert ends
        assert all("never arrived" in failed(f)[1] for f in ends[:1])
