"""We stand on both sides of a middle worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ds4proto.link.ds4d_frames import TELEMETRY_PART, result_frame
from ds4proto.peer import PeerLost
from ds4proto.schema.ds4d_result import LOGITS
from ds4proto_conformance.bench.work import Work
from ds4proto_conformance.verdicts import Deviation
from ds4proto_conformance.wire import Ended, Frame, Wire

if TYPE_CHECKING:
    from ds4proto_conformance.bench.worker import WorkerBench

__all__ = ["Relay"]


class Relay:
    """One route over the worker under test to a next worker that we play.

    Attributes
    ----------
    above : Wire
        Our connection to the worker.
    below : Wire or None
        The connection that the worker opened to us.
    """

    def __init__(self, peer: WorkerBench) -> None:
        peer.only("first", "middle")
        self.peer = peer
        self.above = peer.dial("above")
        self.above.line.judged = False
        self.below: Wire | None = None

    def make(self, *args: Any, **changes: Any) -> Work:
        """Return a WORK for both hops; arguments as for ``WorkerBench.make``."""
        hops = changes.pop("hops", None) or [
            self.peer.hop(flags=0),
            self.peer.next_hop(),
        ]
        return self.peer.make(*args, hops=hops, logits=False, **changes)

    def send(self, work: Work) -> Work:
        """Send a WORK from above."""
        self.above.send(work.frame())
        return work

    def arrives(self, clause: str = "DS4D-FWD-01") -> Frame:
        """Return the WORK that the worker forwards to us."""
        if self.below is None:
            try:
                self.below = self.peer.accept("below")
            except PeerLost:
                early = self.above.next(patience=0.0)
                raise Deviation(
                    "DS4D-FWD-05", "a connection to the next hop", str(early)
                ) from None
        return self.below.frame("WORK", clause)

    def forward(self, *args: Any, **changes: Any) -> tuple[Work, Frame]:
        """Send a WORK; return it and what arrived below."""
        work = self.send(self.make(*args, **changes))
        return work, self.arrives()

    def record(self, seen: Frame, **changes: int) -> bytes:
        """Return the telemetry that a last hop would send."""
        size = len(seen["hidden"]) + 4 * seen["n_tokens"]
        words = {
            "layer_start": seen["layer_start"],
            "layer_end": seen["layer_end"],
            "route_index": seen["route_index"],
            "pos0": seen["pos0"],
            "n_tokens": seen["n_tokens"],
            "eval_usec": 11,
            "downstream_wait_usec": 0,
            "forward_send_usec": 0,
            "input_bytes": size,
            "output_bytes": 1024,
        }
        return TELEMETRY_PART.build({**words, **changes})

    def result(self, seen: Frame, **changes: Any) -> bytes:
        """Return the RESULT of the next hop: logits, unless changed."""
        values: dict[str, Any] = {
            "result_hash": seen["result_hash"],
            "kind": LOGITS,
            "bits": 32,
            "telemetry": self.record(seen),
            "payload": bytes(
                self.peer.rng.randbytes(4 * (self.peer.facts.vocab or 64))
            ),
        }
        request = changes.pop("request", seen["request"])
        return b"".join(map(bytes, result_frame(request, **{**values, **changes})))

    def answer(self, frame: bytes) -> Frame | Ended:
        """Send a RESULT from below; return what comes up."""
        if self.below is None:
            raise AssertionError("nothing was forwarded")
        self.below.send(frame)
        return self.above.next()

    def comes_up(self, frame: bytes, clause: str = "DS4D-FWD-08") -> Frame:
        """Send a RESULT from below; return the RESULT that comes up."""
        found = self.answer(frame)
        if isinstance(found, Ended) or found.name != "RESULT":
            raise Deviation(clause, "the RESULT of the next hop", str(found))
        return found

    def same(self, clause: str, seen: Mapping[str, Any] | Frame, **due: Any) -> None:
        """Compare fields of a frame."""
        for name, value in due.items():
            found = seen[name]
            if isinstance(found, memoryview):
                found = bytes(found)
            if found != value:
                shown = (
                    f"{len(found)} bytes" if isinstance(found, bytes) else str(found)
                )
                wanted = (
                    f"{len(value)} bytes" if isinstance(value, bytes) else str(value)
                )
                raise Deviation(
                    clause, f"{name} {wanted}", f"{name} {shown}, not equal"
                )
