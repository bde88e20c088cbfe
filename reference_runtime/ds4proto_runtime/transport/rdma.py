"""RDMA as the tensor-parallel runtime sees it: probe, connect, gates.

``RdmaTransport`` is what a rank is given; it decides before the hello whether RDMA is
offered, and brings the queue pair up after it.
"""

from __future__ import annotations

import socket

from ds4proto.link.ds4t_gates import GateLink
from ds4proto.link.ds4t_identity import TpSettings
from ds4proto.link.rdma_choice import Choice, NoChoice
from ds4proto_runtime.tp.slab import Slab
from ds4proto_runtime.transport.choosing import Say, check_vector, choose
from ds4proto_runtime.transport.options import (
    SLOW_GATE_SECONDS,
    NoRdmaError,
    RdmaOptions,
)
from ds4proto_runtime.transport.rdma_gates import RdmaGates
from ds4proto_runtime.transport.setup import SetUp
from ds4proto_runtime.transport.sockets import PairSockets
from ds4proto_runtime.transport.verbs import Provider
from ds4proto_runtime.transport.waits import Clock, RealClock, Steps


class RdmaTransport:
    """The RDMA transport of one rank; an ``RdmaProvider`` of the runtime.

    Parameters
    ----------
    provider : Provider
    options : RdmaOptions
    clock : Clock, optional
        Default: the real one.
    say : callable
        Takes log lines.

    Attributes
    ----------
    last : Choice or None
        Of the latest set-up; only compared with what the table says then.
    """

    def __init__(
        self,
        provider: Provider,
        options: RdmaOptions | None = None,
        *,
        clock: Clock | None = None,
        say: Say = print,
    ) -> None:
        self.provider = provider
        self.options = options or RdmaOptions()
        self.clock: Clock = clock or RealClock()
        self.last: Choice | None = None
        self._say = say

    def probe(self, vector_bytes: int) -> bool:
        """Tell whether this rank offers RDMA (``rdma_ok``).

        Under ``auto`` an unusable device means TCP, said in one line; after the hello
        there is no way back.

        Raises
        ------
        NoRdmaError
            Under ``rdma``: verdict, text and next step.
        """
        if self.options.transport == "tcp":
            return False
        found = check_vector(vector_bytes) or choose(self.provider, self.options, None)
        if not isinstance(found, NoChoice):
            return True
        if self.options.transport == "rdma":
            raise NoRdmaError(found)
        self._say(f"ds4-tp: no RDMA here, using tcp: {found}")
        return False

    def gate_seconds(self, settings: TpSettings, link: GateLink | None = None) -> float:
        """Return the gate timeout: the option, the link's, or the dialect's."""
        own = self.options.gate_seconds
        idle = getattr(link, "_idle", None) if own is None else own
        if idle is None:
            idle = settings.rules.gate_timeout
        return SLOW_GATE_SECONDS if idle is None else float(idle)

    def connect(
        self,
        control: socket.socket,
        data: socket.socket,
        link: GateLink,
        slab: Slab,
        settings: TpSettings,
    ) -> RdmaGates:
        """Bring a queue pair up over the control connection (chapter 7.5).

        Raises
        ------
        NoRdmaError
        PairError
        """
        steps = self.connect_steps(control, data, link, slab, settings)
        return self.clock.run(steps)

    def connect_steps(
        self,
        control: socket.socket,
        data: socket.socket,
        link: GateLink,
        slab: Slab,
        settings: TpSettings,
    ) -> Steps[RdmaGates]:
        """Do the work of ``connect`` step by step."""
        sockets = PairSockets(control, data, self.clock)
        seconds = self.gate_seconds(settings, link)
        setup = SetUp(
            self.provider,
            self.options,
            settings,
            sockets,
            slab.memory.data,
            self.clock,
            address=_local_address(control),
            gate_seconds=seconds,
            before=self.last,
            say=self._say,
        )
        brought = yield from setup.steps()
        self.last = brought.choice
        return RdmaGates(
            brought,
            link,
            slab,
            sockets,
            settings,
            self.clock,
            gate_seconds=seconds,
            verify_window=self.options.verify_window,
        )


def _local_address(control: socket.socket) -> str:
    try:
        name = control.getsockname()
    except OSError:
        return ""
    return str(name[0]) if isinstance(name, tuple) else ""
