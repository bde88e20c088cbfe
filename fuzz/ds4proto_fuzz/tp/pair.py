"""What both ranks share: the peer's hello, our own, and how a pair ends."""

from __future__ import annotations

from typing import Any, Final, Literal

from ds4proto.link.ds4t_hello import HelloAgreed, HelloExchange
from ds4proto.link.ds4t_identity import TpSettings
from ds4proto.link.ds4t_rules import RULES, dialects_with_version
from ds4proto.link.ds4t_texts import PairFailed
from ds4proto.peer import PeerLost
from ds4proto.schema.ds4t_common import DS4T_MAGIC
from ds4proto.schema.ds4t_hello import HELLO, ROLE_CODES
from ds4proto.schema.registry import frames, read_body, to_bytes
from ds4proto_fuzz.effect import Effect
from ds4proto_fuzz.target import ENV, Settings, Target
from ds4proto_fuzz.tp.lockstep import CONTEXT, rank_settings
from ds4proto_fuzz.tp.wire import TpWire

__all__ = ["CONTEXT", "PairTarget", "hello_verdict"]

_EARLY: Final = 8
_TRACE: Final = "Traceback (most recent call last)"
_PATIENT: Final = 0.2
_ENV: Final = {**ENV, "DS4_TP_GATE_TIMEOUT_MS": "20000"}
"""A rank gives a gate 750 ms, less than a busy machine may keep us waiting."""
Rank = Literal["tp-leader", "tp-worker"]


class PairTarget(Target):
    """One rank under fire; we are the other.

    Attributes
    ----------
    hello : mapping
        Words of the peer's hello.
    """

    ours: Rank
    env = _ENV

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.hello: dict[str, Any] = {}
        self.dialect = ""
        self.control: TpWire | None = None
        self.data: TpWire | None = None

    # who it is

    def read_hello(self, wire: TpWire) -> None:
        """Read the peer's hello, whose size follows from its version.

        Raises
        ------
        PeerLost
            It is none, or of a version that is not spoken.
        """
        until = self._soon(self.settings.connect)
        head = wire.take(_EARLY, until)
        magic, version = (int.from_bytes(head[i : i + 4], "little") for i in (0, 4))
        names = [n for n in dialects_with_version(version) if n in RULES]
        if magic != DS4T_MAGIC or not names:
            raise self._not_met(f"found {head.hex(' ') or wire.ended or 'silence'}")
        for size in sorted({HELLO.fixed_size(n) for n in names}):
            first = not self.hello and size == min(map(HELLO.fixed_size, names))
            wait = until if first else self._soon(_PATIENT)
            head += wire.take(size - len(head), wait)
        fits = [n for n in names if HELLO.fixed_size(n) == len(head)]
        if not fits:
            raise self._not_met(f"a hello of {len(head)} bytes")
        self.dialect = wire.dialect = fits[0]
        if "COMMAND_ACK" not in {f.name for f in frames("DS4T", dialect=self.dialect)}:
            raise self._not_met(f"a hello of {self.dialect}, which has no sessions")
        self.hello = dict(
            read_body(HELLO, memoryview(head), dialect=self.dialect).values
        )

    def _not_met(self, reason: str) -> PeerLost:
        return PeerLost(
            "closed",
            phase="connected, waiting for the hello",
            address=self.settings.peer,
            reason=reason,
            output=self.output(),
        )

    def own_hello(self, **changes: int) -> bytes:
        """Return our hello: the peer's words, but for the role."""
        values = {**self.hello, "role": ROLE_CODES[self.ours], "rdma_ok": 0}
        values["ctx_size"] = CONTEXT if self.ours == "tp-leader" else 0
        values["magic"] = DS4T_MAGIC
        words = {k: v for k, v in {**values, **changes}.items() if k in self.hello}
        return to_bytes(HELLO, words, dialect=self.dialect)

    def rank(self, role: Rank) -> TpSettings:
        """Return the settings of one rank of this pair."""
        return rank_settings(self.hello, self.dialect, role)

    @property
    def split(self) -> bool:
        """Whether each rank has half of the logits."""
        return self.rank(self.ours).vocabulary_split

    def soon(self) -> float:
        """Return when an answer that is due is overdue."""
        return self._soon()

    def identity(self) -> dict[str, Any]:
        """Return who the peer is."""
        left_out = ("magic", "role")
        words = {
            k: v
            for k, v in self.hello.items()
            if isinstance(v, int) and k not in left_out
        }
        return {"dialect": self.dialect, **words}

    def innocent(self) -> Effect | None:
        """Return nothing: a pair has no second client."""
        return None

    def quiet(self) -> None:
        """Leave the pair as it is: it lives as long as the peer."""

    def stop(self) -> None:
        """Close everything and end the peer that we started."""
        for wire in (self.control, self.data):
            if wire is not None:
                wire.close()
        self.control = self.data = None
        super().stop()

    def apart(self) -> None:
        """Let the next case begin with a pair of its own."""
        self.over()

    def over(self) -> None:
        """Close the pair; the next case gets another."""
        for wire in (self.control, self.data):
            if wire is not None:
                wire.close()
        self.control = self.data = None

    # how it ends

    def ending(self, clause: str, what: str) -> Effect | None:
        """Take it that the rank ends without a frame, and not by accident."""
        assert self.control is not None
        seen = self.control.frame(self._soon())
        if seen is not None:
            text = f"{seen.name} behind {what}"
            return Effect("silent accept", text, str(seen), clause)
        if not self.control.ended:
            text = f"the rank goes on behind {what}"
            return Effect("silent accept", text, "", clause)
        return self.accident()

    def accident(self) -> Effect | None:
        """Return a crash, if the rank ended by a signal or with a traceback."""
        crash = self.lost(1.0)
        if crash is not None and ("signal" in crash.what or _TRACE in self.output()):
            return crash
        return None

    def died(self, what: str) -> Effect:
        """Return what it means that the rank ended where it had to go on."""
        return self.accident() or Effect("wrong answer", f"ends where {what}")


def hello_verdict(settings: TpSettings, pieces: list[bytes | None]) -> str:
    """Return what a hello comes to: agreed, failed CLAUSE, or waiting."""
    exchange = HelloExchange(settings)
    exchange.start(0.0)
    for piece in pieces:
        exchange.receive_data(piece, 0.0)
    for event in exchange.events():
        if isinstance(event, HelloAgreed):
            return "agreed"
        if isinstance(event, PairFailed):
            return f"failed {event.problem.clause}"
    return "waiting"
