"""A small tp-worker on the library's machines, and its planted faults.

It opens and closes sessions and ends at the first command that would need gates.
"""

from __future__ import annotations

import socket
import sys
from typing import Any, ClassVar, Final

from ds4proto.link import ds4t_events as say
from ds4proto.link import ds4t_hello
from ds4proto.link.ds4t_events import Transmit
from ds4proto.link.ds4t_hello import HelloAgreed, HelloExchange
from ds4proto.link.ds4t_identity import Identity, TpSettings
from ds4proto.link.ds4t_texts import PairFailed, TpRole
from ds4proto.link.ds4t_worker import WorkerControl
from ds4proto.link.events import Violation
from ds4proto.schema.ds4t_common import HEADER
from ds4proto.schema.fast import struct_of

__all__ = ["IDENTITY", "TP_WORKERS", "settings_of"]

IDENTITY: Final = Identity(86720111488, 0, 2, 16, 32, 2, 0, 1, 4)
_HEADER: Final = struct_of(HEADER, "v14")


def settings_of(role: TpRole, identity: Identity) -> TpSettings:
    """Return the settings of a small rank."""
    return TpSettings(role, identity, "v14", ctx_size=256)


class SmallTpWorker:
    """Rank 1 of a pair.

    Parameters
    ----------
    leader : (str, int)
        Where to dial, twice.
    """

    about: ClassVar[str] = "no fault at all"
    kind: ClassVar[str] = ""

    def __init__(self, leader: tuple[str, int]) -> None:
        self._leader = leader
        self.settings = settings_of("tp-worker", IDENTITY)
        self.machine = WorkerControl(self.settings)

    def received(self, control: socket.socket, data: bytes) -> bytes:
        """Return what the machine gets of some bytes of the control connection."""
        del control
        return data

    def create(self, event: say.CreateSession) -> None:
        """Take note of a new session."""

    def run(self) -> None:
        """Be a rank until the pair ends."""
        control = socket.create_connection(self._leader)
        exchange = HelloExchange(self.settings)
        control.sendall(b"".join(map(bytes, exchange.start(0.0))))
        while not exchange.over:
            data = control.recv(exchange.wanted)
            exchange.receive_data(data or None, 0.0)
        for event in exchange.events():
            if isinstance(event, PairFailed):
                sys.exit(event.line("tp-worker"))
            if isinstance(event, HelloAgreed):
                self._serve(control)

    def _serve(self, control: socket.socket) -> None:
        data_connection = socket.create_connection(self._leader)
        with data_connection:
            self.serve(control, data_connection)

    def serve(self, control: socket.socket, gates: socket.socket) -> None:
        """Run commands until the pair ends."""
        del gates
        while True:
            data = control.recv(1 << 16)
            if data:
                data = self.received(control, data)
            self.machine.receive_data(data or None, 0.0)
            for event in self.machine.events():
                self._take(control, event)

    def _take(self, control: socket.socket, event: Any) -> None:
        if isinstance(event, Transmit):
            control.sendall(b"".join(map(bytes, event.buffers)))
        elif isinstance(event, say.CreateSession | say.DestroySession):
            done: Any = say.SessionDestroyed
            if isinstance(event, say.CreateSession):
                self.create(event)
                done = say.SessionCreated
            frames = self.machine.send(done(event.session_id), 0.0)
            control.sendall(b"".join(map(bytes, frames)))
        elif not isinstance(event, Violation | say.Rewind | say.Invalidate):
            sys.exit(f"ends: {type(event).__name__}")


class ReservesPayload(SmallTpWorker):
    """The size of a command is reserved before it comes."""

    about = "reserves the announced size of a command before it comes"
    kind = "over-allocation"

    def received(self, control: socket.socket, data: bytes) -> bytes:
        """Reserve it, then wait for all of it."""
        while len(data) < _HEADER.size:
            more = control.recv(1 << 16)
            if not more:
                return data
            data += more
        body = bytearray(_HEADER.unpack_from(data)[2])
        while len(data) < _HEADER.size + len(body):
            more = control.recv(1 << 16)
            if not more:
                break
            data += more
        return data


class CrashLargeContext(SmallTpWorker):
    """A session of a very large context ends the process."""

    about = "makes a table of as many rows as a context has"
    kind = "crash"

    def create(self, event: say.CreateSession) -> None:
        """Make it."""
        if event.ctx_size > 1 << 16:
            raise MemoryError(f"{event.ctx_size} rows")

    def __init__(self, leader: tuple[str, int]) -> None:
        super().__init__(leader)
        from ds4proto.link.ds4t_limits import ControlLimits

        limits = ControlLimits(context=1 << 31)
        self.machine = WorkerControl(self.settings, limits=limits)


class AnyIdentity(SmallTpWorker):
    """A leader of another model is taken."""

    about = "pairs with a leader of another model"
    kind = "silent accept"

    def __init__(self, leader: tuple[str, int]) -> None:
        super().__init__(leader)
        module: Any = ds4t_hello
        module.all_mismatches = lambda _mine, _theirs: ()


TP_WORKERS: Final[dict[str, type[SmallTpWorker]]] = {
    "none": SmallTpWorker,
    "reserves-payload": ReservesPayload,
    "crash-large-context": CrashLargeContext,
    "pairs-with-any": AnyIdentity,
}
