"""A peer under fire: started, met, given cases, started again."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any, Final

from ds4proto.peer import PeerLost, PeerSession, Role, open_peer
from ds4proto.peer.drive import Driver
from ds4proto_fuzz.case import Case, Step
from ds4proto_fuzz.effect import Effect
from ds4proto_fuzz.watch import Gauge, Meter, growth

__all__ = ["ENV", "Outcome", "Settings", "Target", "phases"]

_BARRIERS: Final = ("wait", "drip", "pause", "half-close", "close", "reset")
DYING: Final = 5.0
"""Seconds between the end of a process's connections and its own, at most: what it
prints about a crash lies between, and the machine may be busy."""
_LOOKS: Final = 20
"""Looks at growth at least: one second may pass for nobody but us."""
ENV: Final = {"MALLOC_ARENA_MAX": "1"}
"""Each arena of glibc reserves 64 MiB, which would drown what a frame causes."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a peer is reached and how long it may take.

    Attributes
    ----------
    patience : float
        Seconds that an answer may take.
    connect : float
        Seconds for the peer to start and to connect.
    hidden_values, vocab : int
        Facts of the model that the wire does not tell; 0 for unknown.
    drive : str
        What makes a coordinator or leader start a request, see ``ds4proto.peer.drive``;
        empty: it does by itself.
    """

    peer: str
    role: Role
    patience: float = 3.0
    connect: float = 30.0
    hidden_values: int = 0
    vocab: int = 0
    drive: str = ""
    allow_remote: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one case showed; ``reached`` names where the conversation went."""

    effect: Effect | None
    reached: str


def phases(steps: tuple[Step, ...]) -> Iterator[list[Step]]:
    """Yield runs of steps that go out together."""
    run: list[Step] = []
    for step in steps:
        if step.then == "drip" and run:
            yield run
            run = []
        run.append(step)
        if step.then in _BARRIERS:
            yield run
            run = []
    if run:
        yield run


class Target(ABC):
    """Base of the targets, one for each role.

    Attributes
    ----------
    env : mapping
        Added to the environment of a peer that we start.
    """

    env: Mapping[str, str] = ENV

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.session: PeerSession | None = None
        self.meter = Meter(None)
        self.starts = 0
        self.patience = settings.patience
        self.driver = Driver(settings.drive, settings.role)
        self._stack = contextlib.ExitStack()

    # life

    def start(self) -> None:
        """Start or meet the peer.

        A process that we start is given a second try with another port: one that was
        free a moment ago may be another program's by now, which then answers instead.

        Raises
        ------
        PeerLost
            It does not come, or does not speak.
        """
        if self.restartable:
            with contextlib.suppress(PeerLost):
                return self._start()
        return self._start()

    def _start(self) -> None:
        self.stop()
        self.starts += 1
        told = self.settings
        self.session = self._stack.enter_context(
            open_peer(
                told.peer,
                told.role,
                deadline=self._soon(told.connect),
                allow_remote=told.allow_remote,
                env=self.env,
                grace=0.5,
            )
        )
        self.meet()
        self.meter = Meter(self.session.pid())

    def stop(self) -> None:
        """Close everything and end the peer that we started."""
        self.driver.close()
        self._stack.close()
        self._stack = contextlib.ExitStack()
        self.session = None

    def _soon(self, seconds: float | None = None) -> float:
        return monotonic() + (self.patience if seconds is None else seconds)

    @property
    def restartable(self) -> bool:
        """Whether a new process can be had."""
        return self.settings.peer.partition(":")[0] in ("exec", "reference")

    def alive(self) -> bool:
        """Whether the process runs; True where it is not ours."""
        if self.session is None:
            return False
        return self.session.process is None or self.session.process.alive()

    def renew(self) -> None:
        """Have a peer without a past: a new process, or a new conversation."""
        self.start()

    def output(self) -> str:
        """Return what the peer printed last."""
        return self.session.output() if self.session is not None else ""

    def lost(self, patience: float = DYING) -> Effect | None:
        """Return a crash, if the process has ended; a moment is given to it."""
        end = self._soon(patience)
        process = self.session.process if self.session is not None else None
        if process is None:
            return None
        while process.alive():
            if monotonic() >= end:
                return None
            with contextlib.suppress(PeerLost):
                process.wait(deadline=min(end, monotonic() + 0.02))
        code = process.returncode
        how = f"signal {-code}" if code is not None and code < 0 else f"status {code}"
        text = [line for line in process.tail().splitlines() if line.strip()]
        return Effect(
            "crash", f"the process ends with {how}", " ".join(text[-1:])[:300]
        )

    # for a role

    @abstractmethod
    def meet(self) -> None:
        """Do what comes before the first case."""

    @abstractmethod
    def make(self, seed: int, index: int) -> Case:
        """Return one case."""

    @abstractmethod
    def once(self, case: Case, turn: int, *, sure: bool) -> Outcome:
        """Give the steps of a case to the peer once."""

    @abstractmethod
    def innocent(self) -> Effect | None:
        """Be a client that does nothing wrong; return what it suffers."""

    @abstractmethod
    def quiet(self) -> None:
        """Close what cases left open, so that a gauge shows what the peer keeps."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Return who the peer is, for a finding."""

    # cases

    def play(self, case: Case, *, sure: bool = False) -> Outcome:
        """Give a case to the peer.

        Parameters
        ----------
        sure : bool
            Take the time to be certain of an effect, as replay and reduction do.
        """
        try:
            return self._play(case, sure=sure)
        except PeerLost as error:
            found = self.lost()
            if found is None:
                found = Effect("hang", "cannot be met any more", str(error)[:300])
            return Outcome(found, "lost")

    def _play(self, case: Case, *, sure: bool) -> Outcome:
        before = self.settled() if case.repeat > 1 else None
        outcome = Outcome(None, "nothing")
        for turn in range(case.repeat):
            outcome = self.once(case, turn, sure=sure)
            if outcome.effect is not None:
                return outcome
        if sure:  # a peer that has just died shows it to the next who asks
            effect = self.innocent()
            if effect is not None:
                return Outcome(self.lost() or effect, outcome.reached)
        if before is not None:
            after = self.settled(before, case.repeat)
            effect = growth(before, after, case.repeat) if after is not None else None
            self.refresh()
            return Outcome(effect, outcome.reached)
        return outcome

    def apart(self) -> None:
        """Let the next case begin without the connections of the last."""
        self.quiet()

    def refresh(self) -> None:
        """Undo what a flood left; a role whose protocol has a way overrides this."""
        self.renew()

    def settled(self, before: Gauge | None = None, turns: int = 1) -> Gauge | None:
        """Return a reading once the peer has noticed what was closed.

        With `before`, it is waited for as long as there is growth, a second at most.
        """
        self.quiet()
        end = monotonic() + 1.0
        looks = 0
        while True:
            self.innocent()
            gauge = self.meter.gauge()
            looks += 1
            waits = before is not None and looks < _LOOKS
            if gauge is None or (monotonic() >= end and not waits):
                return gauge
            if before is not None and growth(before, gauge, turns) is None:
                return gauge
            if before is None:
                end = min(end, monotonic() + 0.05)
            self._pause(0.02)

    def _pause(self, seconds: float) -> None:
        """Wait between two looks; whoever loops has a deadline of its own."""
        sleep(seconds)
