"""Gates over TCP: both ways at once, deadlines, memory that stays."""

from __future__ import annotations

import gc
import select
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from ds4proto_runtime.tp import gates as gates_
from ds4proto_runtime.tp.gates import LOOK_SECONDS, TcpGates
from ds4proto_runtime.tp.slab import Slab
from ds4proto_runtime.tp.waiting import (
    PERIOD,
    ROUNDS,
    SPIN_SECONDS,
    TRIAL,
    AdaptiveWait,
    SpinChoice,
)

from ds4proto.errors import WrongUsage
from ds4proto.link.ds4t_gates import GateFailed, GateLink
from ds4proto.link.ds4t_identity import Identity, TpSettings
from ds4proto.link.ds4t_limits import GateLimits
from tests.runtime.tp.rig import PATIENCE

LAYERS, WIDTH = 2, 16
IDENTITY = Identity(1, 0, LAYERS, WIDTH, 32, 2, gates_per_token=2 * LAYERS)
LONG = GateLimits(idle=PATIENCE, total=PATIENCE, bulk_total=PATIENCE)
ROW = 4 * WIDTH


def _sockets(buffers: int | None = None) -> tuple[list[socket.socket], ...]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        if buffers:
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                server.setsockopt(socket.SOL_SOCKET, option, buffers)
        pairs = []
        for _ in range(2):
            near = socket.socket()
            if buffers:
                for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                    near.setsockopt(socket.SOL_SOCKET, option, buffers)
            near.connect(server.getsockname())
            pairs.append([near, server.accept()[0]])
    return pairs[0], pairs[1]


def _say(gates: TcpGates, payload: int = ROW) -> None:
    """Write the first row gate of the other side, or the beginning of it."""
    head = bytearray(16)
    gates.link._pack(head, 0, 0x44533454, 0, 0, 1)
    gates._data.setblocking(True)
    gates._data.sendall(bytes(head) + bytes(payload))


@contextmanager
def _two(
    limits: GateLimits = LONG, *, spin: SpinChoice = "off", buffers: int | None = None
) -> Iterator[tuple[TcpGates, TcpGates, list[socket.socket]]]:
    data, control = _sockets(buffers)
    made = []
    for rank, role in enumerate(("tp-leader", "tp-worker")):
        settings: Any = TpSettings(role, IDENTITY)  # type: ignore[arg-type]
        link = GateLink(settings, limits=limits)
        made.append(
            TcpGates(
                data[rank],
                control[rank],
                link,
                Slab(LAYERS, WIDTH),
                AdaptiveWait(spin),
                idle=limits.idle,
            )
        )
    try:
        yield made[0], made[1], control
    finally:
        for sock in (*data, *control):
            sock.close()


def _aside(run: Any) -> threading.Thread:
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def _join(thread: threading.Thread) -> None:
    thread.join(PATIENCE)
    assert not thread.is_alive(), "an exchange hangs"


