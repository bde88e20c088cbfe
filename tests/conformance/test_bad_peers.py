"""Peers that are silent, slow, gone, random or something else altogether."""

import contextlib
import random
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ds4proto_conformance.facts import candidates
from ds4proto_conformance.front import run
from ds4proto_conformance.mutants import find
from ds4proto_conformance.peers.codec import session_over
from ds4proto_conformance.peers.faults import patched
from ds4proto_conformance.peers.loop import loop_opener
from ds4proto_conformance.peers.net import PairNet, threaded
from ds4proto_conformance.registry import Case, all_cases
from ds4proto_conformance.runner import Runner
from ds4proto_conformance.settings import Settings
from ds4proto_conformance.verdicts import Verdict

from ds4proto.errors import ExitCode, WrongUsage
from ds4proto.link import ds4d_work_checks
from ds4proto.peer import PeerLost

CASES = {
    "worker": "worker/work/unknown-flag",
    "coordinator": "coordinator/work/first",
    "tp-worker": "tp-worker/hello/own-words",
    "tp-leader": "tp-leader/hello/own-words",
    "codec": "codec/f32/unchanged",
}
FRAME = {
    "worker": b"DS4D" + bytes([0, 0, 0, 1]),
    "coordinator": b"DS4D" + bytes([0, 0, 0, 3]),
    "tp-worker": bytes.fromhex("5434534463000000"),
    "tp-leader": bytes.fromhex("5434534463000000"),
    "codec": b"",
}
"""First eight bytes of a frame; a length follows."""
Script = Callable[[str, socket.socket, threading.Event], None]


def silent(_role: str, _sock: socket.socket, stop: threading.Event) -> None:
    stop.wait()


def slow(role: str, sock: socket.socket, stop: threading.Event) -> None:
    """Drip a frame that would take minutes."""
    for byte in FRAME[role] + bytes([0, 0, 4, 0]) + bytes(1024):
        sock.sendall(bytes([byte]))
        if stop.wait(0.2):
            return


def crashing(_role: str, _sock: socket.socket, _stop: threading.Event) -> None:
    pass


def saying(data: bytes) -> Script:
    def script(_role: str, sock: socket.socket, stop: threading.Event) -> None:
        sock.sendall(data)
        stop.wait()

    return script


def endless(role: str, sock: socket.socket, stop: threading.Event) -> None:
    sock.sendall(FRAME[role] + bytes([255] * 4))
    stop.wait()


def half(role: str, sock: socket.socket, _stop: threading.Event) -> None:
    sock.sendall(FRAME[role] + bytes([0, 0, 0, 60]) + bytes(20))


