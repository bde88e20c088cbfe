"""The search: cases one after the other, effects confirmed, reduced and kept."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, Final, Protocol

from ds4proto.peer import PeerLost
from ds4proto_fuzz.case import Case
from ds4proto_fuzz.effect import Effect
from ds4proto_fuzz.findings import Finding
from ds4proto_fuzz.reached import Reached
from ds4proto_fuzz.shrink import shrink
from ds4proto_fuzz.target import Outcome, Target
from ds4proto_fuzz.watch import Gauge

__all__ = ["Hunt", "Keeper", "Tally", "confirm"]

_LOOK_EVERY: Final = 64
"""Cases between two looks at what the peer holds, and at how a second client fares."""
_HISTORY: Final = 8
_LEAK_TURNS: Final = 16
_LEAK_STEP: Final = 20
_LEAK_MEMORY: Final = 24 << 20
QUICK: Final = 0.8
"""Patience while a case is reduced; what comes out is tried with the full one."""
_MUTED_AFTER: Final = 3


@dataclass(slots=True)
class Tally:
    """What a part of a campaign has done.

    Attributes
    ----------
    unproven : Counter
        Effects that a second try did not have, by their words.
    muted : int
        Cases left out because their kind has led to one finding again and again.
    """

    cases: int = 0
    frames: int = 0
    restarts: int = 0
    muted: int = 0
    seconds: float = 0.0
    unproven: Counter[str] = field(default_factory=Counter)
    reached: Reached = field(default_factory=Reached)
    findings: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the numbers for a report."""
        return {
            "cases": self.cases,
            "frames": self.frames,
            "restarts": self.restarts,
            "muted": self.muted,
            "seconds": round(self.seconds, 3),
            "unproven": dict(self.unproven),
            "reached": self.reached.as_json(),
            "findings": sorted(set(self.findings)),
        }

    @classmethod
    def from_json(cls, found: Any) -> Tally:
        """Return the tally of a report."""
        return cls(
            found["cases"], found["frames"], found["restarts"], found["muted"],
            found["seconds"], Counter(found["unproven"]),
            Reached(tuple(row) for row in found["reached"]), list(found["findings"]),
        )  # fmt: skip

    def merge(self, other: Tally) -> None:
        """Add another part."""
        for name in ("cases", "frames", "restarts", "muted", "seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.unproven.update(other.unproven)
        self.reached.merge(other.reached)
        self.findings = sorted({*self.findings, *other.findings})


def confirm(target: Target, case: Case, tries: int = 1) -> tuple[Effect | None, int]:
    """Give a case to fresh peers.

    Returns
    -------
    effect, times : Effect or None, int
        The first effect that showed, and how often the same one did.
    """
    first: Effect | None = None
    times = 0
    for _ in range(tries):
        target.renew()
        effect = target.play(case, sure=True).effect
        first = first or effect
        times += first is not None and first.same(effect)
    return first, times


class Keeper(Protocol):
    """Where findings go: ``Store``, or the memory of one chunk of a campaign."""

    def names(self) -> set[str]:
        """Return the names of what is known."""
        ...

    def add(self, finding: Finding) -> Any:
        """Keep a finding."""
        ...

    def again(self, name: str, count: int) -> None:
        """Count more cases of a known one."""
        ...


class Hunt:
    """Searches with one peer.

    Parameters
    ----------
    keeper : Keeper, optional
        May be given later, and anew for each chunk, with ``begin``.
    tell : callable
        Told each new finding.
    budget : (int, float)
        Tests and seconds of one reduction.
    quick : float
        Patience of one reduction.

    Attributes
    ----------
    next_index : int
        First index of the last run that was not given to the peer.
    first_at : float
        Monotonic time of the first confirmed effect; 0 before that.
    """

    def __init__(
        self,
        target: Target,
        seed: int,
        keeper: Keeper | None = None,
        *,
        tell: Callable[[Finding], None] = lambda _found: None,
        budget: tuple[int, float] = (200, 30.0),
        quick: float = QUICK,
    ) -> None:
        self.target, self.seed = target, seed
        self.tally = Tally()
        self.next_index = 0
        self.first_at = 0.0
        self._tell, self._budget, self._quick = tell, budget, quick
        self._history: deque[Case] = deque(maxlen=_HISTORY)
        self._window: list[Case] = []
        self._base: tuple[int, Gauge] | None = None
        self._names: set[str] = set()
        self._again: Counter[tuple[str, str]] = Counter()
        self._noted: Counter[str] = Counter()
        self._keeper = keeper
        if keeper is not None:
            self.begin(keeper)

    def begin(self, keeper: Keeper) -> None:
        """Count from zero and keep findings there."""
        self._keeper = keeper
        self._names |= keeper.names()
        self.tally = Tally()

    def run(self, indices: Iterable[int], until: float = float("inf")) -> Tally:
        """Give cases to the peer until they or the time run out.

        Raises
        ------
        PeerLost
            The peer cannot be met at all.
        """
        start, starts = monotonic(), self.target.starts
        try:
            if self.target.session is None:
                self.target.start()
                starts += 1
            for index in indices:
                self.next_index = index
                if monotonic() >= until:
                    break
                self.one(index)
                self.next_index = index + 1
            self._look()
        finally:
            self.tally.seconds += monotonic() - start
            self.tally.restarts += self.target.starts - starts
            for name, count in self._noted.items():
                if self._keeper is not None:
                    self._keeper.again(name, count)
            self._noted.clear()
        return self.tally

    def one(self, index: int) -> Outcome | None:
        """Give one case to the peer; None where its kind is muted."""
        case = self.target.make(self.seed, index)
        if self._again[case.state, case.kind] >= _MUTED_AFTER:
            self.tally.muted += 1
            return None
        outcome = self.target.play(case)
        tally = self.tally
        tally.cases += 1
        tally.frames += len(case.steps) * case.repeat
        tally.reached.note(case.state, case.kind, outcome.reached)
        if outcome.effect is not None:
            self._effect(case, outcome.effect)
            return outcome
        self._history.append(case)
        self._window.append(case)
        if len(self._window) >= _LOOK_EVERY:
            self._look()
        return outcome

    # effects

    def _effect(self, case: Case, effect: Effect) -> None:
        """Confirm, reduce and keep; afterwards the peer is a fresh one."""
        known = Finding(effect, case, self._peer()).name
        if known in self._names:
            self._noted[known] += 1
            self._again[case.state, case.kind] += 1
            self._after(effect)
            return
        for suspect in (case, *reversed(self._history)):
            proven, times = confirm(self.target, suspect)
            if proven is not None and times:
                self._keep(suspect, proven)
                break
        else:
            self.tally.unproven[str(effect)[:200]] += 1
        self._fresh()

    def _after(self, effect: Effect) -> None:
        """Go on behind a known effect; a new peer only where this one may be hurt."""
        hurt = effect.kind not in ("silent accept", "wrong answer")
        if hurt or "second client" in effect.what or not self.target.alive():
            self._fresh()
        else:
            self.target.quiet()

    def _keep(self, case: Case, effect: Effect) -> None:
        self.first_at = self.first_at or monotonic()
        found = {"seed": case.seed, "index": case.index, "frames": len(case.steps)}
        name = Finding(effect, case, self._peer()).name
        if name not in self._names:
            case, last, times = self._shrunk(case, effect)
            finding = Finding(last or effect, case, self._peer(), found, (times, 2))
            if self._keeper is not None:
                self._keeper.add(finding)
            self._names.add(finding.name)
            self._names.add(name)
            self.tally.findings.append(finding.name)
            self._tell(finding)
        else:
            self._noted[name] += 1
        self._again[case.state, case.kind] += 1

    def _shrunk(self, case: Case, effect: Effect) -> tuple[Case, Effect | None, int]:
        """Return a smaller case that was confirmed twice with full patience."""
        target = self.target
        target.patience = min(target.settings.patience, self._quick)
        try:
            small = shrink(
                case,
                lambda other: self._same(other, effect),
                tests=self._budget[0],
                seconds=self._budget[1],
            )
        finally:
            target.patience = target.settings.patience
        last, times = confirm(target, small, 2)
        if not effect.same(last):
            small = case
            last, times = confirm(target, small, 2)
        return small, last, times

    def _same(self, case: Case, effect: Effect) -> bool:
        """Tell whether a case has the effect; the peer is left fit for the next."""
        if not self.target.alive() or self.target.session is None:
            self.target.renew()
        self.target.apart()
        found = self.target.play(case, sure=True).effect
        if found is not None and found.kind in ("crash", "hang", "over-allocation"):
            self.target.renew()
        return effect.same(found)

    def _fresh(self) -> None:
        self._history.clear()
        self._window.clear()
        self._base = None
        self.target.renew()

    def _peer(self) -> dict[str, Any]:
        told = self.target.settings
        return {"spec": told.peer, "role": told.role, **self.target.identity()}

    # what adds up

    def _look(self) -> None:
        """Look at what the peer holds, and at how a second client fares."""
        window, self._window = self._window, []
        if not window:
            return
        try:
            effect = self.target.innocent()
            gauge = self.target.settled()
        except PeerLost as error:
            effect = self.target.lost()
            effect = effect or Effect("hang", "cannot be met any more", str(error))
            gauge = None
        if effect is not None:
            self._effect(window[-1], effect)
            return
        starts = self.target.starts
        if gauge is None or self._base is None or self._base[0] != starts:
            # what another process held says nothing about this one
            self._base = None if gauge is None else (starts, gauge)
            return
        if self._grown(self._base[1], gauge):
            self._leak(window)

    @staticmethod
    def _grown(before: Gauge, now: Gauge) -> bool:
        return (
            now.descriptors - before.descriptors >= _LEAK_STEP
            or now.threads - before.threads >= _LEAK_STEP
            or now.resident - before.resident >= _LEAK_MEMORY
        )

    def _leak(self, window: list[Case]) -> None:
        """Find the case of a window that leaves something behind each time."""
        tried: set[tuple[str, str, str]] = set()
        for case in window:
            key = (case.state, case.kind, case.steps[-1].name if case.steps else "")
            if key in tried or not case.steps:
                continue
            tried.add(key)
            again = replace(case, repeat=_LEAK_TURNS)
            if not self.target.alive():
                self.target.renew()
            effect = self.target.play(again).effect
            if effect is not None and effect.kind == "leak":
                proven, times = confirm(self.target, again)
                if proven is not None and times:
                    self._keep(again, proven)
                    break
        else:
            self.tally.unproven["growth that no single case explains"] += 1
        self._fresh()
