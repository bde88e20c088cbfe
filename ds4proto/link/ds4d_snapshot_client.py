"""The coordinator's snapshot connections: one save or one load each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ds4proto.link.ds4d_limits import DEFAULT, LinkLimits
from ds4proto.schema.problem import Buf


@dataclass(frozen=True, slots=True)
class ShardKey:
    """Which shard: model, session, request, hash and length, slice."""

    model_id: int
    session: int
    request: int
    token_hash: int
    token_count: int
    layer_start: int
    layer_end: int


class SaveClient:
    """Asks one worker for its shard.

    Events: ``Transmit`` (first), ``ShardStarted``, ``ShardData``, then
    ``SnapshotDone`` or ``SnapshotFailed``, and ``Close``.
    """

    def __init__(
        self, key: ShardKey, *, now: float, limits: LinkLimits = DEFAULT
    ) -> None:
        raise NotImplementedError

    def get_buffer(self) -> memoryview:
        """Return where to ``recv_into`` next."""
        raise NotImplementedError

    def received(self, nbytes: int, now: float) -> None:
        """Tell that ``nbytes`` were put into the last ``get_buffer``; 0 is the end."""
        raise NotImplementedError

    def receive_data(self, data: Buf | None, now: float) -> None:
        """Take bytes in any split; None is the end of the stream."""
        raise NotImplementedError

    def events(self) -> Iterator[Any]:
        """Yield what the bytes so far mean."""
        raise NotImplementedError

    def deadline(self) -> float | None:
        """Return when ``timeout`` wants to be called, if ever."""
        raise NotImplementedError

    def timeout(self, now: float) -> None:
        """Tell that the deadline has passed."""
        raise NotImplementedError


class LoadClient(SaveClient):
    """Pushes one shard to one worker.

    ``Transmit`` brings LOAD_BEGIN; then call ``chunks`` for each piece, write what
    it returns, and read until ``SnapshotDone`` or ``SnapshotFailed``.
    """

    def __init__(
        self,
        key: ShardKey,
        tokens: Sequence[int],
        size: int,
        *,
        now: float,
        limits: LinkLimits = DEFAULT,
    ) -> None:
        raise NotImplementedError

    def chunks(self, data: Buf) -> list[Buf]:
        """Return the frames that carry ``data``, at most 8 MiB each."""
        raise NotImplementedError
