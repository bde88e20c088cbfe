"""Verify blocks over the queue pair: a window without headers, layer after layer."""

from __future__ import annotations

from ds4proto.link.ds4t_identity import TpSettings
from ds4proto.link.ds4t_rdma_windows import (
    Post,
    check_depth,
    pieces,
    rdma_failed,
    slab_region,
)
from ds4proto.link.ds4t_texts import LocalProtocolError, text_of
from ds4proto.link.rdma_attributes import VERIFY_ID, QpAttributes
from ds4proto.link.schedule import Schedule
from ds4proto.schema.ds4t_gates import VERIFY_BYTE


class VerifyWindow:
    """A verify block over the queue pair, without headers (v9 late, v10 and later).

    Parameters
    ----------
    settings : TpSettings
    attributes : QpAttributes
    rows : int
        1 to 8.

    Attributes
    ----------
    barrier : int
        Byte to exchange after ``open``.
    """

    barrier = VERIFY_BYTE

    def __init__(
        self, settings: TpSettings, attributes: QpAttributes, rows: int
    ) -> None:
        identity = settings.identity
        self._vec = identity.vector_bytes
        self._rows = rows
        self._layers = Schedule.from_hello(identity.words()).ffn_layers
        self._message = attributes.message
        self._out = slab_region(settings, "batch_out")
        self._in = slab_region(settings, "batch_in")
        self._area = self._out.size // identity.n_layer
        if not 0 < rows * self._vec <= self._area:
            raise LocalProtocolError(f"a verify window has 1 to 8 rows, found {rows}")
        self.chunks = len(pieces(0, self._vec, self._message))
        check_depth(2 * rows * self.chunks)
        self.arrived = 0
        self._sends = 0

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers with a batch gate, in order."""
        return self._layers

    def _row(self, base: int, layer: int, row: int) -> tuple[tuple[int, int], ...]:
        return pieces(
            base + layer * self._area + row * self._vec, self._vec, self._message
        )

    def _receives(self, ordinal: int) -> list[Post]:
        if ordinal >= len(self._layers):
            return []
        layer = self._layers[ordinal]
        found = []
        for row in range(self._rows):
            parts = self._row(self._in.offset, layer, row)
            wr_id = VERIFY_ID | (layer * self._rows + row + 1)
            last = len(parts) - 1
            found += [
                Post(wr_id if k == last else 0, at, length)
                for k, (at, length) in enumerate(parts)
            ]
        return found

    def open(self) -> list[Post]:
        """Return the receives of the first layer (after a drain)."""
        return self._receives(0)

    def layer(self, ordinal: int) -> tuple[list[Post], list[Post]]:
        """Return what to post for one layer: the next one's receives, then sends."""
        layer = self._layers[ordinal]
        sends = [
            Post(VERIFY_ID | 1, at, length)
            for row in range(self._rows)
            for at, length in self._row(self._out.offset, layer, row)
        ]
        self._sends += len(sends)
        return self._receives(ordinal + 1), sends

    def receive_completed(self, wr_id: int, now: float) -> None:
        """Note a receive.

        Raises
        ------
        RdmaFailed
            If rows come in another order (DS4T-RDMA-91).
        """
        if wr_id == 0:
            return
        ordinal, row = divmod(self.arrived, self._rows)
        due = None
        if ordinal < len(self._layers):
            due = VERIFY_ID | (self._layers[ordinal] * self._rows + row + 1)
        if wr_id != due:
            words = f"{text_of('DS4T-RDMA-91')}: got {wr_id:#x}, want {due or 0:#x}"
            raise rdma_failed(
                "DS4T-RDMA-91", words, f"row {self.arrived + 1}", hex(wr_id), now
            )
        self.arrived += 1

    def send_completed(self, count: int = 1) -> None:
        """Note completed sends."""
        self._sends -= count

    def layer_done(self, ordinal: int) -> bool:
        """Tell whether all rows up to and with this layer have arrived."""
        return self.arrived >= (ordinal + 1) * self._rows

    @property
    def done(self) -> bool:
        """True when all rows have arrived and all sends completed (DS4T-RDMA-93)."""
        return self.arrived >= len(self._layers) * self._rows and self._sends <= 0
