"""Codecs that turn each f32 value into one code of its own: no scale, no header."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ds4proto.codec import arrays, kernels
from ds4proto.codec.base import (
    CodecError,
    Path,
    check_count,
    check_wire_bytes,
)
from ds4proto.codec.definition import U32
from ds4proto.codec.parallel import CHUNK, run_slices

Codes = NDArray[Any]

STREAM_FROM: Final = 1 << 23
"""Decoded bytes from which on they bypass the cache: they would not stay there."""


@dataclass(frozen=True)
class Steps:
    """One way to compute a codec, from patterns to codes and back, into buffers.

    Attributes
    ----------
    encode
        ``encode(bits, codes)``: ``uint32`` patterns to codes.
    decode
        ``decode(codes, bits)``.
    stream
        ``stream(bits, out)``: copy patterns past the cache, or None. It does so only
        where ``out`` starts at a multiple of 64 bytes.
    """

    encode: Callable[[U32, Codes], None]
    decode: Callable[[Codes, U32], None]
    stream: Callable[[U32, U32], None] | None = None


def numpy_steps(
    encode: Callable[[U32], Codes], decode: Callable[[Codes], U32]
) -> Steps:
    """Wrap a definition as steps that stay in the cache."""

    def encode_into(bits: U32, codes: Codes) -> None:
        for start in range(0, bits.size, CHUNK):
            part = slice(start, start + CHUNK)
            codes[part] = encode(bits[part])

    def decode_into(codes: Codes, bits: U32) -> None:
        for start in range(0, bits.size, CHUNK):
            part = slice(start, start + CHUNK)
            bits[part] = decode(codes[part])

    return Steps(encode_into, decode_into)


class ElementwiseCodec:
    """A codec of ``code_type`` codes, one a value.

    Parameters
    ----------
    name
        As in the registry.
    code_type
        ``uint8``, ``uint16`` or ``uint32``, in host order as ds4 sends them.
    definition
        The numpy steps.
    kernel
        Loads the compiled steps, or None where the definition is as fast.
    description
        What ``describe()`` returns.
    threads, path
        As for `ds4proto.codec.get`.
    """

    def __init__(
        self,
        name: str,
        code_type: type[np.unsignedinteger[Any]],
        definition: Steps,
        kernel: Callable[[], Steps] | None,
        description: Mapping[str, str],
        *,
        threads: int = 1,
        path: Path = "auto",
    ) -> None:
        self.name = name
        self._code_type = np.dtype(code_type)
        self._definition = definition
        self._kernel = kernel
        self._description = description
        self._threads = threads
        self._path = path
        self._steps: Steps | None = None
        if path == "numba":
            self._load()

    @property
    def path(self) -> str:
        """The steps in use: ``numpy`` or ``numba``."""
        return "numpy" if self._load() is self._definition else "numba"

    def wire_bytes(self, values: int, rows: int = 1) -> int:
        """Return ``values`` times the width of a code; rows add nothing."""
        check_count(self.name, values, rows)
        return check_wire_bytes(self.name, values * self._code_type.itemsize)

    def encode(self, x: Any, out: Any = None, *, rows: int = 1) -> Any:
        """Encode float32 values; see `ds4proto.codec.base.Codec.encode`."""
        if arrays.is_torch(x):
            from ds4proto.codec import torch_path

            return torch_path.encode(self, x, out, rows=rows)
        bits = arrays.f32_bits(self.name, x)
        size = self.wire_bytes(bits.size, rows)
        wire = arrays.wire_out(self.name, out, size, bits)
        codes = wire.view(self._code_type)
        # Encoding is bound by what it reads, and its result leaves at once: no stream.
        self._run_slices(self._load().encode, None, bits, codes)
        return wire

    def decode(self, wire: Any, out: Any = None, *, values: int, rows: int = 1) -> Any:
        """Decode to float32 values; see `ds4proto.codec.base.Codec.decode`."""
        if arrays.is_torch(wire):
            from ds4proto.codec import torch_path

            return torch_path.decode(self, wire, out, values=values, rows=rows)
        size = self.wire_bytes(values, rows)
        data = arrays.wire_in(self.name, wire, size)
        result = arrays.values_out(self.name, out, values, data)
        codes, bits = data.view(self._code_type), result.view(np.uint32)
        steps = self._load()
        stream = steps.stream if result.nbytes >= STREAM_FROM else None
        self._run_slices(steps.decode, stream, codes, bits)
        return result

    def describe(self) -> Mapping[str, str]:
        """Return the choices of the format in words."""
        return dict(self._description)

    def _run_slices(
        self,
        step: Callable[[Any, Any], None],
        stream: Callable[[U32, U32], None] | None,
        source: Codes,
        target: Codes,
    ) -> None:
        def run(start: int, stop: int) -> None:
            _run(step, stream, source[start:stop], target[start:stop])

        run_slices(run, target.size, self._threads)

    def _load(self) -> Steps:
        if self._steps is None:
            self._steps = self._choose()
        return self._steps

    def _choose(self) -> Steps:
        if self._path == "numpy" or (self._path == "auto" and self._kernel is None):
            return self._definition
        if self._kernel is None:
            raise CodecError(
                self.name,
                "no numba path",
                expected="auto or numpy",
                found="numba",
                next_step="this codec copies bytes; numpy is already fastest",
            )
        if kernels.available(self.name):
            return self._kernel()
        if self._path == "auto":
            return self._definition
        raise CodecError(
            self.name,
            "numba path",
            expected="an installed numba that can compile it here",
            found=kernels.reason(self.name),
            next_step="pip install 'ds4proto[fast]', or leave path out",
        )


def _run(
    step: Callable[[Any, Any], None],
    stream: Callable[[U32, U32], None] | None,
    source: Codes,
    target: Codes,
) -> None:
    """Run a step at once or, with ``stream``, in blocks that bypass the cache."""
    item, address = target.itemsize, target.ctypes.data
    if stream is None or address % item:
        step(source, target)
        return
    lead = min(-address % 64 // item, target.size)
    end = target.size - (target.size - lead) % (64 // item)
    step(source[:lead], target[:lead])
    scratch = np.empty(CHUNK, dtype=target.dtype)
    for start in range(lead, end, CHUNK):
        stop = min(start + CHUNK, end)
        block = scratch[: stop - start]
        step(source[start:stop], block)
        stream(block.view(np.uint32), target[start:stop].view(np.uint32))
    step(source[end:], target[end:])
