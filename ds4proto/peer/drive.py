"""Making a coordinator or leader start a request, as ``--drive`` says."""

from __future__ import annotations

import json
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
_READ: Final = 1 << 20
_STDERR: Final = 2
_PROMPT: Final = {
    "model": "ds4",
    "prompt": "one two three",
    "max_tokens": 4,
    "messages": [{"role": "user", "content": "one two three"}],
}
"""Understood by completion and chat endpoints alike; both ignore the other's field."""


class Driver:
    """Starts requests.

    Parameters
    ----------
    text : str
        ``exec:COMMAND``, ``http:URL`` (a prompt is posted to it) or ``manual``; empty:
        the peer acts by itself.
    who : str
        What the peer is, for a person who is asked to act.
    what : str
        What that person is to do.

    Raises
    ------
    WrongUsage
        For any other text.
    """

    def __init__(
        self, text: str, who: str = "leader", what: str = "start a request"
    ) -> None:
        self._kind, _, self._rest = text.partition(":")
        known = "exec:COMMAND, http:URL, manual"
        if text and self._kind not in _KINDS:
            raise WrongUsage(f"--drive {text!r}: expected one of {known}")
        if self._kind in ("exec", "http") and not self._rest.strip():
            raise WrongUsage(f"--drive {text!r}: nothing behind it; expected {known}")
        self._asks = f"{what} on the {who} now"
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start one request; does not wait for it.

        Raises
        ------
        WrongUsage
            The command cannot be started.
        """
        if self._kind == "exec":
            self._run()
        elif self._kind == "http":
            threading.Thread(target=self._post, daemon=True).start()
        elif self._kind == "manual":
            print(self._asks, file=sys.stderr)

    def close(self) -> None:
        """End the commands that still run."""
        for process in self._processes:
            process.kill()
            process.wait()
        self._processes.clear()

    def _run(self) -> None:
        self._processes = [p for p in self._processes if p.poll() is None]
        try:
            self._processes.append(
                subprocess.Popen(
                    shlex.split(self._rest),
                    stdin=subprocess.DEVNULL,
                    stdout=_STDERR,  # standard output is for the report
                )
            )
        except (OSError, ValueError) as error:
            raise WrongUsage(f"--drive exec:{self._rest}: {error}") from None

    def _post(self) -> None:
        url = self._rest if "://" in self._rest else f"http:{self._rest}"
        request = urllib.request.Request(
            url, json.dumps(_PROMPT).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
                answer.read(_READ)
        except (OSError, ValueError) as error:  # the wire shows whether it mattered
            print(f"--drive {url}: {error}", file=sys.stderr)
