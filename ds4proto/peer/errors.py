"""What can go wrong with a peer, in words that say what to do next."""

from __future__ import annotations

from errno import EADDRINUSE
from typing import Literal

LossKind = Literal["closed", "refused", "reset", "timeout", "unreachable", "exited"]

_WHAT: dict[LossKind, str] = {
    "closed": "the peer closed the connection",
    "refused": "the peer refused the connection",
    "reset": "the peer reset the connection",
    "timeout": "no progress before the deadline",
    "unreachable": "the peer cannot be reached",
    "exited": "the peer's process ended",
}
_NEXT: dict[LossKind, str] = {
    "closed": "look at the peer's log for a refusal; some close without a reply",
    "refused": "check that the peer listens on this port, in this role",
    "reset": "the peer closed with unread bytes or crashed; look at its log",
    "timeout": "check that the peer is not waiting for us, or raise --time-scale",
    "unreachable": "check the host name, the route and the firewall",
    "exited": "read the peer's output below and correct its command",
}


class PeerError(Exception):
    """Base of the errors of this package; `exit_code` is the command's status."""

    exit_code = 2


class PeerLost(PeerError):
    """The peer went away, was never there, or stood still past a deadline.

    Attributes
    ----------
    kind : str
        ``closed``, ``refused``, ``reset``, ``timeout``, ``unreachable`` or ``exited``.
    phase : str
        What was going on, e.g. ``"connected, waiting for HELLO"``.
    address : str
        ``host:port`` of the peer, or its command.
    sent, received : int
        Bytes that crossed the connection before it was lost.
    partial : int
        Bytes of the read that was going on when it was lost.
    waited : float or None
        Seconds spent in the wait that failed.
    output : str
        The last lines of the peer's process, where we started it.
    """

    exit_code = 3

    def __init__(
        self,
        kind: LossKind,
        *,
        phase: str,
        address: str,
        sent: int = 0,
        received: int = 0,
        partial: int = 0,
        waited: float | None = None,
        reason: str = "",
        output: str = "",
    ) -> None:
        self.kind: LossKind = kind
        self.phase = phase
        self.address = address
        self.sent = sent
        self.received = received
        self.partial = partial
        self.waited = waited
        self.reason = reason
        self.output = output
        super().__init__(self._text())

    def _text(self) -> str:
        text = f"peer {self.address} lost while {self.phase}: {_WHAT[self.kind]}"
        if self.reason:
            text += f" ({self.reason})"
        if self.waited is not None:
            text += f"; {self.partial} bytes in {self.waited:.3g} s"
        text += f"; sent {self.sent}, received {self.received} bytes so far"
        text += f". Next: {_NEXT[self.kind]}"
        if self.output:
            text += f"\nlast output of the peer:\n{self.output.rstrip()}"
        return text

    def __reduce__(self) -> str | tuple[object, ...]:
        return (_rebuild, (self.__class__, dict(self.__dict__)))


def _rebuild(cls: type[PeerLost], state: dict[str, object]) -> PeerLost:
    error = cls.__new__(cls)
    error.__dict__.update(state)
    Exception.__init__(error, error._text())
    return error


class PeerSpecError(PeerError, ValueError):
    """A ``--peer`` text that cannot be used, with a pointer at the offending part.

    Attributes
    ----------
    spec : str
        The whole text.
    start, end : int
        The offending part as a slice of `spec`.
    """

    def __init__(
        self, message: str, *, spec: str, start: int = 0, end: int | None = None
    ) -> None:
        self.message = message
        self.spec = spec
        self.start = start
        self.end = len(spec) if end is None else end
        super().__init__(self._text())

    def _text(self) -> str:
        from ds4proto.peer.grammar import GRAMMAR

        marks = " " * self.start + "^" * max(1, self.end - self.start)
        return f"{self.message}\n  {self.spec}\n  {marks}\n{GRAMMAR}"


class ListenError(OSError):
    """An address cannot be listened on: it is taken, or not of this machine."""

    exit_code = 2

    def __init__(self, host: str, port: int, reason: OSError) -> None:
        self.where = f"{host}:{port}"
        super().__init__(reason.errno, reason.strerror or str(reason))

    def __str__(self) -> str:
        """Return the address, the reason and the next step."""
        step = "check the address; ip addr or ifconfig lists those of this machine"
        if self.errno == EADDRINUSE:
            step = "end the process that has the port, or name another"
        return f"cannot listen on {self.where}: {self.strerror}. Next: {step}"


class ExposureError(PeerError, ValueError):
    """A listener was asked to leave the loopback interface without an opt-in."""
