"""RDMA bring-up: recorded exchanges, the retry table, and what is checked."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest

from ds4proto.link.ds4t_rdma_bringup import RdmaBringUp
from ds4proto.link.ds4t_rdma_info import RdmaInfo, check_info, decode_message
from ds4proto.link.ds4t_rdma_steps import (
    ArmWarmUp,
    ConnectQueuePair,
    RdmaReady,
    RecreateQueuePair,
    Step,
    WarmUp,
    holds_first,
    warm_outcome,
)
from ds4proto.link.ds4t_texts import LocalProtocolError, PairFailed
from ds4proto.link.rdma_attributes import QpAttributes, attributes_for
from ds4proto.schema.registry import frame, parse
from tests.link.ds4t.captured import frames_of, load
from tests.link.ds4t.pair import settings

MAPPED = bytes.fromhex("00000000000000000000ffff0a630002")
INFO = RdmaInfo(qpn=17, psn=0x1234, mtu=4, gid=MAPPED, reliable=True)
PEER = replace(INFO, qpn=18)
RC = attributes_for("v14", "linux")
UC = attributes_for("v14", "macos")

RECORDED = [
    "v9_rdma_generic", "v9_rdma_generic_decode", "v9_rdma_logits_bit",
    "v9_rdma_mlx5_waves", "v9_rdma_odl_async", "v9_rdma_worker_dies",
    "v9_rdma_worker_dies_in_bulk",
]  # fmt: skip


def info_of(data: bytes, dialect: str) -> RdmaInfo:
    return RdmaInfo.of(
        parse(frame("DS4T.RDMA_INFO", dialect=dialect), data, dialect=dialect)
    )


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("role", ["tp-leader", "tp-worker"])
def test_the_recorded_bring_up_is_reproduced(name: str, role: Any) -> None:
    captured = load(name)
    size = captured.hello_size
    streams = [captured.control.from_leader[size:], captured.control.from_worker[size:]]
    own, theirs = streams if role == "tp-leader" else streams[::-1]
    (_, info), (_, ready) = frames_of(own)[:2]
    machine = RdmaBringUp(
        captured.settings(role), attributes_for("v9w", "linux"), need_ipv4=True
    )
    out = b"".join(machine.prepared(info_of(info, "v9w"), 0.0))
    machine.receive_data(theirs, 0.0)
    (connect,) = machine.events()
    assert isinstance(connect, ConnectQueuePair)
    assert connect.arm_window
    assert connect.path_mtu == 3
    out += b"".join(machine.connected(0.0))
    assert out == info + ready
    (done,) = machine.events()
    assert isinstance(done, RdmaReady)
    assert done.hold_first == (role == "tp-worker")
    assert done.rest == theirs[72:]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("decode_max_4095", "tp rdma: invalid negotiated decode message size 4095"),
        ("info_44", "tp rdma: info recv failed"),
        ("info_52", "tp rdma: info recv failed"),
        ("ready_payload", "tp rdma: ready barrier failed"),
        ("silent", "tp rdma: info recv failed"),
    ],
)
def test_recorded_refusals(name: str, text: str) -> None:
    captured = load(f"v9_to_leader_rdma_{name}")
    size = captured.hello_size
    own = frames_of(captured.control.from_leader[size:])
    machine = RdmaBringUp(
        captured.settings("tp-leader"), attributes_for("v9w", "linux")
    )
    machine.prepared(info_of(own[0][1], "v9w"), 0.0)
    machine.receive_data(captured.control.from_worker[size:], 0.0)
    events = list(machine.events())
    if events and isinstance(events[0], ConnectQueuePair):
        machine.connected(0.0)
        events = list(machine.events())
    if not events:
        due = machine.deadline()
        assert due is not None
        machine.timeout(due)
        events = list(machine.events())
        assert name == "silent"  # the recorded leader waits for ever
    else:
        assert text in captured.log("leader")
    assert [e.text for e in events if isinstance(e, PairFailed)] == [text]
    assert machine.step is Step.FAILED


def test_a_large_decode_message_is_cut_by_the_own_limit() -> None:
    captured = load("v9_to_leader_rdma_decode_max_huge")
    size = captured.hello_size
    mine = info_of(frames_of(captured.control.from_leader[size:])[0][1], "v9w")
    theirs = info_of(frames_of(captured.control.from_worker[size:])[0][1], "v9w")
    assert mine.decode_max_msg == 16384
    assert theirs.decode_max_msg > 131072
    assert decode_message(mine, theirs) == 16384


class Both:
    """Two machines on one control connection."""

    def __init__(
        self, attributes: QpAttributes, dialect: str = "v14", **more: Any
    ) -> None:
        self.a = RdmaBringUp(settings("tp-leader", dialect), attributes, **more)
        self.b = RdmaBringUp(settings("tp-worker", dialect), attributes, **more)

    def step(self, name: str, *values: Any) -> tuple[list[Any], list[Any]]:
        for mine, theirs, value in zip(
            (self.a, self.b), (self.b, self.a), values or (None, None), strict=True
        ):
            call = getattr(mine, name)
            data = call(0.0) if value is None else call(value, 0.0)
            theirs.receive_data(b"".join(data), 0.0)
        return list(self.a.events()), list(self.b.events())

    def start(self) -> None:
        self.step("prepared", INFO, PEER)
        self.step("connected")
        arm, _ = self.step("armed") if self.a.step is Step.ARM else ([], [])
        assert not arm or isinstance(arm[0], WarmUp)


def test_v14_over_rc_warms_up_once() -> None:
    both = Both(RC)
    (connect,), _ = both.step("prepared", INFO, PEER)
    assert (connect.peer.qpn, connect.path_mtu, connect.arm_window) == (18, 4, False)
    (arm,), _ = both.step("connected")
    assert arm == ArmWarmUp()
    (warm,), (theirs,) = both.step("armed")
    assert warm == theirs == WarmUp(1, True, 0.75)
    (done,), (other,) = both.step("warmed", True, True)
    assert isinstance(done, RdmaReady)
    assert not done.hold_first
    assert not other.hold_first


def test_rc_does_not_try_again() -> None:
    both = Both(RC)
    both.start()
    (failure,), (other,) = both.step("warmed", True, False)
    assert failure.text == "tp rdma: warm-up failed after 1 attempts (recv 1, peer 0)"
    assert other.text == "tp rdma: warm-up failed after 1 attempts (recv 0, peer 1)"


def test_uc_recreates_the_pair_three_times() -> None:
    both = Both(UC)
    own = replace(INFO, reliable=False)
    peer = replace(PEER, reliable=False)
    both.step("prepared", own, peer)
    for setup in range(1, 5):
        both.step("connected")
        (warm,), _ = both.step("armed")
        for attempt in range(1, 21):
            assert warm.attempt == attempt
            assert warm.seconds == pytest.approx(0.1)
            (warm, *_), (other, *_) = both.step("warmed", True, False)
            if attempt < 20:
                # the leader's message is the one that is missing: it goes on sending
                assert (warm.send, other.send) == (True, False)
        if setup < 4:
            assert isinstance(warm, RecreateQueuePair)
            assert warm.setup_attempt == setup + 1
            assert "recreating the queue pair (setup attempt" in warm.log
            both.step("prepared", own, peer)
        else:
            assert isinstance(warm, PairFailed)
            assert "after 20 attempts (recv 1, peer 0)" in warm.text


@pytest.mark.parametrize(
    ("qp_type", "flags", "attempt", "setup", "recreates", "outcome"),
    [
        ("UC", (True, True), 1, 1, True, "ready"),
        ("UC", (True, False), 19, 1, True, "again"),
        ("UC", (False, True), 20, 1, True, "recreate"),
        ("UC", (False, False), 20, 3, True, "recreate"),
        ("UC", (False, False), 20, 4, True, "fail"),
        ("UC", (False, False), 20, 1, False, "fail"),
        ("RC", (True, False), 1, 1, True, "fail"),
        ("RC", (True, True), 1, 1, False, "ready"),
    ],
)
def test_the_decision_table(
    qp_type: Any, flags: tuple[bool, bool], attempt: int, setup: int,
    recreates: bool, outcome: str,
) -> None:  # fmt: skip
    assert warm_outcome(qp_type, *flags, attempt, setup, recreates=recreates) == outcome


def test_who_waits_for_the_first_message() -> None:
    table = {
        ("tp-leader", "tp-leader", False): False,
        ("tp-worker", "tp-leader", False): True,
        ("tp-leader", "tp-worker", False): True,
        ("tp-worker", "tp-worker", False): False,
        ("tp-worker", "tp-leader", True): False,
    }
    for (role, first, barrier), expected in table.items():
        assert holds_first(role, first, barrier=barrier) == expected  # type: ignore[arg-type]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"reliable": False}, "tp rdma: incompatible queue-pair transport"),
    ({"link_layer": 1}, "tp rdma: incompatible queue-pair transport"),
    ({"mtu": 0}, "tp rdma: invalid peer MTU"),
    ({"mtu": 6}, "tp rdma: invalid peer MTU"),
    ({"qpn": 0}, "tp rdma: peer qpn 0x0 is out of range"),
    ({"psn": 1 << 24}, "tp rdma: peer psn 0x1000000 is out of range"),
    ({"gid": bytes(16)}, "zero"),
    ({"gid": bytes.fromhex("fe80" + "00" * 14)}, "link-local"),
    ({"gid": bytes.fromhex("2001" + "00" * 13 + "01")}, "not IPv4-mapped"),
]


@pytest.mark.parametrize(("change", "text"), BAD)
def test_an_info_is_judged_before_the_queue_pair_is_touched(
    change: dict[str, Any], text: str
) -> None:
    machine = RdmaBringUp(settings("tp-leader"), RC)
    machine.prepared(INFO, 0.0)
    machine.receive_data(b"".join(replace(PEER, **change).frame("v14")), 0.0)
    (failure,) = machine.events()
    assert isinstance(failure, PairFailed)
    assert text in failure.text
    with pytest.raises(LocalProtocolError):
        machine.connected(0.0)


def test_ipv6_is_allowed_where_it_is_asked_for() -> None:
    peer = replace(PEER, gid=bytes.fromhex("2001" + "00" * 13 + "01"))
    assert check_info(INFO, peer, RC, "v14", 0.0, need_ipv4=False) is None


def test_mtu_numbers_do_not_matter_on_uc() -> None:
    peer = replace(PEER, reliable=False, mtu=0)
    mine = replace(INFO, reliable=False)
    assert check_info(mine, peer, UC, "v14", 0.0) is None
    assert UC.path_mtu(5, 0) == 3
    assert RC.path_mtu(5, 4) == 4


def test_a_peer_without_warm_up_is_named() -> None:
    machine = RdmaBringUp(settings("tp-worker"), RC)
    machine.prepared(INFO, 0.0)
    machine.receive_data(b"".join(PEER.frame("v14")), 0.0)
    machine.connected(0.0)
    machine.receive_data(struct.pack("<III", 0x44533454, 9, 0), 0.0)
    machine.armed(0.0)
    create = struct.pack("<IIIQiI", 0x44533454, 13, 16, 1, 64, 0)
    machine.receive_data(create, 0.0)
    *_, failure = machine.events()
    assert failure.problem.clause == "DS4T-ROBUST-09"
    assert "DS4_TP_DISABLE_RDMA_WARMUP" in failure.problem.next_step


def test_a_warm_up_that_is_switched_off_ends_with_ready() -> None:
    both = Both(RC, warm_up=False)
    both.step("prepared", INFO, PEER)
    (done,), _ = both.step("connected")
    assert isinstance(done, RdmaReady)


def test_the_posted_tag_is_compared() -> None:
    both = Both(RC)
    both.step("prepared", INFO, PEER)
    both.step("connected")
    both.a.armed(0.0)
    both.a.receive_data(struct.pack("<IIII", 0x44533454, 20, 4, 0xBEEF), 0.0)
    (failure,) = both.a.events()
    assert failure.problem.clause == "DS4T-RDMA-54"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("RTR", "tp rdma: modify RTR: no route"),
        ("alloc_pd", "tp rdma: alloc_pd failed"),
        ("create_qp", "tp rdma: create_qp: no route"),
        ("query_gid(3)", "tp rdma: query_gid(3): no route"),
    ],
)
def test_failing_verbs_calls_are_named(call: str, text: str) -> None:
    machine = RdmaBringUp(settings("tp-leader"), RC)
    machine.verbs_failed(call, "no route", 0.0)
    (failure,) = machine.events()
    assert failure.text == text


def test_bring_up_in_single_bytes_is_the_same() -> None:
    whole, single = (RdmaBringUp(settings("tp-leader"), RC) for _ in range(2))
    data = b"".join(PEER.frame("v14"))
    for machine, pieces in ((whole, [data]), (single, [bytes([b]) for b in data])):
        machine.prepared(INFO, 0.0)
        for piece in pieces:
            machine.receive_data(piece, 0.0)
    assert list(whole.events()) == list(single.events())
