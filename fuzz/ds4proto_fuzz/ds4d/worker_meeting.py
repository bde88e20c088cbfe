"""Meeting a worker: its HELLO, its width, connections to it, a second client."""

from __future__ import annotations

import socket
from typing import Final

from ds4proto.link.ds4d_frames import FIXED, RESULT_PART
from ds4proto.peer import PeerLost
from ds4proto.schema.ds4d_hello import HELLO
from ds4proto.schema.ds4d_result import LOGITS
from ds4proto.schema.ds4d_snapshot import SNAPSHOT_CHUNK
from ds4proto.schema.registry import read_body
from ds4proto_fuzz.ds4d.facts import Facts, candidates
from ds4proto_fuzz.ds4d.frames import POOL, Frames
from ds4proto_fuzz.ds4d.next_hop import HOST, NextHop
from ds4proto_fuzz.ds4d.wire import Seen, Wire
from ds4proto_fuzz.ds4d.worker_cases import WorkerCases
from ds4proto_fuzz.effect import Effect
from ds4proto_fuzz.target import Settings, Target

__all__ = ["MetWorker"]

_MOST_SHARD: Final = 1 << 16
"""Bytes of a shard that cases may repeat."""


class MetWorker(Target):
    """One worker, met; ``WorkerTarget`` gives cases to it.

    Attributes
    ----------
    facts : Facts
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.facts = Facts()
        self._cases: WorkerCases | None = None
        self._wires: dict[str, Wire] = {}
        self._known_answer = b""
        self._host = "127.0.0.1"
        self._gone = False
        self._hop: NextHop | None = None
        self._control_port = 0

    # meeting

    def meet(self) -> None:
        """Await HELLO, learn the width, make the sessions of all cases."""
        self._wires = {}
        before = self.facts
        self._control(self.settings.connect)
        if before.hidden_values:
            told = [(before.hidden_values, before.vocab)]
        else:
            told = candidates(
                self.facts, (self.settings.hidden_values, self.settings.vocab)
            )
        texts = []
        for width, vocab in told:
            self.facts.hidden_values, self.facts.vocab = width, vocab
            frames = Frames(self.facts)
            answer = self._ask(frames.probe)
            if answer is not None and not answer.refuses:
                self._learn(answer)
                return
            texts.append(f"{width} values a token: {answer or 'no answer'}")
        raise PeerLost(
            "closed",
            phase="asked to serve a WORK, to learn the width of its hidden state",
            address=self.settings.peer,
            reason="; ".join(texts) + ". Give --hidden-values and --vocab",
            output=self.output(),
        )

    def _learn(self, answer: Seen) -> None:
        words = answer.words
        if words.get("result_kind") == LOGITS:
            self.facts.vocab = words["payload_bytes"] // 4
        self._known_answer = self._content(answer)
        frames = Frames(self.facts)
        for session in POOL:
            self._ask(frames.work(session, (1,), ack=True))
        if not self.facts.shard:
            self.facts.shard = self._shard(frames)
        self.quiet()  # no case begins on a connection that has a past
        if self._cases is None or self._cases.facts != self.facts:
            self._cases = WorkerCases(self.facts, routes=self._host == HOST)

    def _shard(self, frames: Frames) -> bytes:
        """Return a shard of two tokens, if the worker saves one of modest size."""
        self._ask(frames.work(POOL[0], (1, 2), ack=True))
        wire = self._wire("data")
        wire.send(frames.save(POOL[0], (1, 2)), self._soon())
        found = bytearray()
        for seen in wire.frames(self._soon()):
            if seen.name == "SNAPSHOT_CHUNK":
                found += seen.body[FIXED[SNAPSHOT_CHUNK].size :]
            elif seen.refuses or seen.name == "SNAPSHOT_DONE":
                break
            if len(found) > _MOST_SHARD:
                return b""
        return bytes(found)

    @staticmethod
    def _content(answer: Seen) -> bytes:
        words = answer.words
        return bytes(answer.body[RESULT_PART.size + words.get("telemetry_bytes", 0) :])

    def _control(self, patience: float) -> Wire:
        """Return the control connection, a new one where the last has ended."""
        wire = self._wires.get("control")
        if wire is not None and wire.usable:
            return wire
        assert self.session is not None
        for known in self._wires.values():
            known.close()
        self._wires = {}
        channel = self.session.channel(
            "control", fresh=True, deadline=self._soon(patience)
        )
        self._host = channel.remote[0]
        self._control_port = channel.local[1]
        wire = self._wires["control"] = Wire.of(channel)
        seen = wire.frame(self._soon(patience))
        if seen is None or seen.name != "HELLO":
            raise PeerLost(
                "closed",
                phase="connected, waiting for HELLO",
                address=self.settings.peer,
                reason=f"found {seen or wire.ended or 'nothing'}",
                output=self.output(),
            )
        self._hello(seen)
        return wire

    def _hello(self, seen: Seen) -> None:
        reading = read_body(HELLO, seen.body, dialect="upstream")
        if not reading.whole:
            raise PeerLost(
                "closed",
                phase="connected, waiting for HELLO",
                address=self.settings.peer,
                reason=f"found a HELLO that ends early: {reading.problems[0]}",
                output=self.output(),
            )
        found = Facts.of_hello(reading.values)
        found.hidden_values, found.vocab = self.facts.hidden_values, self.facts.vocab
        found.shard = self.facts.shard
        if self._cases is not None and found.port != self.facts.port:
            self._cases.facts.port = found.port
        self.facts = found

    def stop(self) -> None:
        """Close everything and end the peer that we started."""
        for wire in self._wires.values():
            wire.close()
        self._wires = {}
        super().stop()

    def quiet(self) -> None:
        """Close what cases left open; control and the innocent client stay."""
        wire = self._wires.pop("data", None)
        if wire is not None:
            wire.close()

    def refresh(self) -> None:
        """End the control connection, with which all sessions end.

        The one in use may be dead and its successor wait to be accepted: that is the
        one to end.
        """
        wire = self._wires.get("control")
        if wire is not None:  # none where the peer did not come back the last time
            wire.frame(self._soon(0.0))
        self._control(self.settings.connect).close()
        self._control(self.settings.connect)
        self._ask(Frames(self.facts).probe)
        for session in POOL:
            self._ask(Frames(self.facts).work(session, (1,), ack=True))

    # connections

    def _dial(self) -> Wire:
        try:
            sock = socket.create_connection(
                (self._host, self.facts.port), timeout=self.patience
            )
        except OSError as error:
            raise PeerLost(
                "refused",
                phase="dialling the data port",
                address=f"{self._host}:{self.facts.port}",
                reason=error.strerror or str(error),
                output=self.output(),
            ) from None
        return Wire(sock)

    def _wire(self, name: str) -> Wire:
        if name == "control":
            return self._control(self.settings.connect)
        wire = self._wires.get(name)
        if wire is None or not wire.usable:
            wire = self._wires[name] = self._dial()
        return wire

    def _ask(self, frame: bytes, on: str = "data") -> Seen | None:
        wire = self._wire(on)
        wire.send(frame, self._soon())
        seen = wire.frame(self._soon())
        if seen is None:
            self._gone = bool(wire.ended)
            wire.close()
        return seen

    def innocent(self) -> Effect | None:
        """Ask for the WORK whose answer is known, on a connection of its own."""
        assert self._cases is not None
        probe = self._cases.frames.probe
        seen = self._ask(probe, "innocent")
        if seen is None and self._gone:  # closed for idleness: one more try
            seen = self._ask(probe, "innocent")
        if seen is None:
            return Effect("hang", "a second client is not served")
        if seen.refuses:
            return Effect("wrong answer", "a second client is refused", seen.text)
        if self._content(seen) != self._known_answer:
            return Effect(
                "wrong answer", "a second client gets another answer than at first"
            )
        return None
