"""A coordinator under fire: we are its workers."""

from __future__ import annotations

import re
import socket
from time import monotonic
from typing import Any, Final

from ds4proto.link.ds4d_events import (
    HelloAccepted,
    HelloRefused,
    RemoteError,
    ResultReceived,
    TransportError,
)
from ds4proto.link.ds4d_frames import HEADER_SIZE
from ds4proto.link.ds4d_registration import Expected, Registration
from ds4proto.link.ds4d_work_link import WorkLink
from ds4proto.link.events import Violation
from ds4proto.peer import PeerLost
from ds4proto.schema.ds4d_result import HIDDEN_STATE
from ds4proto.schema.ds4d_work import WORK
from ds4proto.schema.registry import read_body
from ds4proto_fuzz.case import Case, Step
from ds4proto_fuzz.ds4d.coordinator_cases import CoordinatorCases
from ds4proto_fuzz.ds4d.facts import Facts, candidates
from ds4proto_fuzz.ds4d.wire import Seen, Wire
from ds4proto_fuzz.effect import Effect
from ds4proto_fuzz.target import Outcome, Settings, Target

__all__ = ["CoordinatorTarget", "after_hello", "after_result", "expected"]

_PIECES: Final = 24
_GLANCE: Final = 0.01
_LONG_LOOK: Final = 0.25
_FIRST_WORK: Final = 5.0
"""Seconds that a coordinator may take for the first WORK, at least."""
_DROPPED: Final = "drops a sound worker instead of giving it WORK"
_STRANGE: Final = 0xFFFFFFF0


