"""Failures of a pair, strangers at its door, and the limits of its waits."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from ds4proto_runtime.engines.base import EngineError
from ds4proto_runtime.tp import bringup, leader
from ds4proto_runtime.tp.bringup import LeaderDoor, join_leader
from ds4proto_runtime.tp.leader import TpLeader
from ds4proto_runtime.tp.runner import Runner
from ds4proto_runtime.tp.toy import ToyTpEngine

from ds4proto.errors import Ds4ProtoError
from ds4proto.link import ds4t_events as say
from ds4proto.link.ds4t_gate_state import GateState
from ds4proto.link.ds4t_hello import HelloExchange
from ds4proto.link.ds4t_leader import LeaderControl
from ds4proto.link.ds4t_worker import WorkerControl
from ds4proto.peer import connect, listen
from ds4proto.peer.errors import ExposureError
from tests.link.ds4t import gates
from tests.link.ds4t.pair import PROMPT, opened, settings, synced
from tests.runtime.tp import test_bringup as bringups
from tests.runtime.tp.rig import options, pair
from tests.spec.proofs.tp_life import (
    PATIENCE,
    QUIET,
    SHAPE,
    Lead,
    worker_settings,
)
from tests.spec.removing import without_check
from tests.spec.tp_showing import altered, shows


class Broken(ToyTpEngine):
    """An engine that fails behind the last gate of its second prompt."""

    prompts = 0

    def run(self, state: Any, tokens: Any, gates: Any, images: Any = ()) -> Any:
        found = super().run(state, tokens, gates, images)
        self.prompts += 1
        if self.rank == 0 and self.prompts == 2:
            raise EngineError("out of memory")
        return found


@shows(
    (
        "DS4T-FAIL-12",
        "the worker keeps the session",
        altered(TpLeader, "invalidate", lambda _own, one, known: (
            one.rank.runner.invalidate(known)
        )),
    ),
    (
        "DS4T-FAIL-12",
        "the session stays valid here",
        altered(Runner, "invalidate", lambda _own, _runner, _known: None),
    ),
    (
        "DS4T-SYNC-11",
        "the answer is left unread",
        altered(leader.TpLeader, "_finish_failed", lambda _own, *_, **__: None),
    ),
)  # fmt: skip
def a_leader_whose_prefill_fails_empties_both_ranks() -> None:
    with pair(lambda number: Broken(SHAPE, number), options(dialect="v10")) as found:
        one = found.leader
        known = one.create()
        one.sync(known, [1, 2, 3, 4])
        with pytest.raises(EngineError, match="out of memory"):
            one.sync(known, [1, 2, 3, 4, 5, 6, 7, 8, 9])
        one.create()  # answered behind whatever was said before
        assert found.worker is not None
        for runner in (one.rank.runner, found.worker.rank.runner):
            assert runner[known].tokens == []
        assert one.sync(known, [1, 2, 3]) is not None
    assert found.worker_error is None


def endless(_own: Any, _machine: Any) -> None:
    return None


@shows(
    ("DS4T-FAIL-19", "answers", altered(LeaderControl, "deadline", endless)),
    ("DS4T-FAIL-19", "frames", altered(WorkerControl, "deadline", endless)),
    ("DS4T-FAIL-19", "hellos", altered(HelloExchange, "deadline", endless)),
    ("DS4T-FAIL-19", "gates", altered(GateState, "deadline", endless)),
)
def every_wait_has_an_end_and_names_its_phase() -> None:
    hello = HelloExchange(settings("tp-leader"), seconds=3.0)
    hello.start(0.0)
    ended(hello, 3.0, "hello")
    for command, phase in (
        (say.DestroySession(1), "session destroy"),
        (say.RunEval(1, 1), "decode"),
        (say.RunBatch((say.BatchItem(1, 1), say.BatchItem(3, 1))), "decode batch"),
    ):
        both = synced("v10")
        both.say(say.CreateSession(3, 8))
        both.answer(say.SessionCreated(3))
        both.leader.send(command, 0.0)
        ended(both.leader, 600.0, phase)
    both = opened("v14")
    both.leader.send(say.RunSync(1, PROMPT), 0.0)
    both.leader.send(say.Checkpoint(0, 0, 3), 0.0)
    ended(both.leader, 600.0, "prefill sync")
    both = opened("v14")
    both.worker.receive_data(bytes.fromhex("5434534402"), 0.0)
    ended(both.worker, 30.0, "")
    both = synced("v14")
    both.say(say.RunVerify(1, (1, 2)))
    both.worker.send(say.BlockRun(), 0.0)
    ended(both.worker, 120.0, "verify")
    machine = gates.link()
    gates.opened("row", machine)
    assert machine.deadline() == 0.75


def ended(machine: Any, due: float, phase: str) -> None:
    assert machine.deadline() == due
    machine.timeout(due)
    (failure,) = machine.events()
    assert phase in failure.phase, failure.phase


def one_alone(own: Any, door: Any, *words: Any) -> Any:
    found = own(door, *words)
    if found is not None and hasattr(door, "one"):
        found.close()
        raise bringup.Lost("busy with another client")
    if found is not None:
        door.one = True
    return found


class Door:
    """A leader's door that waits in a thread of its own."""

    def __init__(self) -> None:
        here = settings("tp-leader", identity=SHAPE.identity(), transport="tcp")
        self.log: list[str] = []
        self.found: list[Any] = []
        self.door = LeaderDoor("127.0.0.1", 0, here, hello_seconds=30.0,
                               say=self.log.append)  # fmt: skip
        self.agreed, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()
        await_data = self.door._data

        def data(*more: Any) -> Any:
            self.agreed.set()
            self.go_on.wait(PATIENCE)
            return await_data(*more)

        self.door._data = data
        self.thread = threading.Thread(target=self._wait, daemon=True)
        self.socks: list[socket.socket] = []

    def _wait(self) -> None:
        try:
            self.found.append(self.door.wait(bringup.monotonic() + PATIENCE))
        except BaseException as error:
            self.found.append(error)
            self.door.close()  # as a process that ends

    def __enter__(self) -> Door:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on.set()
        for sock in self.socks:
            sock.close()
        self.thread.join(2 * PATIENCE)
        for one in self.found:
            if not isinstance(one, BaseException):
                one.close()
        self.door.close()

    def dial(self, first: bytes = b"", seconds: float = PATIENCE) -> socket.socket:
        """Connect and say something."""
        sock = socket.create_connection(self.door.address, seconds)
        self.socks.append(sock)
        sock.sendall(first)
        return sock


