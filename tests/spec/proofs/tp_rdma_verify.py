"""Verify windows over a queue pair."""

from __future__ import annotations

from typing import Any
from unittest.mock import PropertyMock, patch

from ds4proto_runtime.transport.rdma_gates import RdmaGates

from ds4proto.link import (
    ds4t_rdma_verify,
)
from ds4proto.link.ds4t_rdma_verify import VerifyWindow
from ds4proto.link.rdma_attributes import VERIFY_ID
from tests.link.ds4t import test_rdma_windows as machines
from tests.link.ds4t.pair import settings
from tests.runtime.transport.rig import BULKY
from tests.spec.proofs.tp_rdma_gates import tapped
from tests.spec.removing import without_check
from tests.spec.tp_showing import altered, ranks, shows


def headers_too(own: Any, one: Any, rows: int) -> Any:
    one._sockets._data.send(bytes(16))
    one._sockets._data.recv(16)
    yield from own(one, rows)


@shows(
    (
        "DS4T-RDMA-90",
        "another byte",
        lambda: patch.object(VerifyWindow, "barrier", 0xB6),
    ),
    (
        "DS4T-RDMA-90",
        "the window without a drain",
        altered(RdmaGates, "_drain", lambda _own, _gates: iter(())),
    ),
    (
        "DS4T-RDMA-92",
        "a header for each batch gate",
        altered(RdmaGates, "_verify_layer", headers_too),
    ),
)
def a_verify_window_opens_with_its_byte_and_has_no_headers() -> None:
    with ranks(BULKY, qp_type="RC", gate_seconds=1.0) as rig:
        sent = tapped(rig)
        rig.token_passes(0)
        assert rig.block(2) == [[None, None]] * 8
        assert b"".join(sent) == b"\xd1\xb5"


def no_next_layer(own: Any, window: Any, ordinal: int) -> Any:
    return [], own(window, ordinal)[1]


@shows(
    (
        "DS4T-RDMA-91",
        "receives that come late",
        altered(VerifyWindow, "layer", no_next_layer),
    ),
    (
        "DS4T-RDMA-91",
        "rows in any order",
        lambda: without_check(ds4t_rdma_verify, "DS4T-RDMA-91"),
    ),
)
def receives_of_the_next_layer_come_before_the_rows_of_this_one() -> None:
    machines.test_a_verify_window_runs_one_layer_ahead()


@shows(
    (
        "DS4T-RDMA-93",
        "sends are not waited for",
        lambda: patch.object(
            VerifyWindow,
            "done",
            PropertyMock(side_effect=lambda: True),
        ),
    )
)
def a_verify_window_ends_when_rows_and_sends_are_through() -> None:
    window = VerifyWindow(settings("tp-leader", identity=BULKY), machines.UC, 1)
    window.open()
    for ordinal, layer in enumerate(window.layers):
        window.layer(ordinal)
        assert not window.done
        window.receive_completed(VERIFY_ID | (layer + 1), 0.0)
    assert not window.done
    window.send_completed(len(window.layers))
    assert window.done
