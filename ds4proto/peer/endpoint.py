"""From a parsed ``--peer`` text to a listener, an address or a started process."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ds4proto.peer.api import Address, Clock, Role
from ds4proto.peer.connect import Listener, free_ports, listen
from ds4proto.peer.errors import PeerSpecError
from ds4proto.peer.grammar import (
    Capture,
    CodecCommand,
    Exec,
    Listen,
    PeerSpec,
    Reference,
    Tcp,
    fill,
    wanted_ports,
)
from ds4proto.peer.process import PeerProcess, spawn
from ds4proto.peer.reference import reference_argv
from ds4proto.peer.wiring import WIRING

LOOPBACK: Final = "127.0.0.1"


@dataclass(slots=True)
class Endpoint:
    """Where a peer is to be met.

    Attributes
    ----------
    listener : Listener or None
        Where it is to dial us.
    address : tuple or None
        Where it listens.
    stdio : socket or None
        Our end of its stdin and stdout (codec commands).
    process : PeerProcess or None
    ports : tuple of int
        What stood for ``{port}``, ``{port2}`` .. in its command.
    """

    listener: Listener | None = None
    address: Address | None = None
    stdio: socket.socket | None = None
    process: PeerProcess | None = None
    ports: tuple[int, ...] = ()

    def close(self, *, grace: float) -> None:
        """Stop listening and end the process. Idempotent."""
        if self.listener is not None:
            self.listener.close()
        if self.stdio is not None:
            self.stdio.close()
        if self.process is not None:
            self.process.end(grace=grace)


def reach(
    peer: PeerSpec,
    spec: str,
    role: Role,
    *,
    clock: Clock,
    allow_remote: bool = False,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> Endpoint:
    """Listen, note the address, or start the process, as `peer` says.

    Raises
    ------
    PeerSpecError
        A peer of this role cannot be reached this way, or the command cannot be
        started, or the address cannot be listened on.
    ExposureError
        The address is not loopback and `allow_remote` is not given.
    """
    start = spec.index(":") + 1

    def refuse(message: str, *, kind: bool = True) -> PeerSpecError:
        if kind:
            return PeerSpecError(message, spec=spec, end=start - 1)
        return PeerSpecError(message, spec=spec, start=start)

    match peer:
        case Capture():
            raise refuse("a recording has no live connections; it is judged passively")
        case Tcp(host, port):
            if role in ("codec", "tp-worker"):
                use = "codec:" if role == "codec" else "listen: or exec:"
                raise refuse(f"a {role} cannot be dialled; use {use}")
            return Endpoint(address=(host, port))
        case Listen(host, port):
            if not WIRING[role].tester_listens:
                use = "codec:" if role == "codec" else "tcp: or exec:"
                raise refuse(f"a {role} does not dial us; use {use}")
            try:
                return Endpoint(
                    listener=listen(host, port, allow_remote=allow_remote, clock=clock)
                )
            except OSError as error:
                reason = error.strerror or str(error)
                raise refuse(f"cannot listen there: {reason}", kind=False) from None
        case Exec(argv) | CodecCommand(argv):
            if isinstance(peer, CodecCommand) != (role == "codec"):
                use = "codec:" if role == "codec" else "exec:"
                raise refuse(f"a peer of role {role} is started with {use}COMMAND")
        case Reference(wanted):
            if wanted != role:
                raise refuse(f"this is a {wanted}, wanted is a {role}", kind=False)
            argv = reference_argv(peer, spec)
    endpoint, theirs = _prepare(argv, role, clock)
    try:
        words = fill(argv, _values(endpoint.ports))
        endpoint.process = spawn(words, clock=clock, stdio=theirs, env=env, cwd=cwd)
    except OSError as error:
        endpoint.close(grace=0)
        reason = error.strerror or str(error)
        raise refuse(f"{argv[0]!r} cannot be started: {reason}", kind=False) from None
    finally:
        if theirs is not None:
            theirs.close()
    return endpoint


def _prepare(
    argv: tuple[str, ...], role: Role, clock: Clock
) -> tuple[Endpoint, socket.socket | None]:
    """Make the sockets that a command is given, before it starts."""
    wanted = wanted_ports(argv)
    if role == "codec":
        ours, theirs = socket.socketpair()
        return Endpoint(stdio=ours, ports=tuple(free_ports(wanted))), theirs
    if WIRING[role].tester_listens:
        listener = listen(LOOPBACK, 0, clock=clock)
        ports = (listener.address[1], *free_ports(wanted - 1))
        return Endpoint(listener=listener, ports=ports), None
    ports = tuple(free_ports(wanted))
    return Endpoint(address=(LOOPBACK, ports[0]), ports=ports), None


def _values(ports: tuple[int, ...]) -> dict[str, str]:
    values = {"host": LOOPBACK, "port": str(ports[0])}
    for number, port in enumerate(ports[1:], 2):
        values[f"port{number}"] = str(port)
    return values
