"""How a pair comes up: two connections, the hello, and who is turned away.

The leader tells its worker from a stranger. Several clients may knock at once; each
gets the own hello, as a real leader writes first, and the first that answers with a
whole hello is the worker. Then only connections from the same address count as the
data connection, and one that speaks before any gate is due is a stranger too: nothing
on the wire identifies a data connection (DS4T-ROBUST-02).
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, Final

from ds4proto.errors import PeerLost as Lost
from ds4proto.errors import WrongUsage
from ds4proto.link.ds4t_diagnosis import foreign_bytes
from ds4proto.link.ds4t_hello import HelloAgreed
from ds4proto.link.ds4t_identity import TpSettings
from ds4proto.link.ds4t_texts import PairFailed, text_of
from ds4proto.link.schedule import Schedule
from ds4proto.peer import PeerLost, dial, ds4t_dial, listen
from ds4proto.peer.connect import Listener
from ds4proto_runtime.tp.callers import Knocking, origin_of, peek, take_socket
from ds4proto_runtime.tp.errors import pair_error

BUFFER_BYTES: Final = 4 << 20
"""Socket buffers that ranks ask for; the kernel may grant less (DS4T-CONN)."""
MAX_KNOCKING: Final = 16
"""Clients that a leader looks at side by side."""
SETTLE_SECONDS: Final = 0.05
"""How long a leader waits for a data connection to give itself away by speaking."""
GREET_SECONDS: Final = 0.5
"""Delay of the own hello to a client while another one is being heard.

A worker's hello that was lost on its way comes again after 200 ms and a round trip,
and may so come behind its second connection.
"""
_TURNED_AWAY: Final = frozenset({"DS4T-HELLO-01", "DS4T-HELLO-02", "DS4T-HELLO-19"})
"""Failures of a client that is no rank at all."""
_OURS_ALONE: Final = frozenset({"DS4T-HELLO-06", "DS4T-HELLO-07", "DS4T-HELLO-19"})
"""Checks of a worker that can fail although the leader's passed."""
Say = Callable[[str], None]


@dataclass(slots=True)
class Connected:
    """A pair's two connections after the hello.

    Attributes
    ----------
    control, data : socket
        Non-blocking, with the options of ds4 ranks.
    agreed : HelloAgreed
    """

    control: socket.socket
    data: socket.socket
    agreed: HelloAgreed

    def close(self) -> None:
        """Close both."""
        self.data.close()
        self.control.close()


