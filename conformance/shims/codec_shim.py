"""Example of a codec command in Python, for ``--peer 'codec:python codec_shim.py'``.

Messages: a big-endian u32 length, then that many bytes. Request: u8 operation
(0 describe, 1 encode, 2 decode), 15 bytes name padded with NUL, u32 count, u32 rows,
data. Answer: u8 status (0 done, 1 not supported, 2 refused), data or a text.
"""

import os
import struct
import sys

import numpy as np

from ds4proto.codec import get

MAX_REQUEST = 64 << 20


def read(size: int) -> bytes:
    """Return exactly so many bytes of stdin, fewer at its end."""
    data = b""
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            break
        data += piece
    return data


def answer(request: bytes) -> tuple[int, bytes]:
    """Return status and data for one request."""
    operation, name, count, rows = struct.unpack_from(">B15sII", request)
    data = request[24:]
    if operation == 0:
        return 0, b"ds4proto, plain numpy"
    try:
        codec = get(name.rstrip(b"\0").decode(), path="numpy")
    except ValueError as error:
        return 1, str(error).encode()
    try:
        if operation == 1:
            values = np.frombuffer(data, "<f4", count)
            return 0, bytes(codec.encode(values.astype(np.float32), rows=rows))
        found = codec.decode(np.frombuffer(data, np.uint8), values=count, rows=rows)
        return 0, np.asarray(found, "<f4").tobytes()
    except ValueError as error:
        return 2, str(error).encode()


def main() -> int:
    """Answer until stdin ends."""
    while len(head := read(4)) == 4:
        size = int.from_bytes(head, "big")
        if not 24 <= size <= MAX_REQUEST:
            return 2
        status, data = answer(read(size))
        sys.stdout.buffer.write(struct.pack(">IB", len(data) + 1, status) + data)
        sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
