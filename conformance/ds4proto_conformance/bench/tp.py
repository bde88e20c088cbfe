"""What both tensor-parallel benches share: the peer's hello, our own, the schedule."""

from __future__ import annotations

from typing import Any, Final, Literal

from ds4proto.link.ds4t_identity import Identity, TpSettings
from ds4proto.link.ds4t_rules import RULES, dialects_with_version
from ds4proto.link.ds4t_texts import text_of
from ds4proto.link.plan import GLM_MODELS, PlannedGate, PlanOptions
from ds4proto.link.schedule import Schedule
from ds4proto.peer import SYSTEM_CLOCK, PeerLost
from ds4proto.schema.ds4d_common import MAGIC as DS4D_MAGIC
from ds4proto.schema.ds4t_common import DS4B_MAGIC, DS4T_MAGIC
from ds4proto.schema.ds4t_gates import BULK_TAG
from ds4proto.schema.ds4t_hello import HELLO, ROLE_CODES
from ds4proto.schema.problem import Problem
from ds4proto.schema.registry import frame, read_body, to_bytes
from ds4proto_conformance.bench.base import Bench, Connections
from ds4proto_conformance.bench.tp_wire import ControlWire, DataWire, Gate, TpTranscript
from ds4proto_conformance.settings import Settings
from ds4proto_conformance.verdicts import Deviation, NotApplicable
from ds4proto_conformance.wire import Ended

__all__ = ["TpBench"]

_CLAUSES: Final = {
    "row": ("DS4T-GATE-01", "DS4T-GATE-50", "DS4T-GATE-50", "DS4T-SEQ-02"),
    "batch": ("DS4B-BATCH-01", "DS4B-BATCH-06", "DS4B-BATCH-03", "DS4T-SEQ-03"),
    "bulk": ("DS4B-BULK-01", "DS4B-BULK-02", "DS4B-BULK-03", "DS4T-SEQ-03"),
}
_WORDS: Final = ("magic", "layer", "third word", "seq")
_REFUSALS: Final = tuple(f"DS4T-HELLO-0{n}" for n in range(1, 6))


