"""Hidden state between float32 and the wire: encoded as it leaves, decoded as it comes.

A large frame is never encoded whole before its first byte leaves, nor decoded only
after its last byte came: both go block by block, in the cache, while the kernel moves
the block before.
"""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, cast

import numpy as np

from ds4proto.codec import get
from ds4proto.codec.base import Codec, Path
from ds4proto.codec.elementwise import STREAM_FROM
from ds4proto.codec.widths import activation_codec
from ds4proto.link.ds4d_facts import row_bytes
from ds4proto.link.ds4d_frames import SMALL, WORK_PART
from ds4proto.schema.ds4d_private import FORMATS
from ds4proto.schema.problem import Buf
from ds4proto_runtime.engines.base import F32

BLOCK: Final = 1 << 18
"""Values from which on a payload goes block by block, and those of its blocks."""
LARGE_BLOCK: Final = 1 << 20
"""Values of a block where there are many: fewer sends, fewer changes of process."""
PARTS: Final = 8
"""Blocks that a payload has at least, as far as its size allows."""
DECODED_AT_ONCE: Final = STREAM_FROM // 4
"""Values from which on decoding goes past the cache, which is fastest."""
COMPILED_FROM: Final = 1 << 16
"""Values from which on compiled kernels pay for loading them."""


@cache
def codec_of(bits: int, profile: str, large: bool) -> Codec:
    """Return the codec of a width word; small payloads do without compiled kernels."""
    path: Path = "auto" if large else "numpy"
    if bits in FORMATS:
        return get(FORMATS[bits], path=path)
    return activation_codec(bits, profile=profile, path=path)


def _codec(bits: int, profile: str, values: int) -> Codec:
    return codec_of(bits, profile, values >= COMPILED_FROM)


def warm(bits: int, profile: str) -> None:
    """Load what large payloads of a width need, before the first one is due."""
    codec = codec_of(bits, profile, True)
    zeros = np.zeros(64, np.float32)
    codec.decode(codec.encode(zeros), values=64)


def unpack(wire: Buf, bits: int, width: int, profile: str = "strict") -> F32:
    """Return wire rows as float32 ``[n, width]``; at 32 bits without a copy.

    Parameters
    ----------
    wire : bytes-like
        Whole rows under the width word ``bits``.
    width : int
        Values of one row.
    """
    size = memoryview(wire).nbytes
    if bits in FORMATS:
        rows = size // row_bytes(bits, width)
        codec = _codec(bits, profile, rows * width)
        decoded = codec.decode(wire, values=rows * width, rows=rows)
        return cast(F32, decoded.reshape(-1, width))
    values = size * 8 // bits
    if bits == 32:
        flat = np.frombuffer(wire, np.float32)
    else:
        flat = _codec(bits, profile, values).decode(wire, values=values)
    return cast(F32, flat.reshape(-1, width))


def pack(rows: F32, bits: int, profile: str = "strict") -> Buf:
    """Return rows as wire bytes, encoded at once; at 32 bits without a copy."""
    flat = np.ascontiguousarray(rows, np.float32).reshape(-1)
    if bits == 32:
        return memoryview(cast(Any, flat)).cast("B")
    # the last axis is a row: formats with scales keep one or more for each
    count = flat.size // rows.shape[-1] if flat.size else 1
    encoded = _codec(bits, profile, flat.size).encode(flat, rows=count)
    return memoryview(encoded).cast("B")


class _Pages(mmap.mmap):
    """Stands in for a payload that is encoded when its frame is written.

    The machines look at lengths alone, so its pages are never touched and cost
    nothing.
    """

    rows: F32
    codec: Codec


