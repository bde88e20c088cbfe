"""Many frames at once, as columns: where they start, their types, their lengths.

For buffers that hold whole frames; what a framer makes of each frame is not done
here. Runs of equal headers are taken by numpy in one step, the rest one by one.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from ds4proto.schema.fast import dtype_of, struct_of
from ds4proto.schema.registry import header_of

if TYPE_CHECKING:
    from struct import Struct

    import numpy as np
    from numpy.typing import NDArray

    from ds4proto.schema.problem import Buf

_RUN_FROM = 8
"""Equal neighbours from which the whole run is worth a numpy step."""


class Columns(NamedTuple):
    """Frames of one buffer.

    Attributes
    ----------
    offsets : int64 (n,)
        Offset of each header in the buffer.
    codes : uint32 (n,)
        Type numbers.
    lengths : int64 (n,)
        Bytes of each frame, header included.
    end : int
        Offset behind the last whole frame: where the walk stopped, at the end of the
        buffer, in front of a frame that is cut, or at a wrong magic.
    """

    offsets: NDArray[np.int64]
    codes: NDArray[np.uint32]
    lengths: NDArray[np.int64]
    end: int


@cache
def _header(protocol: str) -> tuple[Struct, int]:
    layout = header_of(protocol)
    magic = next(field.const for field in layout.fields if field.path == "magic")
    return struct_of(layout, "*"), magic or 0


def walk(buffer: Buf, protocol: str) -> Columns:
    """Return where the frames of a buffer lie.

    Parameters
    ----------
    buffer : bytes-like
        Starts at a header.
    protocol : {"DS4D", "DS4T"}

    Notes
    -----
    Only headers are read; nothing is allocated from a length. Homogeneous frames
    pass at tens of millions a second, mixed ones at a few millions.
    """
    import numpy as np

    view = memoryview(buffer).cast("B")
    form, magic_due = _header(protocol)
    unpack, head, total = form.unpack_from, form.size, len(view)
    offsets: list[int] = []
    codes: list[int] = []
    lengths: list[int] = []
    columns: list[tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.int64]]] = []

    def flush() -> None:
        if offsets:
            columns.append(
                (
                    np.array(offsets, dtype=np.int64),
                    np.array(codes, dtype=np.uint32),
                    np.array(lengths, dtype=np.int64),
                )
            )
            offsets.clear()
            codes.clear()
            lengths.clear()

    at, same, previous = 0, 0, (0, 0)
    while total - at >= head:
        magic, code, size = unpack(view, at)
        length = head + size
        if magic != magic_due or length > total - at:
            break
        same = same + 1 if (code, length) == previous else 0
        previous = (code, length)
        if same >= _RUN_FROM:
            count = _run(view, at, length, head)
            if count > 1:
                flush()
                found = at + length * np.arange(count, dtype=np.int64)
                columns.append(
                    (
                        found,
                        np.full(count, code, dtype=np.uint32),
                        np.full(count, length, dtype=np.int64),
                    )
                )
                at += count * length
                same = 0
                continue
        offsets.append(at)
        codes.append(code)
        lengths.append(length)
        at += length
    flush()
    if not columns:
        empty = np.empty(0, dtype=np.int64)
        return Columns(empty, empty.astype(np.uint32), empty, at)
    return Columns(
        np.concatenate([c[0] for c in columns]),
        np.concatenate([c[1] for c in columns]),
        np.concatenate([c[2] for c in columns]),
        at,
    )


def _run(view: memoryview, at: int, length: int, head: int) -> int:
    """Return how many frames from ``at`` on have the header of the first one."""
    import numpy as np

    count = (len(view) - at) // length
    data = np.frombuffer(view, dtype=np.uint8, offset=at, count=count * length)
    headers = data.reshape(count, length)[:, :head]
    step, done = 64, 0
    while done < count:
        block = headers[done : done + step]
        differs = (block != headers[0]).any(axis=1)
        if differs.any():
            return done + int(differs.argmax())
        done += len(block)
        step = min(step * 4, 1 << 16)
    return count


def fixed_columns(
    buffer: Buf, columns: Columns, code: int, protocol: str, dialect: str
) -> NDArray[np.void]:
    """Return the fixed parts of all frames of one type as a structured array.

    Parameters
    ----------
    buffer : bytes-like
        The buffer that was walked.
    columns : Columns
        What ``walk`` found in it.
    code : int
        Type number.
    protocol : {"DS4D", "DS4T"}
    dialect : str

    Returns
    -------
    structured array (n,)
        One row a frame, with the wire names of the fixed fields.

    Raises
    ------
    KeyError
        If the dialect has no frame of that type.
    """
    import numpy as np

    from ds4proto.schema.registry import frame_of_code

    spec = frame_of_code(protocol, code, dialect=dialect)
    if spec is None:
        raise KeyError(f"dialect {dialect} has no {protocol} frame of type {code}")
    dtype = dtype_of(spec.body, dialect.rstrip("?"))
    head, _ = _header(protocol)
    chosen = (columns.codes == code) & (columns.lengths >= head.size + dtype.itemsize)
    starts = columns.offsets[chosen] + head.size
    data = np.frombuffer(memoryview(buffer).cast("B"), dtype=np.uint8)
    lengths = columns.lengths[chosen]
    if len(starts) > 1 and (np.diff(starts) == lengths[0]).all():
        # evenly spaced: rows of one strided view, copied once
        rows = np.lib.stride_tricks.as_strided(
            data[starts[0] :],
            (len(starts), dtype.itemsize),
            (int(lengths[0]), 1),
            writeable=False,
        )
    else:
        rows = data[starts[:, None] + np.arange(dtype.itemsize)]
    packed: NDArray[np.void] = np.ascontiguousarray(rows).view(dtype).reshape(-1)
    return packed
