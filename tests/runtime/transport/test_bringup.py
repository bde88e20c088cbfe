"""Set-up of a queue pair on the simulated provider: choice, frames, warm-up, faults."""

from __future__ import annotations

import errno
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from ds4proto_runtime.tp.errors import PairError
from ds4proto_runtime.transport.options import NoRdmaError, RdmaOptions
from ds4proto_runtime.transport.rdma import RdmaTransport
from ds4proto_runtime.transport.sim import (
    Fabric,
    SimDevice,
    SimProvider,
    ipv4_gid,
    link_local_gid,
)

from ds4proto.link.rdma_attributes import INFINIBAND
from ds4proto.link.rdma_choice import GidEntry
from tests.runtime.transport.rig import BULKY, TOY, TWO_CHUNKS, Rig

BOTH = pytest.mark.parametrize("qp", ["UC", "RC"])


def texts(found: list[Any]) -> list[str]:
    assert all(isinstance(f, PairError) for f in found), found
    return [str(f) for f in found]


@BOTH
def test_a_pair_comes_up_and_a_token_crosses(qp: Any) -> None:
    rig = Rig(qp_type=qp).up()
    rig.token_passes()
    lines = rig.said[0]
    assert lines[0] == "ds4-tp: rdma device rxe0, GID [1] 192.0.2.1 RoCE v2"
    mtu = 1024 if qp == "UC" else 4096
    assert f"transport {qp}, path MTU {mtu}, GID index 1, hop limit 1" in lines[1]
    # v14 asks for 1024 of each; nothing remote is granted
    assert rig.gates[0].brought.pair.granted == (1024, 1024)
    assert rig.gates[0].brought.peer.rkey == rig.gates[0].brought.peer.slab_base == 0


def test_the_next_frames_stay_on_the_control_connection() -> None:
    rig = Rig()
    original = rig.transports[0].connect_steps

    def chatty(control: Any, *rest: Any) -> Any:
        gates = yield from original(control, *rest)
        control.send(b"next command")
        return gates

    rig.transports[0].connect_steps = chatty  # type: ignore[method-assign]
    rig.up()
    assert rig.sockets[1].recv(99) == b"next command"


# -- the four verdicts, and who falls back ----------------------------------------


def device(**words: Any) -> SimDevice:
    gids = words.pop("gids", [link_local_gid(0), ipv4_gid(1, "192.0.2.1")])
    return SimDevice(Fabric(), words.pop("name", "rxe0"), gids, **words)


VERDICTS: list[tuple[str, SimProvider, str, str]] = [
    ("no library", SimProvider(missing=True), "tp rdma: no verbs devices",
     "install the verbs library (tried libibverbs.so.1)"),
    ("no device", SimProvider([]), "tp rdma: no verbs devices", "load the driver"),
    ("port down", SimProvider([device(state="DOWN")]), "", "rxe0=DOWN"),
    ("no usable GID", SimProvider([device(gids=[link_local_gid(0)])]),
     "no active RoCEv2 GID for the requested device/index",
     "give the interface of rxe0 an IPv4 address"),
    ("no usable GID", SimProvider([device(gids=[link_local_gid(0)])], "macos"),
     "tp rdma: no IPv4-mapped GID on the active port; give the Thunderbolt interface "
     "its own IPv4 (e.g. sudo ifconfig en1 inet 10.99.0.2/30 alias) on both machines",
     "give the interface an IPv4 address"),
]  # fmt: skip


@pytest.mark.parametrize(("verdict", "provider", "text", "step"), VERDICTS)
def test_explicit_rdma_fails_closed_and_auto_says_so(
    verdict: str, provider: SimProvider, text: str, step: str
) -> None:
    with pytest.raises(NoRdmaError) as caught:
        RdmaTransport(provider, RdmaOptions("rdma")).probe(256)
    choice = caught.value.choice
    assert choice.verdict == verdict
    assert text in choice.text
    assert step in choice.next_step
    assert caught.value.exit_code == 2
    said: list[str] = []
    assert not RdmaTransport(provider, RdmaOptions("auto"), say=said.append).probe(256)
    assert len(said) == 1
    assert said[0].startswith("ds4-tp: no RDMA here, using tcp: ")
    assert verdict in said[0]


def test_the_probe_where_rdma_can_be_used() -> None:
    provider = SimProvider([device()])
    for transport, expected in (("tcp", False), ("auto", True), ("rdma", True)):
        options = RdmaOptions(transport)  # type: ignore[arg-type]
        assert RdmaTransport(provider, options).probe(32768) is expected
    with pytest.raises(NoRdmaError, match="gate vector 32772 bytes exceeds twice"):
        RdmaTransport(provider, RdmaOptions("rdma")).probe(32772)
    said: list[str] = []
    options = RdmaOptions("auto")
    assert not RdmaTransport(provider, options, say=said.append).probe(32772)
    assert "32772" in said[0]


