"""Bytes in any split to whole frames, at an endpoint.

A passive decoder may hold what it sees; an endpoint must not. So its owner is asked,
once the header is in and again at each stage, how much of the body is worth keeping;
the rest is skipped unseen (DS4D-FRAME-11, DS4D-WORK-60). Frames are pulled one by
one, so that an owner with a full queue simply stops asking.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from ds4proto.link.ds4d_frames import HEADER_SIZE, unpack_header
from ds4proto.link.ds4d_limits import LinkLimits
from ds4proto.schema.ds4d_common import MAGIC
from ds4proto.schema.problem import Buf

Plan = Callable[[int, int, memoryview], int]
"""``plan(type, size, kept)``: bytes of the body to keep before asking again.

Returning ``len(kept)`` skips the rest. It is never asked about a whole body.
"""

SCRATCH = 65536
LARGE = 1 << 20
_NOTHING = memoryview(b"")


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame; ``body`` holds what was kept of its ``size`` bytes.

    ``began`` is the time at which its first byte came.
    """

    type: int
    size: int
    body: memoryview
    offset: int
    began: float

    @property
    def whole(self) -> bool:
        """True where the whole body was kept."""
        return len(self.body) == self.size


@dataclass(frozen=True, slots=True)
class BadMagic:
    """Something else than the magic where a header begins."""

    magic: int
    offset: int


@dataclass(frozen=True, slots=True)
class End:
    """End of the stream.

    ``where`` is ``clean`` between two frames, else the part that was cut; ``got`` is
    the number of body bytes that had come.
    """

    where: Literal["clean", "header", "body"]
    type: int = 0
    got: int = 0
    offset: int = 0


Item = Frame | BadMagic | End


def fresh_pages(size: int) -> mmap.mmap:
    """Return that many bytes that cost no memory until they are written to.

    An announced length alone claims nothing. Large pages, where the system has them,
    make filling them several times faster: one fault for each 2 MiB in place of 512.
    """
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


def _allocate(size: int) -> bytearray | mmap.mmap:
    return fresh_pages(size) if size >= LARGE else bytearray(size)


