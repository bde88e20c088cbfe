"""The leader's control connection as a state machine (sans-IO)."""

from __future__ import annotations

from collections.abc import Iterator

from ds4proto.link.ds4t_events import Checkpoint, Command
from ds4proto.link.ds4t_identity import TpSettings
from ds4proto.link.ds4t_limits import CONTROL_LIMITS, ControlLimits
from ds4proto.link.ds4t_states import Leader
from ds4proto.link.events import Event
from ds4proto.schema.problem import Buf


class LeaderControl:
    """Rank 0: commands in, answers out.

    Parameters
    ----------
    settings : TpSettings
    limits : ControlLimits
        Caps and seconds.

    Notes
    -----
    ``send`` takes commands (and, from v12 on, the own ``Checkpoint`` during a sync)
    and returns what to write. ``events`` yields the answers (``SessionCreated``,
    ``SyncDone`` ...), ``Checkpoint`` as agreed, ``PeerCheckpoint``, and ``PairFailed``
    at most once. ``receive_data`` never raises; ``send`` raises ``LocalProtocolError``.
    """

    def __init__(
        self, settings: TpSettings, *, limits: ControlLimits = CONTROL_LIMITS
    ) -> None:
        raise NotImplementedError

    @property
    def state(self) -> Leader:
        """Where the machine is."""
        raise NotImplementedError

    @property
    def next_session_id(self) -> int:
        """The id that real leaders take next: 1, 2, 3 ..."""
        raise NotImplementedError

    def send(self, event: Command | Checkpoint, now: float) -> list[Buf]:
        """Return the frame of a command, and remember which answers are due."""
        raise NotImplementedError

    def mark_failed(self, text: str, now: float) -> None:
        """Note that the data plane failed: only ``Stop`` may follow."""
        raise NotImplementedError

    def receive_data(self, data: Buf | None, now: float) -> None:
        """Take bytes of the worker; None is the end of the stream."""
        raise NotImplementedError

    def get_buffer(self) -> memoryview:
        """Return where the next bytes may be read to, without a copy."""
        raise NotImplementedError

    def buffer_updated(self, nbytes: int, now: float) -> None:
        """Note that ``nbytes`` were read into ``get_buffer()``."""
        raise NotImplementedError

    def events(self) -> Iterator[Event]:
        """Yield answers and failures in the order of the bytes."""
        raise NotImplementedError

    def deadline(self) -> float | None:
        """Return when ``timeout`` is due, None while nothing is awaited."""
        raise NotImplementedError

    def timeout(self, now: float) -> None:
        """Fail the pair because an answer is overdue."""
        raise NotImplementedError