def test_native_infiniband_gets_its_own_advice() -> None:
    native = device(
        name="mlx5_0", link_layer=INFINIBAND, lid=17, gids=[link_local_gid(0, "IB")]
    )
    for system in ("linux", "macos"):
        provider = SimProvider([native], system)  # type: ignore[arg-type]
        with pytest.raises(NoRdmaError) as caught:
            RdmaTransport(provider, RdmaOptions("rdma")).probe(256)
        text = str(caught.value)
        assert "native InfiniBand: this transport needs RoCE or Thunderbolt" in text
        assert "mlx5_0 lid 17" in text
        assert "IPv4 address" not in text


# -- which GID --------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("indexes", [(1, 2), (2, 1), (3, 3)])
def test_the_ipv4_entry_may_stand_at_different_indexes(
    qp: Any, indexes: tuple[int, int]
) -> None:
    rig = Rig(qp_type=qp, indexes=indexes).up()
    rig.token_passes()
    used = [g.brought.pair.route.index for g in rig.gates]  # type: ignore[attr-defined]
    assert tuple(used) == indexes
    hints = [any("hard-codes index 1" in t for t in said) for said in rig.said]
    assert hints == [index != 1 for index in indexes]


def test_an_index_past_the_table_lists_the_valid_ones() -> None:
    rig = Rig(options=({"gid_index": 300}, {}))
    found = rig.bring_up()
    assert isinstance(found[0], NoRdmaError)
    assert "beyond the table of 256 entries" in str(found[0])
    assert "[1] 192.0.2.1 RoCE v2" in str(found[0])
    rig = Rig(options=({"gid_index": 4}, {}))
    assert "GID index is not in the table" in str(rig.bring_up()[0])


def test_holes_and_zero_entries_are_passed_over() -> None:
    rig = Rig(indexes=(5, 1))
    rig.devices[0].gids.insert(0, GidEntry(0, bytes(16), "RoCE v2"))
    rig.up().token_passes()
    assert rig.gates[0].brought.choice.gid_index == 5


def test_an_explicit_index_is_honoured_in_rtr() -> None:
    rig = Rig(options=({"gid_index": 2}, {}))
    rig.devices[0].gids.append(ipv4_gid(2, "192.0.2.77"))
    rig.up().token_passes()
    assert rig.gates[0].brought.pair.route.index == 2  # type: ignore[attr-defined]
    assert rig.gates[1].brought.peer.gid[12:] == bytes([192, 0, 2, 77])


def test_the_table_is_read_anew_for_every_set_up() -> None:
    rig = Rig().up()
    rig.token_passes()
    for gates in rig.gates:
        gates.close()
    first = rig.devices[0].queries
    rig.devices[0].gids[:] = [link_local_gid(0), ipv4_gid(4, "192.0.2.9")]
    rig.up().token_passes()
    assert rig.devices[0].queries > first
    (line,) = [t for t in rig.said[0] if "GID changed" in t]
    assert "from [1] 192.0.2.1 RoCE v2 to [4] 192.0.2.9 RoCE v2" in line
    assert not [t for t in rig.said[1] if "GID changed" in t]


def test_a_remembered_gid_would_fail() -> None:
    """The same change under a device that goes on announcing the old entry."""
    rig = Rig(qp_type="RC").up()
    old = rig.devices[0].query()
    for gates in rig.gates:
        gates.close()
    rig.devices[0].gids[:] = [link_local_gid(0), ipv4_gid(4, "192.0.2.9")]
    rig.transports[0].provider.devices = lambda: (old,)  # type: ignore[method-assign]
    found = rig.bring_up()
    assert "tp rdma: modify RTR: GID index 1 is empty" in str(found[0])


def test_another_subnet_is_warned_of_and_the_better_index_named() -> None:
    rig = Rig(qp_type="RC", options=({"gid_index": 3}, {}))
    rig.devices[0].gids[:] = [
        link_local_gid(0, "RoCE v1"), link_local_gid(1),
        ipv4_gid(2, "10.0.0.1", "RoCE v1"), ipv4_gid(3, "10.0.0.1"),
        ipv4_gid(4, "192.0.2.5"),
    ]  # fmt: skip
    found = texts(rig.bring_up())
    (line,) = [t for t in rig.said[0] if "warning" in t]
    assert "not in the subnet of the peer (192.0.2.2/24)" in line
    assert "--rdma-gid-index 4" in line
    # the wrong one connects, and then nothing comes
    assert "warm-up failed after 1 attempts (recv 0, peer 0)" in found[0]
    assert "RETRY_EXC_ERR" in found[0]
    assert "GID index 3" in found[0]


