"""Copy patterns past the cache, for results too large to stay in it."""

from __future__ import annotations

from typing import Any

import numpy as np

from ds4proto.codec.kernels.compiler import kernel, stream_fence, stream_line


def _copy(source: Any, target: Any) -> None:
    # Lines of 64 bytes, 16 values each. A store past the cache must be aligned, or
    # the processor stops the program; so the few other values go the plain way.
    begin, end = source.ctypes.data, target.ctypes.data
    lines = 0 if end % 64 else target.shape[0] // 16
    for line in range(lines):
        stream_line(np.uintp(begin + line * 64), np.uintp(end + line * 64))
    for i in range(lines * 16, target.shape[0]):
        target[i] = source[i]
    stream_fence()


copy = kernel(_copy, "in:u32", "out:u32")
