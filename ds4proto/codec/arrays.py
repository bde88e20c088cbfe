"""Checks of what callers pass in, and views of it that cost no copy."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ds4proto.codec.base import CodecError
from ds4proto.codec.definition import U8, U32


def is_torch(value: Any) -> bool:
    """Tell whether ``value`` is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, "Tensor", ()))


def f32_bits(codec: str, x: Any) -> U32:
    """Return the bit patterns of a float32 array as a flat view.

    Raises
    ------
    CodecError
        Not a numpy array, not float32 in host order, or not C-contiguous.
    """
    array = _array(codec, "input", x, np.dtype(np.float32))
    return array.reshape(-1).view(np.uint32)


def wire_in(codec: str, wire: Any, size: int) -> U8:
    """Return ``wire`` as a flat ``uint8`` view of exactly ``size`` bytes."""
    if isinstance(wire, np.ndarray):
        flat = _array(codec, "wire", wire, np.dtype(np.uint8)).reshape(-1)
    else:
        flat = _buffer(codec, "wire", wire)
    if flat.size != size:
        raise CodecError(
            codec,
            "wire size",
            expected=f"{size} bytes",
            found=f"{flat.size} bytes",
            next_step="check the width and the number of values the frame declares",
        )
    return flat


def wire_out(codec: str, out: Any, size: int, source: U32) -> U8:
    """Return the front ``size`` bytes of ``out``, or a new array."""
    if out is None:
        return np.empty(size, dtype=np.uint8)
    if isinstance(out, np.ndarray):
        flat = _array(codec, "out", out, np.dtype(np.uint8)).reshape(-1)
    else:
        flat = _buffer(codec, "out", out)
    _check_target(codec, flat, size, "bytes", source)
    return flat[:size]


def values_out(codec: str, out: Any, values: int, source: U8) -> NDArray[np.float32]:
    """Return the front ``values`` values of ``out``, or a new array."""
    if out is None:
        return np.empty(values, dtype=np.float32)
    flat = _array(codec, "out", out, np.dtype(np.float32)).reshape(-1)
    _check_target(codec, flat, values, "values", source)
    front: NDArray[np.float32] = flat[:values]
    return front


def _array(codec: str, what: str, x: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    if not isinstance(x, np.ndarray):
        raise CodecError(
            codec,
            f"{what} type",
            expected=f"a numpy {dtype} array or a torch tensor",
            found=type(x).__name__,
            next_step="numpy.asarray(...) makes one",
        )
    if x.dtype != dtype:
        raise CodecError(
            codec,
            f"{what} dtype",
            expected=str(dtype),
            found=str(x.dtype),
            next_step=f"convert it with .astype({dtype}) if you mean its values",
        )
    if not x.flags.c_contiguous:
        raise CodecError(
            codec,
            f"{what} layout",
            expected="a C-contiguous array",
            found=f"shape {x.shape} with strides {x.strides}",
            next_step="pass numpy.ascontiguousarray(...), or a contiguous slice",
        )
    return x


def _buffer(codec: str, what: str, data: Any) -> U8:
    try:
        return np.frombuffer(data, dtype=np.uint8)
    except (TypeError, ValueError, BufferError, AttributeError) as error:
        raise CodecError(
            codec,
            f"{what} type",
            expected="a contiguous bytes-like object or a uint8 array",
            found=f"{type(data).__name__} ({error})",
            next_step="pass bytes, bytearray, memoryview, a numpy or torch uint8 array",
        ) from None


def _check_target(
    codec: str, out: NDArray[Any], size: int, unit: str, source: NDArray[Any]
) -> None:
    if out.size < size:
        raise CodecError(
            codec,
            "out size",
            expected=f"{size} {unit} or more",
            found=f"{out.size} {unit}",
            next_step="wire_bytes() tells the bytes that a payload needs",
        )
    if not out.flags.writeable:
        raise CodecError(
            codec,
            "out access",
            expected="a writable array",
            found="a read-only one",
            next_step="pass a bytearray or an array of your own, not bytes",
        )
    if np.may_share_memory(out, source):
        raise CodecError(
            codec,
            "out place",
            expected="memory apart from the input",
            found="an array that overlaps it",
            next_step="encode and decode do not work in place: pass another buffer",
        )