class LeaderDoor:
    """A leader's listening socket.

    Parameters
    ----------
    host, port
        Port 0 lets the system choose; see ``address``.
    settings : TpSettings
    allow_remote : bool
        Needed for any address that is not loopback.
    buffers : int or None
        Socket buffers to ask for.
    hello_seconds : float
        What a client may take for its hello.
    say : callable
        Takes log lines.
    """

    def __init__(
        self,
        host: str,
        port: int,
        settings: TpSettings,
        *,
        allow_remote: bool = False,
        buffers: int | None = BUFFER_BYTES,
        hello_seconds: float = 30.0,
        say: Say = print,
    ) -> None:
        try:
            self._listener: Listener = listen(
                host,
                port,
                backlog=MAX_KNOCKING,
                allow_remote=allow_remote,
                buffers=buffers,
            )
        except OSError as error:
            why = error.strerror or str(error)
            raise WrongUsage(text_of("DS4T-LIFE-08", host, port, why)) from None
        self._settings = settings
        self._buffers = buffers
        self._hello_seconds = hello_seconds
        self._say = say
        self._opened = monotonic()
        self.address = self._listener.address
        self.spare: list[socket.socket] = []
        """Further silent connections from the worker's address, see ``settle``."""

    def close(self) -> None:
        """Stop listening and let spare connections go."""
        self._listener.close()
        for sock in self.spare:
            sock.close()
        self.spare.clear()

    def wait(self, deadline: float) -> Connected:
        """Return the worker's connections.

        Raises
        ------
        PairError
            When a ds4 rank connects that does not fit: its words, nothing is retried.
        PeerLost
            At the deadline.
        """
        host, port = self.address
        self._say(f"ds4-tp: waiting for worker on {host}:{port} ...")
        control, agreed, early = self._control(deadline)
        silent: list[socket.socket] = []
        try:
            data = self._data(origin_of(control), control, deadline, early, silent)
        except BaseException:
            for sock in (control, *early, *silent):
                sock.close()
            raise
        self._listener.close()
        return Connected(control, data, agreed)

    def _accept(self, seconds: float, deadline: float, phase: str) -> Any:
        now = monotonic()
        if now >= deadline:
            host, port = self.address
            waited = now - self._opened
            raise Lost(
                f"{phase}: nobody came to {host}:{port} in {waited:.1f} s; start the "
                "worker with --coordinator and that address, or see --accept-wait"
            )
        try:
            channel = self._listener.accept(deadline=now + seconds, phase=phase)
        except PeerLost:
            return None
        return take_socket(channel, self._buffers)

    def _control(
        self, deadline: float
    ) -> tuple[socket.socket, HelloAgreed, list[socket.socket]]:
        """Return the worker's connection, and silent ones that may be its data."""
        knocking: list[Knocking] = []
        try:
            while True:
                for client in list(knocking):
                    outcome = client.read()
                    if isinstance(outcome, HelloAgreed):
                        knocking.remove(client)
                        early = [c for c in knocking if not c.greeted]
                        for other in early:
                            knocking.remove(other)
                        for late in knocking:
                            self._turn_away(late, "another worker was first")
                        return client.sock, outcome, [c.sock for c in early]
                    if isinstance(outcome, PairFailed):
                        if outcome.problem.clause not in _TURNED_AWAY:
                            raise pair_error(outcome, "tp-leader")
                        knocking.remove(client)
                        self._turn_away(client, outcome.text)
                seconds = 0.005 if knocking else 0.25
                sock = self._accept(seconds, deadline, "waiting for the worker")
                if sock is None:
                    continue
                # the second connection of a quick worker must not find a hello on it
                later = GREET_SECONDS if knocking else 0.0
                limit = self._hello_seconds
                knocking.append(Knocking(sock, self._settings, limit, later))
                if len(knocking) > MAX_KNOCKING:
                    self._turn_away(knocking.pop(0), "too many clients at once")
        finally:
            for client in knocking:
                client.sock.close()

    def _turn_away(self, client: Knocking, why: str) -> None:
        client.sock.close()
        self._say(f"ds4-tp: turned away a client from {client.origin}: {why}")

    def _data(
        self,
        origin: str,
        control: socket.socket,
        deadline: float,
        early: list[socket.socket],
        silent: list[socket.socket],
    ) -> socket.socket:
        settled = deadline
        phase = "waiting for the worker's data connection"
        limit = min(deadline, monotonic() + self._hello_seconds)
        while True:
            now = monotonic()
            if silent and now >= settled:
                break
            if _ended(control):
                raise Lost(
                    "the worker closed its control connection before the data "
                    "connection came: it may have refused our hello; look at its "
                    "last lines (DS4T-FAIL-01)"
                )
            sock = (
                early.pop(0)
                if early
                else self._accept(0.01, limit if not silent else deadline, phase)
            )
            if sock is not None:
                if origin_of(sock) != origin:
                    self._say(
                        f"ds4-tp: turned away a client from {origin_of(sock)}: the "
                        f"data connection comes from {origin}"
                    )
                    sock.close()
                    continue
                if not silent:
                    settled = monotonic() + SETTLE_SECONDS
                silent.append(sock)
            silent[:] = [one for one in silent if self._still_silent(one)]
        self.spare = silent[1:]
        return silent[0]

    def _still_silent(self, sock: socket.socket) -> bool:
        head = peek(sock)
        if head is None:
            return True
        why = "it closed" if not head else f"it speaks before any gate is due: {head!r}"
        self._say(f"ds4-tp: turned away a client from {origin_of(sock)}: {why}")
        sock.close()
        return False

    def settle(self, data: socket.socket, schedule: Schedule, seconds: float) -> Any:
        """Return the data connection once a first gate is on its way.

        With one silent connection that is the answer at once. With several, the one
        whose first bytes are a gate header is the worker's; the rest are closed.
        """
        if not self.spare:
            return data
        held = [data, *self.spare]
        self.spare = []
        poller = select.poll()
        for sock in held:
            poller.register(sock, select.POLLIN)
        end = monotonic() + seconds
        chosen: socket.socket | None = None
        while len(held) > 1 and chosen is None and monotonic() < end:
            poller.poll(20)
            for sock in list(held):
                head = peek(sock)
                if head is None or 0 < len(head) < 16:
                    continue
                if head and not foreign_bytes(head, schedule):
                    chosen = sock
                    break
                poller.unregister(sock)
                held.remove(sock)
                self._say(f"ds4-tp: turned away a client from {origin_of(sock)}")
                sock.close()
        chosen = chosen or held[0]
        for sock in held:
            if sock is not chosen:
                sock.close()
        return chosen


