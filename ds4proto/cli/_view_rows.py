"""Rows of a capture for a browser: read in a thread, kept up to a cap, filtered."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from ds4proto.trace.decoder import ORDER_WINDOW, CaptureDecoder
from ds4proto.trace.pictures.heads import watch_heads
from ds4proto.trace.rows import FrameRow

__all__ = ["Kept", "RowReader", "RowStore"]

BATCH: Final = 500
Meets = Callable[[FrameRow], bool]


class Kept(NamedTuple):
    """A row and the first bytes of its frame."""

    row: FrameRow
    head: bytes


class RowStore:
    """The rows that a browser holds, and which of them it shows.

    Parameters
    ----------
    keep : int
        Rows held at most.
    newest : bool
        When there are more, let the oldest go (for a file that grows); without it
        nothing more is taken.

    Attributes
    ----------
    rows : list of Kept
    shown : list of int
        Places in `rows`.
    dropped : int
        Rows that had to go.
    """

    def __init__(self, keep: int, *, newest: bool) -> None:
        self.rows: list[Kept] = []
        self.shown: list[int] = []
        self.dropped = 0
        self._keep = keep
        self._newest = newest
        self._meets: Meets | None = None

    @property
    def full(self) -> bool:
        """Whether no more rows are taken."""
        return not self._newest and len(self.rows) >= self._keep

    def add(self, batch: list[Kept]) -> None:
        """Take rows, as far as there is room."""
        if not self._newest:
            batch = batch[: self._keep - len(self.rows)]
        start = len(self.rows)
        self.rows += batch
        self.shown += [
            at for at, kept in enumerate(batch, start) if self._is_shown(kept)
        ]
        over = len(self.rows) - self._keep
        if over > 0:
            over = min(len(self.rows), over + self._keep // 10)  # not at every batch
            self.dropped += over
            del self.rows[:over]
            self.shown = [at - over for at in self.shown if at >= over]

    def filter(self, meets: Meets | None) -> None:
        """Show the rows that meet a condition; None: all."""
        self._meets = meets
        self.shown = [at for at, kept in enumerate(self.rows) if self._is_shown(kept)]

    def at(self, place: int) -> Kept | None:
        """Return a row by its place among those shown."""
        if 0 <= place < len(self.shown):
            return self.rows[self.shown[place]]
        return None

    def _is_shown(self, kept: Kept) -> bool:
        return self._meets is None or self._meets(kept.row)


class RowReader:
    """Reads a capture from first to last, or on while it grows, in batches.

    Parameters
    ----------
    source : str
    follow : bool
    wait : callable
        Called at the end of a file that grows; False ends the reading.
    meets : callable, optional
        Rows that do not are left out.
    head_bytes : int
    dialect : str, optional
    """

    def __init__(
        self,
        source: str,
        *,
        follow: bool = False,
        wait: Callable[[], bool] = lambda: False,
        meets: Meets | None = None,
        head_bytes: int = 512,
        dialect: str | None = None,
    ) -> None:
        self.stop = threading.Event()
        self._wait = wait
        self._meets = meets
        self._batch: list[Kept] = []
        self._take: Callable[[list[Kept]], bool] = lambda _batch: False
        self._capture = CaptureDecoder(
            source, dialect=dialect, follow=follow,
            wait=self._at_end if follow else None,
            reorder=0 if follow else ORDER_WINDOW,
        )  # fmt: skip
        self._heads = watch_heads(self._capture, head_bytes, dialect=dialect)

    def read(self, take: Callable[[list[Kept]], bool]) -> None:
        """Give batches to `take` until it returns False, or the capture ends.

        Raises
        ------
        CaptureError
            At damage, when what stands before it has been given.
        """
        self._take = take
        try:
            for row in self._capture:
                head = self._heads.take(row)
                if self._meets is None or self._meets(row):
                    self._batch.append(Kept(row, head))
                if self.stop.is_set():
                    return
                if len(self._batch) >= BATCH and not self._give():
                    return
        finally:
            if not self.stop.is_set():
                self._give()

    def gates_per_token(self, run: int) -> int | None:
        """Return the row gates a token of a run, where its hello tells."""
        runs = self._heads.runs
        return runs[run - 1].gates_per_token if 0 < run <= len(runs) else None

    @property
    def truncated_at(self) -> int | None:
        """Where the file ends inside a record, None where it does not."""
        return self._capture.info.truncated_at

    def _at_end(self) -> bool:
        if self._batch and not self._give():
            return False
        return not self.stop.is_set() and self._wait()

    def _give(self) -> bool:
        batch, self._batch = self._batch, []
        return not batch or self._take(batch)
