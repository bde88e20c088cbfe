"""Channels: the public transport check, error texts, taps, no needless copies."""

from __future__ import annotations

import pickle
import select
import socket
import tracemalloc
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from ds4proto.peer import PeerLost, SocketChannel
from ds4proto.peer.channel import IOV_MAX
from ds4proto.testing import PATIENCE, FakeClock, check_transport, loopback_pair

LATER = 1e9  # in FakeClock's time


Pair = tuple[SocketChannel, SocketChannel]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def pair(clock: FakeClock) -> Iterator[Pair]:
    a, b = loopback_pair(clock=clock)
    yield a, b
    a.close()
    b.close()


def test_tcp_channels_keep_the_promises_of_a_transport() -> None:
    check_transport(loopback_pair, small=lambda: loopback_pair(buffers=4096))


class _Broken(SocketChannel):
    """Base of channels that each break one promise."""


class _Reorders(_Broken):
    def send(self, bufs: Sequence[Any], *, deadline: float) -> None:
        super().send(list(reversed(bufs)), deadline=deadline)


class _SwallowsEnd(_Broken):
    def recv_exact(self, buf: Any, *, deadline: float) -> None:
        try:
            super().recv_exact(buf, deadline=deadline)
        except PeerLost as error:
            if error.kind != "closed":
                raise


class _NoReset(_Broken):
    def close(self, *, reset: bool = False) -> None:
        super().close(reset=reset and False)


class _HalfDuplex(_Broken):
    def exchange(
        self,
        send_bufs: Sequence[Any],
        recv_view: Any,
        *,
        deadline: float,
        idle: float | None = None,
    ) -> None:
        self.send(send_bufs, deadline=deadline - PATIENCE + 2)
        assert idle is None or idle > 0
        self.recv_exact(recv_view, deadline=deadline)


class _NoHalfClose(_Broken):
    def shutdown_send(self) -> None:
        self.close()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (_Reorders, "buffers arrive in order"),
        (_SwallowsEnd, "a cut read: nothing was raised"),
        (_NoReset, "a reset: lost as|a reset: nothing"),
        (_NoHalfClose, "."),
        (_HalfDuplex, "."),
    ],
)
def test_the_transport_check_catches_broken_channels(
    kind: type[SocketChannel], words: str
) -> None:
    def make(buffers: int | None = None) -> tuple[SocketChannel, SocketChannel]:
        made = []
        for channel in loopback_pair(buffers=buffers):
            sock = socket.socket(fileno=socket.dup(channel.fileno()))
            channel.close()
            made.append(kind(sock))
        return made[0], made[1]

    with pytest.raises((AssertionError, PeerLost), match=words):
        check_transport(make, small=lambda: make(4096))


def test_a_timeout_says_phase_bytes_and_time(clock: FakeClock, pair: Pair) -> None:
    a, _ = pair
    a.send([b"x" * 58], deadline=LATER)
    a.phase = "connected, waiting for HELLO answer"
    with pytest.raises(PeerLost) as caught:
        a.recv_exact(bytearray(12), deadline=clock.now() + 10)
    host, port = a.remote
    assert str(caught.value) == (
        f"peer {host}:{port} lost while connected, waiting for HELLO answer: "
        "no progress before the deadline; 0 bytes in 10 s; "
        "sent 58, received 0 bytes so far. Next: check that the peer is not "
        "waiting for us, or raise --time-scale"
    )
    assert caught.value.exit_code == 3
    assert clock.slept == [10.0]
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.kind, again.sent) == (str(caught.value), "timeout", 58)


def test_exchange_deadline_and_idle_are_times_of_the_clock(
    clock: FakeClock, pair: Pair
) -> None:
    a, _ = pair
    with pytest.raises(PeerLost, match=r"0 bytes in 3 s"):
        a.exchange([b"gate"], bytearray(4), deadline=LATER, idle=3)
    with pytest.raises(PeerLost, match=r"0 bytes in 5 s"):
        a.exchange([b"gate"], bytearray(4), deadline=clock.now() + 5, idle=30)
    assert clock.slept == [3.0, 5.0]