@pytest.mark.parametrize("system", ["linux", "macos"])
def test_the_control_address_decides_between_entries(system: Any) -> None:
    provider = SimProvider(
        [device(gids=[ipv4_gid(1, "10.0.0.1", "RoCE v1"), ipv4_gid(2, "10.0.0.1"),
                      ipv4_gid(3, "192.0.2.5")])],
        system,
    )  # fmt: skip
    from ds4proto_runtime.transport.choosing import choose

    found = choose(provider, RdmaOptions("rdma"), "192.0.2.5")
    # macOS takes the first mapped entry, Linux the one of the control connection
    assert found.gid_index == (3 if system == "linux" else 1)  # type: ignore[union-attr]
    near = choose(provider, RdmaOptions("rdma"), "10.0.0.1")
    assert near.gid_index == (2 if system == "linux" else 1)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("gid", "why"),
    [(bytes(16), "zero"), (link_local_gid(0).gid, "link-local")],
)
def test_a_peer_without_an_address_is_refused_before_rtr(gid: bytes, why: str) -> None:
    rig = Rig()
    machine = rig.transports[1]
    original = machine.connect_steps

    def lying(*args: Any) -> Any:
        from ds4proto_runtime.transport import own_side

        make = own_side.RdmaInfo

        def info(*words: Any) -> Any:
            return replace(make(*words), gid=gid)

        own_side.RdmaInfo = info  # type: ignore[assignment,misc]
        try:
            return (yield from original(*args))
        finally:
            own_side.RdmaInfo = make  # type: ignore[misc]

    machine.connect_steps = lying  # type: ignore[method-assign]
    found = rig.bring_up()
    text = str(found[0])
    assert f"({why}) cannot be used" in text
    assert "give the peer's interface an IPv4 address" in text
    assert "INIT" in rig.devices[0].pairs[0].state if rig.devices[0].pairs else True


# -- warm-up ----------------------------------------------------------------------


def test_a_dead_direction_is_cured_by_a_new_uc_pair() -> None:
    rig = Rig(qp_type="UC")
    rig.fabric.dead_setups["rxe0>rxe1"] = 2
    rig.up().token_passes()
    assert [g.brought.attempts for g in rig.gates] == [3, 3]
    assert rig.devices[0].created == 3
    lines = [t for t in rig.said[0] if "recreating the queue pair" in t]
    assert lines == [
        "ds4-tp: warm-up failed after 20 attempts (recv 1, peer 0); recreating the "
        f"queue pair (setup attempt {n})"
        for n in (2, 3)
    ]


def test_four_tries_in_all_on_uc_and_one_on_rc() -> None:
    for qp, tries, attempts in (("UC", 4, 20), ("RC", 1, 1)):
        rig = Rig(qp_type=qp)  # type: ignore[arg-type]
        rig.fabric.dead.add("rxe0>rxe1")
        leader, worker = texts(rig.bring_up())
        assert rig.devices[0].created == tries
        text = "tp rdma: warm-up failed after {} attempts (recv {}, peer {})"
        # on RC the leader has the worker's data, and its acknowledgement is lost
        assert text.format(attempts, 1, 0) in leader
        assert text.format(attempts, 0, 1) in worker
        assert "one direction is dead" in leader
        assert f"transport {qp}" in leader
    assert "RETRY_EXC_ERR" in leader


def test_a_warm_up_on_one_side_alone() -> None:
    rig = Rig(options=({"warm_up": False}, {}), bringup_seconds=2.0)
    leader, worker = rig.bring_up()
    assert not isinstance(leader, BaseException)
    assert "tp rdma: warm-up barrier failed" in str(worker)
    rig = Rig(options=({"warm_up": False}, {"warm_up": False})).up()
    rig.token_passes()


def test_a_command_in_place_of_the_warm_up() -> None:
    rig = Rig(options=({"warm_up": False}, {}))
    original = rig.transports[0].connect_steps

    def eager(control: Any, *rest: Any) -> Any:
        gates = yield from original(control, *rest)
        control.send(bytes.fromhex("345344540c00000010000000") + bytes(16))
        return gates

    rig.transports[0].connect_steps = eager  # type: ignore[method-assign]
    _, worker = rig.bring_up()
    assert "set DS4_TP_DISABLE_RDMA_WARMUP on both ranks or on none" in str(worker)


# -- devices that are less than they say --------------------------------------------