@shows(
    (
        "DS4T-ROBUST-01",
        "one client at a time",
        altered(LeaderDoor, "_accept", one_alone),
    )
)
def a_silent_client_does_not_keep_the_worker_out() -> None:
    with Door() as one:
        silent = one.dial()
        assert len(silent.recv(88, socket.MSG_WAITALL)) == 88  # a leader writes first
        found = join_leader(
            *one.door.address, worker_settings(), dial_seconds=PATIENCE,
            hello_seconds=PATIENCE, say=QUIET,
        )  # fmt: skip
        found.close()


def closed(one: Door, sock: socket.socket) -> bool:
    """Whether the leader closes this connection before it is content with it."""
    sock.settimeout(0.05)
    for _ in range(400):
        try:
            if not sock.recv(88):
                return True
        except TimeoutError:
            if not one.thread.is_alive():
                return False
        except ConnectionError:
            return True
    return False


@shows(
    (
        "DS4T-ROBUST-02",
        "any address will do",
        lambda: without_check(bringup, "origin"),
    ),
    (
        "DS4T-ROBUST-02",
        "who speaks early is the worker",
        altered(bringup, "peek", lambda own, sock: own(sock) and None),
    ),
)
def a_stranger_is_no_data_connection() -> None:
    own = bringup.origin_of
    for words, address in ((b"", "192.0.2.7"), (bringups._hello(), "127.0.0.1")):
        strange: set[int] = set()

        def origin(
            sock: socket.socket, far: str = address, known: Any = strange
        ) -> str:
            return far if sock.getpeername()[1] in known else str(own(sock))

        with patch.object(bringup, "origin_of", origin), Door() as one:
            one.go_on.clear()
            control = one.dial(bringups._hello())
            assert len(control.recv(88, socket.MSG_WAITALL)) == 88
            stranger = socket.socket()
            one.socks.append(stranger)
            stranger.bind(("127.0.0.1", 0))
            strange.add(stranger.getsockname()[1])
            assert one.agreed.wait(PATIENCE)
            stranger.connect(one.door.address)
            stranger.sendall(words)
            one.go_on.set()  # only now: a leader takes who is silent for a moment
            assert closed(one, stranger), one.log
            one.dial()
            one.thread.join(PATIENCE)
            assert not isinstance(one.found[0], BaseException), one.found


def turned_down(host: str) -> str:
    """Return why a listener is refused, nothing where it is not."""
    try:
        listen(host).close()
    except ExposureError as error:
        return str(error)
    except OSError:
        pass  # not an address of this machine, or a family that it lacks
    return ""


@shows(
    (
        "DS4T-ROBUST-23",
        "any address",
        altered(connect, "is_loopback", lambda _own, _host: True),
    ),
    (
        "DS4T-ROBUST-23",
        "no warning",
        lambda: patch.object(connect, "NO_AUTHENTICATION", ""),
    ),
)
def a_tool_binds_to_loopback_unless_told_otherwise() -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        assert "authentication" in turned_down(host)
        assert "authentication" in (connect.exposure_warning(host) or "")
    with listen() as found:
        assert found.address[0] == "127.0.0.1"
    assert connect.exposure_warning("127.0.0.1") is None


@shows(
    (
        "DS4T-ROBUST-28",
        "no word on the leader",
        altered(bringup, "_told", lambda _own, failure: failure),
    )
)
def a_worker_says_that_the_leader_waits_elsewhere() -> None:
    lead = Lead()
    wish = replace(worker_settings(), transport="rdma", rdma_device=True)
    try:
        with pytest.raises(Ds4ProtoError) as caught:
            join_leader(
                *lead.server.getsockname(), wish, dial_seconds=PATIENCE, say=QUIET
            )  # fmt: skip
    finally:
        socket.create_connection(lead.server.getsockname(), 5.0).close()
        lead.thread.join(PATIENCE)
        lead.server.close()
        for sock in lead.socks:
            sock.close()
    text = str(caught.value)
    assert "tp: --transport rdma but the peer side has no active device" in text
    assert "waits for the data connection" in text
