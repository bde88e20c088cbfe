"""The pytest plugin behind ``ds4proto check``; its options begin with ``--ds4-``.

Use: ``pytest -p ds4proto_conformance.plugin --pyargs ds4proto_conformance.cases
--ds4-peer exec:'./worker {host} {port}' --ds4-role worker``.
"""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from ds4proto.errors import ExitCode, WrongUsage
from ds4proto.peer import PeerError, PeerLost
from ds4proto_conformance import cases as case_package
from ds4proto_conformance.bench.budget import Budget
from ds4proto_conformance.parameters import combinations
from ds4proto_conformance.progress import Progress
from ds4proto_conformance.registry import Case, all_cases
from ds4proto_conformance.report.lines import case_line, header_line
from ds4proto_conformance.report.stream import Writer
from ds4proto_conformance.report.text import ticket
from ds4proto_conformance.runner import UNMET, Runner
from ds4proto_conformance.selection import select
from ds4proto_conformance.settings import Settings
from ds4proto_conformance.verdicts import Outcome, Verdict

CASES: Final = Path(case_package.__path__[0]).resolve()
_INTERRUPTED: Final = (
    "interrupted: the rest was not run. Next: run it again, or only the rest with -k"
)
_UNMET: Final = 2
"""Cases in a row that fail before they begin, and then the run ends."""
_RUN = pytest.StashKey["Run"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("ds4", "conformance of ds4 peers")
    group.addoption("--ds4-peer", help="the peer under test, as --peer")
    group.addoption("--ds4-role", help="what it is")
    group.addoption("--ds4-profile", default="full", help="smoke, must, full")
    group.addoption("--ds4-settings", default="{}", help="further settings as JSON")
    group.addoption("--ds4-report", help="file for the report, JSON lines")
    group.addoption("--ds4-only", default="", help="ids of the only cases to run")
    group.addoption("--ds4-command", default="", help="command for replays")


class Run:
    """The run of one session: its peer, its report."""

    def __init__(self, config: pytest.Config) -> None:
        told = json.loads(config.getoption("--ds4-settings"))
        peer, role = config.getoption("--ds4-peer"), config.getoption("--ds4-role")
        self.settings = Settings(peer=peer, role=role, **told)
        self.profile: str = config.getoption("--ds4-profile")
        self.only = frozenset(filter(None, config.getoption("--ds4-only").split(",")))
        self.command: str = config.getoption("--ds4-command")
        self.progress = Progress(lambda: self.runner.place)
        budget = Budget(
            self.settings.case_seconds,
            self.settings.time_limit,
            tell=self.progress.waits,
        )
        self.runner = Runner(self.settings, budget=budget)
        self.header: dict[str, Any] = {}
        self.bad = self.judged = self._unmet = 0
        self.stopped = ""
        self.lost = False
        self._path = config.getoption("--ds4-report")
        self._writer: Writer | None = None
        self._started = time.monotonic()

    def begin(self, cases: Sequence[Case]) -> None:
        """Write the header."""
        count = len(cases)
        self.progress.cases = count
        self.progress.combinations = sum(self._rows(case) for case in cases)
        self.header = header_line(self.settings, self.profile, count, self.command)
        if self._path and self._writer is None:
            self._writer = Writer(self._path, self.header)

    def _rows(self, case: Case) -> int:
        strength = max(case.strength, self.settings.strength)
        return len(combinations(case.params, strength, salt=case.id))

    def case(self, case: Case) -> tuple[Outcome, dict[str, Any]]:
        """Run one case and write its line."""
        outcome = self.runner.run(case)
        self.progress.ended(self._rows(case))
        line = case_line(case, outcome, self.settings, self.command)
        self.bad += outcome.verdict.bad
        self.judged += outcome.verdict.judged
        if self._writer is not None:
            self._writer.case(line)
        self._unmet = self._unmet + 1 if UNMET in outcome.notes else 0
        if self._unmet == _UNMET and not self.stopped:
            self.stopped = (
                f"the peer could not be met for {_UNMET} cases, which say why; the rest"
                " was not run. Next: check --role, --dialect and the peer's command"
            )
        return outcome, line

    @property
    def exit_code(self) -> ExitCode:
        """What the run comes to."""
        if self.lost:
            return ExitCode.PEER_LOST
        if self.bad:
            return ExitCode.FAILED
        whole = self.judged and not self.stopped
        return ExitCode.PASSED if whole else ExitCode.NOTHING_RAN

    def end(self) -> None:
        """Leave the peer and write the footer."""
        self.runner.close()
        if self._writer is not None:
            self._writer.close(
                {
                    "seconds": round(time.monotonic() - self._started, 3),
                    "exit": int(self.exit_code),
                    "identity": self.runner.identity,
                    "stopped": self.stopped,
                }
            )


def pytest_configure(config: pytest.Config) -> None:
    """Make the run, where a peer is named."""
    if config.getoption("--ds4-peer") and config.getoption("--ds4-role"):
        config.stash[_RUN] = Run(config)


def pytest_collect_file(
    file_path: Path, parent: pytest.Collector
) -> pytest.Collector | None:
    """Collect the modules of the case package, and nothing else as cases."""
    inside = file_path.resolve().parent == CASES and file_path.suffix == ".py"
    if not inside or file_path.name == "__init__.py":
        return None
    return CaseFile.from_parent(parent, path=file_path)


class CaseFile(pytest.File):
    """One module of cases."""

    def collect(self) -> Iterator[pytest.Item]:
        """Yield the cases of this module that the run asks for."""
        run = self.config.stash.get(_RUN, None)
        if run is None:
            return
        name = f"{case_package.__name__}.{self.path.stem}"
        importlib.import_module(name)
        for case in select(all_cases(run.settings.role), run.profile):
            wanted = not run.only or case.id in run.only
            if case.body.__module__ == name and wanted:
                yield CaseItem.from_parent(self, name=case.id, case=case)


class CaseFailed(Exception):
    """A case failed; the text is ready for a tracker."""


class CaseItem(pytest.Item):
    """One case."""

    def __init__(self, *, case: Case, **rest: Any) -> None:
        super().__init__(**rest)
        self.case = case

    def runtest(self) -> None:
        """Run the case and give its verdict to pytest."""
        run = self.config.stash[_RUN]
        try:
            outcome, line = run.case(self.case)
        except (PeerLost, PeerError, WrongUsage) as error:
            run.lost, run.stopped = isinstance(error, PeerLost), str(error)
            pytest.exit(str(error), returncode=error.exit_code)
        self.user_properties.append(("ds4", json.dumps(line, default=str)))
        if run.stopped:
            self.session.shouldstop = run.stopped
        if outcome.verdict.bad:
            raise CaseFailed(ticket(line, run.header))
        if not outcome.verdict.judged or outcome.verdict is Verdict.UNSUPPORTED:
            # neither passed nor failed; the report has the verdict and its reason
            pytest.skip(f"{outcome.verdict}: {'; '.join(outcome.notes)}")

    def repr_failure(self, excinfo: Any, style: Any = None) -> Any:
        """Return the text of a failed case without a traceback."""
        if isinstance(excinfo.value, CaseFailed):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Return where the case is declared."""
        return self.path, self.case.body.__code__.co_firstlineno, self.case.id


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Write the header once it is known how many cases will run."""
    run = session.config.stash.get(_RUN, None)
    if run is not None:
        run.begin([i.case for i in session.items if isinstance(i, CaseItem)])


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Finish the report; what was judged before an interrupt stays judged."""
    run = session.config.stash.get(_RUN, None)
    if run is not None:
        if exitstatus == pytest.ExitCode.INTERRUPTED and not run.stopped:
            run.stopped = _INTERRUPTED
        run.end()
