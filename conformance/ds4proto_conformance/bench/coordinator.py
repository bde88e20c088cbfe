"""We play the workers: the vocabulary of cases for coordinators."""

from __future__ import annotations

import re
from typing import Any, Final

from ds4proto.link.ds4d_frames import FIXED, framed
from ds4proto.peer import SYSTEM_CLOCK, PeerLost
from ds4proto.schema.ds4d_hello import HELLO
from ds4proto_conformance.bench.apart import ApartWire
from ds4proto_conformance.bench.base import Bench, Connections
from ds4proto_conformance.bench.coordinator_hop import Hop
from ds4proto_conformance.bench.drive import Driver
from ds4proto_conformance.facts import PeerFacts, candidates
from ds4proto_conformance.settings import Settings
from ds4proto_conformance.verdicts import Deviation, NotApplicable
from ds4proto_conformance.wire import Ended, Frame, Wire

__all__ = ["CoordinatorBench", "Hop"]

_GLANCE: Final = 0.01
_APART: Final = "work"
"""Name of a connection that the coordinator opens to us for WORK."""


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
    apart : bool
        Whether it sends WORK over a connection that it opens to our data port.
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
        self.moves_nothing = self.apart = False
        self._pace = 0.0

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
        silent = isinstance(found, Ended) and found.how == "silence"
        raise PeerLost(
            "timeout" if silent or found is None else "closed",
            phase=f"asked who it is, with a HELLO whose {', '.join(lies)} is wrong",
            address=self.settings.peer,
            reason=f"expected an ERROR that names both sides, found {found}",
            output=self.connections.output(),
        )

    def _find_slice(self) -> None:
        """Register a worker for every start layer; one of them gets WORK."""
        n = self.facts.n_layers
        wires = [self.register(layer_start=k).wire for k in range(1, n)]
        self.drive()
        begun = SYSTEM_CLOCK.now()
        limit = begun + self.settings.wait(self.settings.connect)
        while SYSTEM_CLOCK.now() < limit:
            for wire in list(wires):
                found = wire.quiet(_GLANCE)
                if isinstance(found, Frame) and found.name == "WORK":
                    self._pace = SYSTEM_CLOCK.now() - begun
                    dialled = any(other.line.name == _APART for other in wires)
                    self.apart = dialled or self._dialled(_GLANCE) is not None
                    self._read_slice(found)
                    return
                if isinstance(found, Ended):
                    wires.remove(wire)
            more = self._dialled(_GLANCE)
            if more is not None:
                wires.append(more)
        raise PeerLost(
            "timeout",
            phase="registered workers for all layers, waiting for the first WORK",
            address=self.settings.peer,
            waited=SYSTEM_CLOCK.now() - begun,
            reason=self._no_work(wires),
            output=self.connections.output(),
        )

    def _read_slice(self, work: Frame) -> None:
        self.facts.layer_end = work["layer_start"] - 1
        size = 8 * work["input_hc_bytes"]
        bits = (work["input_hc_bits"] or 32) * work["n_tokens"]
        if bits and size % bits == 0 and size:
            self.facts.hidden_values = size // bits

    def _no_work(self, wires: list[Wire]) -> str:
        """Say what was looked at, and what to do about it."""
        host, port = self.connections.data_address()
        opened = [wire for wire in wires if wire.line.name == _APART]
        where = f"our data port {host}:{port}"
        seen = (
            f"it opened {len(opened)} connections to {where} and sent nothing there"
            if opened
            else f"nothing on the connections that registered, nobody dialled {where}"
        )
        if len(wires) == len(opened):
            seen = f"it ended every connection that registered; {seen}"
        nothing = "nothing made it start a request: use --drive"
        if self.settings.drive:
            nothing = "--drive did not make it start a request: see its output"
        return f"{seen}. {nothing}"

    def _dialled(self, patience: float) -> Wire | None:
        """Return what the coordinator opens to our data port, if it does."""
        try:
            return self.accept(_APART, patience=patience)
        except PeerLost as error:
            if error.kind == "exited":
                raise
            return None

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
            "work_on": "a connection to the data port" if self.apart else "control",
            "first_work_s": round(self._pace, 2),
        }

    # connections

    def dial(self, name: str = "worker") -> Wire:
        """Return a new connection to the coordinator."""
        address = self.connections.address
        port = address[1] if address is not None else 0
        self.budget.wait(f"the coordinator to take a connection: {name}")
        channel = self.connections.dial(port, deadline=self._soon())
        wire = self._wire(channel, name, dialled_by_us=True)
        if not self.apart:
            return wire
        both = ApartWire(wire, self._dialled)
        self._wires.append(both)
        return both

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
        """Register as a worker.

        Raises
        ------
        NotApplicable
            A port of nobody's is announced to a coordinator that dials it.
        """
        if self.apart and "listen_port" in changes:
            raise NotApplicable(
                "the coordinator dials the port that a HELLO announces; this case"
                " announces one at which nobody listens"
            )
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
