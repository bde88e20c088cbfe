"""How a pair comes up and ends: connections, sockets, limits, strangers, failures."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from ds4proto_runtime.engines.base import EngineError
from ds4proto_runtime.tp import bringup, callers, cli, rank
from ds4proto_runtime.tp.bringup import LeaderDoor, join_leader
from ds4proto_runtime.tp.leader import TpLeader
from ds4proto_runtime.tp.options import parse_options
from ds4proto_runtime.tp.toy import ToyShape, ToyTpEngine

from ds4proto.errors import Ds4ProtoError, WrongUsage
from ds4proto.link.ds4t_limits import GateLimits
from ds4proto.peer import connect
from ds4proto.peer.connect import Listener, ds4t_dial, free_ports
from tests.link.ds4t import gates
from tests.link.ds4t.pair import settings
from tests.runtime.tp.rig import options, pair, toy
from tests.spec.tp_showing import altered, ruled, shows

SHAPE = ToyShape()
PATIENCE = 60.0
QUIET: Callable[[str], None] = lambda _: None  # noqa: E731


def worker_settings() -> Any:
    engine = ToyTpEngine(SHAPE, 1)
    return rank.settings_of("tp-worker", engine, options(), None)


class Lead:
    """A leader of bare sockets; notes what a worker does, in order."""

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.server.settimeout(PATIENCE)
        self.early = self.later = False
        self.spoke = b""
        self.problem: BaseException | None = None
        self.socks: list[socket.socket] = []
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            control, _ = self.server.accept()
            self.socks.append(control)
            control.recv(88, socket.MSG_WAITALL)
            self.early = bool(select.select([self.server], [], [], 0)[0])
            identity = ToyTpEngine(SHAPE, 0).identity
            control.sendall(settings("tp-leader", identity=identity).hello())
            data, _ = self.server.accept()
            self.socks.append(data)
            data.setblocking(False)
        except BaseException as error:
            self.problem = error

    def served(self) -> None:
        """Dial as a worker does, and close everything."""
        found = None
        try:
            found = join_leader(
                *self.server.getsockname(), worker_settings(),
                dial_seconds=PATIENCE, hello_seconds=PATIENCE, say=QUIET,
            )  # fmt: skip
            self.thread.join(PATIENCE)
            assert self.problem is None, self.problem
            self.later = bool(select.select([self.server], [], [], 0)[0])
            self.spoke = callers.peek(self.socks[1]) or b""
        finally:
            self.thread.join(PATIENCE)
            self.server.close()
            for sock in self.socks:
                sock.close()
            if found is not None:
                found.close()


@contextmanager
def dialling_too(before: bool) -> Iterator[None]:
    """A worker that opens one connection more."""
    kept: list[socket.socket] = []
    own = bringup._worker_hello

    def hello(sock: socket.socket, *rest: Any) -> Any:
        if before:
            kept.append(socket.create_connection(sock.getpeername(), 5.0))
        found = own(sock, *rest)
        if not before:
            kept.append(socket.create_connection(sock.getpeername(), 5.0))
        return found

    with patch.object(bringup, "_worker_hello", hello):
        try:
            yield
        finally:
            for sock in kept:
                sock.close()


@shows(
    ("DS4T-LIFE-01", "a third connection", lambda: dialling_too(False)),
    ("DS4T-LIFE-02", "the data connection first", lambda: dialling_too(True)),
)
def a_worker_dials_twice_control_first() -> None:
    lead = Lead()
    lead.served()
    assert not lead.early  # one connection until the hello has been answered
    assert not lead.later  # and two in all
    assert lead.spoke == b""


def listens_first(own: Any, wish: Any) -> Any:
    with socket.create_server(wish.listen):
        return own(wish)


@shows(
    (
        "DS4T-LIFE-03",
        "a leader that listens before it has its model",
        altered(cli, "_run", listens_first),
    )
)
def a_leader_loads_its_model_before_it_listens() -> None:
    (port,) = free_ports(1)
    seen: list[bool] = []

    def load(*_: Any) -> Any:
        with socket.socket() as probe:
            seen.append(probe.connect_ex(("127.0.0.1", port)) == 0)
        raise EngineError("no model")

    words = ["--role", "coordinator", "--listen", "127.0.0.1", str(port), "-p", "1"]
    with patch.object(cli, "load_engine", load), pytest.raises(WrongUsage):
        cli.run_tensor_parallel(parse_options(words))
    assert seen == [False]


@contextmanager
def left_open() -> Iterator[None]:
    """A leader that goes on listening."""
    kept: list[Listener] = []
    own = Listener.close

    def keep(one: Listener) -> None:
        kept.append(one)

    with patch.object(Listener, "close", keep):
        yield
    for one in kept:
        own(one)


@shows(
    ("DS4T-LIFE-04", "a listener that stays", left_open),
    (
        "DS4T-LIFE-09",
        "a start-up log without the gate timeout",
        altered(
            rank.Rank,
            "__init__",
            lambda own, one, *words, **more: (
                own(one, *words, **more) or setattr(one, "timeout_words", "")
            ),
        ),
    ),
    (
        "DS4T-LIFE-06",
        "small buffers",
        altered(bringup, "take_socket", lambda own, channel, _: own(channel, None)),
    ),
    (
        "DS4T-LIFE-06",
        "small packets are kept back",
        altered(bringup, "take_socket", lambda own, *words: delayed(own(*words))),
    ),
)
def a_pair_that_is_up() -> None:
    asked: list[int | None] = []
    limits = GateLimits(idle=30.0, total=50.0, bulk_total=50.0)
    own = callers.set_buffers

    def noted(sock: socket.socket, size: int | None) -> None:
        asked.append(size)
        own(sock, size)

    with (
        patch.object(callers, "set_buffers", noted),
        pair(toy(SHAPE), options(gates=limits)) as found,
    ):
        with socket.socket() as late:
            late.settimeout(5.0)
            assert late.connect_ex(found.leader.address) != 0
        for one in (found.leader.rank, found.worker.rank if found.worker else None):
            if one is None:
                continue
            for sock in (one._connected.control, one._connected.data):
                flag = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                assert flag
    assert asked == [4 << 20] * 4
    assert "ds4-tp: worker connected, transport=tcp gate-timeout=30000ms" in found.log
    assert "ds4-tp: leader connected, transport=tcp gate-timeout=30000ms" in found.log


def delayed(sock: socket.socket) -> socket.socket:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
    return sock


@shows(
    (
        "DS4T-LIFE-05",
        "every second",
        lambda: patch.object(connect, "DS4T_INTERVAL", 1.0),
    ),
    (
        "DS4T-LIFE-05",
        "one try alone",
        altered(bringup, "ds4t_dial", lambda own, _: own(0.0)),
    ),
    (
        "DS4T-LIFE-05",
        "no try at all without time",
        altered(
            bringup,
            "dial",
            lambda own, *words, **more: own(
                *words, **{**more, "deadline": 0.0}
            ),
        ),
    ),
)  # fmt: skip
def a_worker_dials_again_until_its_time_is_up() -> None:
    policy = ds4t_dial(300.0)
    assert (policy.interval, policy.window, policy.attempts) == (0.2, 300.0, None)
    slept: list[float] = []

    class Patient:
        """Time that passes only where somebody sleeps."""

        def __init__(self) -> None:
            self.time = 0.0

        def now(self) -> float:
            return self.time

        def sleep(self, seconds: float) -> None:
            slept.append(seconds)
            self.time += seconds

        def wait(self, poller: Any, seconds: float) -> Any:
            del seconds
            return poller.poll(1000)

    (port,) = free_ports(1)
    for seconds, tries in ((1.0, 5), (0.0, 0)):
        slept.clear()
        own = bringup.dial
        clock = Patient()

        def dial(*words: Any, own: Any = own, clock: Any = clock, **more: Any) -> Any:
            more["deadline"] = min(more["deadline"], 1e6)
            return own(*words, **more, clock=clock)

        with patch.object(bringup, "dial", dial), pytest.raises(Ds4ProtoError) as lost:
            join_leader(
                "127.0.0.1", port, worker_settings(), dial_seconds=seconds, say=QUIET
            )
        assert slept == pytest.approx([0.2] * tries)
        assert f"tp connect 127.0.0.1:{port}: " in str(lost.value)
        assert f"{tries + 1} tr" in str(lost.value)


@shows(
    ("DS4T-LIFE-07", "no limit from the dialect", ruled("v14", gate_timeout=None)),
)
def the_gate_timeout_bounds_both_directions() -> None:
    for dialect in ("v9", "v9-late", "v10", "v12", "v14"):
        machine = gates.link(dialect=dialect)
        gates.opened("row", machine)
        assert machine.deadline() == 0.75
        machine.sent(100, 0.5)  # to write is progress too
        assert machine.deadline() == 1.25
        machine.received(8, 1.0)
        assert machine.deadline() == 1.75


@shows(
    (
        "DS4T-LIFE-08",
        "the system's words alone",
        altered(bringup, "text_of", lambda _own, _clause, *words: str(words[-1])),
    )
)
def a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Ds4ProtoError) as caught:
            TpLeader(ToyTpEngine(SHAPE, 0), port=port, options=options(), say=QUIET)
    text = f"tp listen 127.0.0.1:{port}: Address already in use"
    assert str(caught.value) == text


def one_family(own: Any, host: str, port: int) -> Any:
    return [found for found in own(host, port) if found[0] == socket.AF_INET]


@shows(
    (
        "DS4T-LIFE-12",
        "IPv4 alone",
        altered(connect, "_lookup", one_family),
    )
)
def a_leader_takes_any_family_of_its_host_name() -> None:
    six = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0))]
    asked: list[int] = []
    own = socket.socket

    def noted(family: int, *words: Any) -> socket.socket:
        asked.append(family)
        return own(family, *words)

    with (
        patch.object(connect.socket, "getaddrinfo", lambda *_, **__: six),
        patch.object(connect.socket, "socket", noted),
    ):
        try:
            door = LeaderDoor("six.example", 0, settings("tp-leader"), say=QUIET)
        except WrongUsage:
            pass  # a machine without IPv6 refuses what it was asked for
        else:
            door.close()
    assert asked == [socket.AF_INET6]
