"""What both ranks are made of: settings, connections, machines, gates, a runner."""

from __future__ import annotations

import select
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final, Protocol

from ds4proto.errors import WrongUsage
from ds4proto.link.ds4t_gates import GateLink
from ds4proto.link.ds4t_identity import TpSettings
from ds4proto.link.ds4t_limits import ControlLimits, GateLimits
from ds4proto.link.ds4t_rules import Transport
from ds4proto.link.ds4t_texts import TpRole
from ds4proto.link.plan import PlanOptions
from ds4proto.link.schedule import Schedule
from ds4proto_runtime.tp.bringup import BUFFER_BYTES, Connected, LeaderDoor
from ds4proto_runtime.tp.control import ControlPipe
from ds4proto_runtime.tp.engine import RankEngine
from ds4proto_runtime.tp.gates import GateTransport, TcpGates
from ds4proto_runtime.tp.joint import PairGates
from ds4proto_runtime.tp.runner import Runner
from ds4proto_runtime.tp.slab import Slab
from ds4proto_runtime.tp.waiting import AdaptiveWait, SpinChoice

Say = Callable[[str], None]
SETTLE_LIMIT = 5.0
"""Seconds in which one of several data connections has to show a gate."""
LINGER_SECONDS: Final = 0.1
"""Longest time in which an ending rank reads what is left (DS4T-FAIL-20)."""
LATE_READS: Final = 64
"""Reads of what has already come, however late it is: a socket buffer's worth."""


def log_line(text: str) -> None:
    """Write one log line to standard error."""
    print(text, file=sys.stderr, flush=True)