def pack_late(rows: F32, bits: int, profile: str = "strict") -> Buf:
    """Return wire bytes, or for a large payload a stand-in that ``write`` encodes."""
    size = len(rows) * row_bytes(bits, rows.shape[-1])
    if bits == 32 or rows.ndim != 2 or size <= max(SMALL, BLOCK // 4):
        return pack(rows, bits, profile)
    pages = _Pages(-1, size)
    pages.rows = np.ascontiguousarray(rows, np.float32)
    pages.codec = _codec(bits, profile, rows.size)
    return memoryview(pages)


def write(buffers: Sequence[Buf], send: Callable[[Sequence[Buf]], None]) -> None:
    """Hand the buffers of a frame to ``send`` in order, encoding what is late.

    While the kernel moves one block, the next is encoded into the cache.
    """
    ready: list[Buf] = []
    for part in buffers:
        pages = part.obj if isinstance(part, memoryview) else None
        if not isinstance(pages, _Pages):
            ready.append(part)
            continue
        rows = pages.rows
        values = max(BLOCK, min(LARGE_BLOCK, rows.size // PARTS))
        step = max(1, values // rows.shape[-1])
        scratch = np.empty(len(pages) // len(rows) * step, np.uint8)
        for at in range(0, len(rows), step):
            some = rows[at : at + step]
            block = pages.codec.encode(some.reshape(-1), scratch, rows=len(some))
            send([*ready, memoryview(block).cast("B")])
            ready = []
    if ready:
        send(ready)


class Buffers:
    """Large float32 arrays that come back when nobody looks at them any more.

    Fresh memory costs a page fault every 4 KiB, which takes longer than decoding into
    it; the next frame of a prefill is as large as the last.
    """

    KEPT: Final = 6

    def __init__(self) -> None:
        self._free: list[F32] = []

    def take(self, count: int) -> F32:
        """Return an array of ``count`` values, with anything in it."""
        try:
            owner = self._free.pop()
        except IndexError:
            owner = np.empty(count, np.float32)
        if owner.size != count:
            owner = np.empty(count, np.float32)
        # Views of an array over a memoryview keep that array, so its end is theirs.
        handed: F32 = np.frombuffer(memoryview(cast(Any, owner)), np.float32)
        weakref.finalize(handed, self._give, owner).atexit = False
        return handed

    def _give(self, owner: F32) -> None:
        if len(self._free) < self.KEPT:
            self._free.append(owner)


class Decoded:
    """Hidden state of one worker that was decoded before its WORK was whole.

    Parameters
    ----------
    width : int
        Values of one row.
    """

    KEPT: Final = 16
    """Frames kept for their evaluation; what falls out is decoded once more."""

    def __init__(self, width: int, profile: str = "strict") -> None:
        self.width = width
        self.profile = profile
        self.buffers = Buffers()
        self._done: dict[int, tuple[memoryview, F32]] = {}

    def add(self, wire: memoryview, rows: F32) -> None:
        """Keep the rows of these very bytes."""
        self._done[_address(wire)] = (wire, rows)
        while len(self._done) > self.KEPT:
            self._done.pop(next(iter(self._done)), None)

    def take(self, wire: memoryview) -> F32 | None:
        """Return the rows decoded from these very bytes, if they were."""
        found = self._done.pop(_address(wire), None) if self._done else None
        return None if found is None else found[1]


class Decoding:
    """The WORK frame that is arriving on one connection."""

    def __init__(self, decoded: Decoded) -> None:
        self._decoded = decoded
        self._body: memoryview | None = None
        self._wire = memoryview(b"")
        self._from = self._at = self._bits = self._row = 0
        self._out: Any = None

    @property
    def active(self) -> bool:
        """True while a frame is being decoded."""
        return self._body is not None

    def progress(self, body: memoryview, come: int) -> None:
        """Decode what has come.

        Parameters
        ----------
        body : memoryview
            Where the whole body comes to lie.
        come : int
            Bytes of it that are there.
        """
        if self._body is None or _address(self._body) != _address(body):
            self._body = None
            if come < WORK_PART.size or not self._begin(body):
                return
        self._decode(come - self._from, DECODED_AT_ONCE)

    def finish(self) -> None:
        """Decode the rest: the body is whole."""
        self._decode(len(self._wire), 1)
        rows = self._out.reshape(-1, self._decoded.width)
        self._decoded.add(self._wire, rows)
        self._body = self._out = None
        self._wire = memoryview(b"")

    def _begin(self, body: memoryview) -> bool:
        words = WORK_PART.read(body)
        bits, size = words["input_hc_bits"], words["input_hc_bytes"]
        at = WORK_PART.size + words["token_bytes"]
        if (
            (bits not in (8, 16) and bits not in FORMATS)
            or size < BLOCK
            or at + size + words["route_bytes"] != len(body)
        ):
            return False
        self._row = row_bytes(bits, self._decoded.width)
        if size % self._row:
            return False
        self._body, self._bits = body, bits
        self._from, self._at = at, 0
        self._wire = body[at : at + size]
        self._out = self._decoded.buffers.take(size // self._row * self._decoded.width)
        return True

    def _decode(self, come: int, least: int) -> None:
        """Decode the whole rows that have come, if they are ``least`` values."""
        count = (min(come, len(self._wire)) - self._at) // self._row
        width = self._decoded.width
        if count * width < least:
            return
        first = self._at // self._row * width
        codec = _codec(self._bits, self._decoded.profile, COMPILED_FROM)
        codec.decode(
            self._wire[self._at : self._at + count * self._row],
            self._out[first : first + count * width],
            values=count * width,
            rows=count,
        )
        self._at += count * self._row


def _address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data) if len(view) else 0