def test_more_buffers_than_the_kernel_takes_at_once(pair: Pair) -> None:
    a, b = pair
    parts = [bytes([n & 255]) for n in range(IOV_MAX * 2 + 3)]
    a.send(parts, deadline=LATER)
    got = bytearray(len(parts))
    b.recv_exact(got, deadline=LATER)
    assert got == b"".join(parts)


def test_a_send_to_a_peer_that_left_is_a_reset(pair: Pair) -> None:
    a, b = pair
    b.close(reset=True)

    def until_it_fails() -> None:
        for _ in range(100):
            a.send([b"x"], deadline=LATER)

    with pytest.raises(PeerLost) as caught:
        until_it_fails()
    assert caught.value.kind == "reset"
    assert "unread bytes or crashed" in str(caught.value)


def test_alive_sees_an_end_without_reading(pair: Pair) -> None:
    a, b = pair
    b.send([b"x"], deadline=LATER)
    assert a.alive()
    assert a.recv_into(bytearray(1), deadline=LATER) == 1
    assert a.alive()
    b.close()
    assert select.select([a.fileno()], [], [], PATIENCE)[0]  # its end has come
    assert not a.alive()
    a.close()
    assert not a.alive()


def test_an_empty_read_buffer_is_a_callers_mistake(pair: Pair) -> None:
    a, _ = pair
    with pytest.raises(ValueError, match="at least one byte"):
        a.recv_into(bytearray(), deadline=LATER)


class _Log:
    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def sent(self, bufs: Sequence[Any], count: int) -> None:
        self.events.append(("sent", b"".join(bytes(b) for b in bufs)[:count]))

    def received(self, data: memoryview) -> None:
        self.events.append(("received", bytes(data)))

    def finished(self, *, sent_by_us: bool) -> None:
        self.events.append(("finished", sent_by_us))

    def closed(self, *, reset: bool, by_us: bool) -> None:
        self.events.append(("closed", reset, by_us))


def test_a_tap_sees_every_byte_once_and_every_end(pair: Pair) -> None:
    log = _Log()
    a, b = pair
    a.tap = log
    a.send([b"ab", b"c"], deadline=LATER)
    b.send([b"reply"], deadline=LATER)
    a.recv_exact(bytearray(2), deadline=LATER)
    a.recv_exact(bytearray(3), deadline=LATER)
    b.recv_exact(bytearray(3), deadline=LATER)  # unread bytes would make it a reset
    b.close()
    for _ in range(2):
        assert a.recv_into(bytearray(1), deadline=LATER) == 0
    a.shutdown_send()
    a.close()
    a.close()
    assert log.events == [
        ("sent", b"abc"),
        ("received", b"re"),
        ("received", b"ply"),
        ("finished", False),
        ("finished", True),
        ("closed", False, True),
    ]


def test_an_exchange_allocates_nothing_that_grows_with_the_payload() -> None:
    clock = FakeClock()
    a, b = loopback_pair(clock=clock, buffers=1 << 20)
    header, payload = bytearray(16), bytearray(64 << 10)
    view = memoryview(bytearray(16 + len(payload)))
    bufs = [header, payload]
    b.send(bufs, deadline=LATER)
    a.exchange(bufs, view, deadline=LATER, idle=1.0)
    b.recv_exact(bytearray(len(view)), deadline=LATER)
    peaks = []
    for _ in range(5):  # a thread of another test may allocate meanwhile
        b.send(bufs, deadline=LATER)
        tracemalloc.start()
        a.exchange(bufs, view, deadline=LATER, idle=1.0)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        b.recv_exact(bytearray(len(view)), deadline=LATER)
    a.close()
    b.close()
    assert min(peaks) < 4096
