"""Who is refused at the door, and what the log says about it."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest
from ds4proto_runtime.engines.toy import ToyEngine
from ds4proto_runtime.pipeline.coordinator import PipelineCoordinator

from ds4proto.link.ds4d_facts import ModelFacts, WorkerFacts
from ds4proto.schema import frame, to_bytes
from tests.runtime.cluster import wait_until

TOY = ModelFacts(0, "Toy V4", 8, 64, 256, 256)
FACTS = WorkerFacts(TOY, 2, 7, True)


def answer(coordinator: PipelineCoordinator, data: bytes) -> bytes:
    with closing(socket.create_connection(coordinator.address, 20)) as sock:
        sock.settimeout(20)
        sock.sendall(data)
        found = b""
        while part := sock.recv(4096):
            found += part
        return found


@pytest.mark.parametrize("dialect", ["local-decode"])
def test_a_fork_is_refused_by_name(dialect: str) -> None:
    log: list[str] = []
    values = {**FACTS.hello(5555), "flags": 1}
    hello = to_bytes(frame("DS4D.HELLO", dialect=dialect), values, dialect=dialect)
    with PipelineCoordinator(ToyEngine(range(2)), log=log.append) as coordinator:
        assert answer(coordinator, hello) == b""
        wait_until(lambda: any(dialect in line for line in log), log)
        assert any("bad HELLO from" in line for line in log)
        assert not coordinator.door.workers()


def test_another_model_is_refused_with_an_error_frame() -> None:
    log: list[str] = []
    other = WorkerFacts(ModelFacts(1, "Toy V4", 8, 64, 256, 256), 2, 7, True)
    with PipelineCoordinator(ToyEngine(range(2)), log=log.append) as coordinator:
        told = answer(coordinator, other.hello_frame(5555))
        assert told[12:].decode() == "model id mismatch: worker=1 coordinator=0"
    assert any(line.startswith("rejecting 127.0.0.1:") for line in log)


def test_a_silent_client_does_not_keep_others_out() -> None:
    with PipelineCoordinator(ToyEngine(range(2))) as coordinator:
        with (
            closing(socket.create_connection(coordinator.address, 20)),
            closing(socket.create_connection(coordinator.address, 20)) as sock,
        ):
            sock.sendall(FACTS.hello_frame(5555))
            assert str(coordinator.wait_route(20)).endswith("2:output")
        # an orderly end of an idle worker is noticed without a request
        wait_until(lambda: not coordinator.door.workers(), "the worker is forgotten")


def test_an_equal_slice_replaces_the_older_one() -> None:
    log: list[str] = []
    with (
        PipelineCoordinator(ToyEngine(range(2)), log=log.append) as coordinator,
        closing(socket.create_connection(coordinator.address, 20)) as first,
    ):
        first.settimeout(20)
        first.sendall(FACTS.hello_frame(5555))
        coordinator.wait_route(20)
        with closing(socket.create_connection(coordinator.address, 20)) as second:
            second.sendall(FACTS.hello_frame(6666))
            assert first.recv(1) == b""
            assert str(coordinator.wait_route(20)) == "127.0.0.1:6666 2:output"
    assert any("is replaced" in line for line in log)


def test_only_exposed_listeners_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    from ds4proto_runtime.pipeline import dialling

    log: list[str] = []
    dialling.bound_listener(("127.0.0.1", 0), log.append).close()
    assert log == []
    monkeypatch.setattr(dialling, "listen", lambda *_args, **_words: None)
    dialling.bound_listener(("0.0.0.0", 0), log.append)
    assert len(log) == 1
    assert "no authentication" in log[0]


def test_connect_options_of_the_environment() -> None:
    from ds4proto_runtime.pipeline import dialling
    from ds4proto_runtime.pipeline.settings import SocketSettings

    log: list[str] = []
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        host, port = server.getsockname()
        words = {"recorder": None, "log": log.append, "phase": "dialling"}
        bound = SocketSettings(bind_if="lo")
        with pytest.raises(OSError, match="not supported"):
            dialling.connect(host, port, bound, **words)
        traced = SocketSettings(trace=True, bind_host="127.0.0.1")
        dialling.connect(host, port, traced, **words).close()
    assert len(log) == 1
    assert log[0].startswith(f"connected to {host}:{port} from 127.0.0.1 in ")
