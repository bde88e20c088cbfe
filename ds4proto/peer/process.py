"""Peers as processes: started in a group of their own, output kept, ended cleanly."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Final

from ds4proto.peer.api import Clock
from ds4proto.peer.clock import SYSTEM_CLOCK
from ds4proto.peer.errors import PeerLost
from ds4proto.peer.guard import guard, unguard

OUTPUT_LIMIT: Final = 256 << 10
"""Bytes of a peer's output that are kept; the oldest go first."""
TAIL_LINES: Final = 20
_LOOK_S: Final = 0.05
_LOOKS: Final = 100
"""Looks at what a process has written before its reader counts as behind for good."""
GRACE: Final = 3.0
"""Seconds between SIGTERM and SIGKILL."""


class PeerProcess:
    """A running peer and the last of what it printed.

    Made by `spawn`; `end` is idempotent and leaves no process of the group behind.
    """

    def __init__(
        self,
        popen: subprocess.Popen[bytes],
        output_fd: int,
        *,
        limit: int,
        clock: Clock,
    ) -> None:
        self._popen = popen
        self._clock = clock
        self._changed = threading.Condition()
        self._kept = bytearray()
        self._limit = limit
        self._dropped = 0
        self._eof = False
        self._swept = False
        self._fd = output_fd
        self._wake, self._wake_end = os.pipe()
        self._reader = threading.Thread(
            target=self._drain, name=f"output of {popen.pid}", daemon=True
        )
        self._reader.start()
        guard(popen.pid)

    @property
    def pid(self) -> int:
        """Process id, which is also the number of its group."""
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """Exit status, minus a signal's number, None while it runs."""
        return None if self.alive() else self._popen.returncode

    def alive(self) -> bool:
        """Whether the process runs. One that has ended takes its group with it."""
        if self._popen.poll() is None:
            return True
        if not self._swept:
            # At once, while the group's number cannot have been given away.
            self._swept = True
            self._signal(signal.SIGKILL)
            unguard(self.pid)
        return False

    def output(self) -> str:
        """Return the kept output up to now, both streams in order of arrival."""
        with self._changed:
            for _ in range(_LOOKS):
                if self._eof or not self._more():
                    break
                self._changed.wait(_LOOK_S)  # the reader has not been here yet
            text = self._kept.decode("utf-8", "replace")
            dropped = self._dropped
        return f"[{dropped} bytes dropped]\n{text}" if dropped else text

    def tail(self) -> str:
        """Return the last lines of the output, for error texts."""
        return "\n".join(self.output().splitlines()[-TAIL_LINES:])

    def wait_line(self, pattern: str, *, deadline: float) -> str:
        """Wait until a line of output matches, e.g. a line that says "listening".

        Raises
        ------
        PeerLost
            ``exited`` if the output ends first, ``timeout`` at the deadline.
        """
        wanted = re.compile(pattern.encode())
        start = self._clock.now()
        with self._changed:
            while True:
                for line in bytes(self._kept).split(b"\n")[: None if self._eof else -1]:
                    if wanted.search(line):
                        return line.decode("utf-8", "replace")
                left = deadline - self._clock.now()
                if self._eof or left <= 0:
                    break
                self._changed.wait(min(left, threading.TIMEOUT_MAX))
        raise PeerLost(
            "exited" if self._eof else "timeout",
            phase=f"started, waiting for a line that matches {pattern!r}",
            address=f"process {self.pid}",
            waited=self._clock.now() - start,
            output=self.tail(),
        )

    def wait(self, *, deadline: float) -> int:
        """Wait for the process to end by itself and return its status."""
        start = self._clock.now()
        try:
            code = self._popen.wait(max(0.0, deadline - start))
        except subprocess.TimeoutExpired:
            raise PeerLost(
                "timeout",
                phase="waiting for the process to end",
                address=f"process {self.pid}",
                waited=self._clock.now() - start,
                output=self.tail(),
            ) from None
        self.alive()
        self._finish_output()
        return code

    def end(self, *, grace: float = GRACE) -> int:
        """End the whole group: SIGTERM, `grace` seconds, SIGKILL. Return the status."""
        if self.alive():
            self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(grace)
        if self.alive():
            self._signal(signal.SIGKILL)
            self._popen.wait()
            self.alive()
        self._finish_output()
        return self._popen.returncode

    def kill(self) -> None:
        """SIGKILL the group at once, as a crash would."""
        if self.alive():
            self._signal(signal.SIGKILL)
            self._popen.wait()
            self.alive()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
            return
        self._popen.send_signal(number)  # does nothing for one that was reaped

    def _finish_output(self) -> None:
        """Let the reader take what is left, and stop it."""
        if self._wake_end < 0:
            return
        os.close(self._wake_end)
        self._wake_end = -1
        self._reader.join()
        os.close(self._fd)
        os.close(self._wake)

    def _drain(self) -> None:
        poller = select.poll()
        poller.register(self._fd, select.POLLIN | select.POLLHUP)
        poller.register(self._wake, select.POLLIN | select.POLLHUP)
        stopping = False
        while True:
            ready = [fd for fd, _ in poller.poll(0 if stopping else None)]
            stopping = stopping or self._wake in ready
            if self._fd not in ready:
                if stopping:
                    break  # a stray child may hold the pipe open for ever
                continue
            with self._changed:
                data = os.read(self._fd, 65536)
                if not data:
                    break
                self._keep(data)
        with self._changed:
            self._eof = True
            self._changed.notify_all()

    def _more(self) -> bool:
        """Tell whether the process has written what was not read yet."""
        poller = select.poll()
        poller.register(self._fd, select.POLLIN | select.POLLHUP)
        return bool(poller.poll(0))

    def _keep(self, data: bytes) -> None:
        with self._changed:
            self._kept += data
            over = len(self._kept) - self._limit
            if over > 0:
                del self._kept[:over]
                self._dropped += over
            self._changed.notify_all()


def spawn(
    argv: Sequence[str],
    *,
    clock: Clock = SYSTEM_CLOCK,
    stdio: socket.socket | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    output_limit: int = OUTPUT_LIMIT,
) -> PeerProcess:
    """Start a peer without a shell, in a session and process group of its own.

    Parameters
    ----------
    argv
        Program and arguments.
    stdio
        A socket that becomes the process's stdin and stdout; stderr alone is then kept.
        Default: no input, and both output streams are kept.
    env
        Added to the environment.
    output_limit
        Bytes of output to keep.

    Raises
    ------
    OSError
        The program cannot be started.
    """
    read_end, write_end = os.pipe()
    try:
        popen = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL if stdio is None else stdio.fileno(),
            stdout=write_end if stdio is None else stdio.fileno(),
            stderr=write_end,
            env={**os.environ, **env} if env else None,
            cwd=cwd,
            start_new_session=True,
            bufsize=0,
        )
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    return PeerProcess(popen, read_end, limit=output_limit, clock=clock)