@pytest.mark.parametrize("spin", ["auto", "on", "off"])
def test_rows_cross_both_ways(spin: SpinChoice) -> None:
    with _two(spin=spin) as (a, b, _):
        for gates, value in ((a, 1.0), (b, 2.0)):
            for slot in range(2 * LAYERS):
                gates.slab.out[slot][...] = value + slot

        def run(gates: TcpGates) -> None:
            for _ in range(50):
                for slot in range(2 * LAYERS):
                    gates.row(slot // 2, slot % 2)

        thread = _aside(lambda: run(b))
        run(a)
        _join(thread)
        for slot in range(2 * LAYERS):
            assert (a.slab.peer[slot] == 2.0 + slot).all()
            assert (b.slab.peer[slot] == 1.0 + slot).all()
        assert a.link.row_seq == b.link.row_seq == 50 * 2 * LAYERS + 1


def test_a_bulk_gate_of_4_mib_does_not_block_with_208_kib_buffers() -> None:
    """Two real ranks of v7 or v9w block each other there."""
    size = 4 << 20
    out = [np.full(size // 4, rank, np.float32) for rank in (1, 2)]
    back = [np.zeros(size // 4, np.float32) for _ in (1, 2)]
    with _two(buffers=208 << 10) as (a, b, _):

        def run(gates: TcpGates, rank: int) -> None:
            own, peer = (memoryview(x.data).cast("B") for x in (out[rank], back[rank]))
            gates.bulk(0, own, peer)

        thread = _aside(lambda: run(b, 1))
        run(a, 0)
        _join(thread)
    assert (back[0] == 2).all()
    assert (back[1] == 1).all()


def test_a_wrong_header_does_not_cut_the_own_bulk_gate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The peer gets header and payload whole, whatever it sent (DS4T-GATE-25)."""
    monkeypatch.setattr(gates_, "FINISH_SECONDS", PATIENCE)  # for a peer that is slow
    size = 4 << 20
    own = np.full(size // 4, 1, np.float32)
    back = np.zeros(size // 4, np.float32)
    came = bytearray()
    with _two(buffers=208 << 10) as (a, b, _):
        data = b._data

        def peer() -> None:
            data.settimeout(PATIENCE)
            data.sendall(bytes(64))
            while len(came) < size + 16:
                piece = data.recv(1 << 20)
                if not piece:
                    return
                came.extend(piece)

        thread = _aside(peer)
        with pytest.raises(GateFailed):
            a.bulk(0, *(memoryview(x.data).cast("B") for x in (own, back)))
        _join(thread)
    assert len(came) == size + 16
    assert came[16:] == own.tobytes()


def test_silence_ends_a_gate_at_the_idle_limit() -> None:
    with (
        _two(GateLimits(idle=0.2, total=20.0)) as (a, _, _),
        pytest.raises(GateFailed) as caught,
    ):
        a.row(0, 0)
    found = caught.value.diagnosis
    assert found.stopped == "the peer"
    assert (found.received, found.expected, found.sent) == (0, 80, 80)
    assert 0.2 <= found.quiet < 20.0  # its own limit, not the total one


def test_single_bytes_hold_a_gate_open_only_to_the_total_limit() -> None:
    """An idle limit alone would allow hours."""
    with _two(GateLimits(idle=10.0, total=0.5)) as (a, b, _):
        stop = threading.Event()

        def drip() -> None:
            for _ in range(ROW - 1):  # never the whole payload, whoever is slow
                if stop.wait(0.01):
                    return
                b._data.send(b"\x54")

        _say(b, 0)
        thread = _aside(drip)
        with pytest.raises(GateFailed, match="took too long in all"):
            a.row(0, 0)
        stop.set()
        _join(thread)


def test_the_end_of_the_control_connection_ends_a_gate_within_a_look() -> None:
    looks: list[None] = []
    with _two() as (a, _, control):
        a.on_quiet = lambda: looks.append(None)
        control[1].close()
        with pytest.raises(GateFailed, match="control connection ended"):
            a.row(0, 0)
        assert len(looks) == 1
        assert a._look <= LOOK_SECONDS <= 0.1


def test_unread_bytes_do_not_hide_the_end_of_the_control_connection() -> None:
    with _two() as (a, _, control):
        control[1].sendall(b"an early answer")
        control[1].close()
        with pytest.raises(GateFailed, match="control connection ended"):
            a.row(0, 0)


def test_bytes_on_the_control_connection_alone_are_no_reason_to_fail() -> None:
    looked = threading.Event()

    def answer() -> None:
        looked.wait(PATIENCE)
        b.row(0, 0)

    with _two() as (a, b, control):
        a.on_quiet = looked.set
        control[1].sendall(b"an early answer")
        thread = _aside(answer)
        a.row(0, 0)
        _join(thread)
    assert looked.is_set()


def test_a_rank_that_stood_still_itself_blames_nobody() -> None:
    """What came while this side did not run counts, however late it is read."""
    limits = GateLimits(idle=0.2, total=0.3)
    with _two(limits) as (a, b, _):

        def stand_still() -> None:
            _say(b)
            time.sleep(0.4)

        a.on_quiet = stand_still
        a.row(0, 0)
        assert a.link.row_seq == 2


def test_a_rank_that_stood_still_in_a_bulk_gate_blames_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Here the own payload does not fit into the buffers, and both sides take turns."""
    size = 4 << 20
    own, back = (np.full(size // 4, rank, np.float32) for rank in (1, 2))
    with _two(buffers=208 << 10) as (a, b, _):
        thread = _aside(
            lambda: b.bulk(0, memoryview(bytes(size)), memoryview(bytearray(size)))
        )
        try_send: Any = a._try_send
        stood: list[float] = []

        def stand_still() -> bool:
            done: bool = try_send()
            a.link._idle = PATIENCE
            if not (stood or a.link._heading):  # a header may take longer
                stood.append(0.4)
                a.link._idle = 0.2
                time.sleep(0.4)
                select.select([a._data], [], [], PATIENCE)
            return done

        monkeypatch.setattr(a, "_try_send", stand_still)
        a.bulk(0, *(memoryview(x.data).cast("B") for x in (own, back)))
        _join(thread)
    assert stood
    assert not back.any()


def test_what_came_before_the_end_still_counts() -> None:
    with _two() as (a, b, control):
        _say(b)
        control[1].close()
        a.row(0, 0)


def test_a_failed_gate_stays_failed() -> None:
    with _two(GateLimits(idle=0.05, total=20.0)) as (a, _, _):
        with pytest.raises(GateFailed):
            a.row(0, 0)
        with pytest.raises(GateFailed):
            a.row(0, 1)


def test_the_hot_loop_allocates_nothing_that_stays() -> None:
    with _two(spin="off") as (a, b, _):

        def run(gates: TcpGates, tokens: int) -> None:
            for _ in range(tokens):
                for slot in range(2 * LAYERS):
                    gates.row(slot // 2, slot % 2)

        def both(tokens: int) -> None:
            thread = _aside(lambda: run(b, tokens))
            run(a, tokens)
            _join(thread)

        both(50)
        # other threads, left by other tests, may allocate meanwhile: not every time
        for _ in range(3):
            kept, peak = _allocated(lambda: both(200))
            if kept < 800 * 16 and peak < 64 << 10:
                break
    # 800 gates of 64 bytes: not even one object a gate may stay, and no payload copy
    assert kept < 800 * 16
    assert peak < 64 << 10


def _allocated(run: Callable[[], None]) -> tuple[int, int]:
    """Return the bytes that stay after a run, and its peak."""
    gc.freeze()  # leave alone what other tests have left: it is not this one's to find
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        run()
        gc.collect()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.unfreeze()
    return after - before, peak - before


def test_a_slab_has_the_regions_of_the_schema_and_a_cap() -> None:
    slab = Slab(2, 16)
    assert slab.memory.nbytes == 2656  # measured
    assert len(slab.row_out) == 4
    own, peer = slab.batch(1, 3)
    assert own.nbytes == peer.nbytes == 3 * 64
    with pytest.raises(WrongUsage, match="smaller prefill chunk"):
        slab.bulk(1 << 40)


def _series(wait: AdaptiveWait, spinning: float, blocking: float) -> set[bool]:
    """Run one series of trials; every 20th gate of a spin is interrupted."""
    ways = set()
    for at in range(2 * ROUNDS * TRIAL):
        ways.add(wait.spinning)
        seconds = spinning if wait.spinning else blocking
        wait.gate_done(seconds + 1.0 * (wait.spinning and not at % 20), 0.0)
    return ways


def test_a_spin_is_kept_only_where_it_was_measured_to_pay() -> None:
    for spinning, blocking, expected in ((1e-5, 2e-5, True), (2e-5, 2.1e-5, False)):
        wait = AdaptiveWait("auto", cores=2)
        assert _series(wait, spinning, blocking) == {True, False}
        assert wait.spinning is expected
        for _ in range(PERIOD):
            wait.gate_done(1.0, 0.0)
        assert not wait.spinning  # a new series begins with a block
        # by now it is the other way round
        _series(wait, 3e-5 if expected else 1e-5, 2e-5)
        assert wait.spinning is not expected


def test_a_spin_is_given_up_when_a_block_would_have_been_cheaper() -> None:
    wait = AdaptiveWait("auto", cores=2)
    _series(wait, 1e-5, 2e-5)
    assert wait.spin == pytest.approx(2 * 2e-5)
    wait = AdaptiveWait("auto", cores=2)
    _series(wait, 1.0, 3.0)
    assert wait.spin == SPIN_SECONDS


def test_the_same_verdict_again_is_asked_for_less_often() -> None:
    wait = AdaptiveWait("auto", cores=2)
    for period in (PERIOD, 2 * PERIOD, 4 * PERIOD, 8 * PERIOD, 8 * PERIOD):
        _series(wait, 1e-5, 2e-5)
        for _ in range(period - 1):
            wait.gate_done(1e-5, 0.0)
        assert wait.spinning
        wait.gate_done(1e-5, 0.0)
        assert not wait.spinning


def test_one_core_never_spins() -> None:
    wait = AdaptiveWait("auto", cores=1)
    for _ in range(10 * TRIAL):
        assert not wait.spinning
        wait.gate_done(1.0, 0.0)
