"""Runs cases against one peer: restarts, combinations, repeats on doubt, verdicts."""

from __future__ import annotations

import time
import traceback
import zlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

from ds4proto.errors import Ds4ProtoError, WrongUsage
from ds4proto.peer import PeerError, PeerLost
from ds4proto_conformance.bench.base import Bench, Connections
from ds4proto_conformance.bench.budget import Budget, OverTime
from ds4proto_conformance.parameters import combinations, shrink
from ds4proto_conformance.registry import HARM, Case
from ds4proto_conformance.settings import Settings
from ds4proto_conformance.verdicts import (
    Deviation,
    NotApplicable,
    Outcome,
    Unsupported,
    Verdict,
)

__all__ = ["UNMET", "Opener", "Runner", "bench_of"]

Opener = Callable[[Settings], AbstractContextManager[Connections]]
UNMET: Final = "met while the peer was approached"
"""Note of a case that failed before it began."""
_TRIES: Final = 2
"""Times that a peer which we start may fail to come up before the run ends."""


def bench_of(role: str) -> type[Bench]:
    """Return the bench for peers of a role.

    Raises
    ------
    WrongUsage
        There is none.
    """
    if role == "worker":
        from ds4proto_conformance.bench.worker import WorkerBench

        return WorkerBench
    if role == "coordinator":
        from ds4proto_conformance.bench.coordinator import CoordinatorBench

        return CoordinatorBench
    if role == "codec":
        from ds4proto_conformance.bench.codec import CodecBench

        return CodecBench
    if role in ("tp-leader", "tp-worker"):
        from importlib import import_module

        name = "LeaderBench" if role == "tp-leader" else "RankBench"
        module = import_module(f"ds4proto_conformance.bench.{role.replace('-', '_')}")
        found: type[Bench] = getattr(module, name)
        return found
    raise WrongUsage(f"no cases for the role {role!r}")


