"""The data plane of one rank: gates over TCP, without a copy or an allocation."""

from __future__ import annotations

from ds4proto.errors import Ds4ProtoError
from ds4proto.link.ds4t_identity import TpSettings
from ds4proto.link.ds4t_limits import GATE_LIMITS, GateLimits
from ds4proto.link.ds4t_texts import PairFailed


class GateFailed(Ds4ProtoError):
    """A gate failed; the link is latched and every further gate fails alike.

    Attributes
    ----------
    failure : PairFailed
        Exact text, clause, and the diagnosis: rank, token, layer, gate kind, seq,
        bytes received of expected, who stopped first, skew, next step.
    """

    def __init__(self, failure: PairFailed) -> None:
        super().__init__(str(failure))
        self.failure = failure


class GateLink:
    """Row, batch and bulk gates of one rank.

    Parameters
    ----------
    settings : TpSettings
    limits : GateLimits
    check_order : bool
        Refuse a row gate that is not the schedule's next (DS4T-SCHED-06).

    Notes
    -----
    One gate at a time::

        link.begin_row(layer, kind, own, peer, now)      # or begin_batch, begin_bulk
        while not link.done:
            if link.sending:   link.sent(sock.sendmsg(link.send_views), now)
            if link.receiving: link.received(sock.recv_into(link.receive_view), now)

    ``own`` and ``peer`` are the caller's memoryviews (bytes). The peer's header is
    judged before the first payload byte may reach ``peer`` (DS4T-GATE-26). ``done``
    is True when both directions are whole. Errors are ``GateFailed`` alone.
    """

    def __init__(
        self,
        settings: TpSettings,
        *,
        limits: GateLimits = GATE_LIMITS,
        check_order: bool = True,
    ) -> None:
        raise NotImplementedError

    send_views: list[memoryview]
    """What is still to be sent, for ``sendmsg``; reused, never longer than 2."""
    receive_view: memoryview
    """Where the next bytes go, for ``recv_into``."""
    sending: bool
    receiving: bool
    row_seq: int
    """Number of the next row gate; 1 on a new connection."""
    batch_seq: int
    """Number of the next batch or bulk gate; both kinds share it."""

    @property
    def done(self) -> bool:
        """True when the open gate is whole in both directions."""
        raise NotImplementedError

    def begin_row(
        self, layer: int, kind: int, own: memoryview, peer: memoryview, now: float
    ) -> None:
        """Open the row gate of one token, 4 * n_embd bytes each way."""
        raise NotImplementedError

    def begin_batch(
        self, layer: int, rows: int, own: memoryview, peer: memoryview, now: float
    ) -> None:
        """Open the batch gate of a verify block of 1 to 8 rows."""
        raise NotImplementedError

    def begin_bulk(
        self,
        layer: int,
        own: memoryview,
        peer: memoryview,
        now: float,
        *,
        waves: int = 0,
    ) -> None:
        """Open a bulk gate; ``waves`` above 0 makes it a wave group of v9w."""
        raise NotImplementedError

    def sent(self, nbytes: int, now: float) -> bool:
        """Note bytes written; True when all of the own gate is out."""
        raise NotImplementedError

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
        raise NotImplementedError

    def deadline(self) -> float | None:
        """Return when ``timeout`` is due: idle or total limit, whichever is first."""
        raise NotImplementedError

    def timeout(self, now: float) -> None:
        """Raise ``GateFailed`` because the gate made no progress or took too long."""
        raise NotImplementedError

    def abort(self, reason: str, now: float) -> None:
        """Raise ``GateFailed`` for a loss seen elsewhere, such as a closed control."""
        raise NotImplementedError

    @property
    def failure(self) -> PairFailed | None:
        """The latched failure, if any."""
        raise NotImplementedError
