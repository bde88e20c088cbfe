"""A tp-leader under fire: we are its worker."""

from __future__ import annotations

import socket
from time import monotonic
from typing import Final

from ds4proto.link import ds4t_events as say
from ds4proto.link.ds4t_leader import LeaderControl
from ds4proto.link.ds4t_texts import LocalProtocolError, PairFailed
from ds4proto.peer import PeerLost
from ds4proto_fuzz.case import Case, Step
from ds4proto_fuzz.ds4d.wire import Seen
from ds4proto_fuzz.effect import Effect
from ds4proto_fuzz.target import Outcome, Settings
from ds4proto_fuzz.tp.cases import LEADER_STATES as STATES
from ds4proto_fuzz.tp.cases import LeaderCases
from ds4proto_fuzz.tp.pair import PairTarget, hello_verdict
from ds4proto_fuzz.tp.wire import HEADER, TpWire

__all__ = ["STATES", "TpLeaderTarget"]

_GLANCE: Final = 0.05


class TpLeaderTarget(PairTarget):
    """Rank 0 under fire; it listens for one pair and serves no other."""

    ours = "tp-worker"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._cases: LeaderCases | None = None

    def meet(self) -> None:
        """Dial the control connection and read the hello; ours is not sent yet."""
        self.control = self._dial(self.settings.connect)
        self.read_hello(self.control)
        self._cases = LeaderCases(self.hello, self.dialect, self.own_hello())

    def _dial(self, patience: float) -> TpWire:
        assert self.session is not None
        address = self.session.address
        assert address is not None
        end = monotonic() + patience
        while True:
            try:
                sock = socket.create_connection(address, timeout=self.patience)
                made = TpWire(sock)
                made.dialect = self.dialect or made.dialect
                return made
            except OSError as error:
                if monotonic() >= end or not self.alive():
                    raise PeerLost(
                        "refused",
                        phase="dialling the tp-leader",
                        address=f"{address[0]}:{address[1]}",
                        reason=error.strerror or str(error),
                        output=self.output(),
                    ) from None
            self._pause(0.02)

    def make(self, seed: int, index: int) -> Case:
        """Return one case."""
        assert self._cases is not None
        return self._cases.make(seed, index)

    def once(self, case: Case, turn: int, *, sure: bool) -> Outcome:
        """Give the steps of a case to a fresh pair."""
        del sure
        if self.control is None or not self.control.usable or self.data is not None:
            self.start()
        self.meter.settle()
        effect, reached = self._talk(case, turn)
        effect = self.meter.jump() or effect
        self.over()
        return Outcome(effect, reached)

    def _talk(self, case: Case, turn: int) -> tuple[Effect | None, str]:
        first, *rest = case.steps
        if first.name != "HELLO":  # reduced to its answer: nothing was asked
            return None, "nothing"
        effect, reached = self._hello(first, turn)
        if effect is not None or reached != "agreed" or not rest:
            return effect, reached
        assert self.control is not None
        asked = self.control.frame(self._soon(2 * self.patience))
        if asked is None or asked.name != "SESSION_CREATE":
            return None, "agreed"  # this leader begins otherwise
        if not asked.words:
            what = "a SESSION_CREATE that ends early"
            return Effect("wrong answer", what, str(asked)), "agreed"
        return self._answered(rest[0], asked, turn)

    def _hello(self, step: Step, turn: int) -> tuple[Effect | None, str]:
        assert self.control is not None
        data = step.varied(turn)
        end: list[bytes | None] = [None] if step.then == "half-close" else []
        verdict = hello_verdict(self.rank("tp-leader"), [data, *end])
        self.control.send(data, self._soon())
        if step.then == "half-close":
            self.control.half_close()
        word, _, clause = verdict.partition(" ")
        if word == "failed":
            return self.ending(clause, "a hello that has to be refused"), "refused"
        if word == "waiting":
            seen = self.control.frame(self._soon(_GLANCE))
            if seen is not None:
                return Effect("silent accept", "a frame before a whole hello"), word
            return None, "waiting for more"
        try:
            self.data = self._dial(self.patience)
        except PeerLost:
            return self.died("a hello is sound"), word
        self.driver.start()
        return None, word

    def _answered(
        self, step: Step, asked: Seen, turn: int
    ) -> tuple[Effect | None, str]:
        """Send an acknowledgement and judge what follows."""
        assert self.control is not None
        last = bytes(HEADER.size) + bytes(asked.body)
        data = step.copied(step.varied(turn), last)
        verdict = self._verdict(asked, data, ended=step.then == "half-close")
        if step.then == "drip":
            for at in range(len(data)):
                self.control.send(data[at : at + 1], self._soon())
        else:
            self.control.send(data, self._soon())
        if step.then == "half-close":
            self.control.half_close()
        word, _, clause = verdict.partition(" ")
        if word == "waiting":
            seen = self.control.frame(self._soon(_GLANCE))
            early = seen is not None and seen.name != "STOP"
            effect = Effect("silent accept", "goes on before an ack is whole")
            return effect if early else None, "waiting for more"
        seen = self.control.frame(self._soon(2 * self.patience))
        if word == "taken":
            if seen is None and self.control.ended:
                return self.died("an acknowledgement is sound"), word
            hang = Effect("hang", "nothing follows a sound acknowledgement")
            return None if seen is not None else hang, word
        if seen is not None and seen.name not in ("STOP",) and word == "failed":
            text = f"{seen.name} behind an acknowledgement that ends the pair"
            return Effect("silent accept", text, str(seen), clause), word
        if seen is None and not self.control.ended and word == "failed":
            return Effect("hang", "neither ends nor goes on", "", clause), word
        return self.accident(), word

    def _verdict(self, asked: Seen, data: bytes, *, ended: bool) -> str:
        """Return what an ack comes to: taken, refused, failed CLAUSE, waiting."""
        machine = LeaderControl(self.rank("tp-leader"))
        known, ctx = asked.words["session_id"], asked.words["ctx_size"]
        try:
            machine.send(say.CreateSession(known, ctx), 0.0)
        except LocalProtocolError:
            return "either"
        machine.receive_data(data, 0.0)
        if ended:
            machine.receive_data(None, 0.0)
        for event in machine.events():
            if isinstance(event, say.SessionCreated):
                return "refused" if event.status else "taken"
            if isinstance(event, PairFailed):
                return f"failed {event.problem.clause}"
        return "waiting"
