"""Workers that are killed, stopped, restarted or lie, at each state of a request."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from ds4proto_runtime.pipeline import transfer
from ds4proto_runtime.pipeline.session import PipelineError, RouteIncomplete

from ds4proto.link.ds4d_frames import result_frame
from ds4proto.link.ds4d_registry import WorkerEntry
from ds4proto.link.ds4d_texts import text
from ds4proto.link.ds4d_work_link import WorkLink
from ds4proto.trace.decoder import decode
from tests.runtime.cluster import (
    LONG,
    PATIENCE,
    SPLITS,
    alone,
    cluster,
    open_sockets,
    same_bits,
    wait_until,
)

START = [5, 6, 7, 8, 9]


def test_a_missing_worker_is_named_by_its_first_layer() -> None:
    with cluster("0:1") as found:
        found.start("5:output")
        found.wait_registered("5:output", 1)
        with pytest.raises(RouteIncomplete, match="missing layer 2"):
            found.coordinator.wait_route(0.3)
        with pytest.raises(RouteIncomplete, match="missing layer 2"):
            found.coordinator.session(1).sync(START)


@pytest.mark.parametrize("layers", ["2:4", "5:output"])
def test_a_killed_worker_fails_the_request_and_a_new_one_replays(layers: str) -> None:
    with cluster(*SPLITS[3]) as found:
        session = found.coordinator.session(1)
        session.sync(START)
        found.workers[layers].kill()
        with pytest.raises(PipelineError):
            session.eval(42)
        found.restart(layers)
        found.wait_registered(layers, 2)
        found.wait_registered("2:4", 2)
        found.route()
        outcome = session.eval(42)
        assert outcome.n_tokens == len(START) + 1
        assert same_bits(outcome.logits, alone([*START, 42]))
        assert same_bits(session.eval(43).logits, alone([*START, 42, 43]))


@pytest.mark.parametrize("noticed", [False, True])
def test_a_route_that_comes_back_in_time_hides_a_restart(noticed: bool) -> None:
    """The loss may be noticed in the request, or between two of them."""
    with cluster(*SPLITS[2], rejoin_s=PATIENCE) as found:
        session = found.coordinator.session(1)
        session.sync(START)
        found.workers["4:output"].kill()
        if noticed:
            wait_until(lambda: any("has gone" in line for line in found.log), found.log)
        found.restart("4:output")
        outcome = session.eval(42)
        assert same_bits(outcome.logits, alone([*START, 42]))
        assert outcome.n_tokens == len(START) + 1


def test_a_long_continuation_recovers_on_the_same_connection(tmp_path: Path) -> None:
    record = tmp_path / "run.pcapng"
    longer = [*LONG, *range(100, 160)]
    with cluster(*SPLITS[2], record=record) as found:
        session = found.coordinator.session(1)
        session.sync(LONG)
        found.restart("4:output")
        found.wait_registered("4:output", 2)
        found.route()
        outcome = session.sync(longer)
        assert outcome.replayed
        assert same_bits(outcome.logits, alone(longer))
        assert found.registrations("4:output") == 2
        assert same_bits(session.eval(1).logits, alone([*longer, 1]))
    works = [row for row in decode(str(record)) if row.type == "WORK"]
    second = [row for row in works if row.stream == works[-1].stream]
    replays = [row.fields for row in second if row.fields["flags"] & 4]
    assert len(replays) == 1
    assert replays[0]["pos0"] == 0
    tokens = [t for row in second if row.fields["request"] >= replays[0]["request"]
              for t in row.fields["tokens"]]  # fmt: skip
    assert tokens == [*longer, 1]


def test_a_refused_step_replays_its_token_once(tmp_path: Path) -> None:
    record = tmp_path / "run.pcapng"
    with cluster(*SPLITS[2], record=record) as found:
        session = found.coordinator.session(1)
        session.sync([1, 2, 3, 4, 5, 6, 7])
        found.restart("4:output")
        found.wait_registered("4:output", 2)
        found.route()
        outcome = session.eval(9)
        assert outcome.replayed
        assert same_bits(outcome.logits, alone([1, 2, 3, 4, 5, 6, 7, 9]))
    works = [row.fields for row in decode(str(record)) if row.type == "WORK"]
    assert [work["tokens"] for work in works][-2:] == [(9,), (1, 2, 3, 4, 5, 6, 7, 9)]


def stop(pid: int) -> None:
    """Stop a child, and wait until it stands still: it may be in mid-answer."""
    os.kill(pid, signal.SIGSTOP)
    assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])


@pytest.mark.parametrize("layers", ["2:4", "5:output"])
@pytest.mark.parametrize("tokens", [START, LONG])
def test_a_stopped_worker_is_given_up(layers: str, tokens: list[int]) -> None:
    with cluster(*SPLITS[3]) as found:
        session = found.coordinator.session(1)
        session.sync(START)
        stopped = found.workers[layers].pid
        stop(stopped)
        try:
            with found.impatient(), pytest.raises(PipelineError):
                session.sync([*START, *tokens])
        finally:
            os.kill(stopped, signal.SIGCONT)
        found.wait_registered("2:4", 2)
        found.route()
        outcome = session.sync([*START, *tokens])
        assert same_bits(outcome.logits, alone([*START, *tokens]))


# a worker that lies: the coordinator's reading is bent, frame by frame


def bent(change: Callable[[bytes], bytes | None]) -> Callable[[Any, int, float], None]:
    """Return a ``received`` that changes the first answer that arrives."""
    real, done = WorkLink.received, threading.Event()

    def received(self: WorkLink, nbytes: int, now: float) -> None:
        if done.is_set() or not nbytes:
            real(self, nbytes, now)
            return
        done.set()
        data = change(bytes(self.get_buffer()[:nbytes]))
        self.receive_data(data, now)

    return received


DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "magic": lambda data: b"XXXX" + data[4:],
    "type": lambda data: data[:7] + b"\x05" + data[8:],
    "request": lambda data: data[:19] + b"\x63" + data[20:],
    "hash": lambda data: data[:27] + bytes([data[27] ^ 1]) + data[28:],
    "kind": lambda data: data[:35] + b"\x09" + data[36:],
    "end": lambda _data: None,
}


@pytest.mark.parametrize("damage", sorted(DAMAGE))
def test_a_damaged_answer_is_never_taken_for_success(
    damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster(*SPLITS[2]) as found:
        session = found.coordinator.session(1)
        session.sync(START)
        monkeypatch.setattr(WorkLink, "received", bent(DAMAGE[damage]))
        lost = pytest.raises(PipelineError, match=text("DS4D-ROUTE-36", 4))
        with found.door_shut(), lost:
            session.eval(42)
        found.wait_registered("4:output", 2)
        found.route()
        assert same_bits(session.eval(42).logits, alone([*START, 42]))


def test_an_error_answer_is_replayed_on_the_same_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(data: bytes) -> bytes:
        request = int.from_bytes(data[12:20], "big")
        refusal = result_frame(request, status=1, payload=b"made up")
        return b"".join(refusal)

    with cluster(*SPLITS[2]) as found:
        session = found.coordinator.session(1)
        session.sync(START)
        monkeypatch.setattr(WorkLink, "received", bent(refuse))
        outcome = session.eval(42)
        assert outcome.replayed
        assert same_bits(outcome.logits, alone([*START, 42]))
        assert found.registrations("4:output") == 1


def test_foreign_clients_do_not_disturb_a_worker() -> None:
    with cluster(*SPLITS[2]) as found:
        session = found.coordinator.session(1)
        session.sync(START)
        entry = found.coordinator.door.workers()[0]
        for data in (
            b"GET / HTTP/1.1\r\n\r\n",
            b"DS4D",
            b"DS4D\0\0\0\3\xff\xff\xff\xff",
        ):
            with socket.create_connection((entry.host, entry.port), 10) as sock:
                sock.sendall(data)
        with socket.create_connection(found.coordinator.address, 10) as sock:
            sock.sendall(b"\xa5" * 64)
        assert same_bits(session.eval(42).logits, alone([*START, 42]))


def test_nothing_is_left_behind() -> None:
    before, threads = open_sockets(), set(threading.enumerate())
    with cluster(*SPLITS[3]) as found:
        session = found.coordinator.session(1)
        session.sync(LONG)
        processes = list(found.workers.values())
    assert all(not process.alive() for process in processes)
    # a thread that has been told to end may still be about to
    wait_until(lambda: not set(threading.enumerate()) - threads, "threads are left")
    wait_until(lambda: not open_sockets() - before, "sockets are left")


@pytest.mark.parametrize("layers", ["2:4", "5:output"])
def test_a_worker_lost_before_a_save_fails_it_alone(
    layers: str, tmp_path: Path
) -> None:
    path = tmp_path / "session.dsv4"
    with cluster(*SPLITS[3]) as found:
        session = found.coordinator.session(1)
        session.sync(START)
        stop(found.workers[layers].pid)
        try:
            with found.impatient(), pytest.raises(PipelineError):
                session.save(path)
        finally:
            os.kill(found.workers[layers].pid, signal.SIGCONT)
        assert not path.exists()
        # a failed save disturbs neither the route nor the session
        assert same_bits(session.eval(42).logits, alone([*START, 42]))
        assert session.save(path) > 0


def test_a_load_that_fails_half_way_puts_the_old_transcript_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "session.dsv4"
    with cluster(*SPLITS[3]) as found:
        session = found.coordinator.session(1)
        push = transfer.push

        def soon(owner: Any, entry: WorkerEntry, *words: Any) -> None:
            """Be patient with the first worker, which takes its part."""
            with found.impatient() if entry.layer_start == 5 else nullcontext():
                push(owner, entry, *words)

        session.sync([50, 51, 52])
        session.save(path)
        session.sync(START)
        stop(found.workers["5:output"].pid)
        try:
            monkeypatch.setattr(transfer, "push", soon)
            with pytest.raises(PipelineError):
                session.load(path)
        finally:
            monkeypatch.undo()
            os.kill(found.workers["5:output"].pid, signal.SIGCONT)
        outcome = session.eval(42)
        # known to be needed, so sent with a reset at once
        assert (outcome.n_tokens, outcome.replayed) == (len(START) + 1, False)
        assert same_bits(outcome.logits, alone([*START, 42]))
