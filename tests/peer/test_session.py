"""open_peer: who dials whom for every role, what is refused, what is left behind."""

from __future__ import annotations

import select
import shlex
import socket
import sys
import threading
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from ds4proto.peer import (
    SYSTEM_CLOCK,
    Channel,
    PeerError,
    PeerLost,
    PeerProcess,
    PeerSpecError,
    Role,
    dial,
    listen,
    open_peer,
)
from ds4proto.peer import reference as reference_module
from ds4proto.testing import FakeClock

SCRIPT = Path(__file__).with_name("toy_peer.py")
TOY = shlex.join([sys.executable, str(SCRIPT)])
PATIENCE = 120.0


def _soon() -> float:
    return SYSTEM_CLOCK.now() + PATIENCE


def _greets(channel: Channel, words: bytes) -> None:
    got = bytearray(len(words))
    channel.recv_exact(got, deadline=_soon())
    assert got == words
    channel.send([b"ping"], deadline=_soon())
    channel.recv_exact(memoryview(got)[:4], deadline=_soon())
    assert got[:4] == b"ping"


def test_worker_dials_us_and_we_dial_its_data_port() -> None:
    spec = f"exec:{TOY} worker {{host}} {{port}} {{port2}}"
    with open_peer(spec, "worker", deadline=_soon()) as peer:
        control = peer.channel("control")
        _greets(control, b"HELLO")
        assert peer.channel("control") is control
        assert control.local[1] == peer.ports[0]
        with pytest.raises(PeerError, match="in its HELLO"):
            peer.channel("data")
        data = peer.channel("data", port=peer.ports[1])
        _greets(data, b"DATA!")
        again = peer.channel("data", port=peer.ports[1], fresh=True)
        assert again is not data
        assert data.fileno() == -1
        _greets(again, b"DATA!")
        assert peer.alive()
        assert peer.pid() is not None
        process = peer.process
    assert process is not None
    assert not process.alive()
    assert control.fileno() == again.fileno() == -1


def test_coordinator_is_dialled_and_dials_our_data_port() -> None:
    spec = f"exec:{TOY} coordinator {{host}} {{port}}"
    with open_peer(spec, "coordinator", deadline=_soon()) as peer:
        control = peer.channel("control")
        assert control.remote == ("127.0.0.1", peer.ports[0])
        port = peer.data_address()[1]
        control.send([port.to_bytes(2, "big")], deadline=_soon())
        _greets(peer.channel("data"), b"FETCH")


def test_tp_worker_dials_us_twice() -> None:
    spec = f"exec:{TOY} tp-worker {{host}} {{port}}"
    with open_peer(spec, "tp-worker", deadline=_soon()) as peer:
        control = peer.channel("control")
        got = bytearray(5)
        control.recv_exact(got, deadline=_soon())
        assert got == b"HELLO"
        control.send([b"!"], deadline=_soon())
        data = peer.channel("data")
        assert data.local == control.local
        _greets(data, b"DATA!")


def test_tp_leader_is_dialled_twice() -> None:
    spec = f"exec:{TOY} tp-leader {{host}} {{port}}"
    with open_peer(spec, "tp-leader", deadline=_soon()) as peer:
        got = bytearray(5)
        peer.channel("control").recv_exact(got, deadline=_soon())
        assert got == b"HELLO"
        data = peer.channel("data")
        assert data.remote == peer.channel("control").remote
        _greets(data, b"DATA!")


def test_codec_command_is_a_channel_over_its_stdin_and_stdout() -> None:
    with open_peer(f"codec:{TOY} codec", "codec", deadline=_soon()) as peer:
        channel = peer.channel("control")
        channel.send([b"abc"], deadline=_soon())
        got = bytearray(3)
        channel.recv_exact(got, deadline=_soon())
        assert got == b"cba"
        channel.shutdown_send()
        assert channel.recv_into(got, deadline=_soon()) == 0
        assert peer.process is not None
        assert peer.process.wait(deadline=_soon()) == 0
        assert peer.output() == "ready to code\n"
        with pytest.raises(PeerError, match="no data connection"):
            peer.channel("data")
        with pytest.raises(PeerError, match="already taken"):
            peer.channel("control", fresh=True)


@pytest.mark.parametrize(
    ("role", "words"),
    [("worker", "waiting for the worker"), ("coordinator", "dialling")],
)
def test_a_command_that_crashes_is_told_with_output_and_status(
    role: Role, words: str
) -> None:
    with (
        open_peer(f"exec:{TOY} crash", role, deadline=_soon()) as peer,
        pytest.raises(PeerLost) as caught,
    ):
        peer.channel("control")
    error = caught.value
    assert error.kind == "exited"
    assert "exit status 7" in str(error)
    assert "cannot load model" in str(error)
    assert words in error.phase


def test_listen_and_tcp_without_a_process() -> None:
    clock = FakeClock()
    with open_peer("listen:127.0.0.1:0", "worker", deadline=1e9, clock=clock) as peer:
        assert peer.address is not None
        theirs = dial(*peer.address, deadline=1e9, clock=clock)
        control = peer.channel("control")
        assert control.remote == theirs.local
        assert peer.pid() is None
        assert peer.output() == ""
        assert peer.alive()
        next_hop = dial(*peer.data_address(), deadline=1e9, clock=clock)
        forwarded = peer.accept()
        assert forwarded.remote == next_hop.local
        theirs.close()
        assert select.select([control.fileno()], [], [], PATIENCE)[0]  # its end came
        assert not peer.alive()
        next_hop.close()
    with listen(clock=clock) as listener:
        spec = f"tcp:127.0.0.1:{listener.address[1]}"
        with open_peer(spec, "worker", deadline=1e9, clock=clock) as peer:
            data = peer.channel("data")
            assert data.remote == listener.address
            with pytest.raises(PeerError, match="use listen:HOST:PORT or exec"):
                peer.channel("control")
        with open_peer(spec, "coordinator", deadline=1e9, clock=clock) as peer:
            assert peer.channel("control").remote == listener.address


