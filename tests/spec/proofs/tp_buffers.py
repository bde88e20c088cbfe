"""A bulk gate that no socket buffer holds."""

from __future__ import annotations

import threading
from time import monotonic
from typing import Any
from unittest.mock import patch

import numpy as np
from ds4proto_runtime.tp.gates import TcpGates

from ds4proto.link.ds4t_gates import GateFailed
from ds4proto.link.ds4t_limits import GateLimits
from tests.runtime.tp.rig import PATIENCE
from tests.runtime.tp.test_gates import LONG, _two
from tests.spec.proofs import tp_buffers as this
from tests.spec.tp_showing import shows, together

BUFFERS, SIZE = 208 << 10, 4 << 20
LIMITS = LONG
SHORT = GateLimits(idle=0.3, total=0.3, bulk_total=0.3)
"""How long two ranks that block each other are watched."""


def writes_first(self: Any) -> None:
    """Finish the own writing before a byte is read, as ranks of v7 and v9w do."""
    while self.link.sending:
        if not self._try_send():
            self._writing.poll(50)
            self.link.timeout(monotonic())


@shows(
    (
        "DS4T-ROBUST-27",
        "a rank that writes before it reads",
        together(
            lambda: patch.object(TcpGates, "_take_turns", writes_first),
            lambda: patch.object(this, "LIMITS", SHORT),
        ),
    )
)
def a_bulk_gate_larger_than_all_buffers_passes() -> None:
    out = [np.full(SIZE // 4, rank, np.float32) for rank in (1, 2)]
    back = [np.zeros(SIZE // 4, np.float32) for _ in (1, 2)]
    failed: list[GateFailed] = []

    with _two(this.LIMITS, buffers=BUFFERS) as (a, b, _):

        def run(gates: TcpGates, rank: int) -> None:
            own, peer = (memoryview(x.data).cast("B") for x in (out[rank], back[rank]))
            try:
                gates.bulk(0, own, peer)
            except GateFailed as error:
                failed.append(error)

        other = threading.Thread(target=run, args=(b, 1), daemon=True)
        other.start()
        run(a, 0)
        other.join(PATIENCE)
        assert not other.is_alive(), "an exchange hangs"
    assert not failed
    assert (back[0] == 2).all()
    assert (back[1] == 1).all()
