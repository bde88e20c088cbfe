"""Registration, routes and connections of both roles, as the tables decide them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any
from unittest.mock import patch

from ds4proto_runtime.pipeline import dialling
from ds4proto_runtime.pipeline.dialling import connect, dial_reason
from ds4proto_runtime.pipeline.generation import replay_check
from ds4proto_runtime.pipeline.line import Line
from ds4proto_runtime.pipeline.settings import SocketSettings

from ds4proto.link import ds4d_registration, ds4d_route
from ds4proto.link.ds4d_events import Close, HelloAccepted
from ds4proto.link.ds4d_registration import Registration
from ds4proto.link.ds4d_registry import Registry
from ds4proto.link.ds4d_route import RouteError, build_route
from ds4proto.peer import PeerLost, dial, listen
from ds4proto.peer import connect as connecting
from ds4proto.peer.channel import SocketChannel
from ds4proto.peer.clock import SYSTEM_CLOCK
from ds4proto.peer.connect import DS4D_DIAL, RetryPolicy
from ds4proto.schema.declare import Limit
from ds4proto.testing import FakeClock
from tests.link.ds4d.build import make, raw
from tests.link.ds4d.test_route import EXPECTED, entry, hello
from tests.spec.proving import proof
from tests.spec.removing import without_check

LATER = 1e9


def routed(*entries: Any, local: tuple[int, int] = (0, 1), head: bool = True) -> str:
    """Return the slices of a route, or why there is none."""
    try:
        found = build_route(local, entries, 8, coordinator_has_head=head)
    except RouteError as error:
        return str(error)
    return " ".join(f"{w.layer_start}:{w.layer_end}" for w in found.workers)


# HELLO


@proof(
    "DS4D-HELLO-30",
    "one label demanded of all workers",
    patch.object(ds4d_registration, "_QUANT", Limit(2, 2)),
)
def workers_may_carry_different_labels() -> None:
    registry = Registry()
    for start, end, quant in ((2, 4, 2), (5, 7, 4)):
        machine = Registration(EXPECTED, now=0.0)
        words = hello(start, end, head=end == 7, quant_bits=quant)
        machine.receive_data(make("HELLO", **words), 0.0)
        taken = [e for e in machine.events() if isinstance(e, HelloAccepted)]
        assert len(taken) == 1, quant
        registry.register(taken[0].hello, f"10.0.0.{quant}")
    assert routed(*registry.workers()) == "2:4 5:7"


@proof(
    "DS4D-COORD-46",
    "a bare coordinator that reads only its HELLO",
    patch.object(Registration, "_reading", lambda self: self.state == "waiting"),
)
def a_bare_coordinator_skips_frames_until_a_second_hello() -> None:
    for last in (make("HELLO", **hello(2, 7)), b"X" * 12):
        machine = Registration(EXPECTED, now=0.0, bare=True)
        machine.receive_data(make("HELLO", **hello(2, 7)) + raw(4, bytes(99)), 0.0)
        assert not any(isinstance(e, Close) for e in machine.events())
        machine.receive_data(last, 0.0)
        said = list(machine.events())
        assert said
        assert isinstance(said[-1], Close)
        assert [type(e).__name__ for e in said if hasattr(e, "buffers")] == []


# routes


def any_last(worker: Any, n_layers: int, _head: bool) -> bool:
    return worker.layer_end < n_layers - 1 or worker.has_output or worker.has_hidden


@proof(
    "DS4D-ROUTE-34",
    "a last worker without the head for a coordinator without one",
    patch.object(ds4d_route, "_usable", any_last),
)
def a_last_worker_without_the_head_needs_ours() -> None:
    bare = entry(2, 7)
    assert routed(bare, head=True) == "2:7"
    assert routed(bare, head=False) == "distributed route incomplete: missing layer 2"
    assert routed(entry(2, 7, head=True), head=False) == "2:7"


@proof(
    "DS4D-ROUTE-35",
    "workers asked although nothing is left for them",
    lambda: without_check(ds4d_route, "Route"),
)
def a_coordinator_of_all_layers_needs_nobody() -> None:
    assert routed(local=(0, 7)) == ""
    assert routed(entry(2, 7, head=True), local=(0, 7)) == ""


@proof(
    "DS4D-ROUTE-36",
    "the first layer behind the own slice named",
    patch.object(ds4d_route, "_deepest_gap", lambda first, _ahead: first),
)
def the_deepest_missing_layer_is_named() -> None:
    missing = "distributed route incomplete: missing layer"
    assert routed() == f"{missing} 2"
    assert routed(entry(2, 4)) == f"{missing} 5"
    assert routed(entry(2, 3), entry(2, 5)) == f"{missing} 6"
    assert routed(entry(4, 7, head=True)) == f"{missing} 2"


@proof(
    "DS4D-ROUTE-37",
    "the check left out",
    lambda: without_check(ds4d_route, "DS4D-ROUTE-37"),
)
def an_own_slice_that_starts_later_is_a_route_error() -> None:
    text = "coordinator route does not start at layer 0"
    assert routed(entry(2, 7, head=True), local=(1, 1)) == text


# dialling


@contextmanager
def refusing() -> Iterator[int]:
    """Give a port that refuses: bound, so that nobody else gets it."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


@proof(
    "DS4D-WORKER-24",
    "one try",
    patch.object(RetryPolicy, "attempts", 1, create=True),
)
def a_refused_dial_is_tried_200_times_25_ms_apart() -> None:
    clock = FakeClock()
    with refusing() as port, suppress(PeerLost):
        dial("127.0.0.1", port, deadline=LATER, retry=policy(), clock=clock)
    assert clock.slept == [0.025] * 199


