"""Dialling and listening: retry rules, deadlines, the loopback rule."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

import pytest

from ds4proto.cli import run
from ds4proto.peer import (
    DS4D_DIAL,
    NO_AUTHENTICATION,
    ExposureError,
    PeerLost,
    dial,
    ds4t_dial,
    exposure_warning,
    listen,
)
from ds4proto.peer.connect import ONCE, RetryPolicy, free_ports
from ds4proto.peer.errors import ListenError
from ds4proto.testing import FakeClock

LATER = 1e9


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that refuses: bound, so that nobody else gets it, but not listening."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_the_pipeline_dials_200_times_25_ms_apart(
    clock: FakeClock, closed_port: int
) -> None:
    with pytest.raises(PeerLost) as caught:
        dial("127.0.0.1", closed_port, deadline=LATER, retry=DS4D_DIAL, clock=clock)
    assert caught.value.kind == "refused"
    assert "200 tries" in str(caught.value)
    assert clock.slept == [0.025] * 199


@pytest.mark.parametrize(("seconds", "tries"), [(0, 1), (1, 5), (10, 50)])
def test_tensor_parallelism_dials_every_200_ms(
    clock: FakeClock, closed_port: int, seconds: float, tries: int
) -> None:
    with pytest.raises(PeerLost, match=rf"\b{tries} tr"):
        dial(
            "127.0.0.1",
            closed_port,
            deadline=LATER,
            retry=ds4t_dial(seconds),
            clock=clock,
        )
    assert set(clock.slept) <= {0.2}


def test_time_scale_stretches_a_policy() -> None:
    assert DS4D_DIAL.scaled(2).attempts == 400
    assert ds4t_dial(10).scaled(0.5).window == 5
    assert ONCE.scaled(0.1).attempts == 1


def test_the_deadline_ends_the_retries(clock: FakeClock, closed_port: int) -> None:
    limit = clock.now() + 1
    with pytest.raises(PeerLost, match="refused"):
        dial("127.0.0.1", closed_port, deadline=limit, retry=DS4D_DIAL, clock=clock)
    assert clock.now() <= limit
    assert len(clock.slept) >= 38


def test_errors_that_no_retry_mends_end_at_once(
    clock: FakeClock, closed_port: int
) -> None:
    never = RetryPolicy("never", 1.0, 100, None, retried=frozenset())
    with pytest.raises(PeerLost, match="1 try"):
        dial("127.0.0.1", closed_port, deadline=LATER, retry=never, clock=clock)


def test_a_peer_that_died_stops_the_dialling(
    clock: FakeClock, closed_port: int
) -> None:
    with pytest.raises(PeerLost) as caught:
        dial(
            "127.0.0.1",
            closed_port,
            deadline=LATER,
            retry=DS4D_DIAL,
            clock=clock,
            alive=lambda: len(clock.slept) < 3,
        )
    assert caught.value.kind == "exited"
    assert len(clock.slept) == 3


def test_a_peer_that_comes_up_late_is_reached(clock: FakeClock) -> None:
    (port,) = free_ports(1)
    with socket.socket() as late:
        late.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        late.bind(("127.0.0.1", port))

        def alive() -> bool:
            if len(clock.slept) == 5:
                late.listen()
            return True

        channel = dial(
            "127.0.0.1",
            port,
            deadline=LATER,
            retry=DS4D_DIAL,
            clock=clock,
            alive=alive,
            bind_host="127.0.0.1",
        )
        assert channel.remote == ("127.0.0.1", port)
        assert clock.slept == [0.025] * 6
        channel.close()


def test_an_unknown_host_is_unreachable(clock: FakeClock) -> None:
    with pytest.raises(PeerLost) as caught:
        # A label over 63 bytes never leaves the machine.
        dial("a" * 70 + ".invalid", 1, deadline=clock.now() + 5, clock=clock)
    assert caught.value.kind == "unreachable"


def test_nobody_connects(clock: FakeClock) -> None:
    with listen(clock=clock) as listener, pytest.raises(PeerLost) as caught:
        listener.accept(deadline=clock.now() + 7, phase="waiting for a worker")
    assert caught.value.kind == "timeout"
    assert "while waiting for a worker" in str(caught.value)
    assert "nobody connected" in str(caught.value)
    assert clock.slept == [7.0]


def test_waiting_looks_at_the_peer_now_and_then(clock: FakeClock) -> None:
    with listen(clock=clock) as listener, pytest.raises(PeerLost) as caught:
        listener.accept(deadline=LATER, alive=lambda: len(clock.slept) < 4)
    assert caught.value.kind == "exited"


def test_connections_are_accepted_in_order(clock: FakeClock) -> None:
    with listen(clock=clock) as listener:
        dialled = [dial(*listener.address, deadline=LATER, clock=clock) for _ in "abc"]
        taken = [listener.accept(deadline=LATER) for _ in dialled]
    assert [c.local for c in dialled] == [c.remote for c in taken]
    for channel in dialled + taken:
        channel.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "", "::", "192.0.2.1"])
def test_leaving_the_loopback_needs_an_opt_in(host: str) -> None:
    with pytest.raises(ExposureError) as caught:
        listen(host or "0.0.0.0", 0)
    assert NO_AUTHENTICATION in str(caught.value)
    assert "\n" not in NO_AUTHENTICATION
    assert caught.value.exit_code == 2


def test_opting_in_and_the_warning() -> None:
    with listen("0.0.0.0", 0, allow_remote=True) as listener:
        assert listener.address[1] > 0
    assert exposure_warning("0.0.0.0") == NO_AUTHENTICATION
    assert exposure_warning("127.0.0.1") is None
    assert exposure_warning("localhost") is None


def test_free_ports_differ() -> None:
    ports = [*free_ports(8), *free_ports(8)]
    assert len(set(ports)) == 16
    # the system hands none of them out to a connection in between
    assert max(ports) < 32768


def test_a_port_that_is_taken_is_named_with_a_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ListenError) as caught:
            listen("127.0.0.1", port)
        assert str(caught.value) == (
            f"cannot listen on 127.0.0.1:{port}: Address already in use. Next: end the"
            " process that has the port, or name another"
        )
        assert (caught.value.errno, caught.value.exit_code) == (errno.EADDRINUSE, 2)


@pytest.mark.parametrize("argv", [
    ("proxy", "--to", "127.0.0.1:1", "--listen", "127.0.0.1:{}"),
    ("run", "--role", "coordinator", "--layers", "0:3", "-p", "1",
     "--listen", "127.0.0.1", "{}"),
])  # fmt: skip
def test_a_command_that_cannot_listen_has_run_nothing(
    argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        assert run([word.format(port) for word in argv]) == 2
        assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err
