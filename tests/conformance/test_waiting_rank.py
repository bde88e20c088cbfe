"""What is said of a rank that is silent from the start."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from ds4proto_conformance.bench.tp import TpBench
from ds4proto_conformance.runner import bench_of
from ds4proto_conformance.settings import Settings

from ds4proto.peer import PeerLost
from ds4proto.peer.channel import SocketChannel


class OneConnection:
    """The connections of a peer that has dialled, and waits."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def channel(self, _name: str, **_rest: Any) -> SocketChannel:
        return SocketChannel(self._sock)

    def output(self) -> str:
        return ""


def lost(role: Any, *, closes: bool) -> PeerLost:
    """Meet a peer that never writes."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        if closes:
            theirs.close()
        wait = 20.0 if closes else 0.05  # an end is seen at once, silence never ends
        settings = Settings("tcp:127.0.0.1:1", role, connect=wait)
        connections: Any = OneConnection(ours)
        bench = bench_of(role)(connections, settings)
        assert isinstance(bench, TpBench)
        with pytest.raises(PeerLost) as caught:
            bench.learn()
        return caught.value


@pytest.mark.parametrize(
    ("role", "other"), [("tp-worker", "tp-leader"), ("tp-leader", "tp-worker")]
)
def test_a_rank_that_waits_for_our_hello_is_told_who_writes_first(
    role: str, other: str
) -> None:
    found = lost(role, closes=False)
    assert found.kind == "timeout"
    assert f"waiting for the hello of the {other}" in str(found)
    assert "(DS4T-HELLO-15); let the peer write its hello as soon as" in str(found)


def test_a_rank_that_closes_is_not_said_to_wait() -> None:
    found = lost("tp-worker", closes=True)
    assert found.kind == "closed"
    assert "waiting for the hello of the" not in str(found)
