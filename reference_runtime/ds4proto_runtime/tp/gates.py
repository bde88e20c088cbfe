"""Moving gates between the ranks: the transport interface, and TCP behind it."""

from __future__ import annotations

import select
import socket
from time import monotonic
from typing import Final, Protocol

from ds4proto.link.ds4t_gates import GateLink
from ds4proto_runtime.tp.slab import Slab
from ds4proto_runtime.tp.waiting import AdaptiveWait

_GONE: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR
_LOOK_SECONDS: Final = 0.1
"""Between two looks at the control connection while a gate is open."""


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
        Connected and non-blocking. ``control`` is only looked at: its end shows a
        dead peer at once, whatever the gate timeout.
    link : GateLink
    slab : Slab
    wait : AdaptiveWait
    """

    def __init__(
        self,
        data: socket.socket,
        control: socket.socket,
        link: GateLink,
        slab: Slab,
        wait: AdaptiveWait,
    ) -> None:
        data.setblocking(False)
        self.slab = slab
        self._link = link
        self._data = data
        self._control = control
        self._wait = wait
        self._send = data.sendmsg
        self._receive = data.recv_into
        self._reading, self._both = select.poll(), select.poll()
        for poller, events in (
            (self._reading, select.POLLIN),
            (self._both, select.POLLIN | select.POLLOUT),
        ):
            poller.register(data, events)
            if hasattr(select, "POLLRDHUP"):
                poller.register(control, select.POLLRDHUP)

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
        link, send, receive = self._link, self._send, self._receive
        while True:
            moved = False
            if link.sending:
                try:
                    link.sent(send(link.send_views), monotonic())
                    moved = True
                except BlockingIOError:
                    pass
                except OSError as error:
                    self._broken(error)
            if link.receiving:
                try:
                    link.received(receive(link.receive_view), monotonic())
                    moved = True
                except BlockingIOError:
                    pass
                except OSError as error:
                    self._broken(error)
            elif not link.sending:
                return
            if not moved:
                self._pause()

    def _broken(self, error: OSError) -> None:
        why = error.strerror or str(error)
        self._link.abort(f"the data connection broke: {why}", monotonic())

    def _pause(self) -> None:
        """Wait for the socket: spin where that pays, then block with a deadline."""
        link = self._link
        spin = self._wait.spin
        if spin and not link.sending:
            receive = self._receive
            view = link.receive_view
            end = monotonic() + spin
            while monotonic() < end:
                try:
                    got = receive(view)
                except BlockingIOError:
                    continue
                except OSError as error:
                    self._broken(error)
                    raise
                link.received(got, monotonic())
                return
        self._block()

    def _block(self) -> None:
        link = self._link
        now = monotonic()
        due = link.deadline()
        left = _LOOK_SECONDS if due is None else min(due - now, _LOOK_SECONDS)
        poller = self._both if link.sending else self._reading
        # rounded up, so that a wait of under a millisecond does not spin
        ready = poller.poll(max(0, int(left * 1000 + 0.999)))
        if not ready:
            link.timeout(monotonic())
        mine = self._data.fileno()
        if any(found == mine for found, _ in ready):
            return
        if self._peer_gone(ready):
            self._last_bytes()

    def _peer_gone(self, ready: list[tuple[int, int]]) -> bool:
        if any(events & _GONE for _, events in ready):
            return True
        try:
            return not self._control.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True

    def _last_bytes(self) -> None:
        """Take what the peer sent before its control connection ended."""
        link = self._link
        while link.receiving:
            try:
                link.received(self._receive(link.receive_view), monotonic())
            except BlockingIOError:
                break
            except OSError as error:
                self._broken(error)
        if link.receiving or link.sending:
            link.abort("the peer's control connection ended", monotonic())
