"""Bulk gates over the queue pair: windows of messages, one barrier byte each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ds4proto.link.ds4t_identity import TpSettings
from ds4proto.link.ds4t_rdma_windows import (
    PHASE,
    Post,
    RdmaFailed,
    check_depth,
    pieces,
    slab_region,
)
from ds4proto.link.ds4t_texts import failed
from ds4proto.link.rdma_attributes import (
    BULK_ID,
    BULK_REGION,
    BULK_REGIONS,
    SEND_CHAIN,
    QpAttributes,
)

_BYTE = 256


class BulkWindow(NamedTuple):
    """One window of a bulk gate.

    Attributes
    ----------
    number : int
        From 1 in each gate.
    barrier : int or None
        ``number`` modulo 256; None in dialects without it.
    first : int
        Index of its first message.
    receives, sends : tuple of Post
        Post the receives, meet at the barrier, then send.
    """

    number: int
    barrier: int | None
    first: int
    receives: tuple[Post, ...]
    sends: tuple[Post, ...]

    def chains(self) -> Iterator[tuple[Post, ...]]:
        """Yield the sends in chains of at most 64."""
        for at in range(0, len(self.sends), SEND_CHAIN):
            yield self.sends[at : at + SEND_CHAIN]


def bulk_over_rdma(settings: TpSettings) -> bool:
    """Tell whether bulk gates use the queue pair (DS4T-RDMA-80, -81).

    A model whose batch region is small sends them over TCP, while its row gates stay
    on RDMA.
    """
    least = BULK_REGIONS.get(settings.dialect, BULK_REGION)
    return slab_region(settings, "batch_out").size >= least


class BulkGate:
    """One bulk gate's windows; the DS4B header and the drain come before it.

    Parameters
    ----------
    settings : TpSettings
    attributes : QpAttributes
    nbytes : int
        Payload, the same both ways.
    granted : int
        Receives that the queue pair was granted.
    staged : bool
        The payload is copied through batch-out and batch-in; False posts it directly,
        with offsets inside the payload.
    """

    def __init__(
        self,
        settings: TpSettings,
        attributes: QpAttributes,
        nbytes: int,
        *,
        granted: int,
        staged: bool,
    ) -> None:
        self._parts = pieces(0, nbytes, attributes.bulk_message)
        self._staged = staged
        self._message = attributes.bulk_message
        size = min(granted, attributes.bulk_window)
        self._out = self._in = 0
        if staged:
            out = slab_region(settings, "batch_out")
            self._out = out.offset
            self._in = slab_region(settings, "batch_in").offset
            size = min(size, out.size // self._message)
        self._size = max(1, size)
        check_depth(2 * self._size, attributes.cq_entries)
        self._barriers = settings.rules.decode_barrier
        self._seen = bytearray(len(self._parts))
        self._window = range(0)
        self._received = self._sent = 0

    def __len__(self) -> int:
        return (len(self._parts) + self._size - 1) // self._size

    @property
    def window_messages(self) -> int:
        """Messages of a full window."""
        return self._size

    def windows(self) -> Iterator[BulkWindow]:
        """Yield the windows in order; go on when ``window_done``."""
        for number, first in enumerate(range(0, len(self._parts), self._size), 1):
            stop = min(first + self._size, len(self._parts))
            self._window = range(first, stop)
            self._received = self._sent = 0
            yield BulkWindow(
                number,
                number % _BYTE if self._barriers else None,
                first,
                tuple(self._post(i, first, self._in) for i in self._window),
                tuple(self._post(i, first, self._out) for i in self._window),
            )

    def _post(self, index: int, first: int, base: int) -> Post:
        offset, length = self._parts[index]
        if self._staged:
            offset = base + (index - first) * self._message
        return Post(BULK_ID | index + 1, offset, length)

    def receive_completed(self, wr_id: int, nbytes: int, now: float) -> int:
        """Note a receive; return its index.

        Raises
        ------
        RdmaFailed
            For another length than due (DS4T-RDMA-86), an index that came before or
            is not in this window (DS4T-RDMA-87).
        """
        index = (wr_id & ~BULK_ID) - 1
        if index not in self._window or self._seen[index]:
            raise RdmaFailed(
                failed(
                    now,
                    "DS4T-RDMA-87",
                    max(index, 0),
                    phase=PHASE,
                    expected=f"an index of {self._window} that is new",
                    found=str(index),
                )
            )
        due = self._parts[index][1]
        if nbytes != due:
            raise RdmaFailed(
                failed(
                    now,
                    "DS4T-RDMA-86",
                    index,
                    nbytes,
                    due,
                    phase=PHASE,
                    expected=f"{due} bytes",
                    found=f"{nbytes} bytes",
                    next_step="the ranks cut another length: compare prefill chunk "
                    "and split threshold",
                )
            )
        self._seen[index] = 1
        self._received += 1
        return index

    def send_completed(self, count: int = 1) -> None:
        """Note completed sends."""
        self._sent += count

    @property
    def window_done(self) -> bool:
        """True when every receive and every send of the window has completed."""
        return self._received == self._sent == len(self._window)

    def late(self, now: float) -> RdmaFailed:
        """Return the failure of a window that did not finish (DS4T-RDMA-88)."""
        missing = [i for i in self._window if not self._seen[i]]
        text = (
            f"ds4-tp: timeout in bulk window: {self._received} of {len(self._window)} "
            f"received, {self._sent} sent"
        )
        return RdmaFailed(
            failed(
                now,
                "DS4T-RDMA-88",
                text=text,
                phase=PHASE,
                expected="the whole window within the gate timeout plus 2000 ms",
                found=f"{len(missing)} messages missing, the first {missing[:1]}",
            )
        )


__all__ = ["BulkGate", "BulkWindow", "bulk_over_rdma"]
