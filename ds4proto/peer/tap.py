"""What a channel tells a recorder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ds4proto.peer.api import Buf


class Tap(Protocol):
    """One connection under observation. Buffers are only valid during the call."""

    def sent(self, bufs: Sequence[Buf], count: int) -> None:
        """Note that the first `count` bytes of `bufs` went out."""
        ...

    def received(self, data: memoryview) -> None:
        """Note that `data` came in."""
        ...

    def finished(self, *, sent_by_us: bool) -> None:
        """Note that one direction ended in order."""
        ...

    def closed(self, *, reset: bool, by_us: bool) -> None:
        """Note that the connection is gone, and who ended or reset it."""
        ...
