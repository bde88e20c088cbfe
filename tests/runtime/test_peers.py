"""The reference peers, found by name and started as ``reference:ROLE`` does."""

from __future__ import annotations

import time

import pytest
from ds4proto_runtime import peers

from ds4proto.link.ds4d_facts import ModelFacts, WorkerFacts
from ds4proto.peer import PeerSpecError, open_peer
from ds4proto.schema import frame_of_code, header_of, read_body
from tests.runtime.cluster import ENV, PATIENCE, Scripted, spawn, worker_argv

TOY = ModelFacts(0, "Toy V4", 8, 64, 256, 256)


def deadline() -> float:
    return time.monotonic() + PATIENCE


def frame(channel):  # type: ignore[no-untyped-def]
    head = bytearray(12)
    channel.recv_exact(head, deadline=deadline())
    body = bytearray(int.from_bytes(head[8:], "big"))
    channel.recv_exact(body, deadline=deadline())
    spec = frame_of_code("DS4D", int.from_bytes(head[4:8], "big"), dialect="upstream")
    assert spec is not None
    assert header_of("DS4D") is not None
    reading = read_body(spec, memoryview(body), dialect="upstream")
    assert not reading.problems
    return spec.name, reading.values


def test_the_worker_registers() -> None:
    with open_peer("reference:worker", "worker", deadline=deadline()) as session:
        name, values = frame(session.channel("control", deadline=deadline()))
    assert name == "HELLO"
    assert (values["model_name"], values["layer_start"], values["layer_end"]) == (
        "Toy V4",
        5,
        7,
    )
    assert (values["has_output"], values["ctx_size"]) == (1, 256)


def test_the_coordinator_takes_a_worker_and_sends_work() -> None:
    facts = WorkerFacts(TOY, 2, 7, True)
    with open_peer("reference:coordinator", "coordinator", deadline=deadline()) as peer:
        channel = peer.channel("control", deadline=deadline())
        channel.send([facts.hello_frame(5555)], deadline=deadline())
        name, values = frame(channel)
    assert name == "WORK"
    assert values["tokens"] == (5, 6, 7, 8, 9)
    assert (values["layer_start"], values["layer_end"], values["flags"]) == (2, 7, 7)


def test_there_are_no_mutants_here() -> None:
    with pytest.raises(ValueError, match="no mutants"):
        peers.worker("deaf")
    with (
        pytest.raises(PeerSpecError, match="no mutant"),
        open_peer("reference:worker:no-such-fault", "worker", deadline=deadline()),
    ):
        pass


def test_a_coordinator_as_a_process_carries_out_commands(tmp_path) -> None:  # type: ignore[no-untyped-def]
    coordinator = Scripted("--seed", "1")
    worker = spawn(worker_argv(coordinator.address, "2:output"), env=ENV)
    try:
        assert coordinator.ask("route 60").startswith("ok 127.0.0.1:")
        answer = coordinator.ask("sync 5 6 7 8 9")
        assert answer.startswith("ok len=5 sent=5 crc=")
        assert coordinator.ask("eval 42").startswith("ok len=6 sent=1")
        path = tmp_path / "s.dsv4"
        assert coordinator.ask(f"save {path}").startswith("ok bytes=")
        before = coordinator.ask("eval 43").split()[3]
        assert coordinator.ask(f"load {path}") == "ok len=6"
        assert coordinator.ask("eval 43").split()[3] == before
        assert coordinator.ask("load /nowhere").startswith("error ")
        assert coordinator.ask("dance 3").startswith("error not a command")
        worker.kill()
        assert coordinator.ask("eval 44").startswith(
            "error distributed route incomplete"
        )
    finally:
        coordinator.close()
        worker.end()
