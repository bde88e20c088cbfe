"""What every bench has: connections of the case, a seed, notes on lesser faults."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from ds4proto.peer import SYSTEM_CLOCK, PeerLost
from ds4proto.peer.api import Address, ChannelName
from ds4proto.peer.channel import SocketChannel
from ds4proto_conformance.bench.budget import Budget
from ds4proto_conformance.settings import Settings
from ds4proto_conformance.transcript import Line, Transcript
from ds4proto_conformance.wire import Wire

if TYPE_CHECKING:
    from ds4proto.schema.problem import Problem

__all__ = ["Bench", "Connections"]

_STALE = "DS4D-WORK-26"
"""Seen on the refusal, yet a fault of the side that sent the WORK: ours."""
_SIZES = ("DS4D-RESULT-25", "DS4D-RESULT-26")
"""Judged by the bench, which knows the model; an observer learns it from the first
frame, and ours may lie."""


class Connections(Protocol):
    """What a bench needs of a session; `ds4proto.peer.PeerSession` has it."""

    @property
    def address(self) -> Address | None:
        """Where the peer listens, or where it is to dial us."""
        ...

    def channel(
        self,
        name: ChannelName,
        *,
        deadline: float | None = None,
        port: int | None = None,
        fresh: bool = False,
    ) -> SocketChannel:
        """Return the named connection."""
        ...

    def accept(
        self, *, deadline: float | None = None, phase: str = "", data: bool = True
    ) -> SocketChannel:
        """Accept one more connection."""
        ...

    def dial(
        self, port: int, *, deadline: float | None = None, host: str | None = None
    ) -> SocketChannel:
        """Dial a port of the peer."""
        ...

    def data_address(self) -> Address:
        """Where the peer can dial us."""
        ...

    def alive(self) -> bool:
        """Whether the peer is still there."""
        ...

    def output(self) -> str:
        """Return what the peer printed."""
        ...


class Bench:
    """Base of the benches: one peer, one case after the other.

    Attributes
    ----------
    rng : Random
        Seeded for each case and combination.
    concepts : list of str
        Right reactions in another way, noted by the case.
    evidence : list of str
        Further facts for the report.
    budget : Budget
        The time of each combination; the runner puts that of the run here.
    """

    def __init__(self, connections: Connections, settings: Settings) -> None:
        self.connections = connections
        self.settings = settings
        self.rng = Random(settings.seed)
        self.transcript = Transcript()
        self.concepts: list[str] = []
        self.evidence: list[str] = []
        self.budget = Budget(settings.case_seconds)
        self._wires: list[Wire] = []

    # for the engine

    def learn(self) -> None:
        """Meet the peer and learn what the cases need.

        Raises
        ------
        PeerLost
            It is not there, or does not speak.
        Deviation
            What it says breaks a clause.
        """
        raise NotImplementedError

    def begin(self, seed: int) -> None:
        """Get ready for a case."""
        self.budget.begin()
        self.rng = Random(seed)
        self.transcript = Transcript()
        self.concepts, self.evidence = [], []

    def end(self) -> None:
        """Close what the case opened."""
        for wire in self._wires:
            wire.close()
        self._wires.clear()

    def check_alive(self) -> None:
        """Take it that the peer still serves (liveness after bad input)."""

    def passive_problems(self) -> list[Problem]:
        """Return rules that the peer's frames break, seen from outside."""
        return [
            problem
            for problem in self.transcript.problems(self.settings.dialect)
            if not (problem.clause in _SIZES and problem.path.endswith("payload_bytes"))
            and problem.clause != _STALE
        ]

    def close(self) -> None:
        """End the run."""
        self.end()

    def describe(self) -> dict[str, Any]:
        """Return the peer's identity for a report."""
        return {}

    # for the cases

    def concept(self, note: str) -> None:
        """Note a right reaction that comes another way than the usual."""
        self.concepts.append(note)

    def note(self, text: str) -> None:
        """Add a fact to the report."""
        self.evidence.append(text)

    @property
    def patience(self) -> float:
        """Seconds that an answer may take."""
        return self.settings.wait(self.settings.patience)

    @property
    def quiet(self) -> float:
        """Seconds of silence that are taken for "nothing comes"."""
        return self.settings.wait(self.settings.quiet)

    def _soon(self, seconds: float | None = None) -> float:
        wait = self.settings.connect if seconds is None else seconds
        return SYSTEM_CLOCK.now() + self.settings.wait(wait)

    def _wire(self, channel: SocketChannel, name: str, *, dialled_by_us: bool) -> Wire:
        line = self.transcript.line(name, "DS4D", dialled_by_us=dialled_by_us)
        wire = self._over(channel, line)
        self._wires.append(wire)
        return wire

    def _over(self, channel: SocketChannel, line: Line) -> Wire:
        return Wire(
            channel,
            line,
            dialect=self.settings.dialect,
            patience=self.patience,
            wait=self.budget.wait,
        )

    def accept(self, name: str = "forward", *, patience: float | None = None) -> Wire:
        """Return the next connection that the peer dials to our data port.

        Raises
        ------
        PeerLost
            It does not come.
        """
        self.budget.wait(f"a connection from the peer: {name}")
        wait = self.patience if patience is None else patience
        channel = self.connections.accept(
            deadline=SYSTEM_CLOCK.now() + wait, phase=f"waiting for {name}"
        )
        return self._wire(channel, name, dialled_by_us=False)

    def nobody_dials(self, seconds: float) -> bool:
        """Return whether the peer leaves our data port alone for some seconds."""
        try:
            self.accept("unexpected", patience=seconds)
        except PeerLost:
            return True
        return False
