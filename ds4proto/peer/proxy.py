"""A TCP proxy between two live peers: passes on, records, injects faults.

Pipeline: a worker dials the proxy, the proxy dials the coordinator. The worker's HELLO
names its data port; the proxy opens one of its own for it and writes that into the
HELLO, so that the coordinator routes the hop between two workers through the proxy as
well. Where a worker reaches the proxy under another address than the coordinator sees,
the hosts in the routes are written anew for it. Tensor parallel: both connections of
the worker go to the same address and need nothing of this.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import BinaryIO, Final

from ds4proto.peer.api import Address
from ds4proto.peer.channel import SocketChannel, show_address
from ds4proto.peer.clock import SYSTEM_CLOCK
from ds4proto.peer.connect import UNTIL_DEADLINE, Listener, dial, listen
from ds4proto.peer.errors import PeerError, PeerLost
from ds4proto.peer.proxy_faults import FRAME_KINDS, Rule, Way
from ds4proto.peer.proxy_frames import FrameEditor, rewrite_port, rewrite_route
from ds4proto.peer.proxy_gates import PairFacts
from ds4proto.peer.proxy_pump import Pump
from ds4proto.peer.proxy_record import BackgroundRecorder, Track
from ds4proto.printable import counted
from ds4proto.schema.declare import FrameSpec

__all__ = ["Proxy"]

_DIAL_S: Final = 10.0
_LOOK_S: Final = 0.5
_MOST_CONNECTIONS: Final = 1024
_MOST_WORKERS: Final = 256
_MOST_FAULTS: Final = 10_000
"""Faults that are kept: ``every=yes`` may hold for each gate of a long run."""
Say = Callable[[str], None]


class Proxy:
    """Use as a context manager: it listens at once and works in threads of its own.

    Parameters
    ----------
    listener : Listener
        Where the dialling peer connects; closed with the proxy.
    target : (host, port)
        Where each connection goes.
    record : path or binary stream, optional
        pcapng of everything that was passed on.
    rules : sequence of Rule
    seed : int
        Of jitter and corrupted values.
    allow_remote : bool
        Data ports for workers may lie beyond loopback, as the listener may.
    say : callable
        Told in words of connections, faults and trouble.

    Attributes
    ----------
    recording_lost : str
        Why the recording ended early; empty while it is whole.
    faults : list of str
        What was injected, in order; the first few thousand.
    pair : PairFacts
        What a tensor-parallel HELLO that passed by says of the gates.
    """

    def __init__(
        self,
        listener: Listener,
        target: Address,
        *,
        record: str | os.PathLike[str] | BinaryIO | None = None,
        rules: Sequence[Rule] = (),
        seed: int = 1,
        allow_remote: bool = False,
        say: Say = lambda _text: None,
    ) -> None:
        self._listener = listener
        self._target = target
        self._rules = list(rules)
        self._seed = seed
        self._remote = allow_remote
        self._say = say
        self._recorder = None
        if record is not None:
            self._recorder = BackgroundRecorder(record, self._lose_recording)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._channels: set[SocketChannel] = set()
        self._ports: dict[int, tuple[Address, str]] = {}
        self._count = 0
        self._alive = 0
        self.pair = PairFacts()
        self.recording_lost = ""
        self.faults: list[str] = []

    def __enter__(self) -> Proxy:
        self._start(self._accept, self._listener, self._target, "control", "")
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> Address:
        """Where the dialling peer connects."""
        return self._listener.address

    @property
    def connections(self) -> int:
        """Connections that were accepted so far."""
        return self._count

    @property
    def open(self) -> int:
        """Connections that are not over: also those whose target is being dialled."""
        with self._lock:
            return self._alive

    def close(self) -> None:
        """End all connections and finish the recording. Idempotent."""
        self._stop.set()
        for patience in (2 * _LOOK_S, 10.0):
            until = SYSTEM_CLOCK.now() + patience
            for thread in list(self._threads):
                thread.join(max(0.0, until - SYSTEM_CLOCK.now()))
            with self._lock:
                channels = list(self._channels)
            for channel in channels:  # wakes a pump whose peer does not read
                channel.shutdown_send()
        self._listener.close()
        if self._recorder is not None:
            self._recorder.close()

    def _start(self, work: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=work, args=args, name="proxy", daemon=True)
        with self._lock:
            self._threads = [t for t in self._threads if t.is_alive()]
            self._threads.append(thread)
        thread.start()

    def _accept(
        self, listener: Listener, target: Address, kind: str, reach: str
    ) -> None:
        try:
            while not self._stop.is_set():
                with suppress(PeerLost):
                    deadline = SYSTEM_CLOCK.now() + _LOOK_S
                    client = listener.accept(deadline=deadline)
                    if self.open >= _MOST_CONNECTIONS:
                        self._say(f"more than {_MOST_CONNECTIONS} connections at once")
                        client.close(reset=True)
                        continue
                    with self._lock:
                        self._count += 1
                        self._alive += 1
                        number = self._count
                    self._start(
                        self._serve, number, client, listener, target, kind, reach
                    )
        finally:
            if listener is not self._listener:
                listener.close()

    def _serve(
        self,
        number: int,
        client: SocketChannel,
        listener: Listener,
        target: Address,
        kind: str,
        reach: str,
    ) -> None:
        try:
            self._carry(number, client, listener, target, kind, reach)
        finally:
            with self._lock:
                self._alive -= 1

    def _carry(
        self,
        number: int,
        client: SocketChannel,
        listener: Listener,
        target: Address,
        kind: str,
        reach: str,
    ) -> None:
        """Dial the target, and move both directions to their ends."""
        try:
            server = dial(
                *target, deadline=SYSTEM_CLOCK.now() + _DIAL_S,
                retry=UNTIL_DEADLINE, alive=client.alive,
            )  # fmt: skip
        except PeerError as error:
            self._say(f"connection {number}: {error}")
            client.close(reset=True)
            return
        link = _Link(self, number, kind, client, server, reach)
        with self._lock:
            self._channels |= {client, server}
        self._say(
            f"connection {number} ({kind}): {show_address(client.remote)} -> "
            f"{show_address(target)}"
        )
        try:
            link.run(self._track(client, listener))
        finally:
            with self._lock:
                self._channels -= {client, server}
        self._say(f"connection {number} ended: {link.outcome}")

    def _track(self, client: SocketChannel, listener: Listener) -> Track | None:
        if self._recorder is None or self.recording_lost:
            return None
        host = client.local[0]
        return self._recorder.connection(client.remote, (host, listener.address[1]))

    def _lose_recording(self, why: str) -> None:
        self.recording_lost = why
        self._say(f"recording ended: {why}; traffic goes on unrecorded")

    def data_port(self, worker: Address, reach: str) -> int:
        """Return a port of ours that leads to a worker's data port.

        Parameters
        ----------
        worker : (host, port)
            Where the worker listens.
        reach : str
            Our address as this worker sees it.
        """
        with self._lock:
            for port, (known, _) in self._ports.items():
                if known == worker:
                    return port
            if len(self._ports) >= _MOST_WORKERS:
                return 0
        host = self._listener.address[0]
        try:
            listener = listen(host, 0, allow_remote=self._remote)
        except (OSError, PeerError) as error:
            self._say(f"no data port for worker {show_address(worker)}: {error}")
            return 0
        port = listener.address[1]
        with self._lock:
            self._ports[port] = (worker, reach)
        self._start(self._accept, listener, worker, "hop", reach)
        self._say(f"port {port} leads to the worker's {show_address(worker)}")
        return port

    def pump(
        self,
        link: _Link,
        way: Way,
        source: SocketChannel,
        target: SocketChannel,
        track: Track | None,
    ) -> Pump:
        """Make the pump of one direction of a connection."""
        rules = [r for r in self._rules if r.holds(way, link.number, link.kind)]
        frame_rules = [r for r in rules if r.kind in FRAME_KINDS]
        seed = self._seed * 1_000_003 + 2 * link.number + (way == "up")

        def note(text: str) -> None:
            line = f"connection {link.number} {way}: {text}"
            if len(self.faults) < _MOST_FAULTS:
                self.faults.append(line)
            self._say(line)

        return Pump(
            source, target, rules, seed=seed,
            editor=link.editor(way, frame_rules, seed, note),
            track=track, up=way == "up", stop=self._stop, note=note,
        )  # fmt: skip


class _Link:
    """One connection: both directions, and what its HELLO says."""

    def __init__(
        self,
        proxy: Proxy,
        number: int,
        kind: str,
        client: SocketChannel,
        server: SocketChannel,
        reach: str,
    ) -> None:
        self.number, self.kind = number, kind
        self._proxy = proxy
        self._client, self._server = client, server
        # Where the worker at the end of WORK sees us: a hop's worker said it before.
        self._reach = reach or client.local[0]
        self._ends: dict[str, str] = {}
        self.outcome = ""

    def editor(
        self, way: Way, rules: list[Rule], seed: int, note: Callable[[str], None]
    ) -> FrameEditor | None:
        """Return what looks at the frames of a direction, None where nothing does."""
        import random

        control = self.kind == "control"
        hello = control and way == "up"
        work = (way == "down") == control and self._route_moves()
        if not rules and not hello and not work:
            return None
        return FrameEditor(
            rules, random.Random(seed),
            rewrite=self._hello if hello else self._work if work else None,
            until_hello=hello and not rules, note=note, pair=self._proxy.pair,
        )  # fmt: skip

    def _route_moves(self) -> bool:
        """Tell whether hosts in routes would lead the worker astray."""
        if self.kind == "control":
            return self._client.local[0] != self._server.local[0]
        return self._client.local[0] != self._reach

    def _hello(self, spec: FrameSpec, whole: bytearray) -> bytearray:
        if spec.full_name == "DS4D.HELLO":
            copy = bytearray(whole)
            port = rewrite_port(copy, 0)
            worker = (self._client.remote[0], port)
            ours = self._proxy.data_port(worker, self._client.local[0]) if port else 0
            if ours:
                rewrite_port(whole, ours)
        return whole

    def _work(self, spec: FrameSpec, whole: bytearray) -> bytearray:
        if spec.full_name == "DS4D.WORK":
            return rewrite_route(spec, whole, self._reach)
        return whole

    def run(self, track: Track | None) -> None:
        """Move both directions to their ends, and close in the way they ended."""
        up = self._proxy.pump(self, "up", self._client, self._server, track)
        down = self._proxy.pump(self, "down", self._server, self._client, track)

        def work(pump: Pump, way: Way, target: SocketChannel) -> None:
            pump.run()
            self._ends[way] = pump.ended
            if track is not None:
                track.ended(way == "up", pump.ended)
            if pump.ended == "fin":
                target.shutdown_send()
            elif pump.ended not in ("stall", "stopped"):
                reset = pump.ended in ("rst", "cut reset")
                self._client.close(reset=reset)
                self._server.close(reset=reset)

        back = threading.Thread(
            target=work, args=(down, "down", self._client), name="proxy", daemon=True
        )
        back.start()
        work(up, "up", self._server)
        back.join()
        self._client.close()
        self._server.close()
        self.outcome = (
            f"{counted(up.moved, 'byte')} up ({up.ended}), "
            f"{counted(down.moved, 'byte')} down ({down.ended})"
        )
