"""Gates over a queue pair: decode window, drain, bulk windows, verify window."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from ds4proto_runtime.tp import callers
from ds4proto_runtime.transport import rdma_gates, sockets
from ds4proto_runtime.transport.rdma_gates import RdmaGates
from ds4proto_runtime.transport.sockets import PairSockets

from ds4proto.link import (
    ds4t_rdma_bulk,
    ds4t_rdma_verify,
    ds4t_rdma_windows,
)
from ds4proto.link.ds4t_gates import GateFailed
from ds4proto.link.ds4t_rdma_windows import DecodeWindow, Post
from tests.link.ds4t import test_rdma_windows as machines
from tests.runtime.transport import test_rdma_gates as gates
from tests.runtime.transport.rig import BULKY, TOY, TWO_CHUNKS
from tests.spec.removing import without_check
from tests.spec.tp_showing import altered, closing, ranks, shows


@shows(
    (
        "DS4T-RDMA-25",
        "other bits in the ids",
        lambda: patch.object(ds4t_rdma_windows, "BULK_ID", 1 << 60),
    ),
    (
        "DS4T-RDMA-25",
        "verify rows without their bit",
        lambda: patch.object(ds4t_rdma_verify, "VERIFY_ID", 0),
    ),
)
def work_request_ids_are_those_of_the_dialect() -> None:
    with closing():
        gates.test_work_request_ids_are_those_of_the_facts()


def one_gate_off(own: Any, window: Any) -> list[Post]:
    return [p._replace(offset=p.offset + 64) for p in own(window)]


@shows(
    (
        "DS4T-RDMA-60",
        "a window of eight gates",
        lambda: patch.object(ds4t_rdma_windows, "DECODE_WINDOW", 8),
    ),
    (
        "DS4T-RDMA-60",
        "receives beside their slots",
        altered(DecodeWindow, "_receive", one_gate_off),
    ),
)
def sixteen_receives_are_posted_first() -> None:
    machines.test_a_decode_window_posts_sixteen_gates_ahead()


def with_header(own: Any, window: Any, layer: int, kind: int, seq: int) -> list[Post]:
    return [Post(seq, 0, 16), *own(window, layer, kind, seq)]


@shows(
    (
        "DS4T-RDMA-63",
        "a header in front of the vector",
        altered(DecodeWindow, "sends", with_header),
    ),
    (
        "DS4T-RDMA-63",
        "arrivals in any order",
        lambda: without_check(ds4t_rdma_windows, "DS4T-RDMA-63"),
    ),
)
def a_row_gate_is_the_bare_vector() -> None:
    for shape in (TOY, TWO_CHUNKS):
        with ranks(shape) as rig:
            posts: list[Any] = []
            pair: Any = gates._Noting(rig.gates[0].brought.pair, posts)
            rig.gates[0]._requests._pair = pair
            rig.token_passes()
            sent = [length for what, _, length in posts if what == "send"]
            assert sum(sent) == 2 * shape.n_layer * shape.vector_bytes
            assert set(sent) == {min(16384, shape.vector_bytes)}
    machines.test_a_lost_message_shows_as_a_gate_out_of_order()


@shows(
    (
        "DS4T-RDMA-64",
        "nothing is posted after a gate",
        altered(DecodeWindow, "refill", lambda _own, _window: []),
    ),
    (
        "DS4T-RDMA-64",
        "two are posted after a gate",
        altered(
            DecodeWindow,
            "refill",
            lambda own, window: own(window) + window._receive(),
        ),
    ),
)
def sixteen_stay_posted_between_gates() -> None:
    for shape, count in ((TOY, 16), (TWO_CHUNKS, 32)):
        with ranks(shape) as rig:
            for number in range(2):
                rig.token_passes(number)
                for one in rig.gates:
                    pair: Any = one.brought.pair
                    assert len(pair.receives) == count


@shows(
    (
        "DS4T-RDMA-65",
        "a wait without end",
        altered(
            RdmaGates,
            "__init__",
            lambda own, *words, **more: own(*words, **{**more, "gate_seconds": 9.0}),
        ),
    ),
    (
        "DS4T-RDMA-65",
        "a text without numbers",
        altered(
            ds4t_rdma_windows, "text_of", lambda own, clause, *_: own(clause, 0, 0)
        ),
    ),
)
def a_gate_that_does_not_come_is_given_up_by_number() -> None:
    with ranks(qp_type="UC", gate_seconds=2.0) as rig:
        rig.token_passes(0)
        rig.fabric.dead.add("rxe0>rxe1")
        begun = rig.fabric.now
        rig.fill(0, 1)
        _, worker = rig.row(0, 0)
        text = "ds4-tp: timeout waiting gate seq 5 (recv_done 4)"
        assert text in gates.failed(worker)[1]
        assert 2.0 <= rig.fabric.now - begun < 2.5


def blind(_own: Any, pair: PairSockets, now: float) -> bool:
    pair._looked = now
    return False


@shows(
    (
        "DS4T-RDMA-66",
        "the control connection is not looked at",
        altered(PairSockets, "peer_gone", blind),
    )
)
def a_peer_that_ends_is_found_at_once() -> None:
    with closing():
        gates.test_a_peer_that_ends_is_found_before_the_timeout()


@shows(
    (
        "DS4T-ROBUST-20",
        "bytes that wait hide the end",
        altered(sockets, "ended", lambda _own, sock: callers.peek(sock) == b""),
    )
)
def a_dead_peer_is_found_behind_its_last_bytes() -> None:
    with ranks(gate_seconds=30.0) as rig:
        rig.token_passes(0)
        rig.sockets[1].send(b"the last words")
        rig.sockets[1].close()
        (leader,) = rig.together(rig.gates[0].row_steps(0, 0))
        text = "ds4-tp: peer disconnected during RDMA gate"
        assert text in gates.failed(leader)[1]
        assert rig.fabric.now < 1.0


def no_meeting(*_: Any, **__: Any) -> Iterator[float]:
    return
    yield 0.0


@shows(
    (
        "DS4T-RDMA-67",
        "a barrier that nobody waits at",
        altered(PairSockets, "barrier", lambda _own, *_, **__: no_meeting()),
    )
)
def nothing_is_sent_before_the_peer_has_posted() -> None:
    for worker_late in (False, True):
        with ranks(qp_type="UC", gate_seconds=1.0) as rig:
            for slot in range(4):
                rig.fill(slot, slot)
            order = [gates.at_once(rig.gates[0]), gates.at_once(rig.gates[1])]
            late = int(worker_late)
            order[late] = gates.delayed(rig, rig.gates[late], 0.4)
            assert rig.together(*order) == [None, None]
            assert gates.arrived(rig, 0) == gates.arrived(rig, 1) == [True] * 4
            for one in rig.gates:
                assert not one.brought.pair.evidence()


def no_dummies(own: Any, window: Any) -> list[Post]:
    own(window)
    window._draining = window._sends = 0
    return []


def dummies_count(own: Any, window: Any, wr_id: int, now: float) -> bool:
    if window._draining:
        window.received += 1
    return bool(own(window, wr_id, now))


@shows(
    (
        "DS4T-RDMA-70",
        "no dummy messages",
        altered(DecodeWindow, "drain", no_dummies),
    ),
    (
        "DS4T-RDMA-71",
        "dummies count as gates",
        altered(DecodeWindow, "receive_completed", dummies_count),
    ),
    (
        "DS4T-RDMA-71",
        "the window stays active",
        altered(DecodeWindow, "close", lambda _own, _window: None),
    ),
)
def a_window_is_drained_and_the_numbers_go_on() -> None:
    with ranks(BULKY, qp_type="UC", gate_seconds=1.0) as rig:
        rig.token_passes(0)
        posts: list[Any] = []
        pair: Any = gates._Noting(rig.gates[0].brought.pair, posts)
        rig.gates[0]._requests._pair = pair
        assert rig.bulk(0, 100) == [None, None]
        sends = [length for what, _, length in posts if what == "send"]
        assert sends == [16384] * 16 + [100]
        assert [one._window.received for one in rig.gates] == [16, 16]
        assert not any(one._window.active for one in rig.gates)
        rig.token_passes(1)
        assert [link.row_seq for link in rig.links] == [33, 33]


def tapped(rig: Any) -> list[bytes]:
    """What the leader writes on the data connection."""
    sent: list[bytes] = []
    own = rig.gates[0]._sockets
    own._data = gates._Tap(own._data, sent)
    return sent


def without_header(_own: Any, _pair: Any, link: Any) -> Iterator[float]:
    link.sending = link.receiving = False
    return
    yield 0.0


@shows(
    (
        "DS4T-RDMA-82",
        "no header before the windows",
        altered(PairSockets, "exchange", without_header),
    ),
    (
        "DS4T-RDMA-82",
        "the window before the drain",
        altered(RdmaGates, "_drain", lambda _own, _gates: iter(())),
    ),
)
def a_bulk_gate_begins_with_its_header_on_the_data_connection() -> None:
    with ranks(BULKY, qp_type="RC", gate_seconds=1.0) as rig:
        sent = tapped(rig)
        rig.token_passes(0)
        assert rig.bulk(2, 40_000) == [None, None]
        header = bytes.fromhex("42345344 0200 160b 0100000000000000")
        assert b"".join(sent) == b"\xd1" + header + b"\x01"


@shows(
    (
        "DS4T-RDMA-86",
        "any length will do",
        lambda: without_check(ds4t_rdma_bulk, "DS4T-RDMA-86"),
    ),
    (
        "DS4T-RDMA-87",
        "any index will do",
        lambda: without_check(ds4t_rdma_bulk, "DS4T-RDMA-87"),
    ),
)
def completions_of_a_bulk_window_are_judged() -> None:
    machines.test_completions_of_a_bulk_window_are_judged()


@shows(
    (
        "DS4T-RDMA-88",
        "the gate timeout alone",
        lambda: patch.object(rdma_gates, "BULK_GRACE", 0.0),
    ),
    (
        "DS4T-RDMA-88",
        "a minute more",
        lambda: patch.object(rdma_gates, "BULK_GRACE", 60.0),
    ),
)
def a_bulk_window_ends_two_seconds_after_the_gate_timeout() -> None:
    with ranks(BULKY, qp_type="UC", gate_seconds=0.75) as rig:
        rig.token_passes(0)
        assert rig.bulk(0, 100) == [None, None]
        rig.fabric.dead.update({"rxe0>rxe1", "rxe1>rxe0"})
        begun = rig.fabric.now
        for one in rig.bulk(1, 40_000):
            assert isinstance(one, GateFailed)
        assert 2.75 <= rig.fabric.now - begun < 3.0
