"""Recordings, read back with an independent reader (dpkt)."""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import dpkt
import pytest

from ds4proto.peer import SYSTEM_CLOCK, Recorder, dial, open_peer
from ds4proto.testing import FakeClock, loopback_pair

LATER = 1e9
STEP = 120.0
T0 = 1_700_000_000_000_000_000


class _Ticks:
    """A wall clock that moves 1 ms a look."""

    def __init__(self) -> None:
        self.now = T0

    def __call__(self) -> int:
        self.now += 1_000_000
        return self.now


Packets = list[tuple[float, int, int, "dpkt.tcp.TCP"]]


def _packets(raw: bytes) -> Packets:
    out = []
    for when, frame in dpkt.pcapng.Reader(io.BytesIO(raw)):
        tcp = dpkt.ethernet.Ethernet(frame).data.data
        assert isinstance(tcp, dpkt.tcp.TCP)
        out.append((when, tcp.sport, tcp.dport, tcp))
    return out


def _stream(packets: Packets, sport: int) -> bytes:
    """In-order payload of one direction; sequence numbers must fit."""
    data, want = b"", None
    for _, source, _, tcp in packets:
        if source != sport:
            continue
        if want is not None:
            assert tcp.seq == want
        data += tcp.data
        ends = bool(tcp.flags & (dpkt.tcp.TH_SYN | dpkt.tcp.TH_FIN))
        want = tcp.seq + len(tcp.data) + ends
    return data


@pytest.mark.parametrize("opened_by_us", [True, False])
def test_both_directions_are_written_with_their_ends(opened_by_us: bool) -> None:
    clock = FakeClock()
    a, b = loopback_pair(clock=clock)
    out = io.BytesIO()
    with Recorder(out, time_ns=_Ticks()) as recorder:
        a.tap = recorder.connection(a.local, a.remote, opened_by_us=opened_by_us)
        a.send([b"HEL", bytearray(b"LO"), b""], deadline=LATER)
        b.send([b"x" * 100_000], deadline=LATER)
        a.recv_exact(bytearray(100_000), deadline=LATER)
        b.recv_exact(bytearray(5), deadline=LATER)
        b.shutdown_send()
        assert a.recv_into(bytearray(1), deadline=LATER) == 0
        a.close()
        b.close()
    packets = _packets(out.getvalue())
    ours, theirs = a.local[1], a.remote[1]
    assert _stream(packets, ours) == b"HELLO"
    assert _stream(packets, theirs) == b"x" * 100_000
    syn = packets[0][3]
    assert syn.flags == dpkt.tcp.TH_SYN
    assert syn.sport == (ours if opened_by_us else theirs)
    fins = [s for _, s, _, t in packets if t.flags & dpkt.tcp.TH_FIN]
    assert fins == [theirs, ours]
    assert packets[0][0] == pytest.approx((T0 + 1_000_000) / 1e9)


def test_resets_of_either_side() -> None:
    clock = FakeClock()
    for by_us in (True, False):
        a, b = loopback_pair(clock=clock)
        out = io.BytesIO()
        with Recorder(out) as recorder:
            a.tap = recorder.connection(a.local, a.remote, opened_by_us=True)
            (a if by_us else b).close(reset=True)
            if not by_us:
                with pytest.raises(Exception, match="reset"):
                    a.recv_into(bytearray(1), deadline=LATER)
            a.close()
            b.close()
        last = _packets(out.getvalue())[-1]
        assert last[3].flags & dpkt.tcp.TH_RST
        assert last[1] == (a.local if by_us else a.remote)[1]


