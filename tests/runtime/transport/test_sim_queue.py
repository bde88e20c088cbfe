"""The simulated queue pairs against what was seen on soft-RoCE, case by case."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Any, Literal

import pytest
from ds4proto_runtime.transport.sim import Fabric, SimDevice, ipv4_gid
from ds4proto_runtime.transport.sim_queue import SimQueuePair
from ds4proto_runtime.transport.verbs import Post, VerbsError, create_queue_pair

from ds4proto.link.rdma_attributes import QpAttributes

Kind = Literal["UC", "RC"]
BOTH = pytest.mark.parametrize("kind", ["UC", "RC"])
SIZE = 16384


class Ends:
    """Two queue pairs with one buffer each: sends from 0, receives at SIZE."""

    def __init__(self, kind: Kind, *, connect: bool = True, **attributes: Any) -> None:
        self.fabric = Fabric()
        words = {"qp_type": kind, "depths": ((64, 32),), **attributes}
        self.attributes = QpAttributes(**words)
        self.devices = [
            SimDevice(self.fabric, f"rxe{n}", [ipv4_gid(1, f"192.0.2.{n + 1}")])
            for n in range(2)
        ]
        self.buffers = [bytearray(4 * SIZE) for _ in range(2)]
        self.memories = [
            d.register(memoryview(b))
            for d, b in zip(self.devices, self.buffers, strict=True)
        ]
        self.pairs: list[SimQueuePair] = []
        for device in self.devices:
            pair = create_queue_pair(device, self.attributes)
            assert isinstance(pair, SimQueuePair)
            self.pairs.append(pair)
        if connect:
            self.connect()

    def connect(self, psns: tuple[int, int] = (100, 200), skew: int = 0) -> None:
        for n, pair in enumerate(self.pairs):
            pair.to_init()
            other = 1 - n
            pair.to_rtr(
                qpn=self.pairs[other].number,
                psn=psns[other] + (skew if n else 0),
                gid=self.devices[other].gids[0].gid,
                lid=0,
                gid_index=1,
                mtu=3,
            )
            pair.to_rts(psn=psns[n])

    def send(self, n: int, wr_id: int, length: int = SIZE, data: bytes = b"") -> None:
        self.buffers[n][: len(data)] = data
        self.pairs[n].post_sends(self.memories[n], [Post(wr_id, 0, length)])

    def receive(self, n: int, wr_id: int, length: int = SIZE) -> None:
        self.pairs[n].post_receives(self.memories[n], [Post(wr_id, SIZE, length)])

    def settle(self, seconds: float = 1.0) -> list[list[tuple[int, str]]]:
        self.fabric.run_until(self.fabric.now + seconds)
        return [[(c.wr_id, c.status) for c in p.poll(64)] for p in self.pairs]


def refused(call: Any, number: int = errno.EINVAL) -> None:
    with pytest.raises(VerbsError) as caught:
        call()
    assert caught.value.number == number


@BOTH
def test_the_order_of_states_is_kept(kind: Kind) -> None:
    ends = Ends(kind, connect=False)
    pair = ends.pairs[0]
    words = {"qpn": 18, "psn": 0, "gid": ends.devices[1].gids[0].gid, "lid": 0}
    refused(lambda: pair.to_rtr(**words, gid_index=1, mtu=3))
    refused(lambda: ends.receive(0, 1))
    pair.to_init()
    refused(lambda: pair.to_rtr(**words, gid_index=1, mtu=7))
    refused(lambda: pair.to_rtr(**words, gid_index=4, mtu=3))
    refused(lambda: ends.send(0, 1))
    refused(lambda: pair.to_rts(psn=0))


@BOTH
def test_a_message_with_its_receive(kind: Kind) -> None:
    ends = Ends(kind)
    ends.receive(1, 7)
    ends.send(0, 3, data=b"partial")
    assert ends.settle() == [[(3, "SUCCESS")], [(7, "SUCCESS")]]
    assert ends.buffers[1][SIZE : SIZE + 7] == b"partial"


def test_a_uc_message_without_a_receive_is_gone_and_later_ones_are_not() -> None:
    ends = Ends("UC")
    ends.send(0, 1)
    assert ends.settle() == [[(1, "SUCCESS")], []]
    ends.receive(1, 7)
    ends.send(0, 2)
    assert ends.settle() == [[(2, "SUCCESS")], [(7, "SUCCESS")]]
    (lost,) = ends.pairs[1].evidence()
    assert (lost.number, lost.wr_id) == (1, 7)
    assert lost.late == pytest.approx(1.0, abs=1e-4)


def test_on_a_thunderbolt_port_such_a_message_stops_its_direction() -> None:
    ends = Ends("UC")
    ends.devices[1].uc_stops = True
    ends.send(0, 1)
    ends.settle()
    ends.receive(1, 7)
    ends.send(0, 2)
    ends.receive(0, 8)
    ends.send(1, 3)
    assert ends.settle() == [[(2, "SUCCESS"), (8, "SUCCESS")], [(3, "SUCCESS")]]


def test_rc_waits_for_the_receive_and_repeats() -> None:
    ends = Ends("RC", rnr_retry=7, min_rnr_timer=12)
    ends.send(0, 1)
    assert ends.settle(0.01) == [[], []]
    ends.receive(1, 7)
    assert ends.settle(0.01) == [[(1, "SUCCESS")], [(7, "SUCCESS")]]
    assert set(ends.fabric.rnr_waits) == {0.00064}


def test_rc_gives_up_after_a_finite_count() -> None:
    ends = Ends("RC", rnr_retry=1)
    ends.send(0, 1)
    assert ends.settle() == [[(1, "RNR_RETRY_EXC_ERR")], []]
    assert ends.pairs[0].state == "ERR"


def test_a_timer_field_of_0_is_the_longest_wait() -> None:
    ends = Ends("RC", rnr_retry=7, min_rnr_timer=0)
    ends.send(0, 1)
    ends.settle(0.001)
    ends.receive(1, 7)
    assert ends.settle(0.6) == [[], []]
    assert ends.settle(0.1) == [[(1, "SUCCESS")], [(7, "SUCCESS")]]


@pytest.mark.parametrize(("kind", "sender"), [("UC", "SUCCESS"), ("RC", "REM_OP_ERR")])
def test_a_receive_that_is_too_short(kind: Kind, sender: str) -> None:
    ends = Ends(kind)
    ends.receive(1, 7, 4096)
    ends.send(0, 1)
    assert ends.settle() == [[(1, sender)], [(7, "LOC_QP_OP_ERR")]]
    assert ends.pairs[1].state == "ERR"


@BOTH
def test_a_send_outside_the_memory(kind: Kind) -> None:
    ends = Ends(kind)
    ends.pairs[0].post_sends(ends.memories[0], [Post(1, 4 * SIZE - 8, 16)])
    assert ends.settle()[0] == [(1, "LOC_QP_OP_ERR")]
    assert ends.pairs[0].state == "ERR"


def test_a_later_first_number_loses_an_rc_message_but_not_a_uc_one() -> None:
    uc = Ends("UC", connect=False)
    uc.connect(skew=5)
    uc.receive(1, 7)
    uc.send(0, 1)
    assert uc.settle() == [[(1, "SUCCESS")], [(7, "SUCCESS")]]
    rc = Ends("RC", connect=False)
    rc.connect(skew=5)
    rc.receive(1, 7)
    rc.send(0, 1, 1024)
    assert rc.settle() == [[(1, "SUCCESS")], []]  # taken for a duplicate


def test_one_direction_dropped() -> None:
    for kind in ("UC", "RC"):
        ends = Ends(kind, timeout=10, retry_cnt=2)  # type: ignore[arg-type]
        ends.fabric.dead.add("rxe0>rxe1")
        for n in (0, 1):
            ends.receive(n, 10 * n + 10)
            ends.send(n, n + 1)
        first, second = ends.settle()
        if kind == "UC":
            assert sorted(first) == [(1, "SUCCESS"), (10, "SUCCESS")]
            assert second == [(2, "SUCCESS")]
        else:
            # the data of the other side comes, its acknowledgement does not
            assert (10, "SUCCESS") in first
            assert (1, "RETRY_EXC_ERR") in first
            assert (2, "RETRY_EXC_ERR") in second


def test_a_lost_packet_is_repeated_on_rc_and_lost_on_uc() -> None:
    for kind, arrived in (("UC", []), ("RC", [(7, "SUCCESS")])):
        ends = Ends(kind)  # type: ignore[arg-type]
        ends.fabric.verdict = lambda _, number: "drop" if number == 1 else "pass"
        ends.receive(1, 7)
        ends.send(0, 1)
        assert ends.settle() == [[(1, "SUCCESS")], arrived]


def test_a_packet_that_comes_twice() -> None:
    for kind, length, count in (
        ("UC", 256, 2), ("UC", SIZE, 0), ("RC", 256, 1), ("RC", SIZE, 1),
    ):  # fmt: skip
        ends = Ends(kind)  # type: ignore[arg-type]
        ends.fabric.verdict = lambda *_: "twice"
        ends.receive(1, 7)
        ends.receive(1, 8)
        ends.send(0, 1, length)
        assert len(ends.settle()[1]) == count, (kind, length)


def test_a_held_message_arrives_when_it_is_released() -> None:
    ends = Ends("UC")
    ends.fabric.verdict = lambda _, number: "hold" if number == 1 else "pass"
    for wr_id in (7, 8):
        ends.receive(1, wr_id)
    ends.send(0, 1, data=b"a")
    ends.send(0, 2, data=b"b")
    assert ends.settle()[1] == [(7, "SUCCESS")]
    ends.fabric.release()
    assert ends.settle()[1] == [(8, "SUCCESS")]


@BOTH
def test_posted_work_is_flushed_in_the_error_state(kind: Kind) -> None:
    ends = Ends(kind)
    ends.receive(0, 7)
    ends.receive(0, 8)
    ends.pairs[0].to_error()
    assert ends.settle()[0] == [(7, "WR_FLUSH_ERR"), (8, "WR_FLUSH_ERR")]


def test_a_peer_that_is_gone() -> None:
    for kind, status in (("UC", "SUCCESS"), ("RC", "RETRY_EXC_ERR")):
        ends = Ends(kind, timeout=10, retry_cnt=1)  # type: ignore[arg-type]
        ends.pairs[1].close()
        ends.send(0, 1)
        assert ends.settle()[0] == [(1, status)]


def test_soft_roce_repeats_without_end_at_7() -> None:
    for endless, found in ((True, []), (False, [(1, "RETRY_EXC_ERR")])):
        ends = Ends("RC", timeout=10, retry_cnt=7)
        ends.devices[0].endless_retry = endless
        ends.fabric.dead.add("rxe0>rxe1")
        ends.send(0, 1)
        assert ends.settle(3.0)[0] == found


def test_the_limits_of_a_device() -> None:
    ends = Ends("UC")
    device = ends.devices[0]
    device.accepts = (63, 3)
    for wr_id in (1, 2, 3):
        ends.receive(0, wr_id)
    refused(lambda: ends.receive(0, 4), errno.ENOMEM)
    device.qp_cap = 1
    refused(lambda: device.create(ends.attributes, (1, 1)), errno.EMFILE)
    device.qp_cap = 9
    device.types = {"RC"}
    refused(lambda: device.create(ends.attributes, (1, 1)), errno.EOPNOTSUPP)
    device.types, device.refuses_above = {"UC"}, (256, 64)
    ladder = replace(ends.attributes, depths=((1024, 1024), (256, 64)))
    assert create_queue_pair(device, ladder).granted == (256, 64)


def test_a_message_over_the_limit_vanishes() -> None:
    ends = Ends("UC")
    ends.devices[0].message_limit = SIZE
    for wr_id, length in ((7, SIZE + 1), (8, SIZE)):
        ends.receive(1, wr_id, SIZE)
        ends.send(0, wr_id, length)
    assert ends.settle()[1] == [(7, "SUCCESS")]


def test_a_completion_queue_that_holds_fewer_than_granted() -> None:
    ends = Ends("UC")
    ends.devices[1].cq_holds = 2
    for wr_id in (1, 2, 3):
        ends.receive(1, wr_id)
        ends.send(0, wr_id)
    ends.fabric.run_until(1.0)
    assert [c.wr_id for c in ends.pairs[1].poll(9)] == [1, 2]
    assert ends.pairs[1].overflowed == 1
    ends.devices[1].lost_completions = {4}
    ends.receive(1, 4)
    ends.send(0, 4)
    assert ends.settle()[1] == []


def test_routes_between_entries() -> None:
    """Both ends announce an entry and send from it; other pairs hear nothing."""
    cases = [
        ("192.0.2.2", "RoCE v2", True),
        ("198.51.100.2", "RoCE v2", False),  # another subnet
        ("192.0.2.2", "RoCE v1", False),
    ]
    for address, kind, hears in cases:
        ends = Ends("UC", connect=False)
        ends.devices[1].gids = [ipv4_gid(1, address, kind)]
        ends.connect()
        ends.receive(1, 7)
        ends.send(0, 1)
        assert bool(ends.settle()[1]) is hears, (address, kind)
