"""Moving gates between the ranks: the transport interface, and TCP behind it."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Callable
from time import monotonic
from typing import Final, Protocol

from ds4proto.link.ds4t_gate_state import GateFailed
from ds4proto.link.ds4t_gates import GateLink
from ds4proto_runtime.tp.callers import ended
from ds4proto_runtime.tp.slab import Slab
from ds4proto_runtime.tp.waiting import AdaptiveWait

LOOK_SECONDS: Final = 0.1
"""Between two looks at deadlines and the control connection while a gate is open."""
PIECES: Final = 16
"""Reads after which a gate's total deadline is looked at."""
FINISH_SECONDS: Final = 2.0
"""For the rest of the own gate once the peer's has been found wrong."""
_NOW: Final = socket.MSG_DONTWAIT


class GateTransport(Protocol):
    """One gate at a time, both ways at once, between preallocated memory.

    Each call returns when the peer's payload is in place and the own one is out, and
    raises ``GateFailed`` otherwise; the transport is of no use afterwards.
    """

    slab: Slab

    @property
    def link(self) -> GateLink:
        """Sequence numbers, skew and diagnosis."""

    def row(self, layer: int, kind: int) -> None:
        """Exchange ``slab.row_out`` and ``slab.row_in`` of one slot."""

    def batch(self, layer: int, rows: int) -> None:
        """Exchange the first ``rows`` rows of a layer's batch areas."""

    def bulk(self, layer: int, own: memoryview, peer: memoryview) -> None:
        """Exchange two payloads of equal length, format B."""

    def close(self) -> None:
        """Let go of the connection; the slab stays with its owner."""


class TcpGates:
    """Gates over the data connection.

    Parameters
    ----------
    data, control : socket
        Connected. ``control`` is only looked at: its end shows a dead peer within
        ``LOOK_SECONDS``, whatever the gate timeout.
    link : GateLink
    slab : Slab
    wait : AdaptiveWait
    idle : float or None
        The link's idle limit in seconds, so that it is noticed in time.

    Notes
    -----
    A small gate is one send that does not wait, and reads that do: the kernel's own
    receive timeout cuts a read into short waits, so that deadlines, the control
    connection and signals are looked at between them. Only when a send does not
    finish at once (bulk) do both directions take turns under ``poll``.
    """

    def __init__(
        self,
        data: socket.socket,
        control: socket.socket,
        link: GateLink,
        slab: Slab,
        wait: AdaptiveWait,
        *,
        idle: float | None = None,
    ) -> None:
        self.slab = slab
        self._link = link
        self._data = data
        self._control = control
        self._wait = wait
        self._send = data.sendmsg
        self._receive = data.recv_into
        look = LOOK_SECONDS if idle is None else min(LOOK_SECONDS, idle / 2)
        self._look = look = max(look, 0.001)
        whole = int(look)
        timeout = struct.pack("ll", whole, int((look - whole) * 1e6))
        data.setblocking(True)
        data.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
        self.on_quiet: Callable[[], None] | None = None
        """Called when nothing has moved for a look, the gate being open."""
        self._both, self._writing = select.poll(), select.poll()
        self._both.register(data, select.POLLIN | select.POLLOUT)
        self._writing.register(data, select.POLLOUT)

    @property
    def link(self) -> GateLink:
        """Sequence numbers, skew and diagnosis."""
        return self._link

    def row(self, layer: int, kind: int) -> None:
        """Exchange the vectors of one slot."""
        slab, slot = self.slab, 2 * layer + kind
        begun = monotonic()
        self._link.begin_row(layer, kind, slab.row_out[slot], slab.row_in[slot], begun)
        self._exchange()
        self._wait.gate_done(monotonic(), begun)

    def batch(self, layer: int, rows: int) -> None:
        """Exchange the rows of a verify block at one layer."""
        own, peer = self.slab.batch(layer, rows)
        self._link.begin_batch(layer, rows, own, peer, monotonic())
        self._exchange()

    def bulk(self, layer: int, own: memoryview, peer: memoryview) -> None:
        """Exchange two payloads of equal length."""
        self._link.begin_bulk(layer, own, peer, monotonic())
        self._exchange()

    def close(self) -> None:
        """Close the data connection."""
        self._data.close()

    def _exchange(self) -> None:
        link, receive = self._link, self._receive
        if not self._try_send():
            self._take_turns()
        spin = self._wait.spin
        pieces = 0
        while link.receiving:
            if spin:
                self._spin(spin)
                if not link.receiving:
                    return
                spin = 0.0
            try:
                link.received(receive(link.receive_view), monotonic())
            except BlockingIOError:
                self._look_around()
            except OSError as error:
                self._broken(error)
            pieces += 1
            if not pieces % PIECES:  # single bytes must not hold a gate open for ever
                link.timeout(monotonic())

    def _try_send(self) -> bool:
        """Send what the kernel takes at once; True when that was all."""
        link = self._link
        try:
            return link.sent(self._send(link.send_views, (), _NOW), monotonic())
        except BlockingIOError:
            return False
        except OSError as error:
            self._broken(error)
            raise

    def _try_receive(self) -> bool:
        """Take what has come; True when that was anything."""
        link = self._link
        try:
            got = self._receive(link.receive_view, 0, _NOW)
        except BlockingIOError:
            return False
        except OSError as error:
            self._broken(error)
            raise
        link.received(got, monotonic())
        return True

    def _spin(self, seconds: float) -> None:
        """Look for bytes again and again, for a bounded time."""
        link, receive = self._link, self._receive
        end = monotonic() + seconds
        while link.receiving:
            try:
                got = receive(link.receive_view, 0, _NOW)
            except BlockingIOError:
                if monotonic() >= end:
                    return
                continue
            except OSError as error:
                self._broken(error)
                raise
            link.received(got, monotonic())

    def _take_turns(self) -> None:
        """Send and receive in turns until the own gate is out."""
        link = self._link
        wait = int(self._look * 1000 + 0.999)
        while link.sending:
            now = monotonic()
            try:
                moved = link.receiving and self._try_receive()
            except GateFailed:
                self._finish()
                raise
            before = link.sending
            moved = self._try_send() or moved
            link.timeout(now)  # only now: this rank may have stood still itself
            if moved or not before:
                continue
            poller = self._both if link.receiving else self._writing
            if not poller.poll(wait):
                self._look_around()

    def _finish(self) -> None:
        """Send what is left: the peer has to judge a whole gate (DS4T-GATE-25)."""
        link, end = self._link, monotonic() + FINISH_SECONDS
        while link.sending and (left := end - monotonic()) > 0:
            try:
                link.sent(self._send(link.send_views, (), _NOW), monotonic())
            except BlockingIOError:
                self._writing.poll(int(left * 1000) + 1)
            except OSError:
                return

    def _broken(self, error: OSError) -> None:
        why = error.strerror or str(error)
        self._link.abort(f"the data connection broke: {why}", monotonic())

    def _look_around(self) -> None:
        """Judge a standstill: is it too late, and is the peer still there."""
        link = self._link
        if self.on_quiet is not None:
            self.on_quiet()
        now, due = monotonic(), link.deadline()
        if due is not None and now >= due:
            while link.receiving and self._try_receive():
                pass  # what came while this rank stood still itself
            link.timeout(now)
        if link.done or not ended(self._control):
            return
        while link.receiving and self._try_receive():
            pass  # what the peer sent before its end
        if link.receiving or link.sending:
            link.abort("the peer's control connection ended", monotonic())
