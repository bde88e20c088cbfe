"""How long a proxy's connections count, and how its pumps end."""

from __future__ import annotations

import io
import threading
from queue import SimpleQueue
from typing import Any

import pytest

from ds4proto.peer import SYSTEM_CLOCK, SocketChannel, dial, listen
from ds4proto.peer.proxy import Proxy
from ds4proto.peer.proxy_pump import Pump
from ds4proto.peer.proxy_record import BackgroundRecorder

STEP = 120.0


def soon() -> float:
    return SYSTEM_CLOCK.now() + STEP


def test_a_connection_counts_while_its_target_is_dialled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dialling, go_on = threading.Event(), threading.Event()

    def late(*args: Any, **options: Any) -> SocketChannel:
        dialling.set()
        go_on.wait(STEP)
        return dial(*args, **options)

    monkeypatch.setattr("ds4proto.peer.proxy.dial", late)
    with listen() as goal, Proxy(listen(), goal.address) as proxy:
        client = dial(*proxy.address, deadline=soon())
        try:
            assert dialling.wait(STEP)
            # else --once would end the proxy before the connection is through
            assert (proxy.connections, proxy.open) == (1, 1)
        finally:
            go_on.set()
        server = goal.accept(deadline=soon())
        client.close()
        server.close()


def test_a_recording_pump_without_a_free_buffer_ends_with_its_proxy() -> None:
    stop = threading.Event()
    stop.set()
    pump = object.__new__(Pump)
    pump._pool, pump._stop = SimpleQueue(), stop
    assert pump._free_buffer() is None


class Stuck(io.BytesIO):
    """A stream that takes nothing more once it is told, until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.stuck, self.go_on = threading.Event(), threading.Event()

    def write(self, data: Any, /) -> int:
        if self.stuck.is_set():
            self.go_on.wait(STEP)
        return super().write(data)


def test_a_record_that_nothing_takes_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ds4proto.peer.proxy_record._CLOSE_S", 0.05)
    target, lost = Stuck(), list[str]()
    recorder = BackgroundRecorder(target, lost.append)
    target.stuck.set()
    track = recorder.connection(("127.0.0.1", 1), ("127.0.0.1", 2))
    track.bytes(True, b"x")
    recorder.close()
    assert lost == ["the last packets could not be written in 0.05 s"]
    assert recorder.failed
    target.go_on.set()
    recorder._thread.join(STEP)
    assert not recorder._thread.is_alive()