class CoordinatorTarget(Target):
    """One coordinator.

    Attributes
    ----------
    facts : Facts
        ``layer_start`` is where a worker's slice has to begin.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.facts = Facts()
        self._cases = CoordinatorCases(self.facts, asks=False)
        self._wire: Wire | None = None
        self._port = 0
        self._host = "127.0.0.1"

    # meeting

    def meet(self) -> None:
        """Learn the model from refusals, the slice from the first WORK."""
        assert self.session is not None
        address = self.session.address
        self._host, self._port = address or ("127.0.0.1", 0)
        if self.facts.n_layers:
            self._await()
            return
        f = self.facts
        self._await()
        f.model_id = int(self._told(r"coordinator=(\d+)", model_id=_STRANGE))
        f.model_name = self._told(r"coordinator=(.*)", name=b"?")
        f.n_layers = int(self._told(r"coordinator=(\d+)", n_layers=_STRANGE))
        f.layer_start = f.n_layers - 1
        f.ctx = int(self._told(r"coordinator=(\d+)", default="0", ctx_size=0))
        told = self.settings.hidden_values, self.settings.vocab
        f.hidden_values, f.vocab = candidates(f, told)[0]
        self._cases = CoordinatorCases(f, asks=self._find_slice())

    def _await(self) -> None:
        """Wait until the coordinator listens."""
        end = monotonic() + self.settings.connect
        while True:
            try:
                self._dial().close()
                return
            except PeerLost:
                if monotonic() >= end or not self.alive():
                    raise
            self._pause(0.02)

    def _told(self, pattern: str, *, default: str = "", **lies: Any) -> str:
        seen = self._refusal(**lies)
        found = re.search(pattern, seen.text if seen else "", re.DOTALL)
        if found is not None:
            return found[1]
        if default:
            return default
        raise PeerLost(
            "closed",
            phase=f"asked who it is, with a HELLO whose {', '.join(lies)} is wrong",
            address=self.settings.peer,
            reason=f"expected an ERROR that names both sides, found {seen}",
            output=self.output(),
        )

    def _refusal(self, **lies: Any) -> Seen | None:
        wire = self._dial()
        wire.send(self._cases.hello(**lies), self._soon())
        seen = wire.frame(self._soon())
        wire.close(reset=True)
        return seen

    def _find_slice(self) -> bool:
        """Register a worker for every first layer; one of them gets WORK."""
        wires = {}
        for start in range(1, self.facts.n_layers):
            wire = wires[start] = self._dial()
            wire.send(self._cases.hello(layer_start=start), self._soon())
        self.driver.start()
        end = self._soon(max(_FIRST_WORK, self.patience))
        try:
            while monotonic() < end:
                for start, wire in wires.items():
                    seen = wire.frame(monotonic() + _GLANCE)
                    if seen is not None and seen.name == "WORK" and seen.words:
                        self.facts.layer_start = start
                        self._learn(seen)
                        return True
        finally:
            for wire in wires.values():
                wire.close(reset=True)
        return False

    def _learn(self, seen: Seen) -> None:
        words = seen.words
        bits = (words["input_hc_bits"] or 32) * words["n_tokens"]
        size = 8 * words["input_hc_bytes"]
        if bits and size and size % bits == 0:
            self.facts.hidden_values = size // bits

    def _dial(self) -> Wire:
        try:
            sock = socket.create_connection(
                (self._host, self._port), timeout=self.patience
            )
        except OSError as error:
            raise PeerLost(
                "refused",
                phase="dialling the coordinator",
                address=f"{self._host}:{self._port}",
                reason=error.strerror or str(error),
                output=self.output(),
            ) from None
        return Wire(sock)

    def quiet(self) -> None:
        """Close what a case left open."""
        if self._wire is not None:
            self._wire.close(reset=True)
            self._wire = None

    def stop(self) -> None:
        """Close everything and end the peer that we started."""
        self.quiet()
        super().stop()

    def innocent(self) -> Effect | None:
        """Be refused as anybody with another model is: at once, in words."""
        seen = self._refusal(model_id=_STRANGE)
        if seen is None:
            return Effect("hang", "a second client is not served")
        if not seen.refuses:
            return Effect("wrong answer", "a second client is not refused", str(seen))
        return None

    # cases

    def make(self, seed: int, index: int) -> Case:
        """Return one case."""
        return self._cases.make(seed, index)

    def identity(self) -> dict[str, Any]:
        """Return who the peer is."""
        return self.facts.identity()

    def once(self, case: Case, turn: int, *, sure: bool) -> Outcome:
        """Give the steps of a case to the peer once, on a connection of its own."""
        wire = self._wire = self._dial()
        effect, reached = self._talk(wire, case, turn, sure=sure)
        if effect is not None and effect.what == _DROPPED:
            # The end of the case before took the whole route with it: once more.
            self.quiet()
            wire = self._wire = self._dial()
            effect, reached = self._talk(wire, case, turn, sure=sure)
        effect = self.meter.jump() or effect
        if effect is not None and effect.kind != "over-allocation":
            effect = self._crash(ended=bool(wire.ended)) or effect
        self.quiet()
        return Outcome(effect, reached)

    def _crash(self, *, ended: bool) -> Effect | None:
        """Return a crash, which is seen a moment after the end of a connection."""
        crash = self.lost(0.0)
        if crash is not None or not ended:
            return crash
        try:
            served = self.innocent() is None
        except PeerLost:
            served = False
        return None if served else self.lost()

    def _talk(
        self, wire: Wire, case: Case, turn: int, *, sure: bool
    ) -> tuple[Effect | None, str]:
        registration = Registration(expected(self.facts), now=0.0)
        link: WorkLink | None = None
        last = b""
        state = "waiting"
        for step in case.steps:
            data = step.copied(step.varied(turn), last)
            effect = self._give(wire, step, data)
            if effect is not None:
                return effect, "dripping"
            end = [None] if step.then == "half-close" else []
            if link is not None:
                state = after_result(link, [data, *end])
                continue
            state = after_hello(registration, [data, *end])
            if state == "accepted" and step.then == "wait":
                self.driver.start()
                seen = wire.frame(self._soon(2 * self.patience))
                if seen is None or seen.name != "WORK":
                    return self._no_work(wire, seen), "registered"
                last = bytes(HEADER_SIZE) + bytes(seen.body)
                link = self._asked(seen)
                if link is None:
                    what = "a WORK whose lengths do not fit"
                    return Effect("wrong answer", what, str(seen)), "registered"
        if link is not None:
            return self._after_result(wire, state)
        return self._after_hello(wire, state, sure=sure)

    def _give(self, wire: Wire, step: Step, data: bytes) -> Effect | None:
        if step.then == "drip":
            for at in range(min(_PIECES, len(data))):
                wire.send(data[at : at + 1], self._soon())
            effect = self.innocent()
            if effect is not None:
                return effect
            data = data[_PIECES:]
        wire.send(data, self._soon())
        if step.then == "half-close":
            wire.half_close()
        return None

    def _asked(self, seen: Seen) -> WorkLink | None:
        """Return what awaits the RESULT of a WORK; None where it cannot be read."""
        reading = read_body(WORK, seen.body, dialect="upstream")
        if not reading.whole:
            return None
        link = WorkLink(self.facts.model)
        words = {**reading.values, "hidden": b"", "route_blob": b""}
        link.work(words, 0.0)
        return link

    def _no_work(self, wire: Wire, seen: Seen | None) -> Effect:
        if seen is not None:
            return Effect("wrong answer", f"{seen.name} where WORK is due", seen.text)
        if wire.ended:
            return Effect("wrong answer", _DROPPED)
        return Effect("hang", "a sound worker gets no WORK")

    def _after_hello(
        self, wire: Wire, state: str, *, sure: bool
    ) -> tuple[Effect | None, str]:
        """Judge what follows a HELLO."""
        word, _, clause = state.partition(" ")
        if word == "waiting":
            effect = self.innocent() or self.meter.jump()
            if effect is None and sure:
                wire.frame(self._soon(_LONG_LOOK))
                effect = self.meter.jump()
            return effect, "waiting for more"
        if word == "accepted":
            seen = wire.frame(self._soon(_LONG_LOOK if sure else _GLANCE))
            if seen is not None and seen.refuses:
                return Effect("wrong answer", "refuses a sound HELLO", seen.text), word
            return None, "registered"
        seen = wire.frame(self._soon())
        if seen is not None and seen.refuses:
            seen = wire.frame(self._soon())
        if seen is not None and not seen.refuses:
            what = f"{seen.name} behind a HELLO that has to be refused"
            return Effect("silent accept", what, str(seen), clause), word
        if seen is None and not wire.ended:
            what = "the connection stays open after a HELLO that has to be refused"
            return Effect("silent accept", what, "", clause), word
        return None, "closed" if word == "closed" else "refused"

    def _after_result(self, wire: Wire, state: str) -> tuple[Effect | None, str]:
        """Judge what follows a RESULT."""
        word, _, clause = state.partition(" ")
        if word == "waiting":
            return self.innocent() or self.meter.jump(), "waiting for more"
        self.driver.start()  # what follows may be another request
        seen = wire.frame(self._soon(2 * self.patience))
        if seen is None and not wire.ended:
            return Effect("hang", f"nothing follows a RESULT that is {word}"), word
        if word == "accepted" and seen is None:
            return Effect("wrong answer", "drops a worker whose RESULT is sound"), word
        if word == "lost" and seen is not None and seen.name == "WORK":
            what = "goes on with a worker whose RESULT ends the connection"
            return Effect("silent accept", what, str(seen), clause), word
        return None, word


def expected(facts: Facts) -> Expected:
    """Return what a coordinator asks of its workers."""
    return Expected(facts.model_id, facts.model_name, facts.n_layers, facts.ctx)


def after_hello(machine: Registration, pieces: list[bytes | None]) -> str:
    """Return what a HELLO comes to: accepted, refused or closed CLAUSE, waiting."""
    answered, clause = False, ""
    for piece in pieces:
        if not machine.closed and machine.state == "waiting":
            machine.receive_data(piece, 0.0)
    for event in machine.events():
        if isinstance(event, Violation):
            clause = event.problem.clause
        elif isinstance(event, HelloAccepted):
            return "accepted"
        elif isinstance(event, HelloRefused):
            clause = event.fault.clause
            answered = event.answered
    if machine.closed:
        return f"{'refused' if answered else 'closed'} {clause}"
    return "waiting"


def after_result(link: WorkLink, pieces: list[bytes | None]) -> str:
    """Return what a RESULT comes to: accepted, remote, either, lost CLAUSE, waiting."""
    for piece in pieces:
        if link.state != "dead":
            link.receive_data(piece, 0.0)
    for event in link.events():
        if isinstance(event, ResultReceived):
            return "either" if event.kind == HIDDEN_STATE else "accepted"
        if isinstance(event, RemoteError):
            return "remote"
        if isinstance(event, TransportError):
            return f"lost {event.fault.clause}"
    return "waiting" if link.state == "waiting" else "either"
