"""What tests need before anything is imported, and the second try of live ones."""

from __future__ import annotations

import gc
import inspect
import os
import signal
import traceback
import warnings
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings

# Several threads of a maths library wait by spinning: on a busy machine of few cores
# that makes small products ten times slower. Child processes inherit this.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# The same examples each time, and no example fails for the time that it took: what a
# machine is busy with must not decide. A test may ask for more of itself.
settings.register_profile(
    "same",
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("same")

# A job in the background of a script is born deaf to Ctrl-C, and so would be every
# process that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

LIVE: Final = (
    "cli",
    "conformance",
    "fuzz/live",
    "peer",
    "preflight",
    "runtime",
    "spec",
    "trace",
)
"""Folders whose tests converse over sockets with threads and processes."""
ONCE: Final = "DS4PROTO_TESTS_ONCE"
"""Set it to look for tests that depend on luck: nothing is tried twice."""

_first_failures: Final = pytest.StashKey[list[tuple[str, str]]]()


def pytest_configure(config: pytest.Config) -> None:
    """Make room for what failed before it passed."""
    config.stash[_first_failures] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests that hang on a scheduler a second try, and no other test."""
    if os.environ.get(ONCE):
        return
    here = Path(__file__).parent
    live = tuple(here / folder for folder in LIVE)
    for item in items:
        if any(item.path.is_relative_to(folder) for folder in live):
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(call: pytest.CallInfo[Any]) -> None:
    """Let go of what a failed test held, sockets above all, once it is reported.

    Its frames would keep them, and the warning that nobody closed them would come with
    some later test's collection of garbage, and fail that test too.
    """
    error = None if call.excinfo is None else call.excinfo.value
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        seen = set[int]()  # errors may name each other as their causes
        while error is not None and id(error) not in seen:
            seen.add(id(error))
            traceback.clear_frames(error.__traceback__)
            for frame, _ in traceback.walk_tb(error.__traceback__):
                # before Python 3.13 a copy of the names, which clearing leaves alone
                if frame.f_code.co_flags & inspect.CO_OPTIMIZED:
                    copied = frame.f_locals
                    if isinstance(copied, dict):
                        copied.clear()
            error = error.__cause__ or error.__context__
        gc.collect()


class _Seen:
    """Keeps the first failure of a test that was tried again."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome == "rerun":  # type: ignore[comparison-overlap]  # the plugin's word
            text = report.longreprtext
            self._config.stash[_first_failures].append((report.nodeid, text))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Watch the reports."""
    session.config.pluginmanager.register(_Seen(session.config))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Show every first failure in full: a second try hides nothing."""
    for name, text in config.stash[_first_failures]:
        terminalreporter.section(f"failed at first, tried again: {name}")
        terminalreporter.line(text)