class Intake:
    """One direction of a connection.

    Parameters
    ----------
    plan : callable
        See ``Plan``.
    limits : LinkLimits
        For deadlines.
    """

    __slots__ = (
        "_began",
        "_buf",
        "_direct",
        "_ended",
        "_got",
        "_have",
        "_keep",
        "_last",
        "_limits",
        "_offset",
        "_over",
        "_plan",
        "_scratch",
        "_size",
        "_store",
        "_type",
    )

    def __init__(self, plan: Plan, limits: LinkLimits) -> None:
        self._plan = plan
        self._limits = limits
        self._buf = bytearray()
        self._scratch: bytearray | None = None
        self._offset = 0
        self._ended = False
        self._over = False
        self._began = 0.0
        self._last = 0.0
        self._direct = False
        self._store: memoryview | None = None
        self._type = self._size = self._keep = self._have = self._got = 0

    # in

    def feed(self, data: Buf | None, now: float) -> None:
        """Take bytes, or None for the end of the stream."""
        if data is None:
            self._ended = True
            return
        if not len(data):
            return
        self._note(now)
        if self._store is None or self._buf or self._have == self._keep:
            self._buf += data
            return
        view = memoryview(data).cast("B")
        take = min(len(view), self._keep - self._have)
        self._store[self._have : self._have + take] = view[:take]
        self._have += take
        self._got += take
        self._buf += view[take:]

    def get_buffer(self) -> memoryview:
        """Return where to receive next: the body itself where much is missing."""
        missing = self._keep - self._have
        self._direct = self._store is not None and not self._buf and missing > SCRATCH
        if self._direct and self._store is not None:
            return self._store[self._have : self._keep]
        if self._scratch is None:
            self._scratch = bytearray(SCRATCH)
        return memoryview(self._scratch)

    def received(self, nbytes: int, now: float) -> None:
        """Take ``nbytes`` that are in the last buffer; 0 is the end of the stream."""
        if not nbytes:
            self.feed(None, now)
        elif self._direct:
            self._note(now)
            self._have += nbytes
            self._got += nbytes
        elif self._scratch is not None:
            self.feed(memoryview(self._scratch)[:nbytes], now)

    def _note(self, now: float) -> None:
        if self._store is None and not self._buf:
            self._began = now
        self._last = now

    # out

    def next(self) -> Item | None:
        """Return the next frame, or what ended the stream; None until more comes."""
        if self._over:
            return None
        if self._store is None and not self._header():
            return self._end()
        if self._store is None:
            magic = int.from_bytes(self._buf[:4], "big")
            self._over = True
            return BadMagic(magic, self._offset)
        if not self._body(self._store):
            return self._end()
        frame = Frame(
            self._type,
            self._size,
            self._store[: self._have],
            self._offset,
            self._began,
        )
        self._offset += HEADER_SIZE + self._size
        self._store = None
        self._began = self._last
        return frame

    def _header(self) -> bool:
        """Begin a body; False until the header is whole (a bad magic begins none)."""
        if len(self._buf) < HEADER_SIZE:
            return len(self._buf) >= 4 and not self._is_magic()
        magic, self._type, self._size = unpack_header(self._buf)
        if magic != MAGIC:
            return True
        del self._buf[:HEADER_SIZE]
        self._have = self._keep = self._got = 0
        self._store = _NOTHING
        if self._size:
            self._stage(_NOTHING)
        return True

    def _is_magic(self) -> bool:
        return int.from_bytes(self._buf[:4], "big") == MAGIC

    def _stage(self, kept: memoryview) -> None:
        keep = self._plan(self._type, self._size, kept)
        self._keep = max(self._have, min(self._size, keep))
        if self._keep > self._have:
            store = memoryview(_allocate(self._keep))
            store[: self._have] = kept
            self._store = store

    def _body(self, store: memoryview) -> bool:
        while True:
            take = min(len(self._buf), self._keep - self._have)
            if take:
                store[self._have : self._have + take] = memoryview(self._buf)[:take]
                del self._buf[:take]
                self._have += take
                self._got += take
            if self._have < self._keep:
                return False
            if self._keep == self._size or self._got > self._have:
                break
            before = self._keep
            self._stage(store[: self._have])
            store = self._store if self._store is not None else store
            if self._keep == before:
                break
        skip = min(len(self._buf), self._size - self._got)
        del self._buf[:skip]
        self._got += skip
        return self._got == self._size

    def _end(self) -> End | None:
        if not self._ended:
            return None
        self._over = True
        if self._store is not None:
            return End("body", self._type, self._got, self._offset)
        return End("header" if self._buf else "clean", offset=self._offset)

    # state

    @property
    def kept(self) -> memoryview:
        """What has come of the body under way; grows while it arrives."""
        return _NOTHING if self._store is None else self._store[: self._have]

    @property
    def place(self) -> memoryview | None:
        """Where the whole body under way comes to lie, once all of it is wanted."""
        whole = self._store is not None and self._size == self._keep > 0
        return self._store if whole else None

    @property
    def inside(self) -> bool:
        """True in the middle of a frame."""
        return self._store is not None or bool(self._buf)

    def touch(self, now: float) -> None:
        """Begin the times of the frame under way anew, after a pause of our own."""
        self._began = self._last = now

    def rest(self) -> bytes:
        """Take the bytes that have not been read as frames."""
        left = bytes(self._buf)
        self._buf.clear()
        return left

    def deadline(self) -> float | None:
        """Return when the frame under way has to have moved on or ended."""
        if not self.inside or self._ended or self._over:
            return None
        limits = self._limits
        whole = self._began + limits.frame_s + self._size / limits.min_rate
        return min(self._last + limits.stall_s, whole)