class TpBench(Bench):
    """One rank under test.

    Attributes
    ----------
    hello : mapping
        Words of the peer's hello.
    settings_of_ours : TpSettings
        The other rank of the same pair: what we say.
    """

    ours: Literal["tp-leader", "tp-worker"]
    transcript: TpTranscript

    def __init__(self, connections: Connections, settings: Settings) -> None:
        super().__init__(connections, settings)
        self.hello: dict[str, Any] = {}
        self.hello_bytes = b""
        self.dialect = ""
        self.row_seq = self.batch_seq = 1
        self.spent = False
        self._wire_in_use: ControlWire | None = None
        self._data_in_use: DataWire | None = None
        self.plan_options = PlanOptions()

    # meeting

    def learn(self) -> None:
        """Await the peer's hello; ours is sent when a case wants a pair."""
        self.begin(self.settings.seed)
        channel = self.connections.channel("control", deadline=self._soon())
        wire = ControlWire(
            channel, self.transcript, self.patience, "v14", self.budget.wait
        )
        self._wire_in_use = wire
        head = wire.take(8, self.settings.wait(self.settings.connect))
        if isinstance(head, Ended):
            raise self._lost(f"{head} instead of a hello{_hint(head, self.ours)}", head)
        magic, version = (int.from_bytes(head[i : i + 4], "little") for i in (0, 4))
        if magic != DS4T_MAGIC:
            more = ""
            if head[:4] == DS4D_MAGIC.to_bytes(4, "big"):
                more = ": the peer speaks DS4D: --role worker or coordinator"
            raise Deviation("DS4T-HELLO-02", "54 34 53 44 first", head.hex(" ") + more)
        self._read_hello(wire, head, version)
        wire.dialect = self.dialect

    def _read_hello(self, wire: ControlWire, head: bytes, version: int) -> None:
        named = self.settings.dialect
        names = [n for n in dialects_with_version(version) if n in RULES]
        if named in names:
            names = [named]
        if not names:
            raise self._lost(f"a hello of version {version}, which is not spoken")
        sizes = sorted({HELLO.fixed_size(n) for n in names})
        for size in sizes:
            wait = self.patience if size == sizes[0] else self.quiet
            more = wire.take(size - len(head), wait)
            if isinstance(more, Ended):
                if size == sizes[0]:
                    raise Deviation(
                        "DS4T-HELLO-15",
                        "a whole hello before ours",
                        f"{head!r}, {more}",
                    )
                break
            head += more
        self.hello_bytes = head
        self.dialect = next(n for n in names if HELLO.fixed_size(n) == len(head))
        spec = frame("DS4T.HELLO", dialect=self.dialect)
        reading = read_body(spec, memoryview(head), dialect=self.dialect)
        self.hello = dict(reading.values)
        self.transcript.add("control", "peer", "DS4T.HELLO", head, self.hello)

    def _lost(self, reason: str, how: Ended | None = None) -> PeerLost:
        return PeerLost(
            "timeout" if how is not None and how.how == "silence" else "closed",
            phase="connected, waiting for the hello",
            address=self.settings.peer,
            reason=reason,
            output=self.connections.output(),
        )

    @property
    def identity(self) -> Identity:
        """The words that both ranks have equal."""
        return Identity.of(self.hello)

    @property
    def split(self) -> bool:
        """Whether logits are vocabulary-split; ``options`` may say otherwise."""
        told = self.settings.options.get("split", "")
        return told != "no" if told else self.hello["model_id"] not in GLM_MODELS

    @property
    def own(self) -> TpSettings:
        """What we are: the other rank of this pair."""
        return TpSettings(
            self.ours,
            self.identity,
            self.dialect,
            vocabulary_split=self.split,
            ctx_size=256,
            transport="tcp",
        )

    def own_hello(self, **changes: int) -> bytes:
        """Return our hello: the peer's words, but for role, context and changes."""
        values = {**self.hello, "role": ROLE_CODES[self.ours], "rdma_ok": 0}
        values["ctx_size"] = 256 if self.ours == "tp-leader" else 0
        values["magic"] = DS4T_MAGIC
        words = {k: v for k, v in {**values, **changes}.items() if k in self.hello}
        return to_bytes(HELLO, words, dialect=self.dialect)

    def say_hello(self, data: bytes) -> None:
        """Send a hello."""
        self.control.send(data, "DS4T.HELLO")

    @property
    def control(self) -> ControlWire:
        """The control connection, paired or not."""
        assert self._wire_in_use is not None
        self._wire_in_use.log = self.transcript
        return self._wire_in_use

    @property
    def data(self) -> DataWire:
        """The data connection of the pair."""
        self.pair()
        assert self._data_in_use is not None
        self._data_in_use.log = self.transcript
        return self._data_in_use

    @property
    def paired(self) -> bool:
        """Whether both connections are there."""
        return self._data_in_use is not None

    def pair(self) -> ControlWire:
        """Say our hello and have the data connection, once.

        Raises
        ------
        Deviation
            The peer refuses its own words.
        """
        if self._data_in_use is None:
            self.say_hello(self.own_hello())
            self.accepted("DS4T-HELLO-05")
        return self.control

    def accepted(self, clause: str) -> None:
        """Take it that the hello that was sent is accepted.

        Raises
        ------
        Deviation
            No data connection comes about.
        """
        raise NotImplementedError

    def turned_down(self, clause: str) -> None:
        """Take it that the hello that was sent is refused.

        Raises
        ------
        Deviation
            The rank answers, stays or goes on.
        """
        raise NotImplementedError

    # for the engine

    def begin(self, seed: int) -> None:
        """Get ready for a case."""
        super().begin(seed)
        self.transcript = TpTranscript()

    def end(self) -> None:
        """Keep the pair: it lives as long as the peer."""

    def close(self) -> None:
        """End the run."""
        for wire in (self._wire_in_use, self._data_in_use):
            if wire is not None:
                wire.close()

    def passive_problems(self) -> list[Problem]:
        """Return nothing: frames are judged as they are read."""
        return []

    def describe(self) -> dict[str, Any]:
        """Return the peer's identity for a report."""
        return {"dialect": self.dialect, **self.identity.words()}

    # for the cases

    def needs(self, rule: str) -> None:
        """Leave the case where the dialect lacks something, see ``Rules``."""
        if not getattr(self.own.rules, rule):
            raise NotApplicable(f"{self.dialect} has no {rule.replace('_', ' ')}")

    def has_not(self, rule: str) -> None:
        """Leave the case where the dialect has something."""
        if getattr(self.own.rules, rule):
            raise NotApplicable(f"{self.dialect} has {rule.replace('_', ' ')}")

    def since_v9(self) -> None:
        """Leave the case where a hello has no mask."""
        if "gate_slot_mask0" not in self.hello:
            raise NotApplicable(f"the hello of {self.dialect} has no mask")

    def refused(self, clause: str, what: str = "", *, gates: bool = False) -> None:
        """Take it that the rank ends without a frame.

        Raises
        ------
        Deviation
            It sends one, or stays.
        """
        del gates
        self.spent = True
        self.control.closed(clause, what or "the rank to end")

    def said(self, clause: str, *words: object) -> None:
        """Judge the text of a refusal, where the peer's output can be read.

        Raises
        ------
        Deviation
            It printed the text of another check.
        """
        due = text_of(clause, *words)
        end = SYSTEM_CLOCK.now() + self.patience
        while due not in self.connections.output():
            if SYSTEM_CLOCK.now() > end or not self.connections.alive():
                break
            SYSTEM_CLOCK.sleep(0.01)
        found = self.connections.output()
        if due in found or not found.strip():
            return
        for other in _REFUSALS:
            head = text_of(other).split("%")[0].removesuffix(" (peer gguf=")
            if other != clause and head in found:
                raise Deviation(clause, repr(due), f"the text of {other}")
        self.concept(f"refused in other words than {due!r}: {found[-200:]!r}")

    @property
    def schedule(self) -> Schedule:
        """The gates of one token."""
        return Schedule.from_hello(self.hello)

    @property
    def gate_patience(self) -> float:
        """Seconds in which a silent gate has to fail."""
        return 2 * self.patience

    def next_seq(self, kind: str) -> int:
        """Return the number of the next gate of a kind, and count it."""
        if kind == "row":
            self.row_seq += 1
            return self.row_seq - 1
        self.batch_seq += 1
        return self.batch_seq - 1

    def partial(self, gate: PlannedGate, salt: int = 0) -> bytes:
        """Return our rows for a gate: the same for the same place and salt."""
        import numpy as np

        place = (self.settings.seed, gate.layer, gate.gate == "FFN", gate.rows, salt)
        rng = np.random.default_rng([int(word) for word in place])
        size = gate.rows * self.identity.n_embd
        return bytes(rng.uniform(-0.5, 0.5, size).astype(np.float32).tobytes())

    def third(self, gate: PlannedGate) -> int:
        """Return the third word of a gate's header."""
        if gate.kind == "bulk":
            return BULK_TAG
        return gate.rows if gate.kind == "batch" else int(gate.gate == "FFN")

    def judge_gate(self, gate: PlannedGate, seq: int, found: Gate | Ended) -> Gate:
        """Return a gate of the peer, which has to be this one.

        Raises
        ------
        Deviation
            Another one came, or none.
        """
        clauses = _CLAUSES[gate.kind]
        where = f"{gate.kind} gate {seq}, layer {gate.layer} {gate.gate}"
        if isinstance(found, Ended):
            raise Deviation("DS4T-GATE-20", f"the peer's {where}", str(found))
        magic = DS4T_MAGIC if gate.kind == "row" else DS4B_MAGIC
        due = (magic, gate.layer, self.third(gate), seq)
        seen = (found.magic, found.layer, found.third, found.seq)
        for clause, word, want, got in zip(clauses, _WORDS, due, seen, strict=True):
            if want != got:
                raise Deviation(clause, f"{word} {want:#x} in the {where}", f"{got:#x}")
        return found


def _hint(how: Ended, ours: str) -> str:
    """Say what a rank that is silent from the start may be waiting for.

    The tester has no model: its hello is the peer's, but for role and context.
    """
    if how.how != "silence":
        return ""
    return (
        f": the peer may be waiting for the hello of the {ours}, which we make from the"
        " peer's own: every rank writes its hello first, before it reads a byte"
        " (DS4T-HELLO-15); let the peer write its hello as soon as the connection is"
        " there"
    )