class Runner:
    """One peer and the cases that it meets, one after the other.

    Parameters
    ----------
    opener : callable
        Opens the peer; by default with `ds4proto.peer.open_peer`.
    budget : Budget, optional
        The time of the run, from now on.

    Attributes
    ----------
    place : str
        Which case and combination is on.
    """

    def __init__(
        self,
        settings: Settings,
        opener: Opener | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.settings = settings
        self.budget = budget or Budget(settings.case_seconds, settings.time_limit)
        self.place = ""
        self._opener = opener or live
        self._context: AbstractContextManager[Connections] | None = None
        self._connections: Connections | None = None
        self._bench: Bench | None = None
        self.identity: dict[str, Any] = {}
        self._gone: PeerLost | None = None

    # the peer

    def bench(self) -> Bench:
        """Return the bench, meeting the peer first where that is due.

        Raises
        ------
        PeerLost
            The peer is not there.
        """
        if self._bench is not None:
            return self._bench
        for attempt in range(_TRIES):
            try:
                return self._meet()
            except PeerLost:
                self.close()
                if attempt or not self.settings.started_by_us:
                    raise
        raise AssertionError("unreachable")

    def _meet(self) -> Bench:
        self._context = self._opener(self.settings)
        self._connections = self._context.__enter__()
        bench = bench_of(self.settings.role)(self._connections, self.settings)
        bench.budget = self.budget
        try:
            bench.learn()
        except OverTime as error:
            raise PeerLost(
                "timeout",
                phase="learning what the peer is",
                address=self.settings.peer,
                waited=self.budget.seconds,
                reason=str(error),
                output=self._connections.output(),
            ) from None
        bench.end()
        self._bench = bench
        self.identity = bench.describe()
        return bench

    def close(self) -> None:
        """Leave the peer; one that we started ends."""
        bench, self._bench = self._bench, None
        context, self._context = self._context, None
        if bench is not None:
            bench.close()
        if context is not None:
            context.__exit__(None, None, None)

    # cases

    def run(self, case: Case) -> Outcome:
        """Run one case, again if in doubt.

        Raises
        ------
        PeerLost
            The peer is gone and could not be met again.
        """
        started = time.monotonic()
        reason = self._barred(case)
        if reason:
            return Outcome(case.id, Verdict.NOT_RUN, notes=[reason])
        if self._gone is not None:
            raise self._gone
        outcome = self._sure(case)
        for attempt in range(2, 1 + max(2, self.settings.repeat)):
            doubt = self.settings.retry and outcome.verdict in (
                Verdict.FAIL,
                Verdict.PARTIAL,
            )
            if self._gone or (not doubt and attempt > self.settings.repeat):
                break
            again = self._sure(case)
            outcome.attempts = attempt
            if not _agree(again.verdict, outcome.verdict):
                notes = [f"first {outcome.verdict}, then {again.verdict}, same seed"]
                worse = outcome if outcome.verdict.bad else again
                worse.verdict, worse.attempts = Verdict.FLAKY, attempt
                worse.notes += notes
                outcome = worse
                break
        outcome.seconds = time.monotonic() - started
        return outcome

    def _barred(self, case: Case) -> str:
        if self.settings.dialect not in case.dialects and "*" not in case.dialects:
            return f"not for the dialect {self.settings.dialect}"
        if self.settings.started_by_us:
            return ""
        if case.needs_restart:
            return "needs a restart of the peer: use exec:"
        if HARM.index(case.harm) > HARM.index(self.settings.allow_harm):
            return f"may harm the peer ({case.harm}): needs --allow-harm {case.harm}"
        return ""

    def _sure(self, case: Case) -> Outcome:
        """Run a case; a fault of ours is a verdict too, and ends nothing."""
        try:
            return self._once(case)
        except (Ds4ProtoError, PeerError):
            raise
        except Exception:  # whatever is ours must not pass for the peer's
            self.close()
            text = traceback.format_exc(limit=-6)
            return Outcome(case.id, Verdict.SUITE_ERROR, notes=[text])

    def _once(self, case: Case) -> Outcome:
        strength = max(case.strength, self.settings.strength)
        rows = combinations(case.params, strength, salt=case.id)
        passing: list[Mapping[str, Any]] = []
        failing: list[tuple[Mapping[str, Any], Outcome]] = []
        lesser: Outcome | None = None
        for number, row in enumerate(rows, 1):
            self.place = f"{case.id}, combination {number} of {len(rows)}"
            outcome = self._row(case, row)
            if outcome.verdict in (Verdict.PASS, Verdict.CONCEPTUAL):
                passing.append(row)
            elif outcome.verdict is Verdict.FAIL:
                failing.append((row, outcome))
            if outcome.verdict is not Verdict.PASS and lesser is None:
                lesser = outcome
            if outcome.verdict not in (
                Verdict.PASS,
                Verdict.CONCEPTUAL,
                Verdict.FAIL,
            ):
                break
            if self._gone or (len(failing) > 2 and not passing):
                break
        result = failing[0][1] if failing else lesser or outcome
        result.combinations, result.failed_combinations = len(rows), len(failing)
        if failing and case.params and self._gone is None:
            first = failing[0][0]
            result.combination = shrink(
                first,
                passing,
                lambda row: self._row(case, row).verdict is Verdict.FAIL,
            ) or dict(first)
            if passing:
                result.verdict = Verdict.PARTIAL
        return result

    def _row(self, case: Case, row: Mapping[str, Any]) -> Outcome:
        if case.needs_restart:
            self.close()
        try:
            bench = self.bench()
        except Deviation as error:
            self.close()
            failed = Outcome(case.id, Verdict.FAIL, [error.as_dict()])
            failed.notes.append(UNMET)
            return failed
        text = f"{self.settings.seed} {case.id} {sorted(row.items())!r}"
        seed = zlib.crc32(text.encode())
        bench.begin(seed)
        outcome = Outcome(case.id, Verdict.PASS, seed=self.settings.seed)
        outcome.combination = dict(row)
        try:
            self._judge(case, row, bench, outcome)
        finally:
            self._settle(case, bench, outcome)
        return outcome

    def _judge(
        self, case: Case, row: Mapping[str, Any], bench: Bench, outcome: Outcome
    ) -> None:
        try:
            if case.positions:
                only = getattr(bench, "only", None)
                if only is not None:
                    only(*case.positions)
            if case.params:
                case.body(bench, dict(row))
            else:
                case.body(bench)
            bench.check_alive()
        except Deviation as error:
            outcome.deviations.append(error.as_dict())
        except NotApplicable as error:
            outcome.verdict = Verdict.NOT_APPLICABLE
            outcome.notes.append(str(error))
            return
        except Unsupported as error:
            outcome.verdict = Verdict.UNSUPPORTED
            outcome.notes.append(str(error))
            return
        except PeerLost as error:
            outcome.deviations.append(
                Deviation(case.clauses[0], "an answer", str(error)).as_dict()
            )
            self._look_again(bench, outcome)
        except OverTime as error:
            due = f"the case to be over in {self.budget.seconds:g} s"
            outcome.deviations.append(
                Deviation(case.clauses[0], due, str(error)).as_dict()
            )
        except WrongUsage:
            raise  # an option that cannot be met ends the run
        except Exception:  # a fault of the case itself: a verdict, with its traceback
            outcome.verdict = Verdict.SUITE_ERROR
            outcome.notes.append(traceback.format_exc(limit=-6))
            return
        known = {d["clause"] for d in outcome.deviations}
        outcome.deviations += [
            Deviation(p.clause, p.expected, p.found).as_dict()
            for p in bench.passive_problems()
            if p.clause not in known
        ]
        if outcome.deviations:
            outcome.verdict = Verdict.FAIL
        elif bench.concepts:
            outcome.verdict = Verdict.CONCEPTUAL

    def _look_again(self, bench: Bench, outcome: Outcome) -> None:
        """Find out whether a peer that we cannot start again is still there."""
        if self.settings.started_by_us:
            return
        bench.end()
        try:
            bench.check_alive()
        except PeerLost as error:
            self._gone = error
            outcome.notes.append("the peer did not come back: the rest is not run")
        except (Deviation, NotApplicable, Unsupported, OverTime):
            pass  # it is there; the case has been judged

    def _settle(self, case: Case, bench: Bench, outcome: Outcome) -> None:
        outcome.notes += bench.concepts + bench.evidence
        if self.settings.keep_frames:
            outcome.frames = bench.transcript.frames(self.settings.dialect)
        connections = self._connections
        gone = connections is not None and not connections.alive()
        if outcome.verdict.bad and connections is not None:
            outcome.output = connections.output()[-2000:]
        bench.end()
        if self.settings.started_by_us and (
            gone or outcome.verdict.bad or case.needs_restart
        ):
            self.close()  # the next case meets a fresh one


def _agree(one: Verdict, two: Verdict) -> bool:
    """Tell whether two runs say the same; which combinations fail may differ."""
    return one is two or {one, two} == {Verdict.FAIL, Verdict.PARTIAL}


def live(settings: Settings) -> AbstractContextManager[Connections]:
    """Open the peer that ``--peer`` names."""
    from ds4proto.peer import SYSTEM_CLOCK, open_peer

    return open_peer(
        settings.peer,
        settings.role,
        deadline=SYSTEM_CLOCK.now() + settings.wait(settings.connect),
        time_scale=settings.time_scale,
        allow_remote=settings.allow_remote,
    )
