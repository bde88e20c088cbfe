"""The worker's control connection as a state machine (sans-IO)."""

from __future__ import annotations

from collections.abc import Iterator

from ds4proto.link.ds4t_events import Answer, BlockRun, Checkpoint, EngineFailed
from ds4proto.link.ds4t_identity import TpSettings
from ds4proto.link.ds4t_limits import CONTROL_LIMITS, ControlLimits
from ds4proto.link.ds4t_states import Worker
from ds4proto.link.events import Event
from ds4proto.schema.problem import Buf


class WorkerControl:
    """Rank 1: commands out, answers in.

    Parameters
    ----------
    settings : TpSettings
    limits : ControlLimits
        Caps and seconds.
    vision : bool
        The engine can take image embeddings.
    engine_rules : bool
        Apply the rules that real engines add (tokens inside the vocabulary, distinct
        sessions ...); False leaves them to the caller's engine.

    Notes
    -----
    ``events`` yields the commands to run (``CreateSession``, ``RunSync`` ...),
    ``Stop``, ``Transmit`` for frames that the machine answers by itself, ``Checkpoint`` as
    agreed, ``PeerCheckpoint``, ``Violation`` and, at most once, ``PairFailed``.
    ``send`` takes the answer of the engine and returns what to write.
    """

    def __init__(
        self,
        settings: TpSettings,
        *,
        limits: ControlLimits = CONTROL_LIMITS,
        vision: bool = True,
        engine_rules: bool = True,
    ) -> None:
        raise NotImplementedError

    @property
    def state(self) -> Worker:
        """Where the machine is."""
        raise NotImplementedError

    def send(
        self, event: Answer | Checkpoint | BlockRun | EngineFailed, now: float
    ) -> list[Buf]:
        """Return the frames that say the engine's answer; may be none."""
        raise NotImplementedError

    def receive_data(self, data: Buf | None, now: float) -> None:
        """Take bytes of the leader; None is the end of the stream."""
        raise NotImplementedError

    def get_buffer(self) -> memoryview:
        """Return where the next bytes may be read to, without a copy."""
        raise NotImplementedError

    def buffer_updated(self, nbytes: int, now: float) -> None:
        """Note that ``nbytes`` were read into ``get_buffer()``."""
        raise NotImplementedError

    def events(self) -> Iterator[Event]:
        """Yield commands and failures in the order of the bytes."""
        raise NotImplementedError

    def deadline(self) -> float | None:
        """Return when ``timeout`` is due; None while idle between commands."""
        raise NotImplementedError

    def timeout(self, now: float) -> None:
        """Fail the pair because a stalled frame or a verdict is overdue."""
        raise NotImplementedError
