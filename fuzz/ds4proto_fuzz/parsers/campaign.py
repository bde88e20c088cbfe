"""All atheris targets, two at a time: progress, and every finding as a file.

Each target is a process of its own. Where one dies on a finding, its input, the trace
of the exception and how to see it again are kept, and the target goes on with another
seed for the time it has left; the same exception at the same place is kept once.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Lock, Timer
from typing import Final

from ds4proto.errors import WrongUsage
from ds4proto_fuzz.parsers.target import target

__all__ = ["Outcome", "Status", "Stopped", "campaign", "read_status", "signature"]

TARGETS: Final = Path(__file__).parents[2] / "targets"
CORPUS: Final = Path(__file__).parents[2] / "corpus"
MOST_FINDINGS: Final = 20
SLICE_SECONDS: Final = 240
"""A process is replaced after this time and goes on from the corpus: what the engine
keeps for itself grows by about a megabyte a second and would reach the limit."""
UNIT_SECONDS: Final = 30
RSS_MIB: Final = 2048
GRACE_SECONDS: Final = 120
"""For starting, instrumenting and a last slow input; then a process is ended."""
_STATUS: Final = re.compile(
    r"#(?P<runs>\d+)\s+\w+\s+cov: (?P<cov>\d+) ft: (?P<ft>\d+) corp: (?P<corp>\d+)/\S+"
    r"(?: .*?exec/s: (?P<rate>\d+))?(?: rss: (?P<rss>\d+)Mb)?"
)
_WRITTEN: Final = "Test unit written to "
_WHERE: Final = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)')
_WHAT: Final = re.compile(r"^(?P<what>[A-Za-z_][\w.]*(?:Error|Exception|Broken)\b.*)")


@dataclass(slots=True)
class Status:
    """Where a target stands, as libFuzzer last said."""

    runs: int = 0
    coverage: int = 0
    features: int = 0
    corpus: int = 0
    rate: int = 0


@dataclass(slots=True)
class Outcome:
    """What a target did.

    Attributes
    ----------
    runs, coverage : int
        Inputs executed; counters of branches and comparisons reached.
    seconds : float
        Time given to it, instrumenting not counted.
    findings : list of Path
        Inputs that broke an invariant.
    failed : str
        Why it could not run, where it could not.
    """

    name: str
    runs: int = 0
    coverage: int = 0
    corpus: int = 0
    seconds: float = 0.0
    findings: list[Path] = field(default_factory=list)
    repeated: int = 0
    failed: str = ""

    @property
    def rate(self) -> float:
        """Inputs a second."""
        return self.runs / self.seconds if self.seconds else 0.0


class Stopped(KeyboardInterrupt):
    """Ctrl-C in a campaign; ``outcomes`` are those of the targets that had begun."""

    def __init__(self, outcomes: list[Outcome]) -> None:
        super().__init__()
        self.outcomes = outcomes


class _Running:
    """The processes of a campaign; none starts once they are to end."""

    def __init__(self) -> None:
        self._lock, self._processes = Lock(), set[subprocess.Popen[str]]()
        self.all_known = Event()
        """Set once every part can be told of an end; none begins before."""
        self.over = False

    def start(self, argv: list[str]) -> subprocess.Popen[str] | None:
        self.all_known.wait()
        with self._lock:
            if self.over:
                return None
            process = subprocess.Popen(
                argv,
                stdout=subprocess.PIPE,  # atheris tells the exception there
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                text=True,
                errors="replace",
                process_group=0,  # it would keep a Ctrl-C as a finding
            )
            self._processes.add(process)
            return process

    def ended(self, process: subprocess.Popen[str]) -> None:
        with self._lock:
            self._processes.discard(process)

    def end(self) -> None:
        with self._lock:
            self.over = True
            self.all_known.set()
            for process in self._processes:
                process.kill()


def read_status(line: str) -> Status | None:
    """Return what a status line of libFuzzer says, None for any other line."""
    match = _STATUS.match(line)
    if match is None:
        return None
    number = {name: int(text or 0) for name, text in match.groupdict().items()}
    return Status(
        number["runs"], number["cov"], number["ft"], number["corp"], number["rate"]
    )


def signature(log: Sequence[str]) -> str:
    """Return exception and place of a finding, the same for the same fault."""
    what, where = "", ""
    for line in log:
        place = _WHERE.match(line)
        if place is not None:
            where = f"{Path(place['file']).name}:{place['line']}"
        said = _WHAT.match(line)
        if said is not None:
            what = re.split(r"[:(=]", said["what"])[0]
            if ": " in said["what"] and "Broken" in said["what"]:
                what = ":".join(said["what"].split(":")[:2])  # the invariant's name
    if not what:
        said_last = [line for line in log if "ERROR: libFuzzer" in line]
        what = (
            said_last[-1].partition("libFuzzer:")[2].strip()[:60] if said_last else ""
        )
    return f"{what} at {where}" if where else what or "no reason was given"


def campaign(
    names: Sequence[str],
    seconds: float,
    *,
    out: Path,
    corpus: Path = CORPUS,
    jobs: int = 2,
    seed: int = 1,
    told: Callable[[str, Status, Outcome], None] = lambda *_: None,
) -> list[Outcome]:
    """Run targets for ``seconds`` in all; each gets an equal share of the jobs.

    Parameters
    ----------
    names : sequence of str
    seconds : float
        Of wall clock, instrumenting not counted.
    out : Path
        Where inputs found (``corpus/``) and findings (``findings/``) are kept.
    corpus : Path
        Inputs to start from, read only.
    told : callable
        Called with each status line.

    Raises
    ------
    WrongUsage
        atheris is not installed, or the targets are not here.
    Stopped
        By Ctrl-C; every process has ended then.
    """
    if not TARGETS.is_dir():
        raise WrongUsage(
            f"the targets are not in {TARGETS}: they come with a clone of the "
            "repository, not with an installed package. Next: run it from a clone"
        )
    if find_spec("atheris") is None:
        raise WrongUsage(
            "coverage guidance needs atheris (Linux, Python 3.11 to 3.13). Next: "
            "pip install 'ds4proto[fuzz]', or run the same checks without it: "
            "pytest tests/fuzz/parsers"
        )
    share = max(1.0, seconds * min(jobs, len(names)) / len(names))
    running = _Running()
    with ThreadPoolExecutor(jobs) as lanes:
        parts: list[Future[Outcome]] = []
        try:
            for name in names:
                part = (name, share, out, corpus, seed, told, running)
                parts.append(lanes.submit(_target, *part))
            running.all_known.set()
            return [one.result() for one in parts]
        except KeyboardInterrupt:
            begun = [one for one in parts if not one.cancel()]
            running.end()
            raise Stopped([one.result() for one in begun]) from None
        except BaseException:
            running.end()
            raise


def _target(
    name: str,
    seconds: float,
    out: Path,
    corpus: Path,
    seed: int,
    told: Callable[[str, Status, Outcome], None],
    running: _Running,
) -> Outcome:
    outcome = Outcome(name)
    known: dict[str, Path] = {}
    turn = findings = 0
    while outcome.seconds < seconds and findings < MOST_FINDINGS:
        left = max(1, round(seconds - outcome.seconds))
        share = min(left, SLICE_SECONDS)
        before = outcome.seconds
        if _turn(outcome, share, out, corpus, seed + turn, known, told, running):
            findings += 1
            outcome.seconds = max(outcome.seconds, before + 1)
        elif share == left or outcome.failed or running.over:
            break
        else:
            outcome.seconds = max(outcome.seconds, before + share)
        turn += 1
    outcome.findings = list(known.values())
    return outcome


def _turn(
    outcome: Outcome,
    seconds: int,
    out: Path,
    corpus: Path,
    seed: int,
    known: dict[str, Path],
    told: Callable[[str, Status, Outcome], None],
    running: _Running,
) -> bool:
    """Run one process until its time is over (False) or a finding ends it (True).

    The inputs that it found are where the next one begins.
    """
    name = outcome.name
    found, findings = out / "corpus" / name, out / "findings" / name
    found.mkdir(parents=True, exist_ok=True)
    findings.mkdir(parents=True, exist_ok=True)
    before = set(findings.iterdir())
    argv = [
        sys.executable, str(TARGETS / f"{name}.py"),
        f"-max_total_time={seconds}", f"-max_len={target(name).most}",
        f"-timeout={UNIT_SECONDS}", f"-rss_limit_mb={RSS_MIB}", f"-seed={seed}",
        f"-artifact_prefix={findings}/", str(found), str(corpus / name),
    ]  # fmt: skip
    begun = 0.0
    last = Status()
    log: list[str] = []
    process = running.start(argv)
    if process is None:
        return False
    assert process.stdout is not None
    # ends a process that stands still without a word, which no line would show
    watchdog = Timer(seconds + GRACE_SECONDS, process.kill)
    watchdog.daemon = True
    watchdog.start()
    try:
        for line in process.stdout:
            log = [*log[-400:], line.rstrip("\n")]
            status = read_status(line)
            if status is not None:
                begun = begun or time.monotonic()
                last = status
                told(name, status, outcome)
        code = process.wait()
    finally:
        watchdog.cancel()
        if process.poll() is None:
            process.kill()
            process.wait()
        running.ended(process)
        process.stdout.close()
    outcome.runs += last.runs
    outcome.coverage = max(outcome.coverage, last.coverage)
    outcome.corpus = max(outcome.corpus, last.corpus)
    outcome.seconds += time.monotonic() - begun if begun else 0.0
    new = sorted(set(findings.iterdir()) - before)
    old = _again(log, before) if code and not new else None
    if old is not None:  # the same input: its file is there, from this run or another
        outcome.repeated += old in known.values()
        known.setdefault(signature(log), old)
        return not running.over
    if code and not new and not running.over:
        outcome.failed = f"ended with status {code}: " + " | ".join(log[-3:])
    for path in new:
        _keep(path, signature(log), log, outcome, known)
    return bool(new) and not running.over


def _again(log: Sequence[str], before: set[Path]) -> Path | None:
    """Return the kept input on which a process has ended once more."""
    written = "".join(log).rpartition(_WRITTEN)[2]
    return next((path for path in before if written.startswith(str(path))), None)


def _keep(
    path: Path, sign: str, log: list[str], outcome: Outcome, known: dict[str, Path]
) -> None:
    """Keep a finding with its trace, or drop one that is known, unless shorter."""
    old = known.get(sign)
    if old is not None:
        outcome.repeated += 1
        if old.stat().st_size <= path.stat().st_size:
            path.unlink()
            return
        old.unlink()
        old.with_suffix(".txt").unlink(missing_ok=True)
    known[sign] = path
    told = [
        sign,
        f"again: python -m ds4proto_fuzz.parsers replay {outcome.name} {path}",
        "",
        *(line for line in log if not line.startswith("#")),
    ]
    path.with_suffix(".txt").write_text("\n".join(told) + "\n", "utf-8")
