"""A worker under fire: we are its coordinator, and clients of its data port."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

from ds4proto.peer import PeerLost
from ds4proto_fuzz.case import Case, Step
from ds4proto_fuzz.ds4d.forward_cases import leads_elsewhere
from ds4proto_fuzz.ds4d.judge import judge, spoilt
from ds4proto_fuzz.ds4d.next_hop import SIDES, NextHop
from ds4proto_fuzz.ds4d.oracle import NEXT, Expectation, WorkerOracle
from ds4proto_fuzz.ds4d.wire import Ended, Seen, Wire
from ds4proto_fuzz.ds4d.worker_meeting import MetWorker
from ds4proto_fuzz.effect import Effect
from ds4proto_fuzz.target import Outcome, phases

__all__ = ["WorkerTarget"]

_STAYS: Final = "stays open"
_PIECES: Final = 24
"""Pieces of a slow drip; the rest goes out at once."""
_MOST_SURPLUS: Final = 64
"""Frames that are read behind what ends a connection."""
_MOMENT: Final = 0.25
"""Seconds that memory which is taken late may take to show, where certainty counts."""


class WorkerTarget(MetWorker):
    """One worker under fire."""

    def make(self, seed: int, index: int) -> Case:
        """Return one case."""
        assert self._cases is not None
        return self._cases.make(seed, index)

    def identity(self) -> dict[str, Any]:
        """Return who the peer is."""
        return self.facts.identity()

    def once(self, case: Case, turn: int, *, sure: bool) -> Outcome:
        """Give the steps of a case to the peer once."""
        if not any(step.on in SIDES for step in case.steps):
            return self._given(case, turn, WorkerOracle(self.facts), sure=sure)
        hop = self._hop = NextHop()
        try:
            oracle = WorkerOracle(self.facts, hop.port)
            outcome = self._given(case, turn, oracle, sure=sure)
            if outcome.effect is None and case.state == "route":
                known = {self._control_port, self.facts.port, hop.port}
                stranger = self.meter.strangers(self.facts.port, known)
                outcome = Outcome(stranger, outcome.reached)
            return outcome
        finally:
            self._hop = None
            hop.close()
            self._forget("above")

    def _given(
        self, case: Case, turn: int, oracle: WorkerOracle, *, sure: bool
    ) -> Outcome:
        reached, over = "nothing", set[str]()
        for run in phases(case.steps):
            for on in dict.fromkeys(step.on for step in run):
                if on in over:
                    continue  # the peer has ended it, as it has to
                steps = [step for step in run if step.on == on]
                effect, reached = self._phase(oracle, on, steps, turn, sure=sure)
                if effect is not None:
                    effect = self.meter.jump() or self._crashed(effect)
                    self._forget(on)
                    return Outcome(effect, reached)
                ends = SIDES if on in SIDES else (on,)
                if any(n in self._wires and not self._wires[n].usable for n in ends):
                    over.update(ends)
        for on in oracle.inside():
            self._forget(on)
        return Outcome(self.meter.jump(), reached)

    def _forget(self, on: str) -> None:
        wire = self._wires.pop(on, None)
        if wire is not None:
            wire.close()

    def _crashed(self, effect: Effect) -> Effect:
        """Return what is behind an effect: the process has ended, nobody is served."""
        if effect.kind in ("over-allocation", "leak"):
            return effect
        crash = self.lost(0.0)
        hangs = effect.kind == "hang" or _STAYS in effect.what
        if crash is not None or not (hangs or "ends where" in effect.what):
            return crash or effect
        try:
            others = self.innocent()
        except PeerLost:
            others = Effect("hang", "a second client is not served")
        # A process that dies serves nobody; its end is seen a moment after that of its
        # connections.
        crash = self.lost() if others is not None else None
        if crash is None and hangs and others is not None and others.kind == "hang":
            return others
        return crash or effect

    def _phase(
        self, oracle: WorkerOracle, on: str, steps: list[Step], turn: int, *, sure: bool
    ) -> tuple[Effect | None, str]:
        hop, last = self._hop, steps[-1]
        wire: Wire | None = None
        if on != NEXT:
            wire = self._wire(on)
        elif hop is not None:
            wire = hop.accept(self._soon(0.0))
        if wire is None:
            return None, "nothing"  # reduced: nothing was forwarded
        ports = {"own": self.facts.port, "next": hop.port if hop else 0}
        if on == "above" and any(map(_strange, steps)):
            return None, "nothing"  # reduced, or read, to what leads elsewhere
        parts = [step.placed(step.varied(turn), ports) for step in steps]
        data = b"".join(parts)
        if last.then == "drip":
            effect = self._drip(wire, data)
            if effect is not None:
                return effect, "dripping"
        else:
            wire.send(data, self._soon())
        for part in parts:
            oracle.feed(on, part)
        if last.then == "half-close":
            wire.half_close()
        elif on == NEXT and last.then in ("close", "reset"):
            wire.close(reset=last.then == "reset")
        if last.then == "half-close" or wire.closed:
            oracle.feed(on, None)
        if hop is not None:
            return self._both_sides(oracle, hop, sure=sure)
        due = oracle.take(on)
        seen, ended = self._listen(wire, due)
        effect = judge(due, seen, ended)
        if effect is None and due.inside and not due.closed:
            effect = self._held(wire, due, sure=sure)
        ends = spoilt(due, seen) or last.then in ("close", "reset")
        if effect is None and ends:
            wire.close(reset=last.then == "reset")
        return effect, _where(due, seen, ended)

    def _both_sides(
        self, oracle: WorkerOracle, hop: NextHop, *, sure: bool
    ) -> tuple[Effect | None, str]:
        """Judge what reaches the next hop, and what comes back up."""
        wire, effect = self._wire("above"), None
        below = oracle.take(NEXT)
        if oracle.forwards and not (hop.wire and hop.wire.closed):
            effect = hop.heard(below, self._soon())
        due = oracle.take("above")
        if effect is not None:
            early = wire.frame(self._soon(0.0))
            if effect.kind == "hang" and early is not None and early.refuses:
                effect = Effect("wrong answer", "refuses a sound frame with RESULT",
                                early.text)  # fmt: skip
            return effect, "forwarded"
        seen, ended = self._listen(wire, due)
        effect = judge(due, seen, ended)
        if effect is None and not oracle.forwards:
            effect = hop.surprised(due)
        if effect is None and (due.inside or below.inside) and not due.closed:
            effect = self._held(wire, due, sure=sure)
        if effect is None and (spoilt(due, seen) or below.loose):
            wire.close()
        led = _where(due, seen, ended)
        waits = led == "nothing" and oracle.forwards
        return effect, "forwarded" if waits else led

    def _drip(self, wire: Wire, data: bytes) -> Effect | None:
        for at in range(min(_PIECES, len(data))):
            wire.send(data[at : at + 1], self._soon())
            if at == _PIECES // 2:
                effect = self.innocent()
                if effect is not None:
                    wire.close()
                    return effect
        wire.send(data[_PIECES:], self._soon())
        return None

    def _held(self, wire: Wire, due: Expectation, *, sure: bool) -> Effect | None:
        """Look at a peer that waits for the rest of a frame."""
        effect = self.innocent() or self.meter.jump()
        if effect is None and sure:
            seen = wire.frame(self._soon(_MOMENT))
            effect = self.meter.jump()
            if seen is not None and effect is None:
                effect = judge(due, [seen], "")
        return effect

    def _listen(self, wire: Wire, due: Expectation) -> tuple[list[Seen], Ended]:
        """Read what is due, and the end where one is."""
        seen: list[Seen] = []
        until = self._soon()
        for _ in due.frames:
            found = wire.frame(until)
            if found is None:
                return seen, wire.ended or "silence"
            seen.append(found)
            if not found.refuses and found.name == "SNAPSHOT_BEGIN":
                for more in wire.frames(until):
                    if more.name != "SNAPSHOT_CHUNK":
                        break
                else:
                    return seen, wire.ended or "silence"
        if not due.closed:
            return seen, ""
        seen += islice(wire.frames(until), _MOST_SURPLUS)
        return seen, wire.ended or "silence"


def _strange(step: Step) -> bool:
    return leads_elsewhere(step.data, [at for at, _ in step.ports])


def _where(due: Expectation, seen: list[Seen], ended: Ended) -> str:
    if ended:
        return {"closed": "closed", "reset": "closed"}.get(ended, ended)
    if due.inside:
        return "waiting for more"
    if not seen:
        return "nothing"
    if seen[-1].name == "ERROR":
        return "closed"
    return "refused" if seen[-1].refuses else "served"