def test_nobody_there_within_the_deadline() -> None:
    clock = FakeClock()
    with (
        open_peer(
            "listen:127.0.0.1:0", "tp-worker", deadline=clock.now() + 9, clock=clock
        ) as peer,
        pytest.raises(PeerLost, match="waiting for the tp-worker's control connection"),
    ):
        peer.channel("control")
    assert clock.slept == [9.0]


REFUSED: list[tuple[str, Role, str, str]] = [
    ("capture:x.pcap", "worker", "capture", "judged passively"),
    ("tcp:127.0.0.1:1", "tp-worker", "tcp", "use listen: or exec:"),
    ("tcp:127.0.0.1:1", "codec", "tcp", "use codec:"),
    ("listen:127.0.0.1:0", "coordinator", "listen", "use tcp: or exec:"),
    ("listen:127.0.0.1:0", "tp-leader", "listen", "does not dial us"),
    ("exec:true", "codec", "exec", "started with codec:COMMAND"),
    ("codec:true", "worker", "codec", "started with exec:COMMAND"),
    ("reference:worker", "coordinator", "worker", "wanted is a coordinator"),
    ("exec:/nonexistent/ds4 x", "worker", "/nonexistent/ds4 x", "No such file"),
    ("codec:/nonexistent/ds4", "codec", "/nonexistent/ds4", "No such file"),
]


@pytest.mark.parametrize(("spec", "role", "part", "words"), REFUSED)
def test_what_cannot_work_is_refused(
    spec: str, role: Role, part: str, words: str
) -> None:
    with pytest.raises(PeerSpecError) as caught, open_peer(spec, role, deadline=1e9):
        pass
    assert spec[caught.value.start : caught.value.end] == part
    assert words in caught.value.message


def test_a_port_in_use_is_refused_with_its_reason() -> None:
    with listen() as taken:
        spec = f"listen:127.0.0.1:{taken.address[1]}"
        with (
            pytest.raises(PeerSpecError, match="already in use"),
            open_peer(spec, "worker", deadline=1e9),
        ):
            pass


def test_an_error_in_the_body_still_ends_the_peer() -> None:
    seen: list[PeerProcess] = []

    def body() -> None:
        spec = f"exec:{TOY} stubborn"
        with open_peer(spec, "worker", deadline=_soon(), grace=0.05) as peer:
            assert peer.process is not None
            seen.append(peer.process)
            peer.process.wait_line("ready", deadline=_soon())
            raise RuntimeError("our own")

    with pytest.raises(RuntimeError, match="our own"):
        body()
    assert not seen[0].alive()


# Entry points are made by hand: installed ones depend on the installation.
def good_factory(mutant: str | None) -> Sequence[str]:
    words = shlex.split(TOY)
    if mutant not in (None, "late"):
        raise ValueError(f"no mutant {mutant}")
    return [*words, "worker", "{host}", "{port}", "{port2}"]


def empty_factory(_: str | None) -> Sequence[str]:
    return []


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    here = __name__
    sys.modules.setdefault(here, sys.modules[__name__])
    group = "ds4proto.peers"
    points = [
        EntryPoint("worker", f"{here}:good_factory", group),
        EntryPoint("codec", f"{here}:empty_factory", group),
        EntryPoint("tp-leader", "no.such.module:f", group),
        EntryPoint("worker-mutant", f"{here}:good_factory", group),
    ]
    monkeypatch.setattr(
        reference_module, "entry_points", lambda group: points if group else []
    )


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("spec", ["reference:worker", "reference:worker:late"])
def test_reference_peers_come_from_the_entry_points(spec: str) -> None:
    with open_peer(spec, "worker", deadline=_soon()) as peer:
        _greets(peer.channel("control"), b"HELLO")


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("spec", "role", "part", "words"),
    [
        ("reference:worker:x", "worker", "x", "refuses it: no mutant x"),
        ("reference:codec", "codec", "codec", "returned no command"),
        ("reference:tp-leader", "tp-leader", "tp-leader", "cannot be loaded"),
        (
            "reference:coordinator",
            "coordinator",
            "coordinator",
            "registered: codec, tp",
        ),
    ],
)
def test_reference_peers_that_cannot_be_had(
    spec: str, role: Role, part: str, words: str
) -> None:
    with pytest.raises(PeerSpecError) as caught, open_peer(spec, role, deadline=1e9):
        pass
    assert spec[caught.value.start : caught.value.end] == part
    assert words in caught.value.message


def test_sessions_in_threads_do_not_mix() -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            test_tp_worker_dials_us_twice()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE * 2)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []


@pytest.mark.skipif(not socket.has_ipv6, reason="this Python has no IPv6")
def test_a_peer_that_we_dial_can_dial_us_where_it_sees_us() -> None:
    """A coordinator dials the address from which its worker came."""
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError as error:
        pytest.skip(f"no IPv6 loopback here: {error}")
    with listener:
        spec = f"tcp:[::1]:{listener.getsockname()[1]}"
        with open_peer(spec, "coordinator", deadline=_soon()) as peer:
            assert peer.data_address()[0] == "127.0.0.1"
        with open_peer(spec, "coordinator", deadline=_soon()) as peer:
            peer.channel("control")
            host, port = peer.data_address()
            assert host == "::1"
            with socket.create_connection((host, port), timeout=PATIENCE):
                peer.accept(deadline=_soon()).close()
