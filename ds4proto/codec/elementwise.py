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

BLOCK: Final = 512
"""Values that one step past the cache handles: 2 KiB of f32."""

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
    decode_past_cache
        ``decode_past_cache(codes, bits, block)``: the same for a large result, or
        None. ``bits`` should start at a multiple of 64 bytes; there are a multiple
        of `BLOCK` values, and ``block`` is scratch for that many.
    """

    encode: Callable[[U32, Codes], None]
    decode: Callable[[Codes, U32], None]
    decode_past_cache: Callable[[Codes, U32, U32], None] | None = None


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
        steps = self._load()

        def step(start: int, stop: int) -> None:
            steps.encode(bits[start:stop], codes[start:stop])

        run_slices(step, bits.size, self._threads)
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
        decode = _decode if result.nbytes >= STREAM_FROM else _decode_plain

        def step(start: int, stop: int) -> None:
            decode(steps, codes[start:stop], bits[start:stop])

        run_slices(step, values, self._threads)
        return result

    def describe(self) -> Mapping[str, str]:
        """Return the choices of the format in words."""
        return dict(self._description)

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


def _decode_plain(steps: Steps, codes: Codes, bits: U32) -> None:
    steps.decode(codes, bits)


def _decode(steps: Steps, codes: Codes, bits: U32) -> None:
    """Decode past the cache, and what does not fill its lines the plain way."""
    large = steps.decode_past_cache
    if large is None or bits.ctypes.data % 4:
        steps.decode(codes, bits)
        return
    lead = min(-bits.ctypes.data % 64 // 4, bits.size)
    end = bits.size - (bits.size - lead) % BLOCK
    steps.decode(codes[:lead], bits[:lead])
    large(codes[lead:end], bits[lead:end], np.empty(BLOCK, dtype=np.uint32))
    steps.decode(codes[end:], bits[end:])
