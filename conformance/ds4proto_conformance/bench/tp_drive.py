"""Making a leader start a request, as ``--drive`` says."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
import threading
import urllib.request
from typing import Final

from ds4proto.errors import WrongUsage

__all__ = ["Driver"]

_KINDS: Final = ("exec", "http", "manual")
_SECONDS: Final = 60.0


class Driver:
    """Starts one request.

    Parameters
    ----------
    text : str
        ``exec:COMMAND``, ``http:URL`` (posted to) or ``manual``; empty: the leader
        acts by itself.

    Raises
    ------
    WrongUsage
        For any other text.
    """

    def __init__(self, text: str) -> None:
        self._kind, _, self._rest = text.partition(":")
        if text and self._kind not in _KINDS:
            known = "exec:COMMAND, http:URL, manual"
            raise WrongUsage(f"--drive {text!r}: expected one of {known}")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the request; does not wait for it."""
        if self._kind == "exec":
            self._process = subprocess.Popen(shlex.split(self._rest))
        elif self._kind == "http":
            threading.Thread(target=self._post, daemon=True).start()
        elif self._kind == "manual":
            print("start a request on the leader now", file=sys.stderr)

    def close(self) -> None:
        """End a command that still runs."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def _post(self) -> None:
        url = self._rest if "://" in self._rest else f"http:{self._rest}"
        request = urllib.request.Request(url, data=b"", method="POST")
        with contextlib.suppress(OSError):  # the leader's end shows on the wire
            urllib.request.urlopen(request, timeout=_SECONDS).close()
