"""The names that all users of live endpoints share: roles, channels, sessions.

Nothing here opens a socket. A test double that satisfies these protocols can stand in
for a real connection anywhere in the library.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

Buf = bytes | bytearray | memoryview
"""Anything that ``socket.sendmsg`` takes without a copy."""

Role = Literal["coordinator", "worker", "tp-leader", "tp-worker", "codec"]
"""What the *peer* is; the tester plays the other side."""

ROLES: tuple[Role, ...] = ("coordinator", "worker", "tp-leader", "tp-worker", "codec")

ChannelName = Literal["control", "data"]
Address = tuple[str, int]


class Poller(Protocol):
    """The part of ``select.poll`` that a clock needs to wait on."""

    def poll(self, timeout: float | None = None, /) -> list[tuple[int, int]]:
        """Return the descriptors that are ready; `timeout` in milliseconds."""
        ...


class Clock(Protocol):
    """Time as an argument, so that deadlines can be tested without waiting."""

    def now(self) -> float:
        """Return monotonic seconds."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let `seconds` pass."""
        ...

    def wait(self, poller: Poller, seconds: float) -> list[tuple[int, int]]:
        """Wait at most `seconds` for `poller`; an empty list means that time passed."""
        ...


@runtime_checkable
class Channel(Protocol):
    """One ordered, reliable, full-duplex stream of bytes with deadlines.

    Every deadline is an absolute time of the channel's clock. A wait that reaches its
    deadline, a refused or reset connection and an end of stream in the middle of an
    announced read raise `ds4proto.peer.PeerLost`.
    """

    phase: str
    """What the caller is doing, for error texts, e.g. ``"waiting for HELLO"``."""

    @property
    def local(self) -> Address:
        """Own address as (host, port)."""
        ...

    @property
    def remote(self) -> Address:
        """The peer's address as (host, port)."""
        ...

    @property
    def sent(self) -> int:
        """Bytes handed to the kernel so far."""
        ...

    @property
    def received(self) -> int:
        """Bytes read so far."""
        ...

    def fileno(self) -> int:
        """Descriptor for a caller's own poll loop; -1 after `close`."""
        ...

    def send(self, bufs: Sequence[Buf], *, deadline: float) -> None:
        """Send all buffers in order, without copying them."""
        ...

    def recv_into(self, buf: bytearray | memoryview, *, deadline: float) -> int:
        """Read at least one byte into `buf`; 0 means that the peer ended its stream."""
        ...

    def recv_exact(self, buf: bytearray | memoryview, *, deadline: float) -> None:
        """Fill `buf`; an end of stream before that is a lost peer."""
        ...

    def exchange(
        self,
        send_bufs: Sequence[Buf],
        recv_view: bytearray | memoryview,
        *,
        deadline: float,
        idle: float | None = None,
    ) -> None:
        """Send and fill `recv_view` at the same time; `idle` bounds a standstill."""
        ...

    def shutdown_send(self) -> None:
        """End our direction (TCP half-close); reading goes on."""
        ...

    def close(self, *, reset: bool = False) -> None:
        """Close; with `reset` the peer sees RST instead of FIN. Idempotent."""
        ...


class Session(Protocol):
    """A peer under test and the connections to it. Made by `open_peer`."""

    @property
    def role(self) -> Role:
        """The role of the peer."""
        ...

    def channel(
        self,
        name: ChannelName,
        *,
        deadline: float | None = None,
        port: int | None = None,
        fresh: bool = False,
    ) -> Channel:
        """Return the named connection, making it on first use.

        `port` names the peer's data port where the peer announces it (HELLO
        ``listen_port``). `fresh` drops the present connection and makes a new one.
        """
        ...

    def data_address(self) -> Address:
        """Where the peer can dial our data port (for a HELLO or a route)."""
        ...

    def alive(self) -> bool:
        """Whether the peer's process runs, or, without one, no connection was lost."""
        ...

    def output(self) -> str:
        """Return the last text that the peer's process printed, both streams."""
        ...

    def pid(self) -> int | None:
        """Process id where we started the peer."""
        ...
