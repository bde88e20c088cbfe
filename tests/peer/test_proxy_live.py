"""The proxy between reference peers: same results, every hop in the record."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ds4proto.pcap import CaptureReader
from ds4proto.peer import SYSTEM_CLOCK, dial, listen, spawn
from ds4proto.peer.connect import free_ports
from ds4proto.peer.proxy import Proxy
from ds4proto.peer.proxy_faults import parse_rule
from ds4proto.testing import spawn_peer
from ds4proto.trace.decoder import CaptureDecoder
from ds4proto.trace.tcp import read_streams
from ds4proto.trace.tcp_events import Data
from tests.runtime.cluster import ENV, LONG, PATIENCE, alone, cluster, same_bits
from tests.runtime.cluster import worker_argv as argv


def deadline() -> float:
    return SYSTEM_CLOCK.now() + 4 * PATIENCE


def test_a_pipeline_of_three_through_the_proxy_gives_the_same_bits(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run.pcapng"
    with cluster("0:1") as found:
        target = found.coordinator.address
        with Proxy(listen(), target, record=path) as proxy:
            for layers in ("2:4", "5:output"):
                words = argv(proxy.address, layers, "--patience", str(PATIENCE))
                found.workers[layers] = spawn(words, env=ENV)
            found.route()
            outcome = found.coordinator.session(1).sync(LONG)
            assert same_bits(outcome.logits, alone(LONG))
            found.end()
    rows = list(CaptureDecoder(path))
    assert not [row for row in rows if row.problems]
    roles = {(row.src_role, row.dst_role) for row in rows if row.type == "WORK"}
    assert ("coordinator", "worker 2:4") in roles
    assert ("worker 2:4", "worker 5:output") in roles
    assert len({row.run for row in rows}) == 1


def test_a_pair_through_the_proxy_answers_and_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "pair.pcapng"
    base = [sys.executable, "-m", "ds4proto", "run", "--tensor-parallel",
            "--engine", "toy", "--transport", "tcp"]  # fmt: skip
    (port,) = free_ports(1)
    leading = [*base, "--role", "coordinator", "--listen", "127.0.0.1", str(port),
               "--script", "create;sync:1:1-10;eval:1:5,6;destroy:1",
               "--json"]  # fmt: skip
    following = [*base, "--role", "worker", "--coordinator"]
    with (
        spawn_peer(leading) as leader,
        Proxy(listen(), ("127.0.0.1", port), record=path) as proxy,
    ):
        leader.wait_line("waiting for worker on", deadline=deadline())
        with spawn_peer([*following, *map(str, proxy.address)]) as worker:
            assert leader.wait(deadline=deadline()) == 0, leader.output()
            worker.wait(deadline=deadline())
    rows = list(CaptureDecoder(path))
    names = {row.name for row in rows}
    assert {"DS4T.HELLO", "DS4T.SYNC", "DS4T.EVAL", "DS4T.GATE_ROW"} <= names
    assert not [row for row in rows if row.problems]


def test_a_worker_that_is_cut_off_is_seen_as_such(tmp_path: Path) -> None:
    path = tmp_path / "cut.pcapng"
    rule = parse_rule("corrupt=HELLO.n_layers,value=61")
    with cluster("0:1") as found:
        target = found.coordinator.address
        with Proxy(listen(), target, record=path, rules=[rule]) as proxy:
            words = argv(proxy.address, "2:output", "--patience", str(PATIENCE))
            found.workers["2:output"] = worker = spawn(words, env=ENV)
            worker.wait_line("layer count mismatch", deadline=deadline())
            found.end()
    rows = list(CaptureDecoder(path))
    refusals = [row.fields["text"] for row in rows if row.type == "ERROR"]
    assert "layer count mismatch: worker=61 coordinator=8" in refusals
    assert "HELLO 1: n_layers 8 became 61" in proxy.faults[0]


@contextmanager
def proxied(path: Path) -> Iterator[tuple[subprocess.Popen[str], Any, Any]]:
    """Start the command between two channels of ours."""
    with listen() as goal:
        host, port = goal.address
        process = subprocess.Popen(
            [sys.executable, "-m", "ds4proto", "proxy", "--to", f"{host}:{port}",
             "--record", str(path), "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            address = line.split("listening on ")[1].split(",")[0]
            ours = dial(
                "127.0.0.1", int(address.rpartition(":")[2]), deadline=deadline()
            )
            theirs = goal.accept(deadline=deadline())
            ours.send([b"hello"], deadline=deadline())
            theirs.recv_exact(bytearray(5), deadline=deadline())
            yield process, ours, theirs
            ours.close()
            theirs.close()
        finally:
            process.kill()
            process.communicate()


def test_the_command_records_until_it_is_told_to_end(tmp_path: Path) -> None:
    path = tmp_path / "run.pcapng"
    with proxied(path) as (process, _, _):
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=4 * PATIENCE)
        assert process.returncode == 0
        report = json.loads(out)
    assert report["connections"] == 1
    assert report["record_complete"] is True
    assert b"hello" in path.read_bytes()


def test_a_killed_proxy_leaves_a_readable_record(tmp_path: Path) -> None:
    path = tmp_path / "run.pcapng"
    with proxied(path) as (process, ours, theirs):
        end = deadline()
        while path.stat().st_size < 1_000_000:
            ours.send([bytes(10_000)], deadline=end)
            theirs.recv_exact(bytearray(10_000), deadline=end)
        process.kill()
        process.wait(PATIENCE)
    found = b"".join(bytes(e.data) for e in read_streams(path) if isinstance(e, Data))
    # the writer may have been behind, and the kill may have cut the last block
    assert found == b"hello" + bytes(len(found) - 5)
    assert len(found) > 900_000
    with CaptureReader(path) as reader:
        list(reader)
        assert reader.info.marked_complete is False
