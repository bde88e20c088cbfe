"""Strangers at a leader's door are turned away; the pair behind them works."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest
from ds4proto_runtime.tp import bringup, rank
from ds4proto_runtime.tp.errors import PairError
from ds4proto_runtime.tp.leader import TpLeader
from ds4proto_runtime.tp.rank import Rank
from ds4proto_runtime.tp.toy import ToyShape, ToyTpEngine
from ds4proto_runtime.tp.worker import TpWorker

from ds4proto.errors import PeerLost
from ds4proto.link.ds4t_identity import TpSettings
from tests.runtime.tp.rig import PATIENCE, options, until

SHAPE = ToyShape()
CLIENTS: list[socket.socket] = []
"""What a test has connected, closed behind it however it ends."""


@pytest.fixture(autouse=True)
def _clients_are_closed() -> Iterator[None]:
    yield
    while CLIENTS:
        CLIENTS.pop().close()


def _connect(address: tuple[str, int]) -> socket.socket:
    sock = socket.create_connection(address, PATIENCE)
    CLIENTS.append(sock)
    sock.settimeout(PATIENCE)
    return sock


def _closed(sock: socket.socket) -> bool:
    try:
        return not sock.recv(1)
    except ConnectionResetError:  # it was closed with our bytes unread
        return True


def _hello() -> bytes:
    return TpSettings("tp-worker", SHAPE.identity(), transport="tcp").hello()


@contextmanager
def _door(**words: Any) -> Iterator[tuple[TpLeader, list[str], list[BaseException]]]:
    """A leader that accepts in a thread of its own."""
    log: list[str] = []
    errors: list[BaseException] = []
    leader = TpLeader(ToyTpEngine(SHAPE, 0), options=options(**words), say=log.append)

    def wait() -> None:
        try:
            leader.accept()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    try:
        yield leader, log, errors
    except BaseException as error:
        error.add_note(f"the leader said {log} and ended with {errors}")
        leader.close()
        raise
    finally:
        thread.join(PATIENCE)
        leader.close()
    assert not thread.is_alive(), "the leader hangs"


def _work(address: tuple[str, int], results: list[object]) -> threading.Thread:
    def run() -> None:
        try:
            engine = ToyTpEngine(SHAPE, 1)
            with TpWorker(engine, *address, options(), say=lambda _: None) as worker:
                worker.serve()
            results.append("done")
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def _joined(log: list[str], leader: TpLeader) -> None:
    until(lambda: any("worker connected" in line for line in log), log)
    known = leader.create()
    leader.eval(known, 3)
    leader.stop()


@pytest.mark.parametrize(
    ("first", "word"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "bad magic"),
        (bytes(range(40)), "bad magic"),
        (b"", ""),
    ],
    ids=["http", "noise", "silent"],
)
def test_a_client_that_comes_first_does_not_keep_the_worker_out(
    first: bytes, word: str
) -> None:
    results: list[object] = []
    with _door() as (leader, log, errors):
        stranger = _connect(leader.address)
        assert stranger.recv(88) != b""  # a leader writes first
        stranger.sendall(first)
        if word:
            until(lambda: any(word in line for line in log), log)
        worker = _work(leader.address, results)
        _joined(log, leader)
        worker.join(PATIENCE)
        stranger.close()
    assert (results, errors) == (["done"], [])


def test_a_hello_that_is_cut_short_is_turned_away_with_the_exchange_text() -> None:
    results: list[object] = []
    with _door() as (leader, log, errors):
        stranger = _connect(leader.address)
        stranger.recv(88)
        stranger.sendall(_hello()[:40])
        stranger.close()
        until(lambda: any("tp hello exchange failed" in line for line in log), log)
        worker = _work(leader.address, results)
        _joined(log, leader)
        worker.join(PATIENCE)
    assert (results, errors) == (["done"], [])


def test_a_second_worker_in_the_place_of_the_data_connection_is_turned_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Upstream takes its hello for a gate (got l=9).

    Whether the leader still reads the first hello as the racer speaks is a matter of
    luck; the racer is closed and named either way.
    """
    refusals = ("speaks before", "another worker was first")
    monkeypatch.setattr(bringup, "GREET_SECONDS", PATIENCE)  # greets no racer
    monkeypatch.setattr(bringup, "SETTLE_SECONDS", PATIENCE)  # nor takes the racer
    with _door() as (leader, log, errors):
        control = _connect(leader.address)
        control.sendall(_hello())
        assert len(control.recv(88, socket.MSG_WAITALL)) == 88
        racer = _connect(leader.address)
        racer.sendall(_hello())
        until(lambda: any(word in line for line in log for word in refusals), log)
        assert _closed(racer)
        monkeypatch.setattr(bringup, "SETTLE_SECONDS", 0.05)
        data = _connect(leader.address)
        until(lambda: any("worker connected" in line for line in log), log)
        control.close()
        data.close()
        racer.close()
    assert errors == []


