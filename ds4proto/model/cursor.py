"""Reading a header front to back: every length is checked before a byte is taken."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NoReturn

from ds4proto.model.errors import GgufError

Buf = bytes | bytearray | memoryview
ByteOrder = Literal["little", "big"]
CHUNK = 1 << 18


@dataclass(frozen=True, slots=True)
class GgufLimits:
    """What a header may ask for. The defaults are far above any published model.

    Attributes
    ----------
    kv : int
        Metadata entries, and arrays inside arrays; real files have under 100.
    tensors : int
        Tensor records; 61 layers with 256 unmerged experts are 47 thousand.
    key, name : int
        Bytes of a key (the format says 65,535) and of a tensor name (it says 64).
    string : int
        Bytes of a string value; the longest real ones are chat templates.
    array : int
        Elements of one array; merge lists reach some 300 thousand.
    depth : int
        Nesting of arrays.
    layers : int
        Layers that a metadata entry may count; known models have at most 78.
    dims : int
        Dimensions of a tensor; the format has at most 4.
    stored : int
        Elements that are kept of an array; longer ones are only counted.
    kept : int
        Elements kept of all arrays together; arrays past it are only counted.
    header : int
        Bytes from the start of the file to the tensor data.
    alignment : int
        Largest accepted ``general.alignment``.
    """

    kv: int = 65_536
    tensors: int = 131_072
    key: int = 65_535
    name: int = 1_024
    string: int = 4 << 20
    array: int = 1 << 24
    depth: int = 4
    layers: int = 65_536
    dims: int = 8
    stored: int = 1_024
    kept: int = 1 << 21
    header: int = 64 << 20
    alignment: int = 1 << 20


class Cursor:
    """A forward-only reader that knows where it is and how much may still come.

    Parameters
    ----------
    read
        Returns at most n bytes; empty at the end.
    size
        Bytes of the file, None for a stream of unknown length.
    source
        Name for error texts.
    """

    def __init__(
        self,
        read: Callable[[int], bytes],
        *,
        size: int | None,
        limits: GgufLimits,
        source: str,
    ) -> None:
        self._read = read
        self._chunk = b""
        self._at = 0
        self.size = size
        self.limits = limits
        self.source = source
        self.order: ByteOrder = "little"
        self.offset = 0
        self.arrays = 0
        self.kept = 0
        self._limit = limits.header if size is None else min(limits.header, size)
        self._formats: dict[str, struct.Struct] = {}

    def fail(
        self,
        field: str,
        *,
        expected: str,
        found: str,
        next_step: str,
        offset: int | None = None,
    ) -> NoReturn:
        """Raise `GgufError` for the field at `offset` (default: here)."""
        raise GgufError(
            field,
            offset=self.offset if offset is None else offset,
            expected=expected,
            found=found,
            next_step=next_step,
            source=self.source,
        )

    def room(self, count: int, field: str) -> None:
        """Refuse `count` bytes that the limits or the file do not have."""
        if self.offset + count > self.limits.header:
            self.fail(
                field,
                expected=f"a header of at most {self.limits.header} bytes",
                found=f"{count} bytes more after {self.offset}",
                next_step="the file is damaged or hostile; fetch it again",
            )
        if self.size is not None and count > self.size - self.offset:
            self.fail(
                field,
                expected=f"{count} bytes",
                found=f"{self.size - self.offset} bytes up to the end of the file",
                next_step="the file is cut short or damaged; fetch it again",
            )

    def take(self, count: int, field: str) -> bytes:
        """Return exactly `count` bytes."""
        end = self._at + count
        if end <= len(self._chunk) and self.offset + count <= self._limit:
            out = self._chunk[self._at : end]
            self._at = end
            self.offset += count
            return out
        self.room(count, field)
        self._fill(count, field)
        return self.take(count, field)

    def _fill(self, count: int, field: str) -> None:
        parts = [self._chunk[self._at :]]
        have = len(parts[0])
        while have < count:
            piece = self._read(max(CHUNK, count - have))
            if not piece:
                self.fail(
                    field,
                    expected=f"{count} bytes",
                    found=f"end of data after {have}",
                    next_step="the file is cut short; fetch it again",
                )
            parts.append(piece)
            have += len(piece)
        self._chunk = b"".join(parts)
        self._at = 0

    def skip(self, count: int, field: str) -> None:
        """Read and drop `count` bytes in steps, so that nothing large is held."""
        self.room(count, field)
        while count:
            step = min(count, CHUNK)
            self.take(step, field)
            count -= step

    def number(self, code: str, field: str) -> int | float | bool:
        """Read one value of a `struct` code such as ``"Q"`` in the file's order."""
        code = ("<" if self.order == "little" else ">") + code
        fmt = self._formats.get(code)
        if fmt is None:
            fmt = self._formats[code] = struct.Struct(code)
        value: int | float | bool = fmt.unpack(self.take(fmt.size, field))[0]
        return value

    def u32(self, field: str) -> int:
        """Read an unsigned 32-bit number."""
        return int(self.number("I", field))

    def u64(self, field: str) -> int:
        """Read an unsigned 64-bit number."""
        return int(self.number("Q", field))

    def length(self, field: str, cap: int, *, what: str) -> int:
        """Read a 64-bit length and refuse one above `cap`."""
        at = self.offset
        value = self.u64(field)
        if value > cap:
            self.fail(
                field,
                offset=at,
                expected=f"at most {cap} {what}",
                found=str(value),
                next_step="the file is damaged or hostile; fetch it again",
            )
        return value

    def text(self, field: str, cap: int) -> str:
        """Read a length-prefixed string; bytes outside UTF-8 are shown escaped."""
        count = self.length(f"{field} length", cap, what="bytes")
        return self.take(count, field).decode("utf-8", "backslashreplace")
