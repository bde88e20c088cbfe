"""GGUF headers: metadata, tensor records, extents. No weights are read.

Versions 2 and 3 are read in both byte orders (ds4 itself runs on little-endian hosts
only). Everything that the header announces is checked against `GgufLimits` and the size
of the file before it is taken; a header that lies is refused with `GgufError`.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Final

from ds4proto.model.cursor import Buf, Cursor, GgufLimits
from ds4proto.model.errors import GgufError
from ds4proto.model.ggml_types import ggml_type
from ds4proto.model.header import GgufHeader, TensorInfo
from ds4proto.model.values import BAD_FILE, read_value

MAGIC: Final = b"GGUF"
DEFAULT_ALIGNMENT: Final = 32
MAX_VALUES: Final = (1 << 63) - 1
_LAYER_COUNTS: Final = ("block_count", "nextn_predict_layers")
"""Ends of the keys that readers of a header count layers by."""


def read_gguf(
    source: str | os.PathLike[str] | BinaryIO | Buf,
    *,
    want_tokens: bool = False,
    partial: bool = False,
    file_size: int | None = None,
    limits: GgufLimits | None = None,
) -> GgufHeader:
    """Read the header of a GGUF file.

    Parameters
    ----------
    source
        A path, an open binary file or stream, or the bytes (a ``mmap`` goes in as
        ``memoryview``); a bytes source may hold the header alone if `file_size` says
        how long the whole file is.
    want_tokens
        Keep the arrays under ``tokenizer.``, which are otherwise counted only.
    partial
        Accept a file that is shorter than its tensors need and list them in `missing`.
    file_size
        Size of the whole file in bytes, where `source` does not show it.
    limits
        Caps; see `GgufLimits`.

    Raises
    ------
    GgufError
        With file offset, field, expected, found and next step.
    OSError
        If the file cannot be read.
    """
    caps = limits or GgufLimits()
    if isinstance(source, bytes | bytearray | memoryview):
        view = memoryview(source).cast("B")
        size = len(view) if file_size is None else file_size
        cursor = _cursor(_MemoryReader(view).read, size, caps, "<bytes>")
        return _parse(cursor, want_tokens, partial)
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size if file_size is None else file_size
            cursor = _cursor(file.read, size, caps, str(path))
            return _parse(cursor, want_tokens, partial)
    size_found = _stream_size(source) if file_size is None else file_size
    name = str(getattr(source, "name", "<stream>"))
    return _parse(_cursor(source.read, size_found, caps, name), want_tokens, partial)


class _MemoryReader:
    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._at = 0

    def read(self, count: int) -> bytes:
        out = self._view[self._at : self._at + count].tobytes()
        self._at += len(out)
        return out


def _cursor(read: Any, size: int | None, caps: GgufLimits, name: str) -> Cursor:
    return Cursor(read, size=size, limits=caps, source=name)


def _stream_size(stream: BinaryIO) -> int | None:
    try:
        here = stream.tell()
        end = stream.seek(0, io.SEEK_END)
        stream.seek(here)
    except (OSError, AttributeError):
        return None
    return end - here


def _parse(cursor: Cursor, want_tokens: bool, partial: bool) -> GgufHeader:
    version = _preamble(cursor)
    # Counts come before anything else, so that both are judged before any entry.
    n_tensors = cursor.length("tensor count", cursor.limits.tensors, what="tensors")
    n_kv = cursor.length("metadata count", cursor.limits.kv, what="entries")
    metadata: dict[str, Any] = {}
    for index in range(n_kv):
        at = cursor.offset
        key = cursor.text(f"kv[{index}].key", cursor.limits.key)
        if key in metadata:
            cursor.fail(
                f"kv[{index}].key",
                offset=at,
                expected="a key that was not seen before",
                found=repr(key),
                next_step=BAD_FILE,
            )
        keep = want_tokens and key.startswith("tokenizer.")
        at = cursor.offset
        metadata[key] = read_value(cursor, key, keep)
        if key.endswith(_LAYER_COUNTS):
            _check_layers(cursor, key, metadata[key], at)
    alignment = _alignment(cursor, metadata)
    tensors: dict[str, TensorInfo] = {}
    at_of: dict[str, int] = {}
    for index in range(n_tensors):
        at = cursor.offset
        info = _tensor(cursor, index, alignment)
        if info.name in tensors:
            cursor.fail(
                f"tensor[{index}].name",
                offset=at,
                expected="a name that was not seen before",
                found=repr(info.name),
                next_step=BAD_FILE,
            )
        tensors[info.name] = info
        at_of[info.name] = at
    data_offset = -(-cursor.offset // alignment) * alignment
    header = GgufHeader(
        source=cursor.source,
        version=version,
        byte_order=cursor.order,
        metadata=metadata,
        tensors=tensors,
        alignment=alignment,
        data_offset=data_offset,
        file_size=cursor.size,
    )
    missing = tuple(_outside(header))
    if missing and not partial:
        _refuse_short(cursor, header, missing, at_of)
    return replace(header, missing=missing)


def _preamble(cursor: Cursor) -> int:
    magic = cursor.take(4, "magic")
    if magic != MAGIC:
        cursor.fail(
            "magic",
            offset=0,
            expected="'GGUF'",
            found=repr(magic),
            next_step="give a .gguf file (older GGML and safetensors files differ)",
        )
    version = cursor.u32("version")
    # A small number in the other byte order has its low half zero.
    if version and not version & 0xFFFF:
        cursor.order = "big"
        version = int.from_bytes(version.to_bytes(4, "little"), "big")
    if version not in (2, 3) or (version == 2 and cursor.order == "big"):
        cursor.fail(
            "version",
            offset=4,
            expected="2 or 3 (3 alone in big-endian files)",
            found=f"{version} ({cursor.order}-endian)",
            next_step="convert the file with a current GGUF tool",
        )
    return version


def _check_layers(cursor: Cursor, key: str, value: Any, at: int) -> None:
    if isinstance(value, int) and value > cursor.limits.layers:
        cursor.fail(
            f"value of {key!r}",
            offset=at,
            expected=f"at most {cursor.limits.layers} layers",
            found=str(value),
            next_step=BAD_FILE,
        )


def _alignment(cursor: Cursor, metadata: Mapping[str, Any]) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    good = isinstance(value, int) and not isinstance(value, bool)
    if not good or not 0 < value <= cursor.limits.alignment or value & (value - 1):
        cursor.fail(
            "general.alignment",
            expected=f"a power of two up to {cursor.limits.alignment}",
            found=repr(value),
            next_step=BAD_FILE,
        )
    return int(value)


def _tensor(cursor: Cursor, index: int, alignment: int) -> TensorInfo:
    name = cursor.text(f"tensor[{index}].name", cursor.limits.name)
    at = cursor.offset
    n_dims = cursor.u32(f"dimension count of tensor {name!r}")
    if n_dims > cursor.limits.dims:
        cursor.fail(
            f"dimension count of tensor {name!r}",
            offset=at,
            expected=f"at most {cursor.limits.dims}",
            found=str(n_dims),
            next_step=BAD_FILE,
        )
    dims: list[int] = []
    values = 1
    for axis in range(n_dims):
        at = cursor.offset
        dim = cursor.u64(f"dims[{axis}] of tensor {name!r}")
        values *= dim
        if dim > MAX_VALUES or values > MAX_VALUES:
            cursor.fail(
                f"dims[{axis}] of tensor {name!r}",
                offset=at,
                expected="fewer than 2^63 values in all",
                found=str(dim),
                next_step=BAD_FILE,
            )
        dims.append(dim)
    at = cursor.offset
    kind = ggml_type(cursor.u32(f"type of tensor {name!r}"))
    if kind.known and dims and dims[0] % kind.block:
        cursor.fail(
            f"type of tensor {name!r}",
            offset=at,
            expected=f"rows in multiples of {kind.block} values for {kind.name}",
            found=f"rows of {dims[0]}",
            next_step=BAD_FILE,
        )
    at = cursor.offset
    offset = cursor.u64(f"offset of tensor {name!r}")
    if offset % alignment:
        cursor.fail(
            f"offset of tensor {name!r}",
            offset=at,
            expected=f"a multiple of {alignment}",
            found=str(offset),
            next_step=BAD_FILE,
        )
    return TensorInfo(name, tuple(dims), kind, offset, kind.nbytes(values))


def _outside(header: GgufHeader) -> Iterator[str]:
    if header.file_size is None:
        return
    for info in header.tensors.values():
        end = header.data_offset + info.offset + (info.nbytes or 0)
        if end > header.file_size:
            yield info.name


def _refuse_short(
    cursor: Cursor, header: GgufHeader, missing: tuple[str, ...], at_of: dict[str, int]
) -> None:
    name = missing[0]
    more = f" and {len(missing) - 1} more tensors" if len(missing) > 1 else ""
    raise GgufError(
        f"extent of tensor {name!r}{more}",
        offset=at_of[name],
        expected=f"a file of at least {header.data_end} bytes",
        found=f"{header.file_size} bytes",
        next_step="the file is cut short or still being fetched; fetch the rest",
        source=cursor.source,
    )
