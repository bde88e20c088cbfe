"""RDMA up to the first gate: who offers it, what is exchanged, how it warms up."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

from ds4proto_runtime.transport import own_side, setup
from ds4proto_runtime.transport.options import NoRdmaError
from ds4proto_runtime.transport.pyverbs_provider import PyverbsMemory, PyverbsQueuePair
from ds4proto_runtime.transport.rdma import RdmaTransport
from ds4proto_runtime.transport.sim import SimProvider, ipv4_gid, link_local_gid
from ds4proto_runtime.transport.verbs import Post

from ds4proto.link import ds4t_hello, ds4t_rdma_bringup, ds4t_rdma_info, ds4t_rdma_steps
from ds4proto.link.ds4t_hello import HelloAgreed, HelloExchange
from ds4proto.link.ds4t_rdma_bringup import RdmaBringUp
from ds4proto.link.ds4t_rdma_info import RdmaInfo
from ds4proto.link.ds4t_rdma_steps import ArmWarmUp, RdmaReady
from ds4proto.link.ds4t_rdma_windows import slab_region
from ds4proto.link.rdma_attributes import (
    SETUP_ATTEMPTS,
    WARM_ATTEMPTS,
    attributes_for,
)
from tests.link.ds4t import test_rdma_bringup as machines
from tests.link.ds4t.pair import settings
from tests.link.ds4t.test_hello import outcome, peer_hello
from tests.runtime.transport import test_bringup as bringups
from tests.runtime.transport.rig import BULKY, TOY
from tests.spec.removing import without_check
from tests.spec.tp_showing import altered, closing, ranks, ruled, shows


@shows(
    (
        "DS4T-RDMA-01",
        "the own device decides alone",
        altered(
            ds4t_hello,
            "choose_transport",
            lambda own, ask, mine, _: own(ask, mine, mine),
        ),
    ),
    (
        "DS4T-HELLO-07",
        "an explicit request falls back",
        altered(
            ds4t_hello,
            "choose_transport",
            lambda own, _, mine, theirs: own("auto", mine, theirs),
        ),
    ),
)
def rdma_needs_both_devices_and_no_tcp() -> None:
    for asked in ("auto", "tcp", "rdma"):
        for mine in (False, True):
            for theirs in (False, True):
                own = settings("tp-leader", transport=asked, rdma_device=mine)
                found = outcome(HelloExchange(own), peer_hello(rdma_ok=int(theirs)))
                if asked == "rdma" and not (mine and theirs):
                    side = "the peer" if mine else "this"
                    text = f"tp: --transport rdma but {side} side has no active device"
                    assert found.text == text
                    continue
                assert isinstance(found, HelloAgreed)
                both = mine and theirs and asked != "tcp"
                assert found.transport == ("rdma" if both else "tcp")


def fall_back(own: Any, *words: Any) -> Any:
    try:
        return (yield from own(*words))
    except NoRdmaError:
        return None


@shows(
    (
        "DS4T-RDMA-05",
        "a rank that goes on over TCP",
        altered(RdmaTransport, "connect_steps", fall_back),
    )
)
def there_is_no_way_back_after_the_hello() -> None:
    for spoil in ("port", "table"):
        with ranks(up=False, bringup_seconds=1.0) as rig:
            if spoil == "port":
                rig.devices[0].state = "DOWN"
            else:
                rig.devices[0].gids[:] = [link_local_gid(0)]
            leader, worker = rig.bring_up()
            assert isinstance(leader, NoRdmaError)
            assert isinstance(worker, BaseException)


def library() -> Any:
    """A verbs binding that notes what it is asked."""
    verbs = MagicMock()
    verbs.pyverbs_error.PyverbsError = RuntimeError
    depth = SimpleNamespace(max_send_wr=64, max_recv_wr=64)
    verbs.qp.QP.return_value.query.return_value = (None, depth)
    return verbs


def write_instead(own: Any, pair: Any, memory: Any, posts: Any) -> None:
    pair._opcode = pair._verbs.enums.IBV_WR_RDMA_WRITE
    own(pair, memory, posts)


@shows(
    (
        "DS4T-RDMA-23",
        "partials by RDMA WRITE",
        altered(PyverbsQueuePair, "post_sends", write_instead),
    )
)
def partials_are_sent_and_received() -> None:
    verbs = library()
    found = attributes_for("v14", "linux")
    pair = PyverbsQueuePair(verbs, "context", "pd", found, (64, 64), "rxe0")
    memory = PyverbsMemory(verbs, "pd", memoryview(bytearray(4096)), 1)
    pair.post_sends(memory, [Post(1, 0, 256), Post(2, 256, 256)])
    opcodes = [call.kwargs["opcode"] for call in verbs.wr.SendWR.call_args_list]
    assert opcodes == [verbs.enums.IBV_WR_SEND] * 2
    pair.post_receives(memory, [Post(1, 512, 256)])
    assert verbs.wr.RecvWR.call_count == 1
    # rkey and slab_base of the peer are of no use, whatever they say
    made = RdmaInfo
    with (
        patch.object(
            own_side,
            "RdmaInfo",
            lambda *words: replace(made(*words), slab_base=1 << 63, rkey=77),
        ),
        ranks(TOY) as rig,
    ):
        assert rig.gates[0].brought.peer.rkey == 77
        rig.token_passes()


@shows(
    (
        "DS4T-RDMA-37",
        "one text for every call",
        altered(
            RdmaBringUp,
            "_fail",
            lambda own, *words, **more: own(*words, **{**more, "text": "no"}),
        ),
    )
)
def a_failing_verbs_call_is_named() -> None:
    for call, text in (
        ("INIT", "tp rdma: modify INIT: no route"),
        ("RTR", "tp rdma: modify RTR: no route"),
        ("RTS", "tp rdma: modify RTS: no route"),
        ("alloc_pd", "tp rdma: alloc_pd failed"),
        ("create_cq", "tp rdma: create_cq failed"),
        ("create_qp", "tp rdma: create_qp: no route"),
        ("query_gid(3)", "tp rdma: query_gid(3): no route"),
        ("reg_mr(64 bytes)", "tp rdma: reg_mr(64 bytes): no route"),
    ):
        machines.test_failing_verbs_calls_are_named(call, text)


def remembered(own: Any, provider: Any) -> Any:
    if not hasattr(provider, "known"):
        provider.known = own(provider)
    return provider.known


@shows(
    (
        "DS4T-RDMA-38",
        "a table that is remembered",
        altered(SimProvider, "devices", remembered),
    )
)
def the_table_is_read_for_each_set_up() -> None:
    with ranks() as rig:
        rig.token_passes()
        for gates in rig.gates:
            gates.close()
        rig.devices[0].gids[:] = [link_local_gid(0), ipv4_gid(4, "192.0.2.9")]
        rig.up().token_passes()
        assert rig.gates[0].brought.choice.gid_index == 4


@shows(
    (
        "DS4T-RDMA-43",
        "kinds of queue pairs are not compared",
        lambda: without_check(ds4t_rdma_info, "DS4T-RDMA-43"),
    )
)
def uc_and_rc_do_not_mix() -> None:
    with closing():
        bringups.test_uc_and_rc_do_not_mix()


@shows(
    (
        "DS4T-RDMA-46",
        "any address is taken",
        altered(ds4t_rdma_info, "_gid", lambda _own, *_, **__: None),
    ),
    (
        "DS4T-ROBUST-18",
        "any number is taken",
        altered(ds4t_rdma_info, "_numbers", lambda _own, *_: None),
    ),
)
def an_info_is_judged_before_the_queue_pair_is_touched() -> None:
    for change, text in machines.BAD:
        machines.test_an_info_is_judged_before_the_queue_pair_is_touched(change, text)


@shows(
    (
        "DS4T-RDMA-50",
        "a rank that reads first",
        altered(RdmaBringUp, "prepared", lambda own, *words: own(*words) and []),
    ),
    (
        "DS4T-RDMA-52",
        "no warm-up",
        ruled("v14", warm_up=False),
    ),
    (
        "DS4T-LIFE-10",
        "RDMA_READY before RDMA_INFO",
        altered(
            RdmaBringUp,
            "prepared",
            lambda own, machine, *words: (
                machine._frame(ds4t_rdma_steps.Step.READY, {}) + own(machine, *words)
            ),
        ),
    ),
)
def both_say_info_first_then_ready_then_warm_up() -> None:
    both = machines.Both(machines.RC)
    first = b"".join(both.a.prepared(machines.INFO, 0.0))
    assert first[4:8] == bytes([7, 0, 0, 0])  # before anything of the peer has come
    assert len(first) == 60
    both = machines.Both(machines.RC)
    both.step("prepared", machines.INFO, machines.PEER)
    (mine,), (theirs,) = both.step("connected")
    assert mine == theirs == ArmWarmUp()
    off = machines.Both(machines.RC, warm_up=False)
    off.step("prepared", machines.INFO, machines.PEER)
    (done,), _ = off.step("connected")
    assert isinstance(done, RdmaReady)


def late_arming(own: Any, side: Any) -> None:
    own(side)
    for pair in side._own._provider._devices[0].pairs:
        pair.receives.clear()


@shows(
    (
        "DS4T-RDMA-53",
        "another filling",
        lambda: patch.object(setup, "WARM_FILL", 0x00),
    ),
    (
        "DS4T-RDMA-53",
        "RDMA_POSTED before the receive",
        altered(setup.SetUp, "_arm", late_arming),
    ),
)
def the_warm_up_is_a_message_of_0x5a_each_way() -> None:
    posted: list[tuple[int, int]] = []
    own = RdmaBringUp.armed

    def armed(machine: RdmaBringUp, now: float) -> Any:
        for device in rig.devices:
            for pair in device.pairs:
                posted.extend((r.post.offset, r.post.length) for r in pair.receives)
        return own(machine, now)

    with (
        patch.object(RdmaBringUp, "armed", armed),
        ranks(BULKY, qp_type="RC", up=False) as rig,
    ):
        rig.up()
        size = 16384
        for slab in rig.slabs:
            for area in (slab.batch_out[0], slab.batch_in[0]):
                assert bytes(area[:size]) == b"\x5a" * size
        assert posted
        assert {length for _, length in posted} == {size}
        into_at = slab_region(rig.settings[0], "batch_in").offset
        assert {offset for offset, _ in posted} == {into_at}


@shows(
    (
        "DS4T-RDMA-55",
        "fewer attempts",
        lambda: patch.dict(WARM_ATTEMPTS, {"UC": 5}),
    ),
    (
        "DS4T-RDMA-55",
        "more attempts on RC",
        lambda: patch.dict(WARM_ATTEMPTS, {"RC": 2}),
    ),
    (
        "DS4T-RDMA-57",
        "no counts in the text",
        altered(
            ds4t_rdma_bringup, "text_of", lambda own, clause, *_: own(clause, 0, 0, 0)
        ),
    ),
    (
        "DS4T-RDMA-58",
        "two queue pairs in all",
        lambda: patch.dict(SETUP_ATTEMPTS, {"UC": 2}),
    ),
    (
        "DS4T-RDMA-58",
        "a second try on RC",
        altered(
            ds4t_rdma_bringup,
            "warm_outcome",
            lambda own, _, *words, **more: own("UC", *words, **more),
        ),
    ),
)
def a_warm_up_is_tried_and_counted() -> None:
    with closing():
        bringups.test_a_dead_direction_is_cured_by_a_new_uc_pair()
        bringups.test_four_tries_in_all_on_uc_and_one_on_rc()


@shows(
    (
        "DS4T-RDMA-59",
        "the first window is posted before RDMA_READY",
        ruled("v14", decode_barrier=False),
    )
)
def nothing_is_posted_when_both_are_ready() -> None:
    counts: list[int] = []
    own = RdmaBringUp.connected

    def connected(machine: RdmaBringUp, now: float) -> Any:
        counts.extend(len(p.receives) for d in rig.devices for p in d.pairs)
        return own(machine, now)

    with patch.object(RdmaBringUp, "connected", connected), ranks(up=False) as rig:
        rig.up()
    assert counts
    assert set(counts) == {0}


@shows(
    (
        "DS4T-ROBUST-09",
        "no word about the warm-up",
        altered(ds4t_rdma_bringup, "failed", lambda own, *words, **more: own(
            *words, **{**more, "next_step": ""}
        )),
    )
)  # fmt: skip
def a_peer_without_warm_up_is_named() -> None:
    machines.test_a_peer_without_warm_up_is_named()
