"""Results past the cache, for payloads too large to stay in it.

A decoder fills a block of `BLOCK` patterns in the first-level cache and hands it to
`send_block`. That saves reading the lines of the result before they are overwritten.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ds4proto.codec.elementwise import BLOCK
from ds4proto.codec.kernels.compiler import inlined, stream_line


def _send_block(block: Any, target: Any, start: Any) -> None:
    # Lines of 64 bytes, 16 values each. Such a store must be aligned, or the processor
    # stops the program; so a target that is not gets plain stores.
    source = block.ctypes.data
    address = target.ctypes.data + start * 4
    if address % 64:
        for i in range(BLOCK):
            target[start + i] = block[i]
    else:
        for line in range(BLOCK // 16):
            stream_line(np.uintp(source + line * 64), np.uintp(address + line * 64))


send_block: Callable[[Any, Any, Any], None] = inlined(_send_block)