def end_gently(socks: Sequence[socket.socket]) -> None:
    """Say the end of the stream, then read away what still comes, for a short time.

    Closing with unread bytes would send a reset, which can take the last gate or frame
    from the other side. What is already closed is left alone.
    """
    poller, open_ = select.poll(), {}
    for sock in socks:
        if sock.fileno() >= 0:
            with suppress(OSError):  # the other side may have gone
                sock.shutdown(socket.SHUT_WR)
            poller.register(sock, select.POLLIN)
            open_[sock.fileno()] = sock
    scratch, until = bytearray(1 << 16), monotonic() + LINGER_SECONDS
    late = 0
    while open_ and late < LATE_READS:
        left = until - monotonic()
        ready = poller.poll(int(left * 1000) + 1 if left > 0 else 0)
        if left <= 0:
            late += 1
            if not ready:
                return
        for number, _ in ready:
            try:
                ended = not open_[number].recv_into(scratch, 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            except OSError:
                ended = True
            if ended:
                poller.unregister(number)
                del open_[number]


class RdmaProvider(Protocol):
    """What a transport over queue pairs gives; the RDMA package implements it."""

    def probe(self, vector_bytes: int) -> bool:
        """Tell whether a device can carry gates of that size (``rdma_ok``)."""

    def connect(
        self,
        control: socket.socket,
        data: socket.socket,
        link: GateLink,
        slab: Slab,
        settings: TpSettings,
    ) -> GateTransport:
        """Bring a queue pair up over the control connection (chapter 7.5)."""


@dataclass(frozen=True, slots=True)
class TpOptions:
    """What a rank was started with, beyond its engine.

    Attributes
    ----------
    dialect : str
    ctx : int
        Announced by a leader, and the default of its sessions.
    transport : {"auto", "tcp", "rdma"}
    plan : PlanOptions
    token_prefill : bool
    gates : GateLimits
        Idle and total deadlines of gates.
    control : ControlLimits
    spin : {"auto", "on", "off"}
    hash_every : int
        ``--debug-hash N``; 0 is off.
    checksums : bool
    buffers : int or None
        Socket buffers to ask for.
    dial_seconds, accept_seconds, hello_seconds : float
        Limits of the bring-up.
    idle_seconds : float or None
        Longest time that a worker waits for a command; None as real workers: until
        the leader's end (keep-alive finds one that vanished).
    """

    dialect: str = "v14"
    ctx: int = 256
    transport: Transport = "auto"
    plan: PlanOptions = field(default_factory=PlanOptions)
    token_prefill: bool = False
    gates: GateLimits = field(default_factory=GateLimits)
    control: ControlLimits = field(default_factory=ControlLimits)
    spin: SpinChoice = "auto"
    hash_every: int = 0
    checksums: bool = False
    buffers: int | None = BUFFER_BYTES
    dial_seconds: float = 300.0
    accept_seconds: float = 3600.0
    hello_seconds: float = 30.0
    idle_seconds: float | None = None


def settings_of(
    role: TpRole, engine: RankEngine, options: TpOptions, rdma: RdmaProvider | None
) -> TpSettings:
    """Return the settings of a rank's machines.

    Raises
    ------
    WrongUsage
        For a dialect that is not spoken, with the reason.
    """
    probed = options.transport != "tcp" and rdma is not None
    device = probed and rdma is not None and rdma.probe(engine.identity.vector_bytes)
    return TpSettings(
        role,
        engine.identity,
        options.dialect,
        vocabulary_split=engine.vocabulary_split,
        ctx_size=options.ctx,
        transport=options.transport,
        rdma_device=device,
    )


class Rank:
    """One rank after the bring-up.

    Attributes
    ----------
    settings : TpSettings
    pipe : ControlPipe
    runner : Runner
    gates : PairGates
    transport : GateTransport
    """

    def __init__(
        self,
        settings: TpSettings,
        connected: Connected,
        machine: Any,
        engine: RankEngine,
        options: TpOptions,
        *,
        rdma: RdmaProvider | None = None,
        say: Say = log_line,
    ) -> None:
        identity = engine.identity
        role = settings.role
        self.settings = settings
        self.say = say
        self._connected = connected
        if connected.agreed.rest:
            machine.receive_data(connected.agreed.rest, monotonic())
        self.pipe = ControlPipe(connected.control, machine, role)
        schedule = Schedule.from_hello(identity.words())
        if not schedule.slots:
            raise WrongUsage("the gate schedule of this model has no gates")
        reserve = getattr(engine, "slab_memory", None)
        memory = reserve() if reserve is not None else None
        self.slab = slab = Slab(identity.n_layer, identity.n_embd, memory)
        self._wait = AdaptiveWait(options.spin)
        idle = options.gates.idle
        self._idle = settings.rules.gate_timeout if idle is None else idle
        link = GateLink(settings, limits=options.gates)
        transport = connected.agreed.transport
        if transport == "rdma" and rdma is not None:
            self.transport: GateTransport = rdma.connect(
                connected.control, connected.data, link, slab, settings
            )
        else:
            self.transport = self._tcp(link)
        if options.transport == "auto" and transport == "tcp":
            say("ds4-tp: no RDMA on both sides, using tcp")
        self.gates = PairGates(
            schedule,
            settings.rank,
            self.transport,
            hash_every=options.hash_every,
            checksums=options.checksums,
            say=say,
        )
        self.runner = Runner(
            engine,
            options.plan,
            self.gates,
            token_prefill=options.token_prefill,
        )
        idle = self._idle
        self.timeout_words = "" if idle is None else f" gate-timeout={idle * 1e3:.0f}ms"
        size = slab.memory.nbytes
        self.slab_line = (
            f"[ok] bound: rank {settings.rank}, slab {size} bytes, {transport} "
            f"transport, peer_ctx {connected.agreed.peer_ctx_size}"
        )

    def _tcp(self, link: GateLink) -> TcpGates:
        pair = self._connected
        return TcpGates(
            pair.data, pair.control, link, self.slab, self._wait, idle=self._idle
        )

    def watch_door(self, door: LeaderDoor) -> None:
        """Leave the choice between several silent data connections to the first gate.

        Nothing but a gate header tells the worker's from a stranger's.
        """
        if not door.spare or not isinstance(self.transport, TcpGates):
            return

        def choose() -> GateTransport:
            link = self.transport.link
            pair = self._connected
            pair.data = door.settle(pair.data, self.gates.schedule, SETTLE_LIMIT)
            self.transport = self._tcp(link)
            return self.transport

        self.gates.choose = choose

    def close(self) -> None:
        """End both connections, gently (DS4T-FAIL-20); idempotent.

        The slab lives on while anybody holds it.
        """
        end_gently((self._connected.data, self._connected.control))
        self.transport.close()
        self.pipe.close()
        self._connected.close()
