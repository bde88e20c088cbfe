"""Runs pytest on the cases so that nothing of the working directory matters."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from ds4proto.errors import ExitCode, WrongUsage
from ds4proto_conformance.facts import facts_of_file
from ds4proto_conformance.report.stream import Report, read_report
from ds4proto_conformance.selection import refuse_dialect, refuse_keyword
from ds4proto_conformance.settings import Settings

__all__ = ["arguments", "run"]

PACKAGE: Final = "ds4proto_conformance.cases"
_CLEARED: Final = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_XDIST_WORKER")


def arguments(
    settings: Settings,
    profile: str,
    report: str | os.PathLike[str],
    *,
    keyword: str = "",
    stop: bool = False,
    command: str = "",
    only: Sequence[str] = (),
    config: str = "",
) -> list[str]:
    """Return the arguments for pytest; `config` is a file of its own settings."""
    from ds4proto_conformance import cases

    told = {k: v for k, v in asdict(settings).items() if k not in ("peer", "role")}
    words = [
        "-c",
        config or os.devnull,
        f"--rootdir={Path(cases.__path__[0]).parent}",
        "--noconftest",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:terminal",
        "--capture=no",  # or nobody sees what is asked of a person, and what goes on
        "-p",
        "ds4proto_conformance.plugin",
        "--import-mode=importlib",
        f"--ds4-peer={settings.peer}",
        f"--ds4-role={settings.role}",
        f"--ds4-profile={profile}",
        f"--ds4-settings={json.dumps(told)}",
        f"--ds4-report={report}",
        f"--ds4-command={command}",
        f"--ds4-only={','.join(only)}",
    ]
    words += ["-k", keyword] if keyword else []
    words += ["-x"] if stop else []
    return [*words, "--pyargs", PACKAGE]


def run(
    settings: Settings,
    profile: str = "full",
    *,
    keyword: str = "",
    stop: bool = False,
    report: str | os.PathLike[str] | None = None,
    command: str = "",
    only: Sequence[str] = (),
    watch: Callable[[Mapping[str, Any]], None] = lambda _line: None,
) -> tuple[Report, ExitCode]:
    """Run the cases of a profile against a peer.

    Parameters
    ----------
    only : sequence of str
        Ids of the only cases to run.
    watch : callable
        Told the line of each case as it ends.

    Returns
    -------
    report, exit_code
        3 where the peer was lost, 2 where nothing was judged.

    Raises
    ------
    WrongUsage
        pytest is missing, or refuses the options; the model's file cannot be read.
    """
    try:
        import pytest
    except ImportError:
        raise WrongUsage(
            "the cases need pytest. Next: pip install 'ds4proto[conformance]'"
        ) from None
    refuse_dialect(settings.dialect, settings.role, f"--dialect {settings.dialect}")
    refuse_keyword(keyword)
    if settings.model:
        facts_of_file(settings.model)  # before anything else, and not only if it is met
    with tempfile.TemporaryDirectory(prefix="ds4-check-") as folder:
        path = Path(report) if report is not None else Path(folder) / "report.jsonl"
        config = Path(folder) / "pytest.ini"
        config.write_text("[pytest]\n", "utf-8")  # nothing of the working directory's
        words = arguments(
            settings,
            profile,
            path,
            keyword=keyword,
            stop=stop,
            command=command,
            only=only,
            config=str(config),
        )
        with _alone():
            status = int(pytest.main(words, plugins=[_Watcher(watch)]))
        if not path.exists():
            raise WrongUsage(f"pytest ended with status {status} before any case")
        found = read_report(path)
    return found, _exit(status, found)


def _exit(status: int, report: Report) -> ExitCode:
    """Map pytest's exit codes to ours; nothing judged is never a success."""
    said = ExitCode(report.footer["exit"])
    if status in (0, 1, 2, 3, 5):
        return said
    raise WrongUsage(f"pytest ended with status {status}: wrong options or a fault")


class _Watcher:
    """Passes the line of each case on."""

    def __init__(self, watch: Callable[[Mapping[str, Any]], None]) -> None:
        self._watch = watch

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Take pytest's report of one case."""
        if report.when != "call":
            return
        for name, value in report.user_properties:
            if name == "ds4":
                self._watch(json.loads(value))


@contextmanager
def _alone() -> Iterator[None]:
    """Clear what the environment would tell pytest; restore it afterwards."""
    before = {name: os.environ.pop(name) for name in _CLEARED if name in os.environ}
    autoload = os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    path = list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = path
        os.environ.update(before)
        if autoload is None:
            del os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"]
        else:
            os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = autoload
