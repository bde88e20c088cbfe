"""The worker end of DS4D connections: dispatch, order of answers, life cycle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from ds4proto.link.ds4d_facts import WorkerFacts
from ds4proto.link.ds4d_limits import DEFAULT, LinkLimits, Policy
from ds4proto.schema.problem import Buf

Kind = Literal["control", "data"]


class Worker:
    """One worker process: what its connections share.

    Sessions, the evaluation lock and the set of machines with news. It is not
    thread-safe: hold one lock around every call, not around the engine's work.

    Parameters
    ----------
    facts : WorkerFacts
    limits : LinkLimits
    policy : {"safe", "upstream"}
        ``upstream`` answers the oldest pending request alone when the next worker is
        lost (DS4D-FWD-20) and leaves refused tokens of a load in the stream
        (DS4D-SNAP-68).
    """

    def __init__(
        self,
        facts: WorkerFacts,
        *,
        limits: LinkLimits = DEFAULT,
        policy: Policy = "safe",
    ) -> None:
        raise NotImplementedError

    def open(self, kind: Kind, now: float) -> WorkerLink:
        """Return the machine of a new connection; control ones send HELLO first."""
        raise NotImplementedError

    def woken(self) -> list[Any]:
        """Return the machines (``WorkerLink``, ``Forwarder``) with new events.

        Ask after every call to any machine of this worker: an answer on one
        connection can set work free on another.
        """
        raise NotImplementedError


class WorkerLink:
    """One connection of a worker, control or data.

    Events: ``Transmit``, ``Close``, ``PeerError``, ``ResetSession``,
    ``EvaluateWork``, ``SaveShard``, ``LoadStarted``, ``LoadData``, ``LoadAborted``,
    ``RestoreShard``, ``OpenForward``, ``DropSessions``, ``Violation``.
    Commands: ``WorkEvaluated``, ``WorkFailed``, ``ShardSaved``, ``ShardFailed``,
    ``ShardRestored``. At most one of EvaluateWork, SaveShard and RestoreShard is open
    in the whole worker; its answer goes to the link that asked.
    """

    def hello(self, listen_port: int) -> list[Buf]:
        """Return the HELLO of a control connection."""
        raise NotImplementedError

    def get_buffer(self) -> memoryview:
        """Return where to ``recv_into`` next; empty while the queue is full."""
        raise NotImplementedError

    def received(self, nbytes: int, now: float) -> None:
        """Tell that ``nbytes`` were put into the last ``get_buffer``; 0 is the end."""
        raise NotImplementedError

    def receive_data(self, data: Buf | None, now: float) -> None:
        """Take bytes in any split; None is the end of the stream."""
        raise NotImplementedError

    def events(self) -> Iterator[Any]:
        """Yield what has to be done, in order."""
        raise NotImplementedError

    def send(self, event: Any, now: float) -> list[Buf]:
        """Give the answer to the open request; more events may follow.

        The buffers to write come as ``Transmit`` events, so the list is empty.
        """
        raise NotImplementedError

    def deadline(self) -> float | None:
        """Return when ``timeout`` wants to be called, if ever."""
        raise NotImplementedError

    def timeout(self, now: float) -> None:
        """Tell that the deadline has passed."""
        raise NotImplementedError