def policy() -> RetryPolicy:
    """Return the pipeline's policy, as it is or broken."""
    return DS4D_DIAL


@proof(
    "DS4D-WORKER-25",
    "a name looked up again and again",
    patch.object(connecting, "_resolve", lambda *_: []),
)
def a_name_that_does_not_resolve_is_told_at_once() -> None:
    clock = FakeClock()
    told = ("", "", False)
    host = "a" * 70 + ".invalid"
    try:
        dial(host, 1, deadline=clock.now() + 5, retry=DS4D_DIAL, clock=clock)
    except PeerLost as error:
        told = dial_reason(host, 1, error)
    assert told[0].startswith(f"getaddrinfo({host}:1): ")
    assert told[2]
    assert clock.slept == []


def unbound(*words: Any, **more: Any) -> SocketChannel:
    return dial(*words, **{**more, "bind_host": None})


def reached(settings: SocketSettings) -> str:
    """Return the address that a dial comes from, or how it failed."""
    once = RetryPolicy("once", 0.0, 1, None)
    with listen("127.0.0.1", 0) as door, patch.object(dialling, "DS4D_DIAL", once):
        try:
            channel = connect(
                "127.0.0.1",
                door.address[1],
                settings,
                recorder=None,
                log=lambda _line: None,
                phase="dialling",
            )
        except (PeerLost, OSError) as error:
            return f"failed: {dial_reason('127.0.0.1', 1, error)[1]}"
        with closing(channel):
            return channel.local[0]


@proof(
    "DS4D-OPT-43",
    "the variable passed over",
    patch.object(dialling, "dial", unbound),
)
def a_dial_comes_from_the_address_that_is_asked_for() -> None:
    name = "DS4_DIST_CONNECT_BIND_HOST"
    assert reached(SocketSettings.of({name: "127.0.0.1"})) == "127.0.0.1"
    # An address for documentation: no machine has it.
    assert reached(SocketSettings.of({name: "192.0.2.7"})).startswith("failed: ")


@staticmethod
def without_interface(env: Any) -> SocketSettings:
    return real_of({k: v for k, v in env.items() if not k.endswith("BIND_IF")})


real_of = SocketSettings.of


@proof(
    "DS4D-OPT-44",
    "the variable passed over",
    patch.object(SocketSettings, "of", without_interface),
)
def an_interface_that_cannot_be_asked_for_fails_every_dial() -> None:
    found = reached(SocketSettings.of({"DS4_DIST_CONNECT_BIND_IF": "en5"}))
    assert found.startswith("failed: ")
    assert reached(SocketSettings.of({})) == "127.0.0.1"


# connections


@proof(
    "DS4D-WORKER-30",
    "a socket as the system gives it",
    patch.object(socket.socket, "setsockopt", lambda *_words: None),
)
def every_socket_sends_at_once() -> None:
    until = SYSTEM_CLOCK.now() + 30
    with listen("127.0.0.1", 0) as door:
        one = dial("127.0.0.1", door.address[1], deadline=until)
        with closing(one), closing(door.accept(deadline=until)) as two:
            for channel in (one, two):
                with socket.socket(fileno=os.dup(channel.fileno())) as sock:
                    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def keeps_on(self: Line, buffers: Any, request: Any) -> None:
    with suppress(PeerLost):
        self._send(buffers)


class Stuck:
    """A channel whose peer does not read."""

    closed = False

    def send(self, _buffers: Any, *, deadline: float) -> None:
        raise PeerLost("timeout", phase="sending", address="peer", waited=deadline)

    def close(self) -> None:
        self.closed = True


@proof(
    "DS4D-WORKER-32",
    "a send that timed out passed over",
    patch.object(Line, "_write", keeps_on),
)
def a_send_that_times_out_ends_the_connection() -> None:
    told: list[str] = []
    channel: Any = Stuck()
    line = Line(channel, SocketSettings.of({}), on_broken=told.append)
    line.put([b"DS4D"])
    line.flush()
    assert told == ["timeout"]
    line.put([b"DS4D"])
    line.flush()
    assert told == ["timeout"]


# the replay check


class Unsteady:
    """A session whose second prefill differs in two of three logits."""

    def __init__(self) -> None:
        import numpy as np

        first = np.array([1, 2, 0], np.float32)
        self.answers = [first, np.array([1.5, 4, 0], np.float32)]
        self.fresh: list[bool] = []

    def sync(self, _tokens: Any, *, fresh: bool, **_more: Any) -> Any:
        from types import SimpleNamespace

        self.fresh.append(fresh)
        return SimpleNamespace(logits=self.answers.pop(0), seconds=0.5)


def only_the_greatest() -> Any:
    """Compare the places of the greatest logits alone."""
    import numpy as np
    from ds4proto_runtime.pipeline import generation

    class Numpy:
        """numpy, but for one function."""

        def __getattr__(self, name: str) -> Any:
            return getattr(np, name)

        def flatnonzero(self, _differ: Any) -> Any:
            return np.array([], np.int64)

    return patch.object(generation, "np", Numpy())


@proof(
    "DS4D-COORD-41",
    "only the greatest logit compared",
    only_the_greatest,
)
def the_replay_check_counts_every_difference() -> None:
    session = Unsteady()
    fault, _ = replay_check(session, [1], lambda _n: None)
    assert session.fresh == [True, True]
    assert fault == (
        "distributed replay check failed: mismatches=2 max_abs=2 token=1"
        " before=2 after=4"
    )
