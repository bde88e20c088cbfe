"""A peer under test: started or awaited, its connections made as its role demands."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from ds4proto.peer.api import Address, Channel, ChannelName, Clock, Role
from ds4proto.peer.channel import SocketChannel
from ds4proto.peer.clock import SYSTEM_CLOCK
from ds4proto.peer.connect import (
    DS4D_DIAL,
    UNTIL_DEADLINE,
    Listener,
    RetryPolicy,
    dial,
    ds4t_dial,
    is_loopback,
    listen,
)
from ds4proto.peer.endpoint import LOOPBACK, Endpoint, reach
from ds4proto.peer.errors import PeerError, PeerLost
from ds4proto.peer.grammar import parse_peer
from ds4proto.peer.process import GRACE, PeerProcess
from ds4proto.peer.wiring import WIRING, Link

if TYPE_CHECKING:
    from ds4proto.peer.recording import Recorder

DS4T_DIAL_SECONDS: Final = 30.0
"""How long we dial a tp-leader that somebody else started."""


class PeerSession:
    """The plain object behind `open_peer`; see `ds4proto.peer.Session`.

    Beyond the protocol it offers `accept` and `dial` for connections that a role may
    make several times (forwarding, snapshots), and `process` where we started the peer.
    """

    def __init__(
        self,
        role: Role,
        endpoint: Endpoint,
        *,
        deadline: float,
        time_scale: float = 1.0,
        clock: Clock = SYSTEM_CLOCK,
        recorder: Recorder | None = None,
        allow_remote: bool = False,
    ) -> None:
        self._role: Role = role
        self._wiring = WIRING[role]
        self._deadline = deadline
        self._scale = time_scale
        self._clock = clock
        self._recorder = recorder
        self._allow_remote = allow_remote
        self._channels: dict[ChannelName, SocketChannel] = {}
        self._opened: list[SocketChannel] = []
        self._endpoint = endpoint
        self._listener = endpoint.listener
        self._peer = endpoint.address
        self._data_listener: Listener | None = None

    @property
    def role(self) -> Role:
        """The role of the peer."""
        return self._role

    @property
    def process(self) -> PeerProcess | None:
        """The peer's process, where we started it."""
        return self._endpoint.process

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports that stood for ``{port}``, ``{port2}`` .. in its command."""
        return self._endpoint.ports

    @property
    def address(self) -> Address | None:
        """Where the peer listens, or where it is to dial us; None for codecs."""
        return self._listener.address if self._listener is not None else self._peer

    def channel(
        self,
        name: ChannelName,
        *,
        deadline: float | None = None,
        port: int | None = None,
        fresh: bool = False,
    ) -> SocketChannel:
        """Return the named connection, making it on first use.

        Raises
        ------
        PeerLost
            It could not be made in time.
        PeerError
            A peer of this role, reached this way, has no such connection.
        """
        have = self._channels.get(name)
        if have is not None and not fresh:
            return have
        if have is not None:
            have.close()
        made = self._make(name, self._deadline if deadline is None else deadline, port)
        self._channels[name] = made
        return made

    def accept(
        self, *, deadline: float | None = None, phase: str = "", data: bool = True
    ) -> SocketChannel:
        """Accept one more connection, on our data listener or on the main one."""
        listener = self._data() if data else self._listener
        if listener is None:
            raise PeerError(f"a {self._role} peer does not dial us; use dial()")
        limit = self._deadline if deadline is None else deadline
        return self._accept(listener, limit, phase or "waiting for a connection")

    def dial(
        self, port: int, *, deadline: float | None = None, host: str | None = None
    ) -> SocketChannel:
        """Dial another port of the peer (default: on the peer's own host)."""
        limit = self._deadline if deadline is None else deadline
        phase = f"dialling port {port} of the {self._role}"
        return self._dial((host or self._peer_host(), port), limit, phase)

    def data_address(self) -> Address:
        """Where the peer can dial us: the address of our data listener."""
        return self._data().address

    def alive(self) -> bool:
        """Whether the peer's process runs, or, without one, no connection was lost."""
        if self.process is not None:
            return self.process.alive()
        return all(c.alive() for c in self._channels.values() if not c.closed)

    def output(self) -> str:
        """Return what the peer's process printed last; empty without a process."""
        return self.process.output() if self.process is not None else ""

    def pid(self) -> int | None:
        """Return the process id where we started the peer."""
        return self.process.pid if self.process is not None else None

    def close(self, *, grace: float = GRACE) -> None:
        """Close every connection, stop listening, end the process. Idempotent."""
        for channel in self._opened:
            channel.close()
        if self._data_listener is not None:
            self._data_listener.close()
        self._endpoint.close(grace=grace)

    # -- making connections ---------------------------------------------------------

    def _make(
        self, name: ChannelName, deadline: float, port: int | None
    ) -> SocketChannel:
        link: Link | None = self._wiring.links.get(name)
        if link is None:
            raise PeerError(f"a {self._role} peer has no {name} connection")
        phase = self._wiring.phases[name]
        if link == "stdio":
            return self._take_stdio(phase)
        if link == "accept":
            if self._listener is None:
                raise PeerError(
                    f"a {self._role} dials us for {name}, which tcp: cannot await. "
                    "Next: use listen:HOST:PORT or exec:COMMAND"
                )
            return self._accept(self._listener, deadline, phase)
        if link == "accept-data":
            return self._accept(self._data(), deadline, phase)
        if port is not None:
            return self._dial((self._peer_host(), port), deadline, phase)
        if self._peer is None:
            raise PeerError(
                f"the data port of a {self._role} is in its HELLO. "
                "Next: pass channel('data', port=...)"
            )
        return self._dial(self._peer, deadline, phase)

    def _accept(self, listener: Listener, deadline: float, phase: str) -> SocketChannel:
        with self._told():
            channel = listener.accept(
                deadline=deadline,
                phase=phase,
                alive=self._process_alive(),
                output=self._tail,
            )
        return self._adopt(channel, opened_by_us=False)

    def _dial(self, address: Address, deadline: float, phase: str) -> SocketChannel:
        with self._told():
            channel = dial(
                *address,
                deadline=deadline,
                retry=self._retry(),
                clock=self._clock,
                alive=self._process_alive(),
                phase=phase,
                output=self._tail,
            )
        return self._adopt(channel, opened_by_us=True)

    def _adopt(self, channel: SocketChannel, *, opened_by_us: bool) -> SocketChannel:
        self._opened.append(channel)
        if self._recorder is not None:
            channel.tap = self._recorder.connection(
                channel.local, channel.remote, opened_by_us=opened_by_us
            )
        return channel

    def _take_stdio(self, phase: str) -> SocketChannel:
        sock, self._endpoint.stdio = self._endpoint.stdio, None
        if sock is None:
            raise PeerError("the codec command has one pair of streams, already taken")
        channel = SocketChannel(
            sock,
            clock=self._clock,
            phase=phase,
            label=f"codec process {self.pid()}",
            output=self._tail,
        )
        self._opened.append(channel)
        return channel

    def _retry(self) -> RetryPolicy:
        if self.process is not None:
            return UNTIL_DEADLINE
        if self._wiring.dial == "ds4t":
            return ds4t_dial(DS4T_DIAL_SECONDS).scaled(self._scale)
        return DS4D_DIAL.scaled(self._scale)

    def _data(self) -> Listener:
        if self._data_listener is None:
            host = self._listener.address[0] if self._listener else self._near()
            self._data_listener = listen(
                host, 0, allow_remote=self._allow_remote, clock=self._clock
            )
        return self._data_listener

    def _near(self) -> str:
        """Return where a peer that we have dialled can dial us, as far as we may."""
        for channel in self._opened:
            host = channel.local[0]
            if self._allow_remote or is_loopback(host):
                return host
        return LOOPBACK

    def _peer_host(self) -> str:
        if self._peer is not None:
            return self._peer[0]
        control = self._channels.get("control")
        return control.remote[0] if control is not None else LOOPBACK

    def _process_alive(self) -> Any:
        return None if self.process is None else self.process.alive

    def _tail(self) -> str:
        return "" if self.process is None else self.process.tail()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Add what the process printed to an error of dialling or accepting."""
        try:
            yield
        except PeerLost as error:
            if self.process is None or error.output:
                raise
            if error.kind == "exited":
                self.process.wait(deadline=self._clock.now() + GRACE)
            raise PeerLost(
                error.kind,
                phase=error.phase,
                address=error.address,
                waited=error.waited,
                reason=error.reason or self._status(),
                output=self._tail(),
            ) from None

    def _status(self) -> str:
        code = self.process.returncode if self.process is not None else None
        return "" if code is None else f"exit status {code}"


@contextlib.contextmanager
def open_peer(
    spec: str,
    role: Role,
    *,
    deadline: float,
    time_scale: float = 1.0,
    record: Recorder | str | os.PathLike[str] | None = None,
    clock: Clock = SYSTEM_CLOCK,
    allow_remote: bool = False,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    grace: float = GRACE,
) -> Iterator[PeerSession]:
    """Reach a peer named by a ``--peer`` text and leave nothing behind afterwards.

    Parameters
    ----------
    spec
        See `ds4proto.peer.GRAMMAR`.
    role
        What the peer is.
    deadline
        Absolute time of `clock` up to which connections may take to come about, unless
        `Session.channel` is given another.
    time_scale
        Stretches the retry rules of ds4.
    record
        A recorder, or the path of a pcapng file that gets every byte that crosses.
    allow_remote
        Needed for listening on an address that is not loopback.
    env, cwd
        For a process that we start; `env` is added to the environment.
    grace
        Seconds that it gets to end by itself.

    Raises
    ------
    PeerSpecError
        The text cannot be used for this role.
    PeerLost
        From `Session.channel` and the channels.

    Examples
    --------
    >>> with open_peer("exec:./worker {host} {port}", "worker",
    ...                deadline=clock.now() + 10) as peer:  # doctest: +SKIP
    ...     control = peer.channel("control")
    """
    peer = parse_peer(spec)
    own: Recorder | None = None
    if isinstance(record, str | os.PathLike):
        from ds4proto.peer.recording import Recorder  # loads the capture writer

        own = Recorder(record)
        recorder: Recorder | None = own
    else:
        recorder = record
    try:
        endpoint = reach(
            peer, spec, role, clock=clock, allow_remote=allow_remote, env=env, cwd=cwd
        )
    except BaseException:
        if own is not None:
            own.close()
        raise
    session = PeerSession(
        role,
        endpoint,
        deadline=deadline,
        time_scale=time_scale,
        clock=clock,
        recorder=recorder,
        allow_remote=allow_remote,
    )
    try:
        yield session
    finally:
        session.close(grace=grace)
        if own is not None:
            own.close()


def _check(session: PeerSession) -> Channel:
    """Let the type checker prove that the parts satisfy the protocols."""
    from ds4proto.peer.api import Session

    proven: Session = session
    return proven.channel("control")
