"""What both small ranks are made of: hello, control frames, gates, in one thread."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from ds4proto.link.ds4t_events import Transmit
from ds4proto.link.ds4t_gates import HEADER, GateFailed, GateLink
from ds4proto.link.ds4t_hello import HelloAgreed, HelloExchange
from ds4proto.link.ds4t_identity import TpSettings
from ds4proto.link.ds4t_limits import ControlLimits
from ds4proto.link.ds4t_texts import PairFailed, TpRole
from ds4proto.link.events import Violation
from ds4proto.link.plan import PlanKind
from ds4proto.schema import header_of
from ds4proto.schema.fast import struct_of
from ds4proto_conformance.peers.faults import Fault
from ds4proto_conformance.peers.net import Net
from ds4proto_conformance.peers.tp_engine import F32, TINY, TinyRank

__all__ = ["Over", "SmallRank", "Spot"]

TICK: Final = 0.05
GATE_IDLE: Final = 0.12
"""Gate timeout of small ranks, in dialects that have one."""
FRAME: Final = struct_of(header_of("DS4T"), "*")
"""Magic, type and length in front of a control frame."""
_now = time.monotonic


class Over(Exception):
    """The rank ends; the text is its last line."""


@dataclass(eq=False, slots=True)
class Spot:
    """One connection.

    Attributes
    ----------
    kind : str
        ``hello``, then ``control``; ``data``.
    memory : dict
        What a fault keeps; ``due`` holds the header of the gate that is open, ``part``
        tells header from payload.
    """

    sock: socket.socket
    kind: str
    memory: dict[str, Any] = field(default_factory=dict)


class SmallRank:
    """Base of the small ranks.

    Parameters
    ----------
    net : Net
    fault : Fault
        Its ``position`` names the dialect; empty: v14.
    """

    role: TpRole

    def __init__(self, net: Net, *, fault: Fault, coordinator: tuple[str, int]) -> None:
        self.fault = fault
        self.lines: list[str] = []
        self.crash: Exception | None = None
        self.memory: dict[str, Any] = {}
        identity = fault.facts(TINY) if fault.facts else TINY
        dialect = fault.position or "v14"
        if dialect == "v9w" and not identity.runtime_features:
            identity = replace(identity, runtime_features=0x8000)
        self.settings = TpSettings(self.role, identity, dialect, ctx_size=256)
        limits = ControlLimits(answer=3.0, verdict=3.0, stall=1.0)
        self.limits = fault.settings(limits) if fault.settings else limits
        self.link = GateLink(self.settings)
        self.engine = TinyRank(identity, self.settings.rank, self.exchange)
        self.machine: Any = None
        self._net, self._coordinator = net, coordinator
        self._stop = threading.Event()
        self.control: Spot | None = None
        self.data: Spot | None = None
        self._waiting: list[Any] = []

    def stop(self) -> None:
        """End ``run`` soon."""
        self._stop.set()

    def run(self) -> None:
        """Be a rank until the end of the pair."""
        with self.fault.patch() if self.fault.patch else contextlib.nullcontext():
            try:
                self._live()
            except Over as error:
                self.lines.append(str(error))
            except OSError as error:
                self.lines.append(f"connection lost: {error}")
            except Exception as error:  # a planted fault may well crash its peer
                self.crash = error
                self.lines.append(f"crashed: {error!r}")
            finally:
                for spot in (self.control, self.data):
                    if spot is not None:
                        spot.sock.close()

    def _live(self) -> None:
        raise NotImplementedError

    # hello

    def hello(self, sock: socket.socket) -> None:
        """Exchange hellos on what becomes the control connection.

        Raises
        ------
        Over
            They do not fit.
        """
        spot = self.control = Spot(sock, "hello")
        sock.settimeout(2.0)
        exchange = HelloExchange(self.settings, seconds=3.0)
        self.write(spot, bytes(exchange.start(_now())[0]))
        while True:
            for event in exchange.events():
                if self.fault.event is not None:
                    self.fault.event(self, spot, event)
                if isinstance(event, PairFailed):
                    raise Over(event.line(self.role))
                if isinstance(event, HelloAgreed):
                    spot.kind = "control"
                    spot.memory.clear()
                    if event.rest:
                        self._early = event.rest
                    return
            data = self.read(spot, _now() + 3.0, exchange.wanted or 1)
            exchange.receive_data(data or None, _now())

    _early = b""

    # bytes

    def write(self, spot: Spot, frame: bytes) -> None:
        """Write one frame, as the fault lets it."""
        frames = [frame] if self.fault.out is None else self.fault.out(spot, frame)
        if self.fault.delay:
            self._stop.wait(self.fault.delay)
        for data in frames:
            with contextlib.suppress(OSError):
                spot.sock.sendall(data)

    def read(self, spot: Spot, deadline: float | None, size: int = 1 << 16) -> bytes:
        """Return bytes that came; empty is the end of the stream.

        Raises
        ------
        Over
            At the deadline, or when the thread is to stop.
        """
        while True:
            if self._stop.is_set():
                raise Over("stopped")
            ready, _, _ = select.select([spot.sock], [], [], TICK)
            if ready:
                break
            if deadline is not None and _now() >= deadline:
                raise Over("silence")
        try:
            data = spot.sock.recv(size)
        except OSError:
            data = b""
        if data and self.fault.received is not None:
            return self.fault.received(spot, data) or self.read(spot, deadline, size)
        return data

    # control frames

    def say(self, event: Any) -> None:
        """Write what says an answer or a command."""
        self.frames(self.machine.send(event, _now()))

    def frames(self, buffers: Any) -> None:
        """Write frames, one by one."""
        assert self.control is not None
        data = b"".join(map(bytes, buffers))
        while data:
            size = FRAME.size + FRAME.unpack_from(data)[2]
            self.write(self.control, data[:size])
            data = data[size:]

    def next_event(self) -> Any:
        """Return the machine's next event; reads as needed.

        Raises
        ------
        Over
            The pair is over.
        """
        assert self.control is not None
        if self._early:
            early, self._early = self._early, b""
            self.machine.receive_data(early, _now())
        while True:
            for event in self.machine.events():
                if self.fault.event and self.fault.event(self, self.control, event):
                    continue
                if isinstance(event, Transmit):
                    self.frames(event.buffers)
                elif not isinstance(event, Violation):
                    self._waiting.append(event)
            if self._waiting:
                found = self._waiting.pop(0)
                if isinstance(found, PairFailed):
                    self.lines.extend(found.log)
                    raise Over(found.line(self.role))
                return found
            self._pump()

    def _pump(self) -> None:
        assert self.control is not None
        due = self.machine.deadline()
        ready, _, _ = select.select([self.control.sock], [], [], TICK)
        if ready:
            data = self.read(self.control, None)
            self.machine.receive_data(data or None, _now())
        elif self._stop.is_set():
            raise Over("stopped")
        elif due is not None and _now() >= due:
            self.machine.timeout(_now())

    # gates

    def exchange(self, kind: PlanKind, layer: int, third: int, own: F32) -> F32:
        """Exchange one gate.

        Raises
        ------
        GateFailed
            It failed.
        """
        assert self.data is not None
        mine = memoryview(np.ascontiguousarray(own).tobytes())
        peer = memoryview(bytearray(len(mine)))
        now, link = _now(), self.link
        if kind == "row":
            link.begin_row(layer, third, mine, peer, now)
        elif kind == "batch":
            link.begin_batch(layer, len(own), mine, peer, now)
        else:
            link.begin_bulk(layer, mine, peer, now)
        self.data.memory["due"] = b"".join(map(bytes, link.send_views))[:HEADER]
        self.write(self.data, b"".join(map(bytes, link.send_views)))
        link.sent(HEADER + len(mine), now)
        try:
            for part, size in (("header", HEADER), ("payload", len(mine))):
                if size:
                    data = self._part(part, size)
                    link.receive_view[:] = data
                    link.received(len(data), _now())
        except GateFailed as error:
            self.lines.extend(error.failure.log)
            raise
        return np.frombuffer(bytes(peer), np.float32).reshape(own.shape)

    def _part(self, part: str, size: int) -> bytes:
        assert self.data is not None
        got = b""
        idle = self.settings.rules.gate_timeout
        while len(got) < size:
            limit = None if idle is None else _now() + GATE_IDLE
            try:
                self.data.memory["part"] = part
                data = self._piece(size - len(got), limit)
            except Over as error:
                if self._stop.is_set():
                    raise
                self.link.abort(str(error), _now())
                raise
            if not data:
                self.link.received(0, _now())
            got += data
        if self.fault.received is not None:
            got = self.fault.received(self.data, got)
        return got

    def _piece(self, size: int, limit: float | None) -> bytes:
        """Read without the fault's hook, which gets whole parts of gates."""
        assert self.data is not None
        while True:
            if self._stop.is_set():
                raise Over("stopped")
            ready, _, _ = select.select([self.data.sock], [], [], TICK)
            if ready:
                return self.data.sock.recv(size)
            if limit is not None and _now() >= limit:
                raise Over("made no progress")
