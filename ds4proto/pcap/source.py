"""Where capture bytes come from: a path, standard input, any binary stream."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, cast

from ds4proto.pcap.format import GZIP_MAGIC

SourceLike = str | PathLike[str] | BinaryIO
Wait = Callable[[], bool]

_GZIP_WINDOW = 31  # zlib's sign for "gzip wrapper, largest window"


class ByteSource:
    """Blocks of bytes from a capture, decompressed where they are gzip'd.

    Parameters
    ----------
    source : path, "-" or binary stream
        ``-`` is standard input. Streams that were handed in are not closed.
    wait : callable, optional
        Called at the end of the input, for input that grows: returns True when it
        is worth reading again, False to stop. It owns the waiting and the deadline.
    """

    def __init__(self, source: SourceLike, *, wait: Wait | None = None) -> None:
        self._owned = False
        self.name = "<stream>"
        if isinstance(source, str | PathLike):
            self.name = str(source)
            if self.name == "-":
                self._file: BinaryIO = sys.stdin.buffer
                self.name = "<stdin>"
            else:
                self._file = _unbuffered(Path(source))
                self._owned = True
        else:
            self._file = source
        self._read_some = getattr(self._file, "read1", self._file.read)
        self._wait = wait
        self._zlib: zlib._Decompress | None = None
        self._head = b""
        self._started = False
        self._fault: zlib.error | None = None
        self.gzip = False
        self.cut_short = False

    def read(self, size: int) -> bytes:
        """Return 1 to `size` bytes, or ``b""`` at the end of the input.

        Raises
        ------
        OSError
            Where the operating system refuses to read.
        zlib.error
            Where the compressed data is damaged, after all that comes before it.
        """
        if not self._started:
            self._start()
        if self.gzip:
            return self._inflate(size)
        if self._head:
            data, self._head = self._head[:size], self._head[size:]
            return data
        return self._raw(size)

    def close(self) -> None:
        """Close a file that this object opened itself."""
        if self._owned:
            self._file.close()

    def _start(self) -> None:
        head = b""
        while len(head) < len(GZIP_MAGIC):
            more = self._raw(len(GZIP_MAGIC) - len(head))
            if not more:
                break
            head += more
        self._started = True
        self._head = head
        if head == GZIP_MAGIC:
            self.gzip = True
            self._zlib = zlib.decompressobj(_GZIP_WINDOW)

    def _raw(self, size: int) -> bytes:
        while True:
            data = self._read_some(size)
            if data:
                return cast(bytes, data)
            if self._wait is None or not self._wait():
                return b""

    def _inflate(self, size: int) -> bytes:
        if self._fault is not None:
            raise self._fault
        while True:
            engine = self._zlib
            if engine is None:
                return b""
            pending = engine.unconsumed_tail or self._head or b""
            self._head = b""
            if not pending:
                # at the end an empty piece brings out what the engine still holds;
                # its flush() would do that too, and pass over damage
                pending = self._raw(1 << 18)
            before = engine.copy()
            try:
                out = engine.decompress(pending, size)
            except zlib.error as error:
                self._fault = error
                out = _up_to_damage(before, pending, size)
                if not out:
                    raise
                return out
            if engine.eof:
                self._next_member(engine.unused_data)
            if out:
                return out
            if not pending and not engine.eof:
                self.cut_short = True
                self._zlib = None
                return out

    def _next_member(self, rest: bytes) -> None:
        # Members may be padded with zeros between and after them.
        rest = rest.lstrip(b"\0")
        while len(rest) < len(GZIP_MAGIC):
            more = self._raw(1 << 16)
            if not more:
                break
            rest = (rest + more).lstrip(b"\0")
        if rest.startswith(GZIP_MAGIC):
            self._zlib = zlib.decompressobj(_GZIP_WINDOW)
            self._head = rest
        else:
            self._zlib = None  # like gzip itself, pass over trailing garbage


def _up_to_damage(engine: zlib._Decompress, data: bytes, size: int) -> bytes:
    """Return what comes out of damaged data before the damage, at most `size` bytes.

    A call that meets damage keeps all it has inflated so far to itself, so the data
    goes in by ever smaller steps.
    """
    out = bytearray()
    at, step = 0, 4096
    while step and at < len(data) and len(out) < size:
        before = engine.copy()
        try:
            out += engine.decompress(data[at : at + step], size - len(out))
        except zlib.error:
            engine, step = before, step // 8
        else:
            at += step
            if engine.unconsumed_tail:
                break
    return bytes(out)


def _unbuffered(path: Path) -> BinaryIO:
    return cast(BinaryIO, path.open("rb", buffering=0))


class StreamFile:
    """A plain file of bytes of one direction of one stream, without any container.

    Iterating yields ``(offset, data)``: the stream offset of each piece, and its
    bytes.

    Parameters
    ----------
    source : path, "-" or binary stream
    block_bytes : int
        Largest piece.
    wait : callable, optional
        As in `ByteSource`.
    """

    def __init__(
        self,
        source: SourceLike,
        *,
        block_bytes: int = 1 << 20,
        wait: Wait | None = None,
    ) -> None:
        self._source = ByteSource(source, wait=wait)
        self._block_bytes = block_bytes
        self.name = self._source.name

    def __iter__(self) -> Iterator[tuple[int, memoryview]]:
        offset = 0
        while data := self._source.read(self._block_bytes):
            yield offset, memoryview(data)
            offset += len(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(OSError):
            self._source.close()
