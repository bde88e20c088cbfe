"""One frame that arrives in pieces: what is collected, and what goes to a sink."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any

from ds4proto.link.regions import Region, find_regions
from ds4proto.link.sink import Sink, SinkFactory
from ds4proto.link.table import Entry
from ds4proto.schema.fast import struct_of
from ds4proto.schema.registry import Reading

STREAM_FROM = 64 * 1024
"""Bodies up to this size are collected whole even where a sink takes their bulk."""


class Assembly:
    """The body of one frame while it arrives.

    Small bodies, and all bodies without a sink, are collected as they come. A large
    one with a sink lives in a sparse mapping of its size, of which only the bytes
    outside bulk tails are ever written: the reader finds every byte at its offset,
    and bulk takes no memory.

    Parameters
    ----------
    entry : Entry
    start : int
        Stream offset of the frame's first byte.
    size : int
        Announced body length, checked against the limits.
    sink : callable or None
    small : int
        Most bytes outside bulk tails that are collected while streaming.
    read : callable
        Reads a whole body; it may settle on another dialect's entry.
    """

    __slots__ = (
        "_body",
        "_collected",
        "_have",
        "_holes",
        "_need",
        "_open",
        "_read",
        "_regions",
        "_results",
        "_sink",
        "_small",
        "_torn",
        "entry",
        "refused",
        "size",
        "start",
    )

    def __init__(
        self,
        entry: Entry,
        start: int,
        size: int,
        sink: SinkFactory | None,
        small: int,
        read: Callable[[Entry, memoryview, int], tuple[Entry, Reading]],
    ) -> None:
        self.entry = entry
        self.start = start
        self.size = size
        self.refused = False
        self._sink = sink
        self._small = small
        self._read = read
        self._have = 0
        self._torn = False
        self._collected = 0
        self._holes: list[tuple[int, int]] = []
        self._regions: list[Region] = []
        self._results: dict[str, Any] = {}
        self._open: tuple[Region, Sink | None] | None = None
        streamed = sink is not None and entry.bulk and size > STREAM_FROM
        self._body: bytearray | mmap.mmap = (
            mmap.mmap(-1, size) if streamed else bytearray()
        )
        self._need: int | None = 0 if streamed else None

    @property
    def have(self) -> int:
        """Body bytes taken so far."""
        return self._have

    @property
    def left(self) -> int:
        """Body bytes still to come."""
        return self.size - self._have

    def take(self, view: memoryview) -> int:
        """Take bytes of the body; return how many were wanted."""
        view = view[: self.left]
        wanted = len(view)
        if isinstance(self._body, bytearray):
            self._body += view
            self._have += wanted
            return wanted
        while len(view):
            region = self._region()
            if region is None:
                stop = self._border()
                piece = view[: stop - self._have]
                self._collected += len(piece)
                if self._collected > self._small:
                    self.refused = True
                if not self.refused:
                    self._body[self._have : self._have + len(piece)] = piece
            else:
                piece = view[: region.end - self._have]
                sink = self._sink_of(region)
                if sink is None:
                    self._body[self._have : self._have + len(piece)] = piece
                else:
                    sink.write(piece)
            self._have += len(piece)
            view = view[len(piece) :]
        return wanted

    def gap(self, nbytes: int) -> bool:
        """Take a gap inside the body, behind its fixed part; tell whether it is.

        The frame is kept: its end is known. Where the gap touches more than bulk,
        the tails other than bulk are dropped from the fields.
        """
        end = self._have + nbytes
        if end > self.size or self._have < self.entry.least:
            return False
        if isinstance(self._body, bytearray):
            with memoryview(self._body) as view:
                found, _ = find_regions(
                    self.entry.spec, self.entry.dialect, view, self._have, self.size
                )
            if not any(r.start <= self._have and end <= r.end for r in found):
                self._torn = True
            self._body += bytes(nbytes)
        else:
            region = self._region()
            if region is None or end > region.end:
                return False
            sink = self._sink_of(region)
            if sink is not None:
                sink.gap(nbytes)
        self._holes.append((self._have, end))
        self._have = end
        return True

    @property
    def missing(self) -> int:
        """Bytes of the body that fell into gaps."""
        return sum(end - start for start, end in self._holes)

    def finish(self) -> Reading:
        """Read the whole body; bulk tails are what their sinks returned."""
        view = memoryview(self._body)
        if self._torn:
            reading = self._fixed_part(view)
        else:
            self.entry, reading = self._read(self.entry, view, self.start)
        if isinstance(self._body, mmap.mmap):
            self._close_sink()
            for path, value in self._results.items():
                put(reading.values, path, value)
        elif self._sink is not None and self.entry.bulk:
            through_sink(self.entry, view, self._sink, reading, self._holes)
        return reading

    def _fixed_part(self, view: memoryview) -> Reading:
        """Read what a gap has left: the fixed part and whole bulk tails."""
        spec, dialect = self.entry.spec, self.entry.dialect
        found, _ = find_regions(spec, dialect, view, len(view), self.size)
        names = [field.path for field in spec.fixed(dialect)]
        form = struct_of(spec.body, dialect)
        values = dict(zip(names, form.unpack_from(view), strict=True))
        for region in found:
            if "[" not in region.path:
                values[region.path] = view[region.start : region.end]
        return Reading(values, ())

    def abandon(self) -> None:
        """Close an open sink; the frame will not be finished."""
        self._close_sink()

    def _border(self) -> int:
        """Return the offset where the present run of collected bytes ends."""
        if self._need is not None:
            return max(self._need, self._have + 1)
        later = [r.start for r in self._regions if r.start > self._have]
        return min(later, default=self.size)

    def _region(self) -> Region | None:
        """Return the bulk tail that the next byte belongs to."""
        if self._need is not None and self._have >= self._need:
            view = memoryview(self._body)
            self._regions, self._need = find_regions(
                self.entry.spec, self.entry.dialect, view, self._have, self.size
            )
        for region in self._regions:
            if region.start <= self._have < region.end:
                return region
        return None

    def _sink_of(self, region: Region) -> Sink | None:
        if self._open is not None and self._open[0].path == region.path:
            return self._open[1]
        self._close_sink()
        assert self._sink is not None
        length = region.end - region.start
        sink = self._sink(self.entry.spec, region.fields, region.path, length)
        self._open = (region, sink)
        return sink

    def _close_sink(self) -> None:
        if self._open is not None:
            region, sink = self._open
            if sink is not None:
                self._results[region.path] = sink.close()
            self._open = None


def through_sink(
    entry: Entry,
    body: memoryview,
    sink: SinkFactory,
    reading: Reading,
    holes: list[tuple[int, int]] | None = None,
) -> None:
    """Run the bulk tails of a body that is all at hand through their sinks."""
    found, _ = find_regions(entry.spec, entry.dialect, body, len(body), len(body))
    for region in found:
        if region.start == region.end:
            continue
        target = sink(entry.spec, region.fields, region.path, region.end - region.start)
        if target is None:
            continue
        at = region.start
        for first, last in holes or ():
            start, end = max(first, region.start), min(last, region.end)
            if start < end:  # a hole may begin before its region, or end behind it
                if start > at:
                    target.write(body[at:start])
                target.gap(end - start)
                at = end
        if at < region.end:
            target.write(body[at : region.end])
        put(reading.values, region.path, target.close())


def surplus(entry: Entry, body: memoryview) -> int:
    """Return the bytes of a body that lie outside its bulk tails."""
    found, _ = find_regions(entry.spec, entry.dialect, body, len(body), len(body))
    return len(body) - sum(region.end - region.start for region in found)


def put(values: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a path such as ``hidden`` or ``images[0].rows``."""
    if "[" not in path:
        if path in values:
            values[path] = value
        return
    name, _, rest = path.partition("[")
    index, _, inner = rest.partition("].")
    records = values.get(name, [])
    if int(index) < len(records):
        put(records[int(index)], inner, value)
