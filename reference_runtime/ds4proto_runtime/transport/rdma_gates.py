"""Gates over a queue pair: decode window, drain, bulk windows, verify window."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ds4proto.link.ds4t_gate_headers import GateShape
from ds4proto.link.ds4t_gates import GateFailed, GateLink
from ds4proto.link.ds4t_identity import TpSettings
from ds4proto.link.ds4t_rdma_bulk import BulkGate, BulkWindow, bulk_over_rdma
from ds4proto.link.ds4t_rdma_verify import VerifyWindow
from ds4proto.link.ds4t_rdma_windows import Post, RdmaFailed, rdma_failed, slab_region
from ds4proto.link.ds4t_texts import LocalProtocolError, text_of
from ds4proto.link.rdma_attributes import DECODE_WINDOW
from ds4proto.schema.ds4t_gates import BULK_TAG
from ds4proto_runtime.tp.slab import Slab
from ds4proto_runtime.transport.failures import GateTrouble
from ds4proto_runtime.transport.options import BULK_GRACE
from ds4proto_runtime.transport.requests import Phase, Requests
from ds4proto_runtime.transport.setup import Brought
from ds4proto_runtime.transport.sockets import PairSockets
from ds4proto_runtime.transport.waits import Clock, Steps

_NOTHING = memoryview(b"")


class RdmaGates:
    """One rank's gates; a ``GateTransport``.

    Parameters
    ----------
    brought : Brought
    link : GateLink
        Sequence numbers, and gates that cross the data connection.
    slab : Slab
        The registered memory.
    sockets : PairSockets
    settings : TpSettings
    clock : Clock
    gate_seconds : float
    verify_window : bool

    Notes
    -----
    ``row``, ``batch`` and ``bulk`` block; ``row_steps`` and so on are the same work
    as generators, for a virtual clock.
    """

    def __init__(
        self,
        brought: Brought,
        link: GateLink,
        slab: Slab,
        sockets: PairSockets,
        settings: TpSettings,
        clock: Clock,
        *,
        gate_seconds: float,
        verify_window: bool = True,
    ) -> None:
        self.slab = slab
        self.brought = brought
        self._link = link
        self._sockets = sockets
        self._settings = settings
        self._clock = clock
        self._seconds = gate_seconds
        self._verify_on = verify_window and settings.rules.decode_barrier
        self._bulk_rdma = bulk_over_rdma(settings)
        self._window = window = brought.window
        self._requests = Requests(brought, sockets, clock)
        self._hold = brought.hold_first
        self._verify: VerifyWindow | None = None
        self._ordinal = 0
        self._failed: GateFailed | None = None
        self._used = clock.now()
        self._base = _address(slab.memory.data)
        self._decoding = Phase(
            lambda wr_id, _, now: window.receive_completed(wr_id, now),
            window.send_completed,
        )
        self._requests.phase = self._decoding
        if brought.armed:
            armed = [Post(n, 0, 0) for n in range(1, DECODE_WINDOW + 1)]
            extra = [Post(0, 0, 0)] * ((window.chunks - 1) * DECODE_WINDOW)
            self._requests.adopt(armed + extra, clock.now())

    @property
    def link(self) -> GateLink:
        """Sequence numbers, skew and diagnosis."""
        return self._link

    def row(self, layer: int, kind: int) -> None:
        """Exchange the vectors of one slot."""
        self._clock.run(self.row_steps(layer, kind))

    def batch(self, layer: int, rows: int) -> None:
        """Exchange the rows of a verify block at one layer."""
        self._clock.run(self.batch_steps(layer, rows))

    def bulk(self, layer: int, own: memoryview, peer: memoryview) -> None:
        """Exchange two payloads of equal length."""
        self._clock.run(self.bulk_steps(layer, own, peer))

    def close(self) -> None:
        """Destroy the queue pair, then close the data connection."""
        self.brought.own.close()
        self._sockets.close()

    # -- row gates ---------------------------------------------------------------

    def row_steps(self, layer: int, kind: int) -> Steps[None]:
        """Run one row gate.

        Raises
        ------
        GateFailed
        """
        link, window, requests = self._link, self._window, self._requests
        seq = link.row_seq
        nbytes = self._settings.identity.vector_bytes
        if link.schedule.slot_of(seq) != 2 * layer + kind and self._failed is None:
            raise LocalProtocolError(text_of("DS4T-SCHED-06", layer, kind, seq))
        trouble = self._open("row", layer, kind, seq, nbytes)
        try:
            if not window.active:
                yield from self._open_window(seq)
            trouble.posted = requests.posted_at.pop(seq, None)
            sends = window.sends(layer, kind, seq)
            held, self._hold = self._hold, False
            due = self._clock.now() + self._seconds
            if not held:
                yield from requests.send(sends, due)
            while window.received < seq:
                yield from requests.wait(due, lambda now: window.late(seq, now))
            if held:
                # the peer has spoken, so that its own receives are posted
                yield from requests.send(sends, due)
            requests.receive(window.refill())
        except RdmaFailed as error:
            raise (yield from self._fail(error, trouble)) from None
        link.row_seq = seq + 1
        self._done(trouble)

    def _open_window(self, seq: int) -> Steps[None]:
        window, requests = self._window, self._requests
        requests.phase = self._decoding
        requests.receive(window.open(seq))
        if window.barrier is not None:
            yield from self._meet(window.barrier)
        window.opened()

    def _meet(self, value: int) -> Steps[None]:
        due = self._clock.now() + self._seconds + BULK_GRACE
        granted = self._requests.granted
        yield from self._sockets.barrier(value, due, granted=granted)

    def _drain(self) -> Steps[None]:
        """Use up the receives of the peer's decode window, and close ours."""
        window, requests = self._window, self._requests
        if not window.active:
            return
        due = self._clock.now() + self._seconds
        yield from requests.send(window.drain(), due)
        while not window.drained:
            yield from requests.wait(
                due, lambda now: window.late(window.received + 1, now)
            )
        window.close()
        requests.posted_at.clear()

    # -- bulk gates --------------------------------------------------------------

    def bulk_steps(self, layer: int, own: memoryview, peer: memoryview) -> Steps[None]:
        """Run one bulk gate; raises as ``row_steps``."""
        link = self._link
        trouble = self._open("bulk", layer, BULK_TAG, link.batch_seq, own.nbytes)
        now = self._clock.now()
        if self._bulk_rdma:
            link.begin_bulk(layer, _NOTHING, _NOTHING, now)
            yield from self._sockets.exchange(link)
            yield from self._windows(own, peer, trouble)
        else:
            link.begin_bulk(layer, own, peer, now)
            yield from self._sockets.exchange(link)
        self._done(trouble)

    def _windows(
        self, own: memoryview, peer: memoryview, trouble: GateTrouble
    ) -> Steps[None]:
        try:
            yield from self._drain()
            yield from self._bulk_windows(own, peer)
        except RdmaFailed as error:
            raise (yield from self._fail(error, trouble)) from None

    def _bulk_windows(self, own: memoryview, peer: memoryview) -> Steps[None]:
        requests, attributes = self._requests, self.brought.attributes
        places = self._place(own), self._place(peer)
        staged = None in places
        gate = BulkGate(
            self._settings,
            attributes,
            own.nbytes,
            granted=requests.granted,
            staged=staged,
        )
        requests.phase = Phase(gate.receive_completed, gate.send_completed)
        step = attributes.bulk_message * gate.window_messages
        for window in gate.windows():
            at = (window.number - 1) * step
            if staged:
                self._stage("batch_out", own[at : at + step])
            else:
                window = _moved(window, *places)  # noqa: PLW2901
            requests.receive(window.receives)
            if window.barrier is not None:
                yield from self._meet(window.barrier)
            due = self._clock.now() + self._seconds + BULK_GRACE
            for chain in window.chains():
                yield from requests.send(chain, due)
            while not gate.window_done:
                yield from requests.wait(due, gate.late)
            if staged:
                self._unstage("batch_in", peer[at : at + step])

    def _place(self, view: memoryview) -> int | None:
        """Return where a payload lies in the slab, None outside it."""
        if not view.nbytes:
            return None
        offset = _address(view) - self._base
        room = self.brought.memory.nbytes - view.nbytes
        return offset if 0 <= offset <= room else None

    def _stage(self, region: str, part: memoryview) -> None:
        start = slab_region(self._settings, region).offset
        self.slab.memory.data[start : start + part.nbytes] = part

    def _unstage(self, region: str, part: memoryview) -> None:
        start = slab_region(self._settings, region).offset
        part[:] = self.slab.memory.data[start : start + part.nbytes]

    # -- batch gates -------------------------------------------------------------

    def batch_steps(self, layer: int, rows: int) -> Steps[None]:
        """Run one batch gate; raises as ``row_steps``."""
        link = self._link
        own, peer = self.slab.batch(layer, rows)
        trouble = self._open("batch", layer, rows, link.batch_seq, own.nbytes)
        now = self._clock.now()
        if self._verify_on:
            try:
                yield from self._verify_layer(rows)
            except RdmaFailed as error:
                raise (yield from self._fail(error, trouble)) from None
            link.batch_seq += 1
        elif self._bulk_rdma:
            link.begin_batch(layer, rows, _NOTHING, _NOTHING, now)
            yield from self._sockets.exchange(link)
            yield from self._windows(own, peer, trouble)
        else:
            link.begin_batch(layer, rows, own, peer, now)
            yield from self._sockets.exchange(link)
        self._done(trouble)

    def _verify_layer(self, rows: int) -> Steps[None]:
        """Run the next layer of a verify window; the first one opens it."""
        requests = self._requests
        block = self._verify
        if block is None:
            yield from self._drain()
            block = VerifyWindow(self._settings, self.brought.attributes, rows)
            opened = block
            requests.phase = Phase(
                lambda wr_id, _, now: opened.receive_completed(wr_id, now),
                opened.send_completed,
            )
            requests.receive(block.open())
            yield from self._meet(block.barrier)
            self._verify, self._ordinal = block, 0
        verify, ordinal = block, self._ordinal
        receives, sends = verify.layer(ordinal)
        requests.receive(receives)
        due = self._clock.now() + self._seconds
        yield from requests.send(sends, due)
        last = ordinal + 1 == len(verify.layers)
        while not (verify.done if last else verify.layer_done(ordinal)):
            yield from requests.wait(due, lambda now: self._verify_late(verify, now))
        self._ordinal += 1
        if last:
            self._verify = None

    def _verify_late(self, verify: VerifyWindow, now: float) -> RdmaFailed:
        return rdma_failed(
            "DS4T-RDMA-93",
            f"ds4-tp: timeout in verify window (rows arrived {verify.arrived})",
            "all rows of the layer",
            f"{verify.arrived} rows of the block",
            now,
            "compare the draft blocks of both ranks, and DS4_TP_DISABLE_VERIFY_WINDOW",
        )

    # -- begin, end, failure -----------------------------------------------------

    def _open(
        self, shape: GateShape, layer: int, third: int, seq: int, nbytes: int
    ) -> GateTrouble:
        if self._failed is not None:
            raise self._failed
        now = self._clock.now()
        per_token = len(self._link.schedule.slots)
        token = (seq - 1) // per_token + 1 if shape == "row" else None
        trouble = GateTrouble(
            self.brought, self._settings.rank, shape, layer, third, seq, token,
            nbytes, now,
        )  # fmt: skip
        trouble.idle = now - self._used
        self._requests.begin(now)
        return trouble

    def _done(self, trouble: GateTrouble) -> None:
        now = self._used = self._clock.now()
        self._link.skew = max(self._link.skew, now - trouble.begun)

    def _fail(self, error: RdmaFailed, trouble: GateTrouble) -> Steps[GateFailed]:
        """Find out what can be found out, and latch the failure."""
        requests = self._requests
        now = self._clock.now()
        trouble.sent, trouble.sent_at = requests.sent_bytes, requests.sent_at
        trouble.last, trouble.skew = requests.last, self._link.skew
        missing = requests.unseen
        flushed = yield from requests.flush()
        story = trouble.story(missing, flushed)
        self._failed = trouble.fail(error.failure, story, now)
        return self._failed


def _address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


def _moved(window: BulkWindow, own: int | None, peer: int | None) -> BulkWindow:
    """Turn offsets in a payload into offsets in the slab."""

    def shifted(posts: Sequence[Post], by: int | None) -> tuple[Post, ...]:
        return tuple(p._replace(offset=p.offset + (by or 0)) for p in posts)

    return window._replace(
        receives=shifted(window.receives, peer), sends=shifted(window.sends, own)
    )
