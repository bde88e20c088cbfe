"""Copy patterns past the cache, for results too large to stay in it."""

from __future__ import annotations

from typing import Any

import numpy as np

from ds4proto.codec.kernels.compiler import kernel, stream_fence, stream_line


def _copy(source: Any, target: Any) -> None:
    # Lines of 64 bytes, 16 values each; the caller passes a line-aligned target.
    start, end = source.ctypes.data, target.ctypes.data
    for line in range(target.shape[0] // 16):
        stream_line(np.uintp(start + line * 64), np.uintp(end + line * 64))
    stream_fence()


copy = kernel(_copy, "in:u32", "out:u32")
