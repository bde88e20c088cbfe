"""We play the workers: the vocabulary of cases for coordinators."""

from __future__ import annotations

import re
from typing import Any, Final

from ds4proto.link.ds4d_frames import FIXED, TELEMETRY_PART, framed, result_frame
from ds4proto.peer import PeerLost
from ds4proto.schema.ds4d_hello import HELLO
from ds4proto.schema.ds4d_result import ACK, HIDDEN_STATE, LOGITS
from ds4proto_conformance.bench.base import Bench, Connections
from ds4proto_conformance.bench.drive import Driver
from ds4proto_conformance.bench.work import ACK_ONLY, OUTPUT_LOGITS, RESET_SESSION
from ds4proto_conformance.facts import PeerFacts, candidates
from ds4proto_conformance.settings import Settings
from ds4proto_conformance.verdicts import Deviation, NotApplicable
from ds4proto_conformance.wire import Ended, Frame, Wire

__all__ = ["CoordinatorBench", "Hop"]

_ROUNDS: Final = 24
_REDIALS: Final = 2
"""WORK frames that a case looks at before it gives up on meeting a kind of one."""


class CoordinatorBench(Bench):
    """A coordinator under test.

    Attributes
    ----------
    facts : PeerFacts
        Its model; ``layer_end`` is the last layer of its own slice.
    movers : dict
        ``save``, ``load`` -> what makes it do so, where something was told.
    moves_nothing : bool
        Whether a case has waited in vain for it to save or load by itself.
    """

    def __init__(self, connections: Connections, settings: Settings) -> None:
        super().__init__(connections, settings)
        self.facts = PeerFacts(layer_start=0, layer_end=-1)
        self._driver = Driver(settings.drive, "coordinator")
        self.movers = {
            kind: Driver(text, "coordinator", f"{kind} a session")
            for kind, text in (
                ("save", settings.drive_save),
                ("load", settings.drive_load),
            )
            if text
        }
        self.moves_nothing = False

    # meeting

    def learn(self) -> None:
        """Learn the model from refusals, and the own slice from the first WORK."""
        self.begin(self.settings.seed)
        f, told = self.facts, self.settings
        f.model_id = int(
            self._probe(r"worker=\d+ coordinator=(\d+)", model_id=0xFFFFFFF0)
        )
        f.model_name = self._probe(r"worker=.* coordinator=(.*)", model_name=b"?")
        f.n_layers = told.n_layers or int(
            self._probe(r"worker=\d+ coordinator=(\d+)", n_layers=0xFFFFFFF0)
        )
        f.ctx = told.ctx or int(
            self._probe(
                r"worker=\d+ coordinator=(\d+)",
                default="0",
                ctx_size=0,
                layer_start=f.n_layers - 1,
                layer_end=f.n_layers - 1,
            )
        )
        answers = candidates(f.model_id, f.model_name, told.model)
        f.hidden_values = told.hidden_values or answers[0].hidden_values
        f.vocab = told.vocab or answers[0].vocab
        self._find_slice()
        self.end()

    def _probe(self, pattern: str, *, default: str | None = None, **lies: Any) -> str:
        wire = self.dial("probe")
        wire.send(self.hello(**lies))
        found = wire.next() if default is None else wire.quiet(self.patience / 4)
        text = found.message if isinstance(found, Frame) else ""
        match = re.search(pattern, text, re.DOTALL)
        wire.close()
        if match is not None:
            return match[1]
        if default is not None:
            return default
        raise PeerLost(
            "closed",
            phase=f"asked who it is, with a HELLO whose {', '.join(lies)} is wrong",
            address=self.settings.peer,
            reason=f"expected an ERROR that names both sides, found {found}",
            output=self.connections.output(),
        )

    def _find_slice(self) -> None:
        """Register a worker for every start layer; one of them gets WORK."""
        n = self.facts.n_layers
        hops = [self.register(layer_start=k) for k in range(1, n)]
        self.drive()
        waited = 0.0
        while waited < self.settings.wait(self.settings.connect):
            for hop in hops:
                found = hop.wire.quiet(0.01)
                waited += 0.01
                if isinstance(found, Frame) and found.name == "WORK":
                    self.facts.layer_end = found["layer_start"] - 1
                    size = 8 * found["input_hc_bytes"]
                    bits = (found["input_hc_bits"] or 32) * found["n_tokens"]
                    if bits and size % bits == 0 and size:
                        self.facts.hidden_values = size // bits
                    return
        raise PeerLost(
            "timeout",
            phase="registered workers for all layers, waiting for the first WORK",
            address=self.settings.peer,
            waited=waited,
            reason="nothing made it start a request: use --drive",
            output=self.connections.output(),
        )

    def drive(self) -> None:
        """Make the coordinator start a request, as ``--drive`` says."""
        self._driver.start()

    def close(self) -> None:
        """End the run, and the commands that drove requests."""
        super().close()
        for driver in (self._driver, *self.movers.values()):
            driver.close()

    def describe(self) -> dict[str, Any]:
        """Return the peer's identity for a report."""
        f = self.facts
        return {
            "model_id": f.model_id,
            "model_name": f.model_name,
            "n_layers": f.n_layers,
            "layers": f"0:{f.layer_end}",
            "ctx": f.ctx,
            "hidden_values": f.hidden_values,
            "vocab": f.vocab,
        }

    # connections

    def dial(self, name: str = "worker") -> Wire:
        """Return a new connection to the coordinator."""
        address = self.connections.address
        port = address[1] if address is not None else 0
        channel = self.connections.dial(port, deadline=self._soon())
        return self._wire(channel, name, dialled_by_us=True)

    def hello(self, **changes: Any) -> bytes:
        """Return the HELLO of a worker that completes the route, but for changes."""
        f = self.facts
        name = changes.pop(
            "model_name", f.model_name.encode("utf-8", "surrogateescape")
        )
        body = changes.pop("body", None)
        last = max(0, f.n_layers - 1)
        words = {
            "model_id": f.model_id,
            "quant_bits": 2,
            "layer_start": f.layer_end + 1 if f.layer_end >= 0 else last,
            "layer_end": last,
            "has_output": 1,
            "has_hidden": 1,
            "ctx_size": f.ctx or 1 << 30,
            "n_layers": f.n_layers,
            "listen_port": self.connections.data_address()[1],
            "model_name_len": len(name),
        }
        words |= changes
        parts = (FIXED[HELLO].build(words), name) if body is None else (body,)
        return b"".join(map(bytes, framed(HELLO, parts)))

    def register(self, name: str = "worker", **changes: Any) -> Hop:
        """Register as a worker."""
        return Hop(self, self.again(name, changes), (name, changes))

    def again(self, name: str, changes: dict[str, Any]) -> Wire:
        """Return a new connection on which that worker has registered."""
        wire = self.dial(name)
        wire.send(self.hello(**changes))
        return wire

    def check_alive(self) -> None:
        """Take it that a new worker is given work, and that its answer is taken."""
        self.end()
        hop = self.register("after the case")
        self.drive()
        hop.answer(hop.work())
        hop.work()

    # cases

    def refused(self, clause: str, text: str, **lies: Any) -> None:
        """Take it that a HELLO is refused by ERROR and a close."""
        wire = self.dial("refused")
        wire.send(self.hello(**lies))
        found = wire.next()
        if isinstance(found, Ended) and found.how != "silence":
            self.concept(f"refused without ERROR: {found}")
            return
        if isinstance(found, Ended) or found.name != "ERROR":
            raise Deviation(clause, f"ERROR {text!r}", str(found))
        if found.message != text[:255]:
            from ds4proto_conformance.bench import texts

            other = texts.owner(found.message)
            if other is not None or not found.message:
                raise Deviation(
                    clause, f"the text {text!r}", f"{found.message!r} ({other})"
                )
            self.concept(f"refused in other words: {found.message!r}")
        wire.closed("DS4D-ERROR-02", "a close behind ERROR")

    def unreadable(self, clause: str, data: bytes) -> None:
        """Take it that these first bytes end the connection without any frame."""
        wire = self.dial("unreadable")
        wire.send(data)
        wire.closed(clause, "a close without a frame")


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
