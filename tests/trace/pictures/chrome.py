"""A headless Chromium, driven over two pipes; the standard library is enough."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
MAC = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
PATIENCE = 120.0
LOUD = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded",
        "Page.javascriptDialogOpening")  # fmt: skip
START = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); "
    "os.execv(sys.argv[3], sys.argv[3:])"
)
KEYS = {"Enter": "\r", "Tab": "\t"}


def browser() -> str | None:
    """Return the path of a Chromium, None where there is none."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    return found or (MAC if Path(MAC).exists() else None)


class Chrome:
    """One page in a browser of its own.

    Attributes
    ----------
    events : list of dict
        What the browser said unasked.
    """

    def __init__(self, path: str, *, width: int = 1300, height: int = 1700) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ds4proto-chrome-")
        # above 9, so that what becomes 3 and 4 overwrites none of them
        theirs_in, self._out = (_high(fd) for fd in os.pipe())
        self._in, theirs_out = (_high(fd) for fd in os.pipe())
        command = [
            path, "--headless", "--no-sandbox", "--disable-gpu",
            "--disable-dev-shm-usage", "--no-first-run", "--disable-sync",
            "--disable-background-networking", "--remote-debugging-pipe",
            f"--user-data-dir={self._folder.name}", "about:blank",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, str(theirs_in), str(theirs_out), *command],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._held = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []
        self._session = ""
        try:
            self._attach(width, height)
        except BaseException:
            self.close()
            raise

    def _attach(self, width: int, height: int) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height,
            deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the browser."""
        try:
            self._process.terminate()
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(30)
        finally:
            os.close(self._in)
            os.close(self._out)
            self._folder.cleanup()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command; return its answer."""
        self._number += 1
        message: dict[str, Any] = {
            "id": self._number, "method": method, "params": params,
        }  # fmt: skip
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self.events.append(answer)

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._held:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self._in], [], [], max(left, 0))
            assert ready, "the browser does not answer"
            part = os.read(self._in, 1 << 16)
            assert part, "the browser has ended"
            self._held += part
        first, self._held = self._held.split(b"\0", 1)
        return dict(json.loads(first))

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page; promises are awaited."""
        answer = self.call(
            "Runtime.evaluate",
            expression=expression,
            awaitPromise=True,
            returnByValue=True,
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> Any:
        """Return the value of an expression once it is true."""
        return self.evaluate(
            f"new Promise((done) => {{ const look = () => {{ const v = ({expression});"
            " if (v) done(v); else setTimeout(look, 10); }; look(); })"
        )

    def open(self, page: Path, *, theme: str) -> float:
        """Load a page; return the milliseconds until its pictures were drawn."""
        self.events.clear()
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": theme}],
        )
        self.call("Page.navigate", url=page.resolve().as_uri())
        ready = self.wait_for(
            "document.documentElement && document.documentElement.dataset.ready"
        )
        return float(ready)

    def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        for key in keys:
            text = key if len(key) == 1 else KEYS.get(key, "")
            codes = {"Enter": 13, "Tab": 9, "Escape": 27}
            more: dict[str, Any] = {"text": text} if text and key != "Tab" else {}
            code = codes.get(key, 0)
            for kind in ("keyDown", "keyUp"):
                self.call(
                    "Input.dispatchKeyEvent", type=kind, key=key,
                    windowsVirtualKeyCode=code, **(more if kind == "keyDown" else {}),
                )  # fmt: skip

    def mouse(self, x: float, y: float, *, click: bool = False) -> None:
        """Move the pointer; press and release the button."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        if click:
            for kind in ("mousePressed", "mouseReleased"):
                self.call(
                    "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left",
                    clickCount=1,
                )  # fmt: skip

    def box(self, name: str) -> dict[str, float]:
        """Return where an element lies, scrolled into view."""
        found = self.evaluate(
            f"(() => {{ const e = document.getElementById('{name}');"
            " e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
            " return {x: b.x, y: b.y, width: b.width, height: b.height}; })()"
        )
        return dict(found)

    def loud(self) -> list[dict[str, Any]]:
        """Return console messages, errors and dialogs."""
        return [event for event in self.events if event["method"] in LOUD]

    def requests(self) -> list[str]:
        """Return the addresses that were asked for."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        ]


def _high(fd: int) -> int:
    """Return the same file under a number of 10 or more."""
    copy = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(fd)
    return copy
