"""Frames as columns: for tables of millions of frames, without rules and payloads.

The headers of a stream are walked, and the fixed parts of all frames of a type are
gathered with numpy. Nothing else is looked at: no tail, no rule between fields, no
state between frames. Gates have no length of their own and are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from os import PathLike
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from ds4proto.pcap.columns import gather
from ds4proto.pcap.reader import CaptureReader
from ds4proto.schema import frame_of_code, header_of
from ds4proto.schema.declare import FrameSpec
from ds4proto.schema.fast import dtype_of, struct_of
from ds4proto.schema.recognise import dialect_candidates, hello_size, protocol_of
from ds4proto.trace.rows import Direction
from ds4proto.trace.tcp import Reassembler
from ds4proto.trace.tcp_events import Data, Gap, Opened, StreamEvent

__all__ = ["FrameColumns", "frame_columns", "frame_names", "walk"]

I64 = npt.NDArray[np.int64]
_RUN_AFTER: Final = 8
_FIRST: Final = 512
_PROTOCOLS: Final = ("DS4D", "DS4T")


@dataclass(slots=True, eq=False)
class FrameColumns:
    """Frames of one type that lie in one piece of one direction of a stream.

    Attributes
    ----------
    spec : FrameSpec
    dialect : str
    stream : int
    direction : {"a>b", "b>a"}
    src, dst : str
        Addresses.
    offset, length : int64 (n,)
        Stream offset of each frame, and its bytes, header included.
    packet : int64 (n,)
        Packet that carries the first byte of the frame.
    time_ns : int64 (n,)
        When that packet passed, since 1970.
    fixed : structured array (n,)
        The fixed parts, in the byte order of the wire.
    start_ns : int
        Time of the capture's first packet.
    """

    spec: FrameSpec
    dialect: str
    stream: int
    direction: Direction
    src: str
    dst: str
    offset: I64
    length: I64
    packet: I64
    time_ns: I64
    fixed: npt.NDArray[Any]
    start_ns: int = 0

    def __len__(self) -> int:
        return int(self.offset.size)


def walk(
    data: memoryview, at: int, protocol: str
) -> tuple[I64, I64, npt.NDArray[np.uint32], int]:
    """Find the frames whose header lies whole in `data`, from `at` on.

    Returns
    -------
    starts, lengths : int64 (n,)
        Of the frames, header included; the last one may end behind `data`.
    codes : uint32 (n,)
        Their type numbers.
    stop : int
        Where the next header is expected; -1 where the bytes are no header.
    """
    layout = header_of(protocol)
    form = struct_of(layout, "*")
    magic = next(spec.const for spec in layout.fields if spec.path == "magic")
    unpack, head, end = form.unpack_from, form.size, len(data)
    chunks: list[I64] = []
    starts: list[int] = []
    previous, same, pause = -1, 0, 0
    while at + head <= end:
        found, _, size = unpack(data, at)
        if found != magic:
            at = -1
            break
        if size != previous:
            previous, same = size, 0
        elif same < _RUN_AFTER + pause:
            same += 1
        else:
            run = _run(data, at, head + size, form.format, (magic, size))
            chunks.append(np.array(starts, np.int64))
            starts.clear()
            chunks.append(run)
            pause = 0 if run.size > 4 * _RUN_AFTER else min(2 * pause + 8, 4096)
            at = int(run[-1]) + head + size
            same = 0
            continue
        starts.append(at)
        at += head + size
    chunks.append(np.array(starts, np.int64))
    places = np.concatenate(chunks)
    headers = gather(data, places, dtype_of(layout, "*"))
    return (
        places,
        headers["bytes"].astype(np.int64) + head,
        headers["type"].astype(np.uint32),
        at,
    )


def _run(
    data: memoryview, at: int, stride: int, form: str, known: tuple[Any, int]
) -> I64:
    """Return the starts of frames of equal length that follow each other."""
    count = (len(data) - at - 12) // stride + 1
    words: npt.NDArray[np.uint32] = np.ndarray(
        (count, 3), np.dtype(f"{form[0]}u4"), data, at, (stride, 4)
    )
    differs = (words[:, 0] != known[0]) | (words[:, 2] != known[1])
    first = int(differs.argmax())
    if differs[first]:
        count = first
    return at + stride * np.arange(count, dtype=np.int64)


@dataclass(slots=True)
class _Way:
    """One direction of a stream while it is walked."""

    src: str
    dst: str
    protocol: str | None = None
    dialect: str = ""
    due: int = 0  # stream offset of the next header
    rest: bytes = b""  # bytes from `due` on that do not hold a whole fixed part
    mark: tuple[int, int] = (0, 0)
    lost: bool = False


def frame_columns(
    source: str | PathLike[str] | BinaryIO,
) -> Iterator[FrameColumns]:
    """Yield the frames of a capture as columns, type by type and piece by piece.

    Only header-framed connections that the capture shows from their first byte are
    walked; at a gap, or where no header stands, a direction is given up.

    Raises
    ------
    CaptureError
        At damage, after all before it.
    """
    ways: dict[tuple[int, Direction], _Way] = {}
    reassembler = Reassembler(join="batch")
    start_ns = None
    with CaptureReader(source) as reader:
        for batch in reader:
            if start_ns is None:
                start_ns = int(batch.time_ns[0])
            for part in _parts(reassembler.feed(batch), ways):
                part.start_ns = start_ns
                yield part
        for part in _parts(reassembler.finish(), ways):
            part.start_ns = start_ns or 0
            yield part


def _parts(
    events: Iterable[StreamEvent], ways: dict[tuple[int, Direction], _Way]
) -> Iterator[FrameColumns]:
    for event in events:
        if isinstance(event, Opened):
            a, b = str(event.a), str(event.b)
            ways[event.stream, "a>b"] = _Way(a, b)
            ways[event.stream, "b>a"] = _Way(b, a)
        elif isinstance(event, Gap):
            ways[event.stream, event.direction].lost = True
        elif isinstance(event, Data):
            way = ways[event.stream, event.direction]
            if not way.lost:
                yield from _piece(way, event)


def _piece(way: _Way, event: Data) -> Iterator[FrameColumns]:
    data, base = event.data, event.offset
    if way.rest:
        data = memoryview(way.rest + bytes(data))
        base = way.due
        way.rest = b""
    if way.protocol is None and not _begin(way, data):
        return
    protocol = way.protocol or ""
    at = way.due - base
    if at >= len(data):
        return
    starts, lengths, codes, stop = walk(data, at, protocol)
    if stop < 0:
        way.lost = True
        stop = int(starts[-1] + lengths[-1]) if starts.size else at
    whole = starts + _needed(protocol, way.dialect, codes) <= len(data)
    keep = int(whole.size) if whole.all() else int(whole.argmin())
    if keep < starts.size:
        stop = int(starts[keep])
    way.due = base + stop
    yield from _types(
        way, event, data, base, (starts[:keep], lengths[:keep], codes[:keep])
    )
    if stop < len(data) and not way.lost:
        way.rest = bytes(data[stop:])
        packet, time_ns = _marks(way, event, np.array([way.due], np.int64))
        way.mark = int(packet[0]), int(time_ns[0])


def _begin(way: _Way, data: memoryview) -> bool:
    """Find protocol and dialect from the first bytes; skip a hello."""
    protocol = protocol_of(data)
    if protocol not in _PROTOCOLS:
        way.lost = True
        return False
    found = dialect_candidates({"a>b": data[:_FIRST]})
    way.protocol = protocol
    way.dialect = found[0][0] if found else "upstream"
    if protocol == "DS4T":
        size = hello_size(data[:_FIRST])
        if size is None:
            way.lost = True  # a gate stream, or a hello alone
            return False
        way.due = size
    return True


@cache
def _fixed_sizes(protocol: str, dialect: str) -> I64:
    found = np.full(256, 12, np.int64)
    for code in range(256):
        spec = frame_of_code(protocol, code, dialect=dialect)
        if spec is not None:
            found[code] = 12 + spec.fixed_size(dialect.rstrip("?"))
    return found


def _needed(protocol: str, dialect: str, codes: npt.NDArray[np.uint32]) -> I64:
    return _fixed_sizes(protocol, dialect)[np.minimum(codes, 255)]


def _types(
    way: _Way,
    event: Data,
    data: memoryview,
    base: int,
    found: tuple[I64, I64, npt.NDArray[np.uint32]],
) -> Iterator[FrameColumns]:
    starts, lengths, codes = found
    for code in np.unique(codes).tolist():
        spec = frame_of_code(way.protocol or "", code, dialect=way.dialect)
        if spec is None:
            continue
        dtype = dtype_of(spec.body, way.dialect.rstrip("?"))
        mine = (codes == code) & (lengths >= 12 + dtype.itemsize)
        where = starts[mine]
        if not where.size:
            continue
        offset = where + base
        packet, time_ns = _marks(way, event, offset)
        yield FrameColumns(
            spec, way.dialect, event.stream, event.direction, way.src, way.dst, offset,
            lengths[mine], packet, time_ns, gather(data, where + 12, dtype),
        )  # fmt: skip


def _marks(way: _Way, event: Data, offset: I64) -> tuple[I64, I64]:
    """Return packet and time of the segments that carry some offsets."""
    if event.marks is None:
        packet = np.full(offset.size, event.packet, np.int64)
        time_ns = np.full(offset.size, event.time_ns, np.int64)
    else:
        marks = event.marks
        k = np.maximum(np.searchsorted(marks.offset, offset, side="right") - 1, 0)
        packet, time_ns = marks.packet[k], marks.time_ns[k]
    before = offset < event.offset  # began in the piece before
    packet[before], time_ns[before] = way.mark
    return packet, time_ns


def frame_names(source: str | PathLike[str]) -> set[str]:
    """Return the full names of the frames that `frame_columns` finds in a file."""
    found = set()
    with suppress(ValueError):  # what is damaged is told when it is read again
        for part in frame_columns(source):
            found.add(part.spec.full_name)
    return found