def test_a_partial_send_is_recorded_once() -> None:
    a, b = loopback_pair(buffers=4096)
    out = io.BytesIO()
    data = bytes(range(256)) * 8192
    with Recorder(out) as recorder:
        a.tap = recorder.connection(a.local, a.remote, opened_by_us=True)
        parts = [memoryview(data)[i : i + 70_001] for i in range(0, len(data), 70_001)]
        limit = SYSTEM_CLOCK.now() + STEP
        thread = threading.Thread(
            target=a.send, args=(parts,), kwargs={"deadline": limit}, daemon=True
        )
        thread.start()
        b.recv_exact(bytearray(len(data)), deadline=limit)
        thread.join()
        a.close()
        b.close()
    assert _stream(_packets(out.getvalue()), a.local[1]) == data


def test_a_session_records_to_a_path(tmp_path: Path) -> None:
    clock = FakeClock()
    path = tmp_path / "run.pcapng"
    with open_peer(
        "listen:127.0.0.1:0", "worker", deadline=LATER, clock=clock, record=path
    ) as peer:
        assert peer.address is not None
        first = dial(*peer.address, deadline=LATER, clock=clock)
        peer.channel("control").send([b"one"], deadline=LATER)
        second = dial(*peer.data_address(), deadline=LATER, clock=clock)
        peer.accept().send([b"two"], deadline=LATER)
        address = peer.address
        data_port = peer.data_address()[1]
    packets = _packets(path.read_bytes())
    # The peer dialled both, so its ports sent the SYNs.
    syns = [s for _, s, _, t in packets if t.flags == dpkt.tcp.TH_SYN]
    assert syns == [first.local[1], second.local[1]]
    assert _stream(packets, address[1]) == b"one"
    assert _stream(packets, data_port) == b"two"
    first.close()
    second.close()


def test_after_the_recorder_is_closed_channels_go_on() -> None:
    clock = FakeClock()
    a, b = loopback_pair(clock=clock)
    recorder = Recorder(io.BytesIO())
    a.tap = recorder.connection(a.local, a.remote, opened_by_us=True)
    recorder.close()
    recorder.close()
    a.send([b"x"], deadline=LATER)
    with pytest.raises(ValueError, match="closed"):
        recorder.connection(a.local, a.remote, opened_by_us=True)
    a.close()
    b.close()


@pytest.mark.skipif(not socket.has_ipv6, reason="this Python has no IPv6")
def test_ipv6_connections_are_recorded() -> None:
    clock = FakeClock()
    try:
        a, b = loopback_pair(clock=clock, host="::1")
    except OSError as error:
        pytest.skip(f"no IPv6 loopback here: {error}")
    out = io.BytesIO()
    with Recorder(out) as recorder:
        a.tap = recorder.connection(a.local, a.remote, opened_by_us=True)
        a.send([b"six"], deadline=LATER)
        a.close()
        b.close()
    assert _stream(_packets(out.getvalue()), a.local[1]) == b"six"


class _Slow:
    """A tap that is still busy with a request when the answer is read."""

    def __init__(self, answered: Callable[[], None]) -> None:
        self.order: list[str] = []
        self._answered = answered
        self._seen = threading.Event()

    def sent(self, _bufs: Sequence[object], _count: int) -> None:
        self._answered()
        self._seen.wait(0.3)
        self.order.append("sent")

    def received(self, _data: memoryview) -> None:
        self._seen.set()
        self.order.append("received")

    def finished(self, *, sent_by_us: bool) -> None:
        pass

    def closed(self, *, reset: bool, by_us: bool) -> None:
        pass


def test_an_answer_is_never_recorded_before_its_request() -> None:
    """Two threads share a connection: one sends, the other reads."""
    ours, theirs = loopback_pair(clock=SYSTEM_CLOCK)
    until = SYSTEM_CLOCK.now() + STEP

    def read() -> None:
        ours.recv_into(bytearray(8), deadline=until)

    reader = threading.Thread(target=read)

    def answer() -> None:
        theirs.send([b"answer"], deadline=until)
        reader.start()

    ours.tap = tap = _Slow(answer)
    ours.send([b"request"], deadline=until)
    reader.join(STEP)
    ours.close()
    theirs.close()
    assert tap.order == ["sent", "received"]