PEERS: dict[str, Script] = {
    "silent": silent,
    "slow": slow,
    "crashing": crashing,
    "http": saying(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"),
    "another protocol": saying(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 30),
    "random": saying(random.Random(5).randbytes(4000)),
    "endless frame": endless,
    "half a frame": half,
}


def opener(role: str, script: Script) -> Any:
    """Return an opener of peers that do nothing but a script, per connection."""

    @contextlib.contextmanager
    def opened(_settings: Settings) -> Iterator[Any]:
        stop = threading.Event()

        def act(sock: socket.socket) -> None:
            with sock, contextlib.suppress(OSError):
                script(role, sock, stop)

        if role == "codec":
            with session_over(act, stop.set) as session:
                yield session
            return
        net = PairNet()
        helpers: list[threading.Thread] = []

        def serve() -> None:
            if role in ("worker", "tp-worker"):
                act(net.dial("", 0))
                return
            while not stop.wait(0.01):
                while (sock := net.accept()) is not None:
                    helpers.append(threading.Thread(target=act, args=(sock,)))
                    helpers[-1].start()

        listens = role in ("worker", "tp-worker")
        with threaded(net, serve, stop.set, tester_listens=listens) as session:
            yield session
        for helper in helpers:
            helper.join()

    return opened


def case_of(role: str) -> Case:
    return next(case for case in all_cases(role) if case.id == CASES[role])


@pytest.mark.parametrize("role", CASES)
@pytest.mark.parametrize("name", PEERS)
def test_each_gets_a_clear_verdict(name: str, role: str) -> None:
    settings = Settings(
        "loop:bad",
        role,  # type: ignore[arg-type]  # a key of CASES is a role
        patience=0.2,
        quiet=0.05,
        connect=0.4,
        ctx=256,
    )
    runner = Runner(settings, opener(role, PEERS[name]))
    outcome, lost = None, None
    try:
        outcome = runner.run(case_of(role))
    except PeerLost as error:
        lost = error
    finally:
        runner.close()
    if lost is not None:
        assert lost.exit_code == ExitCode.PEER_LOST
        for word in ("while", "Next: "):
            assert word in str(lost)
        return
    assert outcome is not None
    assert outcome.verdict is Verdict.FAIL, outcome.notes
    first = outcome.deviations[0]
    assert first["clause"].partition("-")[0] in ("DS4D", "DS4T", "DS4B", "CODEC")
    assert first["expected"]
    assert first["found"]


def test_a_slow_peer_passes_where_time_is_scaled() -> None:
    """One that takes a tenth of a second for each frame is not wrong, only slow."""
    fault = replace(find("worker", "none-last"), delay=0.1)
    verdicts = {}
    for scale in (1.0, 1000.0):
        settings = Settings(
            "loop:slow", "worker", patience=0.02, connect=0.02, time_scale=scale
        )
        runner = Runner(settings, loop_opener(fault))
        try:
            verdicts[scale] = runner.run(case_of("worker")).verdict
        except PeerLost as error:
            verdicts[scale] = error.kind
        finally:
            runner.close()
    # one of its frames may come in time where we are held up ourselves
    assert verdicts[1.0] in ("timeout", Verdict.FAIL)
    assert verdicts[1000.0] is Verdict.PASS


def test_a_worker_that_refuses_everything_is_no_lost_peer() -> None:
    """One that hashes tokens in its own way hears which clause its refusal is of."""
    fault = replace(
        find("worker", "none-last"),
        patch=lambda: patched((ds4d_work_checks, "token_hash", lambda *_: 1)),
    )
    runner = Runner(Settings("loop:hash", "worker"), loop_opener(fault))
    try:
        with pytest.raises(WrongUsage, match=r"WORK-15.*Next: .*CODEC-HASH-01"):
            runner.run(case_of("worker"))
    finally:
        runner.close()


def test_logits_are_held_to_the_vocabulary_that_was_given() -> None:
    settings = Settings("loop:vocab", "worker", vocab=31)
    runner = Runner(settings, loop_opener(find("worker", "none-last")))
    logits = next(c for c in all_cases("worker") if c.id == "worker/result/logits")
    try:
        outcome = runner.run(logits)
    finally:
        runner.close()
    assert outcome.verdict is Verdict.FAIL
    first = outcome.deviations[0]
    assert (first["clause"], first["expected"]) == (
        "DS4D-RESULT-26",
        "payload bytes 124",
    )


@pytest.mark.parametrize(
    ("script", "text", "connect"),
    [
        ("sys.exit('out of luck')", "out of luck", 60.0),  # its end is seen at once
        ("signal.pause()", "HELLO", 4.0),  # awaited twice in vain
    ],
)
def test_a_process_that_never_speaks_is_lost(
    script: str, text: str, connect: float, tmp_path: Path
) -> None:
    path = tmp_path / "peer.py"
    path.write_text(
        "import _socket, signal, sys\n"
        "s = _socket.socket()\n"
        "s.connect((sys.argv[1], int(sys.argv[2])))\n"
        f"{script}\n"
    )
    settings = Settings(
        f"exec:{sys.executable} -I -S {path} {{host}} {{port}}",
        "worker",
        patience=0.3,
        connect=connect,
    )
    report, status = run(settings, only=["worker/work/unknown-flag"])
    assert status is ExitCode.PEER_LOST
    assert text in report.footer["stopped"]


def test_nobody_there_is_a_lost_peer() -> None:
    settings = Settings("tcp:127.0.0.1:1", "coordinator", patience=0.2, connect=0.5)
    _, status = run(settings, "smoke")
    assert status is ExitCode.PEER_LOST


def test_a_model_that_cannot_be_opened_is_wrong_usage() -> None:
    with pytest.raises(WrongUsage, match=r"--model x+: .*File name too long"):
        candidates(0, "stub", "x" * 300)
