"""TCP reassembly: batches of packets in, directional byte streams out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from os import PathLike
from typing import BinaryIO, Literal

from ds4proto.pcap.types import PacketBatch
from ds4proto.trace.tcp_events import Direction, StreamEvent, StreamStats

Join = Literal["turn", "batch"]


class Reassembler:
    """Sans-IO reassembly of all TCP streams of a capture (being written)."""

    def __init__(
        self,
        *,
        join: Join = "turn",
        max_piece: int = 1 << 20,
        max_pending: int = 16 << 20,
        max_hold_ns: int = 30_000_000_000,
        max_streams: int = 65_536,
    ) -> None:
        raise NotImplementedError

    def feed(self, batch: PacketBatch) -> Iterator[StreamEvent]:
        """Take one batch; yield what it completes, in capture order."""
        raise NotImplementedError

    def finish(self) -> Iterator[StreamEvent]:
        """End the capture: flush what waits behind holes, end every stream."""
        raise NotImplementedError

    @property
    def streams(self) -> list[StreamStats]:
        """Statistics of the streams still open."""
        raise NotImplementedError


def read_streams(
    source: str | PathLike[str] | BinaryIO,
    *,
    join: Join = "turn",
    follow: bool = False,
    wait: Callable[[], bool] | None = None,
) -> Iterator[StreamEvent]:
    """Read a capture and yield its TCP stream events."""
    raise NotImplementedError


def stream_file_events(
    source: str | PathLike[str] | BinaryIO, *, direction: Direction = "a>b"
) -> Iterator[StreamEvent]:
    """Yield the events of a plain file that holds one direction of one stream."""
    raise NotImplementedError