def _ended(sock: socket.socket) -> bool:
    return peek(sock) == b""


def join_leader(
    host: str,
    port: int,
    settings: TpSettings,
    *,
    dial_seconds: float,
    buffers: int | None = BUFFER_BYTES,
    hello_seconds: float = 30.0,
    say: Say = print,
) -> Connected:
    """Dial a leader, say hello, dial again for data; the worker's half of a pair.

    A refused connection is tried again every 200 ms for ``dial_seconds``, at least
    once: the leader may still be loading its model (DS4T-OPT-30).

    Raises
    ------
    PairError
        When the hello fails.
    PeerLost
        When the leader cannot be reached.
    """

    def connect(phase: str) -> socket.socket:
        # the window bounds the tries; the deadline only a connect that hangs
        end = monotonic() + max(dial_seconds, 1.0) + 1.0
        channel = dial(
            host, port, deadline=end, retry=ds4t_dial(dial_seconds), phase=phase
        )
        return take_socket(channel, buffers)

    say(f"ds4-tp: connecting to {host}:{port} ...")
    try:
        control = connect("dialling the leader")
    except PeerLost as error:
        raise Lost(text_of("DS4T-OPT-30", host, port, error)) from None
    try:
        agreed = _worker_hello(control, settings, hello_seconds)
        try:
            data = connect("dialling the leader for data")
        except PeerLost as error:
            raise Lost(
                text_of("DS4T-OPT-30", host, port, error)
                + "; the leader may have refused our hello: look at its last lines"
            ) from None
    except BaseException:
        control.close()
        raise
    return Connected(control, data, agreed)


def _worker_hello(
    sock: socket.socket, settings: TpSettings, seconds: float
) -> HelloAgreed:
    client = Knocking(sock, settings, seconds)
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    while True:
        poller.poll(100)
        outcome = client.read()
        if isinstance(outcome, HelloAgreed):
            return outcome
        if isinstance(outcome, PairFailed):
            raise pair_error(_told(outcome), "tp-worker")


def _told(failure: PairFailed) -> PairFailed:
    """Say what becomes of the leader, where its own check of our hello passed.

    It then waits for a data connection that never comes (DS4T-ROBUST-28).
    """
    problem = failure.problem
    if problem.clause not in _OURS_ALONE:
        return failure
    step = (
        f"{problem.next_step}; the leader has accepted this hello and waits for the "
        "data connection, a ds4 leader without end: start it anew too"
    )
    return replace(failure, problem=replace(problem, next_step=step))
