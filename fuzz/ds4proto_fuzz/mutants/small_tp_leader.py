"""A small tp-leader on the library's machines, and its planted faults.

It opens sessions one after the other, for as long as they are acknowledged.
"""

from __future__ import annotations

import socket
import struct
import sys
from typing import ClassVar, Final

from ds4proto.link import ds4t_events as say
from ds4proto.link.ds4t_hello import HelloExchange
from ds4proto.link.ds4t_leader import LeaderControl
from ds4proto.link.ds4t_texts import PairFailed
from ds4proto.schema.declare import offsets_of
from ds4proto.schema.registry import frame
from ds4proto_fuzz.mutants.small_tp_worker import IDENTITY, settings_of

__all__ = ["TP_LEADERS"]

_ACK: Final = frame("DS4T.COMMAND_ACK", dialect="v14")
_SIZE: Final = _ACK.header_size + _ACK.fixed_size("v14")
_SESSION: Final = _ACK.header_size + offsets_of(_ACK.body, "v14")["session_id"]
_STATUS: Final = _ACK.header_size + offsets_of(_ACK.body, "v14")["status"]


class SmallTpLeader:
    """Rank 0 of a pair.

    Parameters
    ----------
    address : (str, int)
        Where to listen for both connections.
    """

    about: ClassVar[str] = "no fault at all"
    kind: ClassVar[str] = ""

    def __init__(self, address: tuple[str, int]) -> None:
        self.settings = settings_of("tp-leader", IDENTITY)
        self.machine = LeaderControl(self.settings)
        self._listener = socket.create_server(address)

    def received(self, data: bytes, known: int) -> bytes:
        """Return what the machine gets of some bytes; session `known` was opened."""
        del known
        return data

    def run(self) -> None:
        """Be a rank until the pair ends."""
        control, _ = self._listener.accept()
        exchange = HelloExchange(self.settings)
        control.sendall(b"".join(map(bytes, exchange.start(0.0))))
        while not exchange.over:
            exchange.receive_data(control.recv(exchange.wanted) or None, 0.0)
        for event in exchange.events():
            if isinstance(event, PairFailed):
                sys.exit(event.line("tp-leader"))
        data, _ = self._listener.accept()
        self._listener.close()
        with data:
            while True:
                self._session(control)

    def _session(self, control: socket.socket) -> None:
        known = self.machine.next_session_id
        frames = self.machine.send(say.CreateSession(known, 256), 0.0)
        control.sendall(b"".join(map(bytes, frames)))
        while True:
            data = control.recv(1 << 16)
            if data:
                data = self.received(data, known)
            self.machine.receive_data(data or None, 0.0)
            for event in self.machine.events():
                if isinstance(event, say.SessionCreated):
                    return
                if isinstance(event, PairFailed):
                    sys.exit(event.line("tp-leader"))


class AnySession(SmallTpLeader):
    """An acknowledgement of another session is taken."""

    about = "takes an acknowledgement of another session"
    kind = "silent accept"

    def received(self, data: bytes, known: int) -> bytes:
        """Put the right session there."""
        if len(data) < _SIZE:
            return data
        return data[:_SESSION] + struct.pack("<Q", known) + data[_SESSION + 8 :]


class CrashStatus(SmallTpLeader):
    """A status that no table has ends the process."""

    about = "looks a status up in a table of three texts"
    kind = "crash"

    def received(self, data: bytes, known: int) -> bytes:
        """Look it up."""
        del known
        if len(data) >= _SIZE:
            (status,) = struct.unpack_from("<i", data, _STATUS)
            ("done", "refused", "interrupted")[status]
        return data


TP_LEADERS: Final[dict[str, type[SmallTpLeader]]] = {
    "none": SmallTpLeader,
    "takes-any-session": AnySession,
    "crash-status": CrashStatus,
}
