"""An answer to WORK, and what a case may ask of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ds4proto.schema.ds4d_result import ACK, HIDDEN_STATE, LOGITS
from ds4proto_conformance.bench import texts
from ds4proto_conformance.bench.work import ACK_ONLY, Work
from ds4proto_conformance.verdicts import Deviation
from ds4proto_conformance.wire import Ended, Frame

if TYPE_CHECKING:
    from ds4proto_conformance.bench.worker import WorkerBench

__all__ = ["Answer", "refusal"]

_KINDS = {ACK: "ACK", HIDDEN_STATE: "HIDDEN_STATE", LOGITS: "LOGITS"}


@dataclass(slots=True)
class Answer:
    """What came after one WORK."""

    peer: WorkerBench
    work: Work
    seen: Frame | Ended

    @property
    def frame(self) -> Frame:
        """The RESULT.

        Raises
        ------
        Deviation
            Something else came.
        """
        if isinstance(self.seen, Ended) or self.seen.name != "RESULT":
            raise Deviation("DS4D-RESULT-27", "a RESULT for the WORK", str(self.seen))
        for problem in self.seen.problems:
            raise Deviation(problem.clause, problem.expected, problem.found)
        return self.seen

    @property
    def payload(self) -> bytes:
        """The payload."""
        return bytes(self.frame["payload"])

    def served(self, clause: str = "DS4D-WORK-45", kind: int | None = None) -> Answer:
        """Take it that the WORK was carried out and answered in full.

        Raises
        ------
        Deviation
            With `clause` where it was refused, with the clause of the field where
            one is wrong.
        """
        frame = self.frame
        asked = self.work.asked
        if frame["status"]:
            raise Deviation(clause, "the WORK to be served", str(frame))
        _same("DS4D-RESULT-21", "request", asked["request"], frame["request"])
        _same(
            "DS4D-RESULT-22", "result_hash", asked["result_hash"], frame["result_hash"]
        )
        if kind is None:
            kind = ACK if asked["flags"] & ACK_ONLY else self.peer.kind(self._logits)
        found = frame["result_kind"]
        if found != kind:
            which = {ACK: "50", LOGITS: "51", HIDDEN_STATE: "52"}[kind]
            raise Deviation(
                f"DS4D-WORK-{which}",
                f"result kind {_KINDS[kind]}",
                _KINDS.get(found, str(found)),
            )
        self._payload(frame, kind)
        return self

    @property
    def _logits(self) -> bool:
        from ds4proto_conformance.bench.work import OUTPUT_LOGITS

        return bool(self.work.asked["flags"] & OUTPUT_LOGITS)

    def _payload(self, frame: Frame, kind: int) -> None:
        size = frame["payload_bytes"]
        bits = self.work.asked["input_hc_bits"] or 32
        if kind == ACK:
            _same("DS4D-RESULT-24", "payload bytes of an ACK", 0, size)
            _same("DS4D-RESULT-24", "payload_bits of an ACK", 0, frame["payload_bits"])
        elif kind == HIDDEN_STATE:
            due = self.peer.facts.hidden_bytes(self.work.asked["n_tokens"], bits)
            _same("DS4D-RESULT-25", "payload_bits", bits, frame["payload_bits"])
            _same("DS4D-RESULT-25", "payload bytes", due, size)
        else:
            vocab = self.peer.facts.vocab
            _same("DS4D-RESULT-26", "payload_bits", 32, frame["payload_bits"])
            if vocab is not None:
                _same("DS4D-RESULT-26", "payload bytes", 4 * vocab, size)

    def refused(self, clause: str, *values: object) -> Answer:
        """Take it that the WORK was refused for the reason that a clause gives.

        A refusal in words of the peer's own counts as a conceptual pass; the words
        of another clause do not.
        """
        request = self.work.asked["request"] if clause != "DS4D-WORK-01" else 0
        if isinstance(self.seen, Ended) and self.seen.how != "silence":
            self.peer.concept(f"refused by ending the connection: {self.seen}")
            return self
        frame = self.frame
        if not frame["status"]:
            raise Deviation(clause, "the WORK to be refused", str(frame))
        refusal(self.peer, frame.message, clause, *values)
        _same("DS4D-WORK-44", "request of a refusal", request, frame["request"])
        for path in ("result_kind", "result_hash", "payload_bits"):
            _same("DS4D-RESULT-23", f"{path} of a refusal", 0, frame[path])
        _same("DS4D-TELEM-10", "telemetry of a refusal", 0, frame["telemetry_count"])
        return self


def refusal(peer: WorkerBench, message: str, clause: str, *values: object) -> None:
    """Judge the words of a refusal."""
    wanted = texts.template(clause)
    exact = wanted % values if values else wanted
    if message == exact or (not values and texts.fits(clause, message)):
        return
    other = texts.owner(message)
    if not message or other is not None:
        other = other or "no text at all"
        raise Deviation(clause, f"the text {exact!r}", f"{message!r} ({other})")
    peer.concept(f"refused in other words: {message!r} instead of {exact!r}")


def _same(clause: str, what: str, due: object, found: object) -> None:
    if due != found:
        raise Deviation(clause, f"{what} {due}", str(found))