def test_a_leader_that_stands_still_does_not_greet_the_data_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker says its hello before it dials again: the leader reads in that order.

    It takes the second connection before it has read anything, and by then the time
    in which it greets nobody else is over.
    """
    monkeypatch.setattr(bringup, "GREET_SECONDS", 1e-9)
    accept = bringup.LeaderDoor._accept
    taken: list[Any] = []
    waits, go_on = threading.Event(), threading.Event()

    def later(door: bringup.LeaderDoor, *words: Any) -> Any:
        if taken:
            waits.set()
            go_on.wait(PATIENCE)
        sock = accept(door, *words)
        taken.extend([] if sock is None else [sock])
        return sock

    monkeypatch.setattr(bringup.LeaderDoor, "_accept", later)
    with _door() as (leader, log, errors):
        control = _connect(leader.address)
        assert waits.wait(PATIENCE)
        control.sendall(_hello())
        data = _connect(leader.address)
        go_on.set()
        until(lambda: any("worker connected" in line for line in log) or errors, log)
        control.close()
        data.close()
    assert errors == []
    assert not any("turned away" in line for line in log)


def test_a_silent_racer_is_told_apart_at_the_first_gate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bringup, "SETTLE_SECONDS", 2 * PATIENCE)
    monkeypatch.setattr(rank, "SETTLE_LIMIT", PATIENCE)
    # the door's clock runs on once both connections have come
    ahead, silent = [0.0], set[int]()
    monkeypatch.setattr(bringup, "monotonic", lambda: time.monotonic() + ahead[0])
    still_silent = bringup.LeaderDoor._still_silent

    def seen(door: bringup.LeaderDoor, sock: socket.socket) -> bool:
        silent.add(sock.fileno())
        if len(silent) == 2:
            ahead[0] = 3 * PATIENCE
        return still_silent(door, sock)

    monkeypatch.setattr(bringup.LeaderDoor, "_still_silent", seen)
    results: list[object] = []
    racers: list[socket.socket] = []
    real = bringup._worker_hello

    def race(sock: socket.socket, *rest: Any) -> Any:
        agreed = real(sock, *rest)
        # between the worker's hello and its own second connection
        racers.append(_connect(sock.getpeername()[:2]))
        return agreed

    monkeypatch.setattr(bringup, "_worker_hello", race)
    with _door() as (leader, log, errors):
        worker = _work(leader.address, results)
        _joined(log, leader)
        worker.join(PATIENCE)
        assert _closed(racers[0])
        racers[0].close()
    assert (results, errors) == (["done"], [])


def test_another_address_is_no_data_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = bringup.origin_of
    strange: set[int] = set()
    monkeypatch.setattr(
        bringup,
        "origin_of",
        lambda sock: "192.0.2.7" if sock.getpeername()[1] in strange else real(sock),
    )
    with _door() as (leader, log, errors):
        control = _connect(leader.address)
        stranger = socket.socket()
        CLIENTS.append(stranger)
        stranger.bind(("127.0.0.1", 0))
        strange.add(stranger.getsockname()[1])
        control.sendall(_hello())
        assert len(control.recv(88, socket.MSG_WAITALL)) == 88
        stranger.connect(leader.address)
        until(lambda: any("comes from" in line for line in log), log)
        data = _connect(leader.address)
        until(lambda: any("worker connected" in line for line in log), log)
        for sock in (control, data, stranger):
            sock.close()
    assert errors == []


def test_a_worker_that_leaves_before_its_data_connection_is_reported() -> None:
    with _door() as (leader, _, errors):
        control = _connect(leader.address)
        control.sendall(_hello())
        control.recv(88, socket.MSG_WAITALL)
        control.close()
        until(lambda: bool(errors), "no error")
    assert isinstance(errors[0], PeerLost)
    assert "before the data connection came" in str(errors[0])


def test_a_data_connection_that_never_comes_ends_the_wait() -> None:
    with _door() as (leader, _, errors):
        control = _connect(leader.address)
        assert len(control.recv(88, socket.MSG_WAITALL)) == 88
        leader._door._hello_seconds = 0.3  # from here on: our own hello had longer
        control.sendall(_hello())
        until(lambda: bool(errors), "no error")
        control.close()
    assert isinstance(errors[0], PeerLost)
    assert "data connection" in str(errors[0])


def test_nobody_comes_and_the_leader_gives_up() -> None:
    with _door(accept_seconds=0.2) as (_, _, errors):
        until(lambda: bool(errors), "no error")
    assert isinstance(errors[0], PeerLost)


def test_a_worker_reports_a_leader_that_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()[:2]
        with pytest.raises(PeerLost, match="tp hello exchange failed"):
            TpWorker(
                ToyTpEngine(SHAPE, 1),
                *address,
                options(hello_seconds=0.3),
                say=lambda _: None,
            )


def test_a_worker_refuses_another_worker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()[:2]

        server.settimeout(PATIENCE)

        def answer() -> None:
            peer, _ = server.accept()
            with peer, suppress(OSError):  # it may be gone before it is heard
                peer.sendall(_hello())
                peer.recv(88, socket.MSG_WAITALL)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(PairError, match="both sides claim role 2"):
            TpWorker(ToyTpEngine(SHAPE, 1), *address, options(), say=lambda _: None)
        thread.join(PATIENCE)


def test_a_rank_that_ends_does_not_take_its_last_bytes_with_it() -> None:
    """DS4T-FAIL-20: a close with unread bytes would reset the connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near, far = [], []
        for _ in range(2):
            near.append(socket.create_connection(server.getsockname()))
            far.append(server.accept()[0])
    agreed: Any = None  # of no use at the end
    parts: Any = SimpleNamespace(
        _connected=bringup.Connected(near[0], near[1], agreed),
        transport=near[1],
        pipe=near[0],
    )
    for mine, theirs in zip(near, far, strict=True):
        theirs.sendall(b"what nobody reads" * 1000)
        mine.sendall(b"the last gate")
    Rank.close(parts)  # the other side neither reads nor ends: this returns
    Rank.close(parts)
    for theirs in far:
        theirs.settimeout(PATIENCE)
        assert theirs.recv(100) == b"the last gate"
        assert theirs.recv(100) == b""
        theirs.close()
    assert [sock.fileno() for sock in near] == [-1, -1]
