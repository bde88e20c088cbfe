"""Gather fixed structures at arbitrary byte offsets of a block, as numpy columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ds4proto.pcap.types import I64, Buf

_CODES = {"B": "u1", "H": "u2", "h": "i2", "I": "u4", "i": "i4", "Q": "u8", "q": "i8"}


def dtype_of(layout: str, order: str, names: tuple[str, ...]) -> np.dtype[np.void]:
    """Turn a struct format without order character into a packed numpy dtype.

    Parameters
    ----------
    layout : str
        ``struct`` codes, one a field, such as ``"IHH"``.
    order : {"<", ">"}
    names : tuple of str
        One name a field.
    """
    return np.dtype(
        [(name, order + _CODES[code]) for name, code in zip(names, layout, strict=True)]
    )


def gather(data: Buf, offsets: I64, dtype: np.dtype[np.void]) -> npt.NDArray[Any]:
    """Return the structure of type `dtype` that starts at each of `offsets`.

    Every offset must leave ``dtype.itemsize`` bytes in `data`; numpy raises
    IndexError otherwise. One overlapping view of all byte positions makes this a
    single copy of ``len(offsets) * itemsize`` bytes.
    """
    size = dtype.itemsize
    places = len(data) - size + 1
    if places <= 0 or not offsets.size:
        if offsets.size:
            raise IndexError(f"no room for {size} bytes in {len(data)}")
        return np.empty(0, dtype)
    every: npt.NDArray[Any] = np.ndarray((places,), np.dtype(f"V{size}"), data, 0, (1,))
    return every[offsets].view(dtype)
