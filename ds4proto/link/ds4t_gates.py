"""The data plane of one rank: gates over TCP, without a copy or an allocation.

Both ranks send their own header and payload and receive the peer's; the peer's header
must equal the own one. There is no length on the wire: lockstep gives it.

The hot path is ``begin_row``, ``sent``, ``received``, ``received``: one pack into a
buffer that lives as long as the link, one comparison of 16 bytes, no objects made.
"""

from __future__ import annotations

from ds4proto.link.ds4t_gate_state import HEADER, TRANSPORT, GateFailed, GateState
from ds4proto.link.ds4t_identity import TpSettings
from ds4proto.link.ds4t_limits import GATE_LIMITS, GateLimits
from ds4proto.link.ds4t_texts import LocalProtocolError, text_of
from ds4proto.schema.ds4t_common import DS4B_MAGIC, DS4T_MAGIC
from ds4proto.schema.ds4t_gates import BULK_TAG, LOGITS_LAYER, MAX_ROWS, WAVE_TAG


class GateLink(GateState):
    """Row, batch and bulk gates of one rank.

    Parameters
    ----------
    settings : TpSettings
    limits : GateLimits
    check_order : bool
        Refuse a row gate that is not the schedule's next (DS4T-SCHED-06).

    Attributes
    ----------
    send_views : list of memoryview
        What is still to be sent, for ``sendmsg``; one or two views, reused.
    receive_view : memoryview
        Where the next bytes go, for ``recv_into``.
    sending, receiving : bool
    row_seq : int
        Number of the next row gate; 1 on a new connection.
    batch_seq : int
        Number of the next batch or bulk gate; both kinds share it.
    logits_seq : int
        Number of the next logits gate (v9w, RDMA).
    skew : float
        Longest time so far that a peer's header came after the gate was opened.

    Notes
    -----
    One gate at a time::

        link.begin_row(layer, kind, own, peer, now)      # or begin_batch, begin_bulk
        while not link.done:
            if link.sending:   link.sent(sock.sendmsg(link.send_views), now)
            if link.receiving: link.received(sock.recv_into(link.receive_view), now)

    ``own`` and ``peer`` are the caller's byte views. The peer's header is judged
    before the first payload byte may reach ``peer`` (DS4T-GATE-26). After a failed
    comparison ``send_views`` still holds what the peer needs to see its own desync
    text (DS4T-GATE-25): write it if it can be written, then close. Errors are
    ``GateFailed`` and, for our own mistakes, ``LocalProtocolError``.
    """

    __slots__ = ()

    def __init__(
        self,
        settings: TpSettings,
        *,
        limits: GateLimits = GATE_LIMITS,
        check_order: bool = True,
    ) -> None:
        super().__init__(settings, limits=limits, check_order=check_order)

    def begin_row(
        self, layer: int, kind: int, own: memoryview, peer: memoryview, now: float
    ) -> None:
        """Open the row gate of one token, 4 * n_embd bytes each way.

        Raises
        ------
        LocalProtocolError
            If a gate is open, the size is wrong, or the order of the schedule broke.
        GateFailed
            After an earlier failure.
        """
        seq = self.row_seq
        if self._check and (
            self._slots[(seq - 1) % len(self._slots)] != 2 * layer + kind
        ):
            if self._failure is not None:
                raise self._again()
            raise LocalProtocolError(text_of("DS4T-SCHED-06", layer, kind, seq))
        self._open(own, peer, self._vector)
        self._pack(self._head_out, 0, DS4T_MAGIC, layer, kind, seq)
        self.row_seq = seq + 1
        self._shape = "row"
        self._bulk = False
        self._start(layer, kind, seq, own, peer, now)

    def begin_batch(
        self, layer: int, rows: int, own: memoryview, peer: memoryview, now: float
    ) -> None:
        """Open the batch gate of a verify block of 1 to 8 rows; raises as above.

        Both views are empty where the rows cross the queue pair and the header alone
        is exchanged here.
        """
        if not 0 < rows <= MAX_ROWS:
            raise LocalProtocolError(
                f"a batch gate has 1 to {MAX_ROWS} rows, found {rows}; longer blocks "
                "use a bulk gate (DS4T-VERIFY-15)"
            )
        self._open(own, peer, rows * self._vector if peer.nbytes else 0)
        seq = self.batch_seq
        self._pack(self._head_out, 0, DS4B_MAGIC, layer, rows, seq)
        self.batch_seq = seq + 1
        self._shape = "batch"
        self._bulk = False
        self._start(layer, rows, seq, own, peer, now)

    def begin_bulk(
        self,
        layer: int,
        own: memoryview,
        peer: memoryview,
        now: float,
        *,
        waves: int = 0,
    ) -> None:
        """Open a bulk gate; raises as above.

        Parameters
        ----------
        own, peer : memoryview
            Equal lengths; empty where the payload crosses the queue pair and the
            header alone is exchanged here.
        waves : int
            Above 0 a wave group of v9w: tag 0x0B17, the last number of the group
            (DS4B-BULK-10, DS4T-SEQ-05).
        """
        if waves and not self._settings.rules.features:
            raise LocalProtocolError("wave gates exist in v9w alone")
        self._open(own, peer, peer.nbytes)
        tag = WAVE_TAG if waves else BULK_TAG
        seq = self.batch_seq + max(waves - 1, 0)
        self.batch_seq = seq + 1
        self._big(layer, tag, seq, own, peer, now)

    def begin_logits(self, own: memoryview, peer: memoryview, now: float) -> None:
        """Open the logits gate of v9w over RDMA (layer 65534, own counter)."""
        if not self._settings.rules.features:
            raise LocalProtocolError("logits gates exist in v9w alone")
        self._open(own, peer, peer.nbytes)
        seq = self.logits_seq
        self.logits_seq = seq + 1
        self._big(LOGITS_LAYER, BULK_TAG, seq, own, peer, now)

    def _big(
        self,
        layer: int,
        tag: int,
        seq: int,
        own: memoryview,
        peer: memoryview,
        now: float,
    ) -> None:
        self._pack(self._head_out, 0, DS4B_MAGIC, layer, tag, seq)
        self._shape = "bulk"
        self._bulk = True
        self._start(layer, tag, seq, own, peer, now)

    def _open(self, own: memoryview, peer: memoryview, size: int) -> None:
        if self._failure is not None:
            raise self._again()
        if self.sending or self.receiving:
            raise LocalProtocolError(f"a {self._shape} gate is open: {self._where()}")
        if own.nbytes != size or peer.nbytes != size or own.format != "B":
            raise LocalProtocolError(
                f"both views of this gate hold {size} bytes (format B), found "
                f"{own.nbytes} and {peer.nbytes}"
            )

    def _start(
        self,
        layer: int,
        third: int,
        seq: int,
        own: memoryview,
        peer: memoryview,
        now: float,
    ) -> None:
        self._layer, self._third, self._seq = layer, third, seq
        views = self.send_views
        if len(views) == 2:
            views[0] = self._out_view
            views[1] = own
        else:
            views[:] = (self._out_view, own)
        self._expected = self._to_send = self._send_left = HEADER + own.nbytes
        self._peer = peer
        self.receive_view = self._in_view
        self._heading = self.sending = self.receiving = True
        self._begun = self._since = now

    def sent(self, nbytes: int, now: float) -> bool:
        """Note bytes written; True when all of the own gate is out."""
        left = self._send_left - nbytes
        self._send_left = left
        if left <= 0:
            self.sending = False
            return True
        if nbytes > 0:
            self._since = now
            views = self.send_views
            while nbytes >= len(views[0]):
                nbytes -= len(views.pop(0))
            views[0] = views[0][nbytes:]
        return False

    def received(self, nbytes: int, now: float) -> bool:
        """Note bytes read into ``receive_view``; 0 is the end of the stream.

        Returns
        -------
        bool
            True when the peer's gate is whole.

        Raises
        ------
        GateFailed
            For another header than the own, or an end of stream.
        """
        view = self.receive_view
        if nbytes < len(view):
            return self._part(nbytes, now)
        if not self._heading:
            self.receiving = False
            return True
        if self._head_in != self._head_out:
            raise self._desync(now)
        self._heading = False
        lag = now - self._begun
        self.skew = max(self.skew, lag)
        self._since = now
        peer = self._peer
        self.receive_view = peer
        if len(peer):
            return False
        self.receiving = False
        return True

    def _part(self, nbytes: int, now: float) -> bool:
        if nbytes <= 0:
            self.receiving = True
            raise self._lost("the data connection ended", now, "DS4T-GATE-06")
        self._since = now
        self.receive_view = self.receive_view[nbytes:]
        return False


__all__ = ["HEADER", "TRANSPORT", "GateFailed", "GateLink"]
