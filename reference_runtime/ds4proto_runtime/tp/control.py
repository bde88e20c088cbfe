"""The control connection of a rank: a machine and its socket, with deadlines."""

from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import Any, Final

from ds4proto.link.ds4t_events import Transmit
from ds4proto.link.ds4t_leader import LeaderControl
from ds4proto.link.ds4t_texts import PairFailed, TpRole
from ds4proto.link.ds4t_worker import WorkerControl
from ds4proto.link.events import Violation
from ds4proto.peer.errors import PeerLost
from ds4proto.schema.problem import Buf
from ds4proto_runtime.tp.errors import pair_error

SEND_SECONDS: Final = 30.0
"""Longest standstill while a frame is written."""
_SLICE: Final = 1.0
"""Longest single poll: signals are answered earlier, deadlines soon after."""


class ControlPipe:
    """Frames in and out of one machine.

    Parameters
    ----------
    sock : socket
        Connected, made non-blocking.
    machine : LeaderControl or WorkerControl
    role : {"tp-leader", "tp-worker"}
    """

    def __init__(
        self,
        sock: socket.socket,
        machine: LeaderControl | WorkerControl,
        role: TpRole,
    ) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.machine = machine
        self._role: TpRole = role
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)
        self._writable = select.poll()
        self._writable.register(sock, select.POLLOUT)
        self._waiting: deque[Any] = deque()
        self.warnings: list[str] = []

    def say(self, event: Any) -> None:
        """Write the frames that say ``event``."""
        machine: Any = self.machine
        self.write(machine.send(event, monotonic()))

    def write(self, buffers: Sequence[Buf]) -> None:
        """Write buffers in order, without copying them.

        Raises
        ------
        PeerLost
            If the connection broke, or nothing moved for ``SEND_SECONDS``.
        """
        views = [memoryview(b).cast("B") for b in buffers if len(b)]
        moved = monotonic()
        while views:
            try:
                count = self.sock.sendmsg(views[:64])
            except (BlockingIOError, InterruptedError):
                if monotonic() - moved > SEND_SECONDS:
                    raise self._lost("timeout", f"stuck for {SEND_SECONDS:g} s") from (
                        None
                    )
                self._writable.poll(int(_SLICE * 1000))
                continue
            except OSError as error:
                why = error.strerror or str(error)
                raise self._lost("reset", why) from None
            moved = monotonic()
            while views and count >= len(views[0]):
                count -= len(views.pop(0))
            if views:
                views[0] = views[0][count:]

    def _lost(self, kind: Any, why: str) -> PeerLost:
        return PeerLost(
            kind,
            phase="writing a control frame",
            address="the control connection",
            reason=why,
            received=self.machine.bytes_received,
        )

    def next_event(self, limit: float | None = None) -> Any:
        """Return the next event of the machine, reading as needed.

        Parameters
        ----------
        limit : float, optional
            Seconds that nothing at all may come (a worker between commands);
            the machine's own deadlines hold in any case.

        Raises
        ------
        PairError
            When the machine says that the pair is over.
        PeerLost
            After ``limit``.
        """
        start = monotonic()
        while True:
            self._pull()
            if self._waiting:
                event = self._waiting.popleft()
                if isinstance(event, PairFailed):
                    raise pair_error(event, self._role)
                return event
            self._read()
            now = monotonic()
            due = self.machine.deadline()
            if due is not None and now >= due:
                self.machine.timeout(now)
            elif limit is not None and now - start >= limit:
                raise self._lost("timeout", f"nothing came for {limit:g} s")

    def event_at_hand(self) -> Any:
        """Return an event if one is there or has just come; waits for nothing."""
        self._pull()
        if not self._waiting:
            self._read(0.0)
            self._pull()
        if self._waiting and not isinstance(self._waiting[0], PairFailed):
            return self._waiting.popleft()
        return None

    def _pull(self) -> None:
        """Take the machine's events; its own frames go out before any other."""
        for event in self.machine.events():
            if isinstance(event, Transmit):
                self.write(event.buffers)
            elif isinstance(event, Violation):
                self.warnings.append(str(event.problem))
            else:
                self._waiting.append(event)

    def poll_failure(self) -> None:
        """Raise if the machine has already failed; reads nothing."""
        if self.machine.failure is not None:
            raise pair_error(self.machine.failure, self._role)

    def _read(self, longest: float = _SLICE) -> None:
        machine = self.machine
        due = machine.deadline()
        left = longest if due is None else min(longest, max(0.0, due - monotonic()))
        room = machine.get_buffer()
        if not len(room):
            # a whole frame waits that the state does not take: only time passes
            self._readable.poll(1)
            return
        if not self._readable.poll(int(left * 1000 + 0.999)):
            return
        try:
            count = self.sock.recv_into(room)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            count = 0
        machine.buffer_updated(count, monotonic())

    def close(self) -> None:
        """Close the connection."""
        self.sock.close()
