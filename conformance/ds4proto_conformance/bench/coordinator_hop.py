"""One worker that we play to a coordinator: its WORK, and what it answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ds4proto.link.ds4d_frames import TELEMETRY_PART, result_frame
from ds4proto.schema.ds4d_result import ACK, HIDDEN_STATE, LOGITS
from ds4proto_conformance.bench.work import ACK_ONLY, OUTPUT_LOGITS, RESET_SESSION
from ds4proto_conformance.verdicts import Deviation, NotApplicable
from ds4proto_conformance.wire import Ended, Frame, Wire

if TYPE_CHECKING:
    from ds4proto_conformance.bench.coordinator import CoordinatorBench

__all__ = ["Hop"]

_ROUNDS: Final = 24
"""WORK frames that a case looks at before it gives up on meeting a kind of one."""
_REDIALS: Final = 2


class Hop:
    """One registered worker that we play.

    Until it has seen a frame it dials again when it is dropped, as workers do: a
    coordinator that gives up a route drops every worker of it, new ones too.
    """

    def __init__(
        self, peer: CoordinatorBench, wire: Wire, how: tuple[str, dict[str, Any]]
    ) -> None:
        self.peer = peer
        self.wire = wire
        self._how = how
        self._redials = _REDIALS

    def work(self, clause: str = "DS4D-HELLO-16") -> Frame:
        """Return the next WORK."""
        wait = 2 * self.peer.patience
        found = self.wire.next(patience=wait)
        while isinstance(found, Ended) and found.how != "silence" and self._redials:
            self._redials -= 1
            name, changes = self._how
            self.wire = self.peer.again(name, changes)
            found = self.wire.next(patience=wait)
        self._redials = 0
        if isinstance(found, Ended) or found.name != "WORK":
            raise Deviation(clause, "a WORK", str(found))
        for problem in found.problems:
            raise Deviation(problem.clause, problem.expected, problem.found)
        return found

    def until(self, wanted: Any) -> tuple[Frame | None, Frame | None]:
        """Answer WORK until one is wanted; return it and the one before."""
        before: Frame | None = None
        for _ in range(_ROUNDS):
            work = self.work()
            if wanted(work):
                return work, before
            self.answer(work)
            before = work
        return None, before

    def decode(self) -> tuple[Frame, Frame]:
        """Return a decode step that has not been answered, and the WORK before it."""
        work, before = self.until(
            lambda w: w["n_tokens"] == 1 and not w["flags"] & RESET_SESSION
        )
        if work is None or before is None:
            raise Deviation("DS4D-COORD-13", "a decode step", "none came")
        return work, before

    def first(self) -> Frame:
        """Return the first WORK of a session; it has not been answered."""
        work, _ = self.until(lambda w: w["request"] == 1)
        if work is None:
            raise NotApplicable("no session was begun; what --drive starts keeps one")
        if not work["flags"] & RESET_SESSION:
            raise Deviation("DS4D-COORD-12", "RESET on a first WORK", "none")
        return work

    def prefill(self) -> Frame:
        """Return a WORK that begins a transcript anew; it has not been answered.

        The first WORK of a connection may be the replay of a request that another
        worker has lost, and a request is replayed once only: it is passed over.
        """
        seen: list[int] = []

        def fresh(work: Frame) -> bool:
            seen.append(work["request"])
            known = len(seen) > 1 or work["request"] == 1
            return known and bool(work["flags"] & RESET_SESSION)

        work, _ = self.until(fresh)
        if work is None:
            raise NotApplicable("no prompt was sent whole; see --drive")
        return work

    def result(self, work: Frame, **changes: Any) -> bytes:
        """Return the RESULT of a sound worker, but for the changes."""
        facts, flags = self.peer.facts, work["flags"]
        bits = work["input_hc_bits"] or 32
        kind = LOGITS if flags & OUTPUT_LOGITS else HIDDEN_STATE
        if flags & ACK_ONLY:
            kind = ACK
        kind = changes.get("kind", kind)
        if kind == LOGITS:
            payload = bytes(4 * (facts.vocab or 0))
            bits = 32
        elif kind == HIDDEN_STATE:
            bits = changes.get("bits", bits)
            payload = bytes(facts.hidden_bytes(work["n_tokens"], bits))
        else:
            payload, bits = b"", 0
        record = {
            "layer_start": work["layer_start"],
            "layer_end": work["layer_end"],
            "route_index": work["route_index"],
            "pos0": work["pos0"],
            "n_tokens": work["n_tokens"],
            "eval_usec": 5,
            "downstream_wait_usec": 0,
            "forward_send_usec": 0,
            "input_bytes": work["token_bytes"] + work["input_hc_bytes"],
            "output_bytes": len(payload),
        }
        values = {
            "result_hash": work["result_hash"],
            "kind": kind,
            "bits": bits,
            "telemetry": TELEMETRY_PART.build(record),
            "payload": payload,
        }
        request = changes.pop("request", work["request"])
        return b"".join(map(bytes, result_frame(request, **{**values, **changes})))

    def answer(self, work: Frame, **changes: Any) -> None:
        """Send a RESULT."""
        self.wire.send(self.result(work, **changes))

    def fail(self, work: Frame, text: bytes = b"layer-slice failed") -> None:
        """Send a refusal."""
        self.answer(
            work, status=1, kind=0, bits=0, result_hash=0, telemetry=b"", payload=text
        )

    def given_up(self, clause: str) -> None:
        """Take it that the coordinator ends this connection over our last frame."""
        found = self.wire.next()
        if isinstance(found, Frame) or found.how == "silence":
            raise Deviation(
                clause, "the worker to be dropped, its connection closed", str(found)
            )

    def accepted(self, clause: str) -> Frame:
        """Take it that our answer was taken: the next WORK goes on, no replay."""
        return self.work(clause)