def test_a_stale_port_is_opened_anew_before_the_peer_hears_of_it() -> None:
    rig = Rig()
    rig.devices[0].faults = Counter({"INIT": 1})
    rig.up().token_passes()
    assert rig.devices[0].opened == 2
    assert any("stale link" in t and "opening rxe0 anew" in t for t in rig.said[0])
    rig = Rig(bringup_seconds=1.0)
    rig.devices[0].faults = Counter({"INIT": 2})
    leader, _ = rig.bring_up()
    assert "tp rdma: INIT: port of rxe0 is stale" in str(leader)


def test_failing_steps_are_named() -> None:
    for step in ("RTR", "RTS"):
        rig = Rig(bringup_seconds=1.0)
        rig.devices[1].faults = Counter({step: 1})
        leader, worker = rig.bring_up()
        assert f"tp rdma: modify {step}: port of rxe1 is stale" in str(worker)
        assert "tp rdma: ready barrier failed" in str(leader)


def test_too_many_queue_pairs() -> None:
    rig = Rig(bringup_seconds=1.0)
    rig.devices[0].qp_cap = 0
    leader, _ = rig.bring_up()
    assert "rxe0 holds 0 queue pairs at most" in str(leader)
    assert f"errno {errno.EMFILE}" in str(leader)


def test_a_refused_depth_is_tried_smaller() -> None:
    rig = Rig()
    rig.devices[0].refuses_above = (256, 64)
    rig.up().token_passes()
    assert [g.brought.pair.granted for g in rig.gates] == [(256, 64), (1024, 1024)]


def test_v9w_takes_rc_where_uc_is_refused() -> None:
    rig = Rig(dialect="v9w", qp_type=None)
    for one in rig.devices:
        one.types = {"RC"}
    rig.up().token_passes()
    assert [g.brought.attributes.qp_type for g in rig.gates] == ["RC", "RC"]
    assert any("UC was refused" in t for t in rig.said[0])
    rig = Rig(dialect="v14", qp_type="UC", bringup_seconds=1.0)
    rig.devices[0].types = {"RC"}
    assert "create_qp: no UC queue pairs" in str(rig.bring_up()[0])


def test_a_completion_queue_too_small_for_a_round_is_refused_before_it() -> None:
    """64 receives and the one signalled send of a v7 round."""
    rig = Rig(BULKY, "v7", qp_type="RC", bringup_seconds=1.0)
    rig.devices[0].cq_grants = 63
    leader, _ = rig.bring_up()
    assert "65 completions possible, queue holds 63" in str(leader)
    rig = Rig(BULKY, "v7", qp_type="RC")
    for one in rig.devices:
        one.cq_grants = 65
    rig.up()
    assert rig.bulk(0, 64 * 16384) == [None, None]


def test_bulk_over_uc_without_a_barrier_byte_is_refused() -> None:
    rig = Rig(BULKY, "v7", qp_type="UC", bringup_seconds=1.0)
    leader, worker = rig.bring_up()
    assert "v7 has no barrier byte" in str(leader)
    assert "v7 has no barrier byte" in str(worker)


def test_a_window_deeper_than_the_queue_is_refused() -> None:
    rig = Rig(TWO_CHUNKS, bringup_seconds=1.0)
    rig.devices[0].grants = (256, 31)
    leader, _ = rig.bring_up()
    assert "a decode window posts 32, granted were 31" in str(leader)


def test_attributes_that_work_now_and_hurt_later_are_named() -> None:
    rig = Rig(options=({"overrides": {"min_rnr_timer": 0, "retry_cnt": 7}}, {})).up()
    notes = [t for t in rig.said[0] if "note" in t]
    assert any("min_rnr_timer 0 stands for 655.36 ms" in t for t in notes)
    assert any("7 repeats without end" in t for t in notes)
    assert not [t for t in rig.said[1] if "min_rnr_timer 0" in t]


def test_uc_and_rc_do_not_mix() -> None:
    rig = Rig(options=({"qp_type": "UC"}, {"qp_type": "RC"}), bringup_seconds=1.0)
    for text in texts(rig.bring_up()):
        assert "tp rdma: incompatible queue-pair transport" in text


def test_a_peer_that_says_nothing_is_found() -> None:
    rig = Rig(bringup_seconds=3.0)
    rig.transports[1].connect_steps = silent  # type: ignore[method-assign]
    leader, _ = rig.bring_up()
    assert "tp rdma: info recv failed" in str(leader)
    assert rig.fabric.now == pytest.approx(3.0, abs=1e-3)
    assert rig.devices[0].pairs == []


def silent(*_: Any) -> Any:
    """A worker that does not read or write."""
    return
    yield


def test_toy_and_wide_models_keep_to_the_bound() -> None:
    assert TOY.vector_bytes == 256
    assert TWO_CHUNKS.vector_bytes == 32768
