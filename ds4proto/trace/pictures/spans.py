"""What each node was at: from the arrival of a WORK to the answer, busy or waiting."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from ds4proto.trace.rows import FrameRow

__all__ = ["Span", "Spans"]

_OPEN: Final = 8192


@dataclass(slots=True)
class Span:
    """A request at one node.

    Attributes
    ----------
    node : int
        Lane of the node.
    begin : float
        When the last byte of the WORK had come.
    passed_on : float
        When the node began to send: the WORK of the next hop, or its own answer. Up
        to here it was busy, from here on it waited for what lies behind it.
    end : float
        When the node began to send its answer.
    request : int
    """

    node: int
    begin: float
    passed_on: float
    end: float
    request: int


class Spans:
    """Watches the WORKs and RESULTs of all nodes."""

    def __init__(self) -> None:
        self._open: OrderedDict[tuple[int, int, int], Span] = OrderedDict()

    def add(self, row: FrameRow, source: int, target: int) -> Span | None:
        """Take a row, with the lanes of its two ends; return a span that it ends."""
        if row.type not in ("WORK", "RESULT"):
            return None
        request = int(row.fields["request"])
        own = self._open.get((row.run, source, request))
        if row.type == "WORK":
            if own is not None and own.passed_on < 0:
                own.passed_on = max(row.first_time, own.begin)
            held = Span(target, row.time, -1.0, -1.0, request)
            self._open[row.run, target, request] = held
            if len(self._open) > _OPEN:
                self._open.popitem(last=False)
            return None
        if own is None:
            return None
        del self._open[row.run, source, request]
        own.end = max(row.first_time, own.begin)
        own.passed_on = own.end if own.passed_on < 0 else min(own.passed_on, own.end)
        return own
