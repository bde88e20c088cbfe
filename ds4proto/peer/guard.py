"""No orphans: a watchdog ends the peers that we started if we die without doing so.

The watchdog is a small process that reads process group numbers from a pipe. The write
end lives in this process only, so however this process ends (also by SIGKILL), the
kernel closes it, and the watchdog ends whatever is still registered. A pipe works on
macOS and Linux alike; the parent-death signal of Linux follows the *thread* that
started the child, which would end peers when a worker thread of the tester returns.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
from typing import Final

_SCRIPT: Final = """
import os, signal, time
for s in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
    signal.signal(s, signal.SIG_IGN)
groups, rest = set(), b""
while True:
    data = os.read(0, 4096)
    if not data:
        break
    *lines, rest = (rest + data).split(b"\\n")
    for line in lines:
        (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
def end(sig):
    for group in list(groups):
        try:
            os.killpg(group, sig)
        except OSError:
            groups.discard(group)
end(signal.SIGTERM)
if groups:
    time.sleep(0.5)
end(signal.SIGKILL)
"""

_lock: Final = threading.Lock()
_watchdog: subprocess.Popen[bytes] | None = None
_owner = 0


def guard(group: int) -> None:
    """Have process group `group` ended if this process dies."""
    _tell(f"+{group}\n")


def unguard(group: int) -> None:
    """Forget a group that has ended."""
    _tell(f"-{group}\n")


def watchdog_pid() -> int | None:
    """Return the watchdog's process id, None before the first peer."""
    return None if _watchdog is None or _owner != os.getpid() else _watchdog.pid


def _tell(line: str) -> None:
    with _lock:
        watchdog = _running()
        assert watchdog.stdin is not None
        try:
            os.write(watchdog.stdin.fileno(), line.encode())
        except OSError:
            # Somebody ended the watchdog. The peers are still ended in order by us.
            return


def _running() -> subprocess.Popen[bytes]:
    global _watchdog, _owner  # noqa: PLW0603 -- one per process, by design
    if _watchdog is None or _owner != os.getpid():
        _watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )
        _owner = os.getpid()
        atexit.register(_stop, _owner)
    return _watchdog


def _stop(owner: int) -> None:
    global _watchdog  # noqa: PLW0603
    if _watchdog is None or owner != os.getpid() or _watchdog.stdin is None:
        return
    _watchdog.stdin.close()
    try:
        _watchdog.wait(timeout=5)
    except subprocess.TimeoutExpired:
        _watchdog.kill()
        _watchdog.wait()
    _watchdog = None
