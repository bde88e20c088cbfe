"""The recorded requests of real peers, sent to our worker over real sockets."""

from __future__ import annotations

import socket
from contextlib import closing
from typing import Any

import pytest
from ds4proto_runtime.engines.toy import ToyEngine
from ds4proto_runtime.pipeline.coordinator import PipelineCoordinator

from ds4proto.peer import spawn
from tests.link.ds4d.test_probes import DIFFERENCES, check, probes
from tests.runtime.cluster import ENV, PATIENCE, wait_until, worker_argv


def ask(address: tuple[str, int], probe: dict[str, Any]) -> tuple[bytes, bool]:
    """Send a probe; return what came, and whether the worker closed by itself."""
    wanted = DIFFERENCES.get(probe["name"], ("", probe["expect"], probe["end"]))
    with closing(socket.create_connection(address, PATIENCE)) as sock:
        sock.settimeout(PATIENCE)
        try:
            sock.sendall(bytes.fromhex(probe["send"]))
            if wanted[2] == "open":
                # A worker answers what it has read before it follows our end.
                sock.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            pass
        found = b""
        while part := sock.recv(65536):
            found += part
    return found, wanted[2] == "closed"


@pytest.mark.parametrize(
    ("name", "layers", "count"),
    [("worker_work", "5:output", 72), ("worker_snapshot", "5:7", 31)],
)
def test_our_worker_answers_as_recorded(name: str, layers: str, count: int) -> None:
    cases = probes(name)
    assert len(cases) == count
    with PipelineCoordinator(ToyEngine(range(5))) as coordinator:
        process = spawn(worker_argv(coordinator.address, layers), env=ENV)
        try:
            wait_until(coordinator.door.workers, "the worker registers")
            (entry,) = coordinator.door.workers()
            for probe in cases:
                wrote, closed = ask((entry.host, entry.port), probe)
                try:
                    check(probe, wrote, closed)
                except AssertionError as error:
                    raise AssertionError(f"{probe['name']}: {error}") from error
        finally:
            process.end()


def test_last_words_arrive_although_more_was_sent() -> None:
    """The ERROR is read whole, whatever follows the frame that caused it."""
    # so much fits into the buffers of both ends: a slow sender does not matter
    unknown = bytes.fromhex("445334440000006300000000") + b"x" * (1 << 17)
    with PipelineCoordinator(ToyEngine(range(5))) as coordinator:
        process = spawn(worker_argv(coordinator.address, "5:output"), env=ENV)
        try:
            wait_until(coordinator.door.workers, "the worker registers")
            (entry,) = coordinator.door.workers()
            for _ in range(5):
                probe = {"name": "junk behind", "expect": [], "end": "closed"}
                told, _ = ask(
                    (entry.host, entry.port), {**probe, "send": unknown.hex()}
                )
                assert told[12:] == b"unsupported distributed worker frame"
        finally:
            process.end()
