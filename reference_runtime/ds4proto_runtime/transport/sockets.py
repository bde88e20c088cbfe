"""The two connections of a pair as the RDMA transport uses them."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from ds4proto.link.ds4t_gates import GateLink
from ds4proto.link.ds4t_rdma_windows import check_barrier, rdma_failed
from ds4proto.schema.problem import Buf
from ds4proto_runtime.tp.callers import ended
from ds4proto_runtime.transport.waits import Clock, Steps

_LOOK_SECONDS: Final = 0.01
"""Between two looks at the control connection during a wait (DS4T-RDMA-66)."""
HEADER_BYTES: Final = 12
_MAX_FRAME: Final = 64
"""Largest payload of a bring-up frame; longer ones are judged by their header."""


class PairSockets:
    """Control and data connection, non-blocking.

    Parameters
    ----------
    control, data : socket
    clock : Clock
    """

    def __init__(
        self, control: socket.socket, data: socket.socket, clock: Clock
    ) -> None:
        control.setblocking(False)
        data.setblocking(False)
        self._control = control
        self._data = data
        self._clock = clock
        self._looked = 0.0

    def close(self) -> None:
        """Close the data connection; the control one is its owner's."""
        self._data.close()

    # -- control -----------------------------------------------------------------

    def write_control(self, buffers: Sequence[Buf], due: float) -> Steps[str]:
        """Write a frame; return what went wrong, "" for nothing."""
        left = b"".join(bytes(b) for b in buffers)
        while left:
            try:
                left = left[self._control.send(left) :]
                self._clock.moved += 1
            except (BlockingIOError, InterruptedError):
                if self._clock.now() >= due:
                    return "the peer does not read"
                yield due
            except OSError as error:
                return error.strerror or str(error)
        return ""

    def read_control(self, wanted: int) -> bytes | None:
        """Take up to ``wanted`` bytes: b"" for none yet, None at the end."""
        try:
            data = self._control.recv(min(wanted, HEADER_BYTES + _MAX_FRAME))
        except (BlockingIOError, InterruptedError):
            return b""
        except OSError:
            return None
        self._clock.moved += 1
        return data or None

    def peer_gone(self, now: float) -> bool:
        """Look now and then whether the control connection has ended."""
        if now < self._looked + _LOOK_SECONDS:
            return False
        self._looked = now
        return ended(self._control)

    def until(self, due: float) -> float:
        """Return when to wake: at ``due``, or to look at the control connection."""
        return min(due, self._looked + _LOOK_SECONDS)

    # -- data --------------------------------------------------------------------

    def barrier(self, value: int, due: float, *, granted: int) -> Steps[None]:
        """Send one byte, read one byte: both ranks have posted (DS4T-RDMA-61).

        Raises
        ------
        RdmaFailed
            For another byte, for none by ``due``, or when the peer is gone.
        """
        clock = self._clock
        sent = False
        while True:
            try:
                if not sent:
                    self._data.send(bytes([value]))
                    sent = True
                    clock.moved += 1
                found = self._data.recv(1)
            except (BlockingIOError, InterruptedError):
                found = None
            except OSError:
                found = b""
            now = clock.now()
            if found:
                clock.moved += 1
                check_barrier(value, found[0], now, granted=granted)
                return
            gone = found is not None or self.peer_gone(now)
            if gone or now >= due:
                why = "the peer is gone" if gone else "nothing came in time"
                raise rdma_failed(
                    "DS4T-ROBUST-10",
                    f"ds4-tp: barrier {value:#04x} failed: {why}",
                    f"the peer's byte {value:#04x}",
                    f"{why}; this side was granted {granted} receives",
                    now,
                    "the ranks run different phases, or cut bulk gates into windows "
                    "of different size: compare the granted depths on both",
                )
            yield self.until(due)

    def exchange(self, link: GateLink) -> Steps[None]:
        """Run the open gate of ``link`` over the data connection.

        Raises
        ------
        GateFailed
            As for a gate over TCP.
        """
        clock = self._clock
        while not link.done:
            moved = False
            with suppress(BlockingIOError, InterruptedError):
                if link.sending:
                    count = self._try_send(link)
                    moved = True
                    link.sent(count, clock.now())
            with suppress(BlockingIOError, InterruptedError):
                if link.receiving:
                    count = self._try_receive(link)
                    moved = True
                    link.received(count, clock.now())
            if moved:
                clock.moved += 1
            if link.done:
                return
            now = clock.now()
            due = link.deadline()
            if due is not None and now >= due:
                link.timeout(now)
            if self.peer_gone(now):
                link.abort("the peer's control connection ended", now)
            yield self.until(now if due is None else due)

    def _try_send(self, link: GateLink) -> int:
        try:
            return self._data.sendmsg(link.send_views)
        except (BlockingIOError, InterruptedError):
            raise
        except OSError as error:
            link.abort(f"the data connection broke: {error}", self._clock.now())
            raise

    def _try_receive(self, link: GateLink) -> int:
        try:
            return self._data.recv_into(link.receive_view)
        except (BlockingIOError, InterruptedError):
            raise
        except OSError as error:
            link.abort(f"the data connection broke: {error}", self._clock.now())
            raise
