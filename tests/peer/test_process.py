"""Peers as processes: output, readiness, a clean end, no orphans."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ds4proto.peer import SYSTEM_CLOCK, PeerLost, PeerProcess, spawn
from ds4proto.testing import spawn_peer

TOY = [sys.executable, str(Path(__file__).with_name("toy_peer.py"))]
PATIENCE = 120.0


def _soon() -> float:
    return SYSTEM_CLOCK.now() + PATIENCE


def _gone(pid: int) -> bool:
    """Whether a process has ended (a zombie that nobody reaped counts as ended)."""
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return not state or state.startswith("Z")


def _wait_gone(pid: int) -> None:
    limit = _soon()
    while not _gone(pid):
        assert SYSTEM_CLOCK.now() < limit, f"process {pid} is still there"


def test_a_peer_is_ended_with_its_output_kept() -> None:
    with spawn_peer([*TOY, "chatter", "10"]) as peer:
        assert peer.wait_line("^line 000007$", deadline=_soon()) == "line 000007"
        peer.wait_line("done", deadline=_soon())
        assert peer.alive()
        pid = peer.pid
        peer.end(grace=PATIENCE)
    assert not peer.alive()
    assert peer.returncode == -signal.SIGTERM
    assert "line 000009\ndone\n" in peer.output()
    assert _gone(pid)


def test_output_is_bounded_and_says_what_it_dropped() -> None:
    with spawn_peer([*TOY, "chatter", "5000"], output_limit=1000) as peer:
        peer.wait_line("done", deadline=_soon())
    text = peer.output()
    dropped = re.match(r"\[(\d+) bytes dropped\]\n", text)
    assert dropped is not None
    assert int(dropped[1]) == 5000 * 12 + 5 - 1000
    assert text.endswith("line 004999\ndone\n")
    assert len(text) < 1100
    assert peer.tail().count("\n") == 19


def test_a_crash_is_told_with_its_last_words() -> None:
    with spawn_peer([*TOY, "crash"]) as peer:
        with pytest.raises(PeerLost) as caught:
            peer.wait_line("listening", deadline=_soon())
        assert caught.value.kind == "exited"
        assert "cannot load model" in str(caught.value)
        assert peer.wait(deadline=_soon()) == 7
    assert peer.returncode == 7


def test_last_words_are_told_though_their_reader_comes_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A connection may end, and its error be told, before the output was read."""
    asked, drain, more = threading.Event(), PeerProcess._drain, PeerProcess._more

    def late(peer: PeerProcess) -> None:
        assert asked.wait(PATIENCE)
        drain(peer)

    monkeypatch.setattr(PeerProcess, "_drain", late)
    monkeypatch.setattr(PeerProcess, "_more", lambda p: (asked.set(), more(p))[1])
    with spawn_peer([*TOY, "crash"]) as peer:
        assert peer._popen.wait(PATIENCE) == 7
        assert peer.output() == "cannot load model\n"


def test_no_line_in_time() -> None:
    with spawn_peer([*TOY, "stubborn"]) as peer:
        peer.wait_line("ready", deadline=_soon())
        with pytest.raises(PeerLost, match="no progress before the deadline"):
            peer.wait_line("never", deadline=SYSTEM_CLOCK.now())
        with pytest.raises(PeerLost, match="waiting for the process to end"):
            peer.wait(deadline=SYSTEM_CLOCK.now())
        peer.kill()
    assert peer.returncode == -signal.SIGKILL


def test_a_peer_that_ignores_sigterm_is_killed() -> None:
    peer = spawn([*TOY, "stubborn"])
    peer.wait_line("ready", deadline=_soon())
    assert peer.end(grace=0.05) == -signal.SIGKILL
    assert peer.end() == -signal.SIGKILL
    assert _gone(peer.pid)


@pytest.mark.parametrize("action", ["parent", "leaves-child"])
def test_children_of_a_peer_end_with_it(action: str) -> None:
    with spawn_peer([*TOY, action]) as peer:
        line = peer.wait_line(r"child \d+", deadline=_soon())
        child = int(line.split()[1])
        if action == "leaves-child":
            peer.wait(deadline=_soon())
    _wait_gone(child)


def test_a_peer_ends_when_the_tester_is_killed() -> None:
    root = Path(__file__).parents[2]
    with spawn_peer([*TOY, "spawner"], env={"PYTHONPATH": str(root)}) as tester:
        orphan = int(tester.wait_line(r"peer \d+", deadline=_soon()).split()[1])
        assert not _gone(orphan)
        os.kill(tester.pid, signal.SIGKILL)
        tester.wait(deadline=_soon())
        # It ignores SIGTERM and has a session of its own: only the watchdog ends it.
        _wait_gone(orphan)


def test_a_program_that_does_not_exist() -> None:
    with pytest.raises(FileNotFoundError):
        spawn(["/nonexistent/ds4"])
