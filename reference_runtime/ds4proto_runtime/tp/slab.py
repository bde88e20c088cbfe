"""The slab of one rank: where partials lie before and after they cross the wire.

Every view that a gate needs is made once, when the pair comes up. The memory belongs
to this object; a transport holds it for as long as it may touch it, so that no gate
ever writes to memory that is gone.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from ds4proto.errors import WrongUsage
from ds4proto.schema.slab import ROWS, VALUE, slab_layout, slab_size
from ds4proto_runtime.engines.base import F32

MAX_BULK_BYTES: Final = 1 << 30
"""Largest bulk payload that this runtime reserves memory for."""


class Slab:
    """Vectors, batch areas and bulk areas of one rank.

    Parameters
    ----------
    n_layer, n_embd : int
        As in the hello.
    memory : ndarray of uint8, optional
        At least ``slab_size`` bytes to use, pinned host memory for instance; it stays
        referenced. The default is fresh, zeroed memory.

    Attributes
    ----------
    memory : ndarray of uint8
        What an RDMA transport registers.
    row_out, row_in : list of memoryview
        One vector a slot, as bytes; slot = 2 * layer + kind.
    out, peer : list of ndarray
        The same memory as float32 ``[1, n_embd]``.
    """

    def __init__(
        self, n_layer: int, n_embd: int, memory: npt.NDArray[np.uint8] | None = None
    ) -> None:
        size = slab_size(n_layer, n_embd)
        if memory is None:
            memory = np.zeros(size, np.uint8)
        if memory.nbytes < size:
            raise WrongUsage(f"the slab needs {size} bytes, found {memory.nbytes}")
        self.memory = memory
        self.n_embd = n_embd
        self._vector = VALUE * n_embd
        view = memoryview(memory.data).cast("B")
        places = {region.name: region for region in slab_layout(n_layer, n_embd)}

        def cut(name: str, item: int) -> list[memoryview]:
            region = places[name]
            count = region.size // item
            start = region.offset
            return [view[start + i * item : start + (i + 1) * item]
                    for i in range(count)]  # fmt: skip

        self.row_out = cut("out", self._vector)
        self.row_in = cut("in", self._vector)
        self.batch_out = cut("batch_out", ROWS * self._vector)
        self.batch_in = cut("batch_in", ROWS * self._vector)
        self.out = [self._floats(v) for v in self.row_out]
        self.peer = [self._floats(v) for v in self.row_in]
        self._batches = {
            (layer, rows): (
                self.batch_out[layer][: rows * self._vector],
                self.batch_in[layer][: rows * self._vector],
            )
            for layer in range(n_layer)
            for rows in range(1, ROWS + 1)
        }
        self._bulk_out = self._bulk_in = np.zeros((0, n_embd), np.float32)

    def _floats(self, view: memoryview) -> F32:
        return np.frombuffer(view, np.float32).reshape(-1, self.n_embd)

    def batch(self, layer: int, rows: int) -> tuple[memoryview, memoryview]:
        """Return the own and the peer's bytes of a block of 1 to 8 rows."""
        return self._batches[layer, rows]

    def batch_rows(self, layer: int, rows: int) -> tuple[F32, F32]:
        """Return the same as float32 ``[rows, n_embd]``."""
        own, peer = self._batches[layer, rows]
        return self._floats(own), self._floats(peer)

    def reserve(self, rows: int) -> None:
        """Make room for bulk payloads of ``rows`` rows; called outside gates.

        Raises
        ------
        WrongUsage
            Above ``MAX_BULK_BYTES``; nothing is reserved then.
        """
        if rows <= len(self._bulk_out):
            return
        if rows * self._vector > MAX_BULK_BYTES:
            raise WrongUsage(
                f"a bulk gate of {rows} rows takes {rows * self._vector} bytes, more "
                f"than {MAX_BULK_BYTES}; set a smaller prefill chunk on both ranks"
            )
        self._bulk_out = np.zeros((rows, self.n_embd), np.float32)
        self._bulk_in = np.zeros((rows, self.n_embd), np.float32)

    def bulk(self, rows: int) -> tuple[F32, F32]:
        """Return the own and the peer's bulk rows, float32 ``[rows, n_embd]``."""
        self.reserve(rows)
        return self._bulk_out[:rows], self._bulk_in[:rows]
